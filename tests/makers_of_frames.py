"""The same table as a frame of each library, for tests."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

LIBRARIES = ("pandas", "polars", "pyarrow")

COLUMNS: dict[str, list[Any]] = {
    "age": [31, None, 45, 28, 60, 39],
    "job": ["cook", "pilot", None, "cook", "nurse", "?"],
    "member": [True, False, None, True, False, True],
    "since": [datetime.date(2020, 1, day) if day else None for day in (1, 2, 0, 9, 5, 7)],
    "at": [datetime.datetime(2020, 1, day, 12) for day in (1, 2, 3, 9, 5, 7)],
    "city": ["a", "b", "a", "b", "b", "a"],
}


def frame_of(library: str, columns: dict[str, Any], categorical: tuple[str, ...] = ()) -> Any:
    """A frame of these columns; those in `categorical` are of the library's own type for categories."""
    if library == "pandas":
        frame = pd.DataFrame(columns)
        return frame.astype(dict.fromkeys(categorical, "category"))
    if library == "polars":
        return pl.DataFrame(columns).with_columns(pl.col(name).cast(pl.Categorical) for name in categorical)
    table = pa.table(columns)
    for name in categorical:
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    return table
