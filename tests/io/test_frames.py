"""Frames of pandas, polars and Arrow, read into one form."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from labelwise.errors import ArgumentError
from labelwise.io import frames
from makers_of_frames import COLUMNS, LIBRARIES, frame_of


@pytest.mark.parametrize("library", LIBRARIES)
def test_all_libraries_give_the_same_table(library: str) -> None:
    frame = frame_of(library, COLUMNS, ("city",))
    table = frames.read_frame(frame, list(COLUMNS))
    assert table.columns["job"] == ["cook", "pilot", "", "cook", "nurse", "?"]
    assert table.columns["member"] == ["true", "false", "", "true", "false", "true"]
    assert table.columns["city"] == ["a", "b", "a", "b", "b", "a"]
    np.testing.assert_equal(table.columns["age"], [31, np.nan, 45, 28, 60, 39])
    np.testing.assert_equal(table.columns["since"], [18262, 18263, np.nan, 18270, 18266, 18268])
    np.testing.assert_equal(table.columns["at"], np.array([18262, 18263, 18264, 18270, 18266, 18268]) + 0.5)
    assert frames.categorical_columns(frame) == {"city": ["a", "b"]}
    taken = frames.take_rows(frame, np.array([4, 0]))
    assert frames.library_of(taken) == library
    assert frames.read_frame(taken, ["age"]).columns["age"].tolist() == [60, 31]


def test_columns_of_every_other_kind() -> None:
    frame = pd.DataFrame(
        {
            "decimal": [decimal.Decimal("1.5"), None],
            "duration": [datetime.timedelta(days=1, hours=12), pd.NaT],
            "time": [datetime.time(6), None],
            "zone": pd.to_datetime(["2020-01-01", None]).tz_localize("UTC"),
            "nullable": pd.array([1, None], dtype="Int64"),
            "flag": pd.array([True, None], dtype="boolean"),
            "mixed": ["a", 1],
            "interval": pd.cut([1, 5], [0, 2, 9]),
            "list": [[1, 2], None],
            "bytes": [b"a", b"b"],
            "nothing": [None, None],
        }
    )
    table = frames.read_frame(frame, list(frame.columns))
    expected = {"decimal": 1.5, "duration": 1.5, "time": 0.25, "zone": 18262, "nullable": 1}
    for name, value in expected.items():
        np.testing.assert_equal(table.columns[name], [value, np.nan])
    assert table.columns["flag"] == ["true", ""]
    assert table.columns["mixed"] == ["a", "1"]
    assert table.columns["interval"] == ["(0, 2]", "(2, 9]"]
    assert table.columns["nothing"] == ["", ""]
    assert set(table.unreadable) == {"list", "bytes"}


class Stream:
    """Something that only has an Arrow C stream."""

    def __init__(self, table: pa.Table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_record_batches_and_streams_become_arrow_tables() -> None:
    table = pa.table({"a": [1, 2]})
    for value in (table, table.to_batches()[0], Stream(table)):
        assert frames.is_frame(value)
        assert frames.native_frame(value).equals(table)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (pl.DataFrame({"a": [1]}).lazy(), r"frame.collect\(\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns of the frame are called 'a'"),
    ],
)
def test_frames_that_cannot_be_read(frame: object, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        frames.native_frame(frame)
    assert frames.is_frame(frame)


def test_what_is_no_frame() -> None:
    for value in (np.eye(2), [1], "text", {"a": [1]}, pd.Series([1]), pl.Series([1]), pa.array([1]), None):
        assert not frames.is_frame(value), value


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_of_numbers_are_arrays(library: str) -> None:
    found = frames.frame_numbers(frame_of(library, {"a": [1, 2], "b": [0.5, None]}))
    np.testing.assert_equal(found, [[1, 0.5], [2, np.nan]])
    assert frames.frame_numbers(frame_of(library, {"a": [1, 2], "b": ["x", "y"]})) is None
