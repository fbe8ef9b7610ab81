"""Tables with columns of any kind: CSV, TSV and Parquet, read as texts by row and column."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from labelwise.errors import SourceError, extra
from labelwise.pool.sources.table import number

MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))  # as written, in lower case
_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")


@dataclass(frozen=True)
class Table:
    """Columns of texts and numbers; rows are numbered as in the file, those left out leave gaps.

    `columns` holds a list of texts, or a float64 array with NaN where a number is missing.
    """

    ids: np.ndarray  # (n,) which rows of the file these are
    columns: dict[str, list[str] | np.ndarray]
    places: list[str]  # "reviews.csv line 12"
    faults: tuple[str, ...]  # rows left out, and why

    def __len__(self) -> int:
        return len(self.ids)


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.name.lower().endswith(_ENDINGS)


def is_parquet(path: Path) -> bool:
    """Whether the name of a file is that of a Parquet file."""
    return path.name.lower().endswith((".parquet", ".pq"))


def column_names(path: Path) -> list[str]:
    """The names of the columns of a table."""
    if is_parquet(path):
        return list(_parquet(path).schema_arrow.names)
    with _open(path) as stream:
        try:
            header = next(csv.reader(stream, delimiter=_delimiter(path)), [])
        except (csv.Error, EOFError, OSError, zlib.error) as error:
            raise SourceError(f"{path}: the first line cannot be read ({error}).") from error
    if not header:
        raise SourceError(f"{path}: the file is empty; a first line that names the columns was expected.")
    if any("\udc80" <= sign <= "\udcff" for sign in "".join(header)):
        raise SourceError(f"{path}: the names of the columns hold bytes that are not UTF-8; save the table as UTF-8.")
    twice = next((name for name, count in Counter(header).items() if count > 1), None)
    if twice is not None:
        raise SourceError(f"{path}: more than one column is called {twice!r}; give each its own name.")
    return header


def check_separator(path: Path, names: list[str]) -> None:
    """Raise where the one column of a table looks like several with another sign between them."""
    other = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), None)
    if other is not None and not is_parquet(path):
        wanted = "tabs" if _delimiter(path) == "\t" else "commas"
        raise SourceError(
            f"{path}: the columns seem to be separated by {other!r}; {wanted} were expected. Save it with {wanted}."
        )


def read_columns(path: Path, names: Sequence[str]) -> Table:
    """The named columns of a table. A line that cannot be read is left out and named in `faults`."""
    there = column_names(path)
    for name in names:
        if name not in there:
            raise SourceError(f"{path}: there is no column {name!r}; its columns are {', '.join(there)}.")
    table = _from_parquet(path, names) if is_parquet(path) else _from_csv(path, there, names)
    if not len(table):
        first = f" The first: {table.faults[0]}." if table.faults else ""
        raise SourceError(f"{path}: no row that can be used.{first}")
    return table


def numeric(values: list[str] | np.ndarray) -> np.ndarray | None:
    """A column as float64 with NaN where it is empty; None where it holds something that is not a number."""
    if isinstance(values, np.ndarray):
        return values
    found = [np.nan if value.strip().lower() in MISSING else number(value.strip()) for value in values]
    return None if any(value is None for value in found) else np.array(found, np.float64)


def _from_csv(path: Path, header: list[str], names: Sequence[str]) -> Table:
    places = [header.index(name) for name in names]
    found: list[list[str]] = [[] for _ in names]
    ids, where, faults, row = [], [], [], -1
    with _open(path) as stream:
        reader = csv.reader(stream, delimiter=_delimiter(path), strict=True)
        next(reader)
        while True:
            line = reader.line_num + 1
            fault, fields = None, []
            try:
                fields = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                fault = str(error)
            except (EOFError, OSError, zlib.error) as error:
                raise SourceError(f"{path} line {line}: the file is damaged ({error}).") from error
            if not fields and fault is None:
                continue  # a blank line is no row
            row += 1
            fault = fault or _fault(fields, len(header))
            if fault is not None:
                faults.append(f"{path.name} line {line}: {fault}")
                continue
            ids.append(row)
            where.append(f"{path.name} line {line}")
            for column, place in zip(found, places):
                column.append(fields[place])
    return Table(np.array(ids, np.int64), dict(zip(names, found)), where, tuple(faults))


def _fault(fields: list[str], width: int) -> str | None:
    if len(fields) != width:
        return f"{len(fields)} {'field' if len(fields) == 1 else 'fields'}, {width} were expected"
    if any("\udc80" <= sign <= "\udcff" for field in fields if not field.isascii() for sign in field):
        return "it holds bytes that are not UTF-8; save the table as UTF-8"
    return None


def _from_parquet(path: Path, names: Sequence[str]) -> Table:
    import pyarrow as pa

    try:
        table = _parquet(path).read(columns=list(names))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: the file is damaged ({error}).") from error
    columns = {name: _values(path, name, table[name]) for name in names}
    places = [f"{path.name} row {row}" for row in range(table.num_rows)]
    return Table(np.arange(table.num_rows), columns, places, ())


def _values(path: Path, name: str, column: Any) -> list[str] | np.ndarray:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    column = column.cast(kind)
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.string()), pa.string()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise SourceError(f"{path}: column {name!r} holds {kind}; texts or numbers were expected.")
    return [value or "" for value in column.cast(pa.string()).to_pylist()]


def _parquet(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "app") from None
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not a Parquet file that can be read ({error}).") from error


def _open(path: Path) -> IO[str]:
    # Bytes that are not UTF-8 come through as lone surrogates, so that their line can be named.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in path.name.lower()[-7:] else ","
