"""Columns of pandas, polars and Arrow as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from labelwise.errors import LabelError
from labelwise.io.frames import check_order, is_series, plain_values

TEXTS = ["b", "a", "b"]


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype="category"),
        pd.Series(TEXTS, dtype=object),
        pd.Categorical(TEXTS),
        pd.Index(TEXTS),
        pl.Series(TEXTS),
        pl.Series(TEXTS, dtype=pl.Categorical),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS]),
        pa.array(TEXTS).dictionary_encode(),
    ],
)
def test_texts(values: Any) -> None:
    assert list(plain_values(values)) == TEXTS


@pytest.mark.parametrize("make", [pd.Series, pl.Series, pa.array, np.array])
def test_numbers_and_booleans(make: Any) -> None:
    assert np.asarray(plain_values(make([3, 1]))).tolist() == [3, 1]
    assert np.asarray(plain_values(make([True, False]))).tolist() == [True, False]
    assert is_series(make([1])) == (make is not np.array)


def test_labels_in_another_order_than_the_rows_are_refused() -> None:
    labels = pd.Series([0, 1, 2], index=["a", "b", "c"])
    check_order(labels, ["a", "b", "c"])
    check_order(labels.to_numpy(), ["c", "b", "a"])
    check_order(labels, ["x", "y", "z"])  # an index that says nothing of these rows
    check_order(labels.reset_index(drop=True), np.array([2, 1, 0]))  # counts the labels
    with pytest.raises(LabelError, match=r"in another order than the rows. Pass labels.loc\[ids\]"):
        check_order(labels, np.array(["c", "b", "a"], object))
    table = pd.DataFrame({"id": [2, 0, 1], "label": [0, 1, 1]}, index=[1, 2, 0])
    check_order(table["label"], table["id"])  # two columns of one frame go together, whatever their index is
    with pytest.raises(LabelError, match="another order"):
        check_order(table["label"], table["id"].to_numpy())
