"""Labels as a table: CSV for people and spreadsheets, Parquet for programs. The same columns in both."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from datetime import UTC, datetime
from typing import Any

from labelwise.errors import SourceError, extra
from labelwise.project.exchange.entries import Entries, Entry
from labelwise.project.project import Project

COLUMNS = (
    "id", "path", "label", "standing", "slice", "people", "votes", "seconds", "at", "round", "strategy", "score",
    "model", "note",
)  # fmt: skip


def csv_text(project: Project, found: Entries) -> str:
    """The entries as CSV, with no cell that a spreadsheet would run as a formula."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    columns = _columns(project, found)
    writer.writerow([escape_formula(name) for name in columns])
    for values in zip(*columns.values()):
        writer.writerow([escape_formula(_text_of(value)) for value in values])
    return buffer.getvalue()


def parquet_bytes(project: Project, found: Entries) -> bytes:
    """The entries as a Parquet file. Labels are numbers in a project of numbers."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "app") from None
    kinds = {
        "id": pa.int64(), "people": pa.int64(), "round": pa.int64(), "seconds": pa.float64(), "score": pa.float64(),
        "at": pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    columns: dict[str, list[Any]] = dict(_columns(project, found))
    if project.settings.task == "regress":
        kinds["label"] = pa.float64()
        columns["label"] = [_number(value) for value in columns["label"]]
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue())


def _columns(project: Project, found: Entries) -> dict[str, list[Any]]:
    """Every column by name: COLUMNS, then the text or fields of the row; a field with such a name gets `data_`."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for entry in found.rows:
        for name, value in _values(entry).items():
            columns[name].append(value)
    if project.settings.kind == "text":
        columns["text"] = [_text(project, entry.row) for entry in found.rows]
    if project.settings.kind == "table":
        fields = [dict(project.view(entry.row).fields or []) for entry in found.rows]
        for name in project.settings.columns:
            columns[f"data_{name}" if name in columns else name] = [one.get(name, "") for one in fields]
    return columns


def _values(entry: Entry) -> dict[str, Any]:
    score = entry.score if entry.score is not None and math.isfinite(entry.score) else None
    votes = {who: one.value if one.value is not None else one.kind for who, one in sorted(entry.ballots.items())}
    return {
        "id": entry.row,
        "path": entry.ref,
        "label": entry.value,
        "standing": entry.kind,
        "slice": entry.slice,
        "people": len(votes),
        "votes": json.dumps(votes, ensure_ascii=False) if votes else None,
        "seconds": entry.seconds,
        "at": None if entry.at is None else datetime.fromtimestamp(entry.at, UTC),
        "round": entry.round,
        "strategy": entry.strategy or None,
        "score": score,
        "model": entry.model or None,
        "note": entry.note or None,
    }


def _text(project: Project, row: int) -> str | None:
    try:
        return project.view(row).text
    except SourceError:
        return None


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


# --- formulas in CSV -------------------------------------------------------------------------------------------------

# A spreadsheet runs a cell that begins with =, +, -, @, a tab or a line end, so such a cell gets an apostrophe in
# front. A text that already has apostrophes before such a sign gets one more, and reading removes one, so that nothing
# is lost. Negative numbers are not formulas and stay as they are.
_RISKY = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also the full-width forms of the four signs
_NUMBER = re.compile(r"-(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")


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
