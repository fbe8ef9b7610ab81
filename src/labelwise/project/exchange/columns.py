"""Columns as CSV and Parquet, and cells that no spreadsheet runs as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from labelwise.errors import extra

# A spreadsheet runs a cell that begins with =, +, -, @, a tab or a line end, so such a cell gets an apostrophe in
# front. A text that already has apostrophes before such a sign gets one more, and reading removes one, so that nothing
# is lost. Negative numbers are not formulas and stay as they are.
_RISKY = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also the full-width forms of the four signs
_NUMBER = re.compile(r"-(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")


def csv_of(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV, with no cell that a spreadsheet would run as a formula."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([escape_formula(name) for name in columns])
    for values in zip(*columns.values()):
        writer.writerow([escape_formula(_text_of(value)) for value in values])
    return buffer.getvalue()


def parquet_of(columns: Mapping[str, Sequence[Any]], numbers: Collection[str] = ()) -> bytes:
    """Columns as a Parquet file. Those named in `numbers`, and those that always are, are numbers; others are text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "app") from None
    kinds = {
        "id": pa.int64(), "people": pa.int64(), "round": pa.int64(), "seconds": pa.float64(), "score": pa.float64(),
        "at": pa.timestamp("us", tz="UTC"), "probability": pa.float64(), "low": pa.float64(), "high": pa.float64(),
        **{name: pa.float64() for name in numbers},
    }  # fmt: skip
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue())


def escape_formula(cell: str) -> str:
    """The cell with an apostrophe in front if a spreadsheet would run it.

    >>> [escape_formula(cell) for cell in ("=1+1", "-3.5", "-cmd", "cat", "'=x")]
    ["'=1+1", '-3.5', "'-cmd", 'cat', "''=x"]
    """
    return f"'{cell}" if _RISKY.match(cell) and not _NUMBER.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """The inverse of `escape_formula`.

    >>> [unescape_formula(escape_formula(cell)) for cell in ("=1+1", "-3.5", "'=x", "'tis")]
    ['=1+1', '-3.5', "'=x", "'tis"]
    """
    return cell[1:] if cell.startswith("'") and _RISKY.match(cell) else cell


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return f"{value:.10g}" if isinstance(value, float) else str(value)
