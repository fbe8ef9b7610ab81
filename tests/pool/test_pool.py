"""The pool: rows by global id, from arrays, tensors and texts."""

import time
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from PIL import Image

from labelwise.errors import ArgumentError, LabelError, NeedError, RowError
from labelwise.pool import Pool
from labelwise.pool.sources.arrays import ArraySource


def test_default_ids_count_from_zero():
    pool = Pool.of(np.arange(6.0).reshape(3, 2))
    assert pool.ids.tolist() == [0, 1, 2]
    assert pool.ids.dtype == torch.int64
    assert len(pool) == 3
    assert pool.labels is None
    assert pool.classes is None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_inputs_follow_ids_in_any_order_subset_and_block(data):
    ids = data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20, unique=True))
    wanted = data.draw(st.lists(st.sampled_from(ids), max_size=30))
    chosen = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    size = data.draw(st.integers(1, 7))
    value = {id: float(place) for place, id in enumerate(ids)}
    pool = Pool.of(np.arange(len(ids), dtype=np.float64)[:, None], ids=ids)
    assert pool.inputs(torch.tensor(wanted, dtype=torch.int64))[:, 0].tolist() == [value[id] for id in wanted]
    part = pool.subset(chosen).subset(chosen[::-1])
    assert part.ids.tolist() == chosen[::-1]
    read = [(id, x) for some, rows in part.batches(size=size) for id, x in zip(some.tolist(), rows[:, 0].tolist())]
    assert read == [(id, value[id]) for id in chosen[::-1]]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)))
def test_fingerprint_does_not_depend_on_row_order(order):
    x = np.random.default_rng(0).normal(size=(12, 3))
    assert Pool.of(x[order], ids=list(order)).fingerprint() == Pool.of(x).fingerprint()


def test_fingerprint_sees_content_ids_kind_and_features():
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = x.copy()
    y[0, 0] += 1e-9
    pools = [
        Pool.of(x),
        Pool.of(y),
        Pool.of(x[:39]),
        Pool.of(x, ids=np.arange(1, 41)),
        Pool.of(x.astype(np.float32)),
        Pool.of([str(row) for row in x]),
        Pool.of(x, features=x[:, :1]),
        Pool.of(x, features=x[:, 1:2]),
    ]
    prints = [pool.fingerprint() for pool in pools]
    assert len(set(prints)) == len(prints)
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in prints)
    assert Pool.of(torch.from_numpy(x)).fingerprint() == prints[0]
    # The same in every process and with every version of the libraries.
    assert Pool.of(np.arange(12.0).reshape(4, 3)).fingerprint() == "68130974cc59a31a"


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, lambda x: [str(row) for row in x.tolist()]])
def test_fingerprint_sees_every_row(make):
    x = np.random.default_rng(0).normal(size=(1000, 3))
    first = Pool.of(make(x)).fingerprint()
    swapped = x.copy()
    swapped[[501, 502]] = x[[502, 501]]
    assert Pool.of(make(swapped)).fingerprint() != first
    for row in (1, 333, 998):
        changed = x.copy()
        changed[row, 1] *= -1
        assert Pool.of(make(changed)).fingerprint() != first
    order = np.random.default_rng(1).permutation(1000)
    content = make(x[order])
    assert Pool.of(content, ids=order).fingerprint() == first
    assert Pool.of(content, ids=order).subset(np.arange(1000)).fingerprint() == first


def test_fingerprint_sees_every_row_of_features():
    x = np.random.default_rng(0).normal(size=(1000, 3))
    texts, changed = ["same"] * 1000, x.copy()
    changed[501, 2] += 1e-12
    first = Pool.of(texts, features=x).fingerprint()
    assert Pool.of(texts, features=changed).fingerprint() != first
    assert len(Pool.of(texts, features=torch.ones(1000, 2, dtype=torch.bfloat16)).fingerprint()) == 16


def test_fingerprint_of_a_large_mapped_file_reads_some_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10_000, 2)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    read = []
    for array in (mapped, mapped[:], np.array(mapped)):
        pool = Pool(ArraySource(array, large=1000))
        sample = pool._source.sample
        pool._source.sample = lambda at, sample=sample: (read.append(at), sample(at))[1]
        pool.fingerprint()
        positions = np.concatenate(read)
        read.clear()
        assert len(positions) == (10_000 if array.base is None else 4096)
        assert (positions[0], positions[-1]) == (0, 9999)


def test_fingerprint_takes_little_time():
    pool = Pool.of(np.ones((50_000, 512), dtype=np.float32))
    start = time.process_time()
    pool.fingerprint()
    assert time.process_time() - start < 3  # 0.20 to 0.24 s when measured


def test_mapped_array_stays_mapped_and_read_only_gives_no_warning(tmp_path):
    whole = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    np.save(tmp_path / "x.npy", whole)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    pool = Pool.of(mapped, features=mapped)
    assert pool._source.array is mapped
    rows = pool.inputs(torch.tensor([999, 0]))
    rows += 1  # the batch is a copy that may be written to
    assert rows[:, 0].tolist() == [3997.0, 1.0]
    assert pool.features.data_ptr() == mapped.ctypes.data
    assert mapped[999, 0] == 3996
    frozen = whole.copy()
    frozen.flags.writeable = False
    assert Pool.of(frozen).raw([1]).tolist() == [[4, 5, 6, 7]]


def test_foreign_byte_order_is_read():
    pool = Pool.of(np.array([[1.5], [2.5]], dtype=">f4"))
    assert pool.inputs([1]).tolist() == [[2.5]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.uint8, torch.bfloat16, torch.bool])
def test_raw_is_float_and_keeps_double(dtype):
    pool = Pool.of(torch.ones(2, 3, 4).to(dtype))
    assert pool.inputs([0]).dtype == dtype
    raw = pool.raw([1, 0])
    assert raw.shape == (2, 12)
    assert raw.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bool((raw == 1).all())
    assert len(pool.fingerprint()) == 16


class DictRows:
    def __len__(self):
        return 3

    def __getitem__(self, row):
        return {"a": torch.zeros(2)}


def test_raw_prefers_given_features_and_counts_words_of_texts():
    texts = ["one", "two", "three"]
    assert Pool.of(texts).raw([0, 1]).shape == (2, 3)
    with pytest.raises(NeedError, match="features="):
        Pool.of(DictRows()).raw([0])
    features = torch.eye(3, dtype=torch.float64)
    pool = Pool.of(texts, features=features, ids=[5, 3, 1])
    assert pool.raw([1, 5]).tolist() == features[[2, 0]].tolist()
    assert pool.subset([3]).raw([3]).tolist() == [[0, 1, 0]]


def test_one_dimensional_and_no_rows():
    pool = Pool.of(np.arange(3.0))
    assert pool.raw([2]).tolist() == [[2.0]]
    assert Pool.of(np.zeros((3, 2, 2))).raw([]).shape == (0, 4)
    assert Pool.of(["a"]).inputs([]) == []
    assert list(pool.batches(ids=[])) == []


def test_texts_and_names():
    pool = Pool.of(["a\n b", "x" * 200], ids=[4, 2])
    assert pool.inputs(torch.tensor([2, 4])) == ["x" * 200, "a\n b"]
    assert pool.name(4) == "a b"
    assert len(pool.name(2)) == 80
    assert Pool.of(np.array(["a", "b"])).inputs([1]) == ["b"]
    assert Pool.of(np.zeros((2, 1)), ids=[8, 17]).name(17) == "row 17"


def test_tensor_needing_gradient_is_read_without():
    assert not Pool.of(torch.ones(2, 2, requires_grad=True)).inputs([0]).requires_grad


def test_labels_numbers_and_names():
    x = np.zeros((3, 1))
    assert Pool.of(x, labels=[2, 0, 1]).labels.tolist() == [2, 0, 1]
    assert Pool.of(x, labels=torch.tensor([0.5, 1, 2])).labels.dtype == torch.float32
    assert Pool.of(x, labels=[0.5, 1, 2]).labels.dtype == torch.float64
    named = Pool.of(x, labels=["b", "a", "b"])
    assert (named.labels.tolist(), named.classes) == ([1, 0, 1], ("a", "b"))
    given_order = Pool.of(x, labels=["b", "a", "b"], classes=["b", "a", "c"])
    assert (given_order.labels.tolist(), given_order.classes) == ([0, 1, 0], ("b", "a", "c"))
    assert Pool.of(x, labels=["10", "2", "-1"]).classes == ("-1", "2", "10")
    assert named.subset([2, 1]).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "text"),
    [
        ([0, 1, 2], ["a", "b"], r"row id 9: label 2 is outside 0\.\.1"),
        ([0, -1, 1], ["a", "b"], "row id 8: label -1 is outside"),
        (["a", "z", "b"], ["a", "b"], "row id 8: label 'z' is none of the classes"),
        ([0.0, float("nan"), 1.0], None, "row id 8: its label is nan"),
        ([0.5, 1.0, 1.0], ["a", "b"], "whole numbers"),
        (["a", 1, "b"], None, "mix numbers and names"),
        ([None, "a", "b"], None, "row id 7: a class name was expected"),
        ([0, 1, 1], ["a", "a"], "'a' occurs more than once"),
        ([0, 1, 1], "ab", "sequence of class names"),
    ],
)
def test_bad_labels(labels, classes, text):
    with pytest.raises(LabelError, match=text):
        Pool.of(np.zeros((3, 1)), ids=[7, 8, 9], labels=labels, classes=classes)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Pool.of(np.zeros((0, 4))), "empty"),
        (lambda: Pool.of([]), "empty"),
        (lambda: Pool.of(torch.zeros(0)), "empty"),
        (lambda: Pool.of(np.zeros((3, 1)), ids=[4, 9, 4]), "id 4 occurs 2 times"),
        (lambda: Pool.of(np.zeros((3, 1)), ids=[4, 9]), "one for each of the 3 rows was expected, 2"),
        (lambda: Pool.of(np.zeros((3, 1)), ids=[0.0, 1.0, 2.0]), "whole numbers"),
        (lambda: Pool.of(np.zeros((2, 1)), ids=["a", None]), r"the id of a row is missing \(None\)"),
        (
            lambda: Pool.of(np.zeros((2, 1)), ids=[[1], [2, 3]]),
            r"\[1\] \(list\) cannot be the id of a row: .* hashable",
        ),
        (lambda: Pool.of(np.zeros((2, 1)), ids=["a", object()]), "it has no value that is the same in every process"),
        (lambda: Pool.of(np.zeros((2, 1)), ids=["a", "a"]), "ids are unique; id 'a' occurs 2 times"),
        (lambda: Pool.of(np.zeros((2, 1)), ids=[True, False]), "not bool"),
        (lambda: Pool.of(np.zeros((3, 1)), labels=[1, 2]), "one for each of the 3 rows"),
        (lambda: Pool.of(np.zeros((3, 1)), features=np.zeros((2, 4))), r"shape \(3, D\) was expected, \(2, 4\)"),
        (lambda: Pool.of(np.zeros((3, 1))).inputs([0, 7, 3]), "2 ids are not in the pool of 3 rows: 3, 7"),
        (lambda: Pool.of(np.zeros((2, 1)), ids=[5, 9]).inputs([0, 6, 10]), "3 ids are not in .*: 0, 6, 10"),
        (lambda: Pool.of(np.zeros((3, 1))).inputs([-1]), "not in the pool.*: -1"),
        (lambda: Pool.of(np.zeros((3, 1))).inputs(torch.tensor([True, False, True])), "not bool"),
        (lambda: Pool.of(np.zeros((3, 1))).name(3), "not in the pool"),
        (lambda: Pool.of(np.zeros((3, 1))).subset([1, 1]), "id 1 occurs 2 times"),
        (lambda: Pool.of(np.zeros((3, 1))).subset([]), "empty"),
    ],
)
def test_rows_that_do_not_fit(make, text):
    with pytest.raises(RowError, match=text):
        make()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (np.array(3.0), "no axis"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
        (np.ones(2, dtype=np.longdouble), "astype"),
        (np.ma.masked_equal([[1.0], [2.0]], 2.0), "masked entries"),
        ([1, 2], "entry 0 is 1"),
        (["a", None], "entry 1 is None"),
        ({"a": 1}, "not of dict"),
        ([[1, 2], [3]], "as many in each row"),
        ([np.zeros(2), np.zeros(3)], "as many in each row"),
        ([torch.zeros(2), torch.zeros(3)], "as many in each row"),
        ([["a", "b"], ["c", "d"]], "holds numbers"),
        ([Path("a.png"), Path("b.png")], r"the path 'a\.png'.*Pool\.images"),
        ([Image.new("RGB", (2, 2))], r"entry 0 is an image.*Pool\.images.*\(N, 3, H, W\)"),
        ("folder", r"Pool\.images.*a list, \[text\]"),
        (7, "not of int"),
        (torch.eye(2).to_sparse(), "to_dense"),
    ],
)
def test_what_is_not_a_pool(source, text):
    with pytest.raises(ArgumentError, match=text):
        Pool.of(source)


def test_a_list_of_rows_is_an_array():
    rows = np.arange(6).reshape(3, 2)
    for made in (rows.tolist(), [tuple(row) for row in rows.tolist()], list(rows), list(torch.from_numpy(rows))):
        assert torch.equal(Pool.of(made).inputs([2, 0]), torch.from_numpy(rows[[2, 0]]))
        assert Pool.of(made).fingerprint() == Pool.of(rows).fingerprint()


def test_a_list_of_image_files_is_not_taken_for_texts(tmp_path):
    paths = [str(tmp_path / name) for name in ("0.png", "1.PNG")]
    for path in paths:
        Image.new("RGB", (4, 4)).save(path)
    with pytest.raises(ArgumentError, match=r"entry 0 is the path .*Pool\.images\(paths\)"):
        Pool.of(paths)
    assert Pool.of(["a note on 0.png", "no.png"]).inputs([0]) == ["a note on 0.png"]


def test_new_rows_of_a_pool_of_numbers_may_come_in_a_frame_of_numbers():
    pool = Pool.of(np.eye(3))
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 3.0], "c": [0, 1]})
    assert pool.like(frame).inputs([0, 1]).tolist() == frame.to_numpy().tolist()
    with pytest.raises(ArgumentError, match="the rows of the pool are numbers"):
        pool.like(frame.assign(a=["x", "y"]))


def test_arguments_that_cannot_be_used():
    pool = Pool.of(np.zeros((3, 1)))
    with pytest.raises(ArgumentError, match="at least 1, not 0"):
        list(pool.batches(size=0))
    with pytest.raises(ArgumentError, match='"dataset" for a Dataset'):
        Pool.of(np.zeros((3, 1)), labels="dataset")
