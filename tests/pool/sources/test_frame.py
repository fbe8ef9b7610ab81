"""Pools of frames: features, the user's own rows, ids, labels."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from labelwise.errors import ArgumentError, LabelError, RowError, SourceError
from labelwise.io.encode_table import block_scale, fit_table
from labelwise.io.frames import library_of, read_frame
from labelwise.pool import Pool
from makers_of_frames import COLUMNS, LIBRARIES, frame_of


@pytest.mark.parametrize("library", LIBRARIES)
def test_features_are_those_of_the_shared_encoder(library: str) -> None:
    frame = frame_of(library, COLUMNS, ("city",))
    pool = Pool.of(frame)
    table = read_frame(frame, list(COLUMNS))
    encoder = fit_table(table)
    x_ND = encoder.encode(table)
    mean_D, scale_D = block_scale(x_ND, np.arange(6), encoder.blocks)
    np.testing.assert_allclose(pool.inputs([4, 1]), ((x_ND - mean_D) / scale_D)[[4, 1]], rtol=1e-6)
    assert pool.raw([2]).shape == (1, encoder.width)
    assert pool.fingerprint() == Pool.of(frame_of("polars", COLUMNS, ("city",))).fingerprint()  # whatever the library
    assert pool.library == library
    assert repr(pool) == "Pool(6 rows, frame with 6 columns)"


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_frames_own_rows(library: str) -> None:
    pool = Pool.frame(frame_of(library, COLUMNS), columns=["job", "age"])
    rows = pool.inputs([3, 0], frame=True)
    assert library_of(rows) == library
    assert read_frame(rows, ["age"]).columns["age"].tolist() == [28, 31]
    assert pool.columns == ("job", "age")
    assert pool.name(0) == "job cook, age 31"


def test_what_became_of_each_column() -> None:
    frame = pd.DataFrame(
        {
            "number": np.arange(200) ** 2 % 37,
            "row": np.arange(200),
            "same": "x",
            "name": [f"n{number}" for number in range(200)],
            "text": [f"the {number} green birds of the wood sing {number % 7} songs" for number in range(200)],
            "size": pd.Categorical([str(number % 3) for number in range(200)]),
            "list": [[1]] * 200,
        }
    )
    found = Pool.of(frame).encoding
    assert found is not None
    assert found["number"].startswith("numbers 0 to 36: ")
    assert found["row"] == "left out: it only counts the rows"
    assert found["same"] == "the same in every row: no feature"
    assert found["name"] == "left out: its 200 different texts look like names or free text"
    assert found["text"].startswith("words of texts: ")
    assert found["size"] == "3 categories: 3 features"  # of texts that are numbers
    assert found["list"] == "left out: it holds Object"
    assert Pool.of(np.eye(2)).encoding is None


def test_new_rows_are_encoded_as_the_pool_is() -> None:
    pool = Pool.of(pd.DataFrame({"age": [0.0, 5, 10], "job": ["a", "b", "a"]}))
    new = pool.like(pl.DataFrame({"job": ["b", "new"], "other": [1, 2], "age": [5.0, 99.0]}))
    x_ND = new.inputs([0, 1])
    assert torch.equal(x_ND[0], pool.inputs([1])[0])
    assert x_ND[1, 0] == pool.inputs([2])[0, 0]  # beyond the range that was learnt
    assert len(pool.like(pd.DataFrame({"age": [1, 1], "job": "a"}, index=[7, 7]))) == 2  # new rows need no ids
    with pytest.raises(ArgumentError, match="with columns age, job; the frame lacks 'job'"):
        pool.like(pd.DataFrame({"age": [1]}))
    with pytest.raises(ArgumentError, match="not of the kind the pool has: a column of numbers was expected"):
        pool.like(pd.DataFrame({"age": ["old"], "job": ["a"]})).inputs([0])


def test_the_encoder_learns_from_the_rows_it_is_told_to() -> None:
    frame = pd.DataFrame({"age": [0.0, 5, 10, 1000], "job": ["a", "b", "a", "rare"]})
    part = Pool.of(frame).encoded_by([0, 1, 2])
    assert torch.equal(part.inputs([0, 1, 2]), Pool.of(frame.iloc[:3]).inputs([0, 1, 2]))
    assert part.encoding == Pool.of(frame.iloc[:3]).encoding


@pytest.mark.parametrize("library", LIBRARIES)
def test_label_and_id_columns(library: str) -> None:
    columns = {"key": ["x", "y", "z"], "kind": ["b", "a", "b"], "size": [1.0, 2.0, 4.0]}
    pool = Pool.frame(frame_of(library, columns), label="kind", id="key")
    assert pool.classes == ("a", "b")
    assert pool.labels is not None
    assert pool.labels.tolist() == [1, 0, 1]
    assert pool.columns == ("size",)
    assert pool.keys_of(pool.ids).tolist() == ["x", "y", "z"]
    ordered = frame_of(library, columns, ("kind",))
    assert Pool.frame(ordered, label="kind", id="key", columns=["size"]).classes == (
        ("a", "b") if library == "pandas" else ("b", "a")  # pandas sorts categories, the others take them as they come
    )


def test_the_index_of_a_pandas_frame_names_its_rows() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 5.0]}, index=["x", "y", "z"])
    assert Pool.of(frame).keys_of(Pool.of(frame).ids).tolist() == ["x", "y", "z"]
    numbers = frame.set_axis([7, 5, 9])
    assert Pool.of(numbers).ids.tolist() == [7, 5, 9]
    assert Pool.of(numbers.reset_index(drop=True).iloc[1:]).ids.tolist() == [1, 2]
    levels = frame.set_axis(pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]))
    assert Pool.of(levels).keys_of(Pool.of(levels).ids).tolist() == [("a", 1), ("a", 2), ("b", 1)]
    days = frame.set_axis(pd.date_range("2026-01-01", periods=3))
    assert Pool.of(days).keys_of(Pool.of(days).ids[:1])[0] == pd.Timestamp("2026-01-01")
    with pytest.raises(RowError, match="ids are unique; id 7 occurs 2 times"):
        Pool.of(frame.set_axis([7, 7, 9]))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_of_texts(library: str) -> None:
    frame = frame_of(library, {"text": ["one", "two"], "label": [1, 0]})
    pool = Pool.frame(frame, text="text", label="label")
    assert pool.inputs([1]) == ["two"]
    assert pool.library == library
    assert pool.like(frame).inputs([0]) == ["one"]
    with pytest.raises(ArgumentError, match=r"a column of texts was expected; row 1 holds (None|nan)"):
        Pool.frame(frame_of(library, {"text": ["one", None]}), text="text")


def test_columns_with_numbers_for_names() -> None:
    """As pandas names those of an array."""
    numbers = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 3)))
    named = numbers.set_axis(["0", "1", "2"], axis=1)
    pool = Pool.of(numbers)
    assert pool.columns == ("0", "1", "2")
    assert pool.fingerprint() == Pool.of(named).fingerprint()
    assert torch.equal(pool.like(numbers).inputs([4]), pool.inputs([4]))
    assert torch.equal(pool.like(named).inputs([4]), pool.inputs([4]))
    assert Pool.frame(numbers, columns=[2, 0], label=1).columns == ("2", "0")
    assert list(numbers.columns) == [0, 1, 2]
    with pytest.raises(ArgumentError, match="two columns of the frame are called '0'"):
        Pool.of(numbers.set_axis([0, "0", 1], axis=1))


@pytest.mark.parametrize("make", [pd.Series, pl.Series, pa.array, lambda values: pa.chunked_array([values])])
def test_a_series_is_a_pool(make: Any) -> None:
    assert Pool.of(make(["one", "two"])).inputs([1]) == ["two"]
    assert Pool.of(make([1.0, 2.0])).raw([1]).tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda f: Pool.frame(f, columns=["age", "jop"]),
            ArgumentError,
            "no column 'jop'.*columns are age, job, member",
        ),
        (lambda f: Pool.frame(f, columns="age"), ArgumentError, r"write columns=\['age'\]"),
        (lambda f: Pool.frame(f, text="job", columns=["age"]), ArgumentError, "one of text and columns"),
        (lambda f: Pool.frame(f, label="job", labels=[1] * 6), ArgumentError, "not both"),
        (lambda f: Pool.frame(f, label="job"), LabelError, "row id 2: a class name was expected as its label, None"),
        (lambda f: Pool.frame(f, id="job"), RowError, "the id of a row is missing"),
        (lambda f: Pool.frame(f, id="city"), RowError, "ids are unique; id 'a' occurs 3 times"),
        (lambda f: Pool.of(f[["city"]].iloc[[0, 2]]).inputs([0]), SourceError, "hold the same in every row"),
        (lambda f: Pool.of(f, labels=pd.Series(range(6), index=range(5, -1, -1))), LabelError, "another order"),
        (lambda f: Pool.of(f.iloc[:0]), RowError, "empty"),
        (lambda f: Pool.of(f).like(f.iloc[0]), ArgumentError, r"found Series; .* frame.iloc\[\[0\]\]"),
        (lambda f: Pool.frame(f, label="job"), LabelError, "only some labels are known, leave the column out and tell"),
        (lambda f: Pool.frame(f, label="age"), LabelError, "only some labels are known, leave the column out and tell"),
        (lambda f: Pool.of(f, ids=np.arange(6) / 2), RowError, r"texts, index\.astype\(str\), where some have"),
    ],
)
def test_frames_that_make_no_pool(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(frame_of("pandas", COLUMNS))


def test_parts_for_other_processes_have_the_encoder_and_not_the_other_rows() -> None:
    frame = pd.DataFrame({"age": np.arange(5000) % 91, "job": ["a", "b"] * 2500})
    pool = Pool.of(frame)
    part = pickle.loads(pickle.dumps(pool.to_read([7, 4], features=False)))
    assert torch.equal(part.inputs([7, 4]), pool.inputs([7, 4]))
    assert part.inputs([4], frame=True)["age"].tolist() == [4]
    assert len(pickle.dumps(pool.to_read([7, 4], features=False))) < 8000
