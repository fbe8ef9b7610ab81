"""Tables: CSV and TSV files, plain or gzipped, and Parquet files. One parser, and bad lines are named.

Every command and every pool reads tables by this module, so they take the same files and see the same rows.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from labelwise.errors import SourceError, extra
from labelwise.io.text import did_you_mean

MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))  # as written, in lower case
ENDINGS = ".csv, .tsv (either may be .gz) or .parquet"
_TEXT_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")

Values = list[str] | np.ndarray  # texts as they are written, or float64 with NaN where a number is missing


@dataclass(frozen=True)
class Table:
    """Columns of texts and numbers. Rows are numbered as in the file; a row that was left out leaves a gap.

    Attributes:
        ids: (n,) the number of each row in the file, from 0.
        columns: A list of texts, or a float64 array with NaN where a number is missing, by name.
        places: Where each row stands, such as "reviews.csv line 12".
        faults: The rows left out, and why.
        unreadable: Columns that hold neither texts nor numbers, and what they hold.
    """

    ids: np.ndarray
    columns: dict[str, Values]
    places: list[str]
    faults: tuple[str, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[str] | np.ndarray]) -> Table:
        """A table of columns in memory, all of one length."""
        found: dict[str, Values] = {
            name: np.asarray(values, np.float64) if isinstance(values, np.ndarray) else list(values)
            for name, values in columns.items()
        }
        rows = len(next(iter(found.values()), []))
        return cls(np.arange(rows), found, [f"row {row}" for row in range(rows)])

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, rows: np.ndarray, names: Sequence[str] | None = None) -> Table:
        """The rows at these positions, with the named columns alone."""
        columns = {name: _at(self.columns[name], rows) for name in names or self.columns}
        return Table(self.ids[rows], columns, [self.places[row] for row in rows])


class Line(NamedTuple):
    """A record of a CSV file: the number of its first line, its fields, and what is wrong with it."""

    number: int
    fields: list[str]
    fault: str | None


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.name.lower().endswith((*_TEXT_ENDINGS, *_PARQUET_ENDINGS))


def is_parquet(path: Path) -> bool:
    """Whether the name of a file is that of a Parquet file."""
    return path.name.lower().endswith(_PARQUET_ENDINGS)


def check_file(path: Path) -> None:
    """Raise where there is no such file, or its name is not that of a table."""
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file; a table ending in {ENDINGS} was expected.")
    if not is_table(path):
        raise SourceError(f"{path}: a table ends in {ENDINGS}; this name ends in {path.suffix!r}.")


def column_names(path: Path) -> list[str]:
    """The names of the columns of a table."""
    return list(open_parquet(path).schema_arrow.names) if is_parquet(path) else csv_lines(path)[0]


def separator_hint(path: Path, names: Sequence[str]) -> str:
    """What to do where the columns seem to be separated by another character; "" where they do not."""
    if is_parquet(path):
        return ""
    delimiter = _delimiter(path)
    others = (";", "|", "," if delimiter == "\t" else "\t")
    found = next((one for one in others if sum(name.count(one) for name in names) >= len(names)), None)
    wanted = "tabs" if delimiter == "\t" else "commas"
    hint = f" The columns seem to be separated by {found!r}; {wanted} were expected. Save it with {wanted}."
    return hint if found else ""


def check_columns(path: Path, names: Sequence[str], present: Sequence[str]) -> None:
    """Raise where one of the columns named is not in the table."""
    for name in names:
        if name not in present:
            hint = did_you_mean(name, present) or ";"
            raise SourceError(f"{path}: there is no column {name!r}{hint} its columns are {', '.join(present)}.")


def read_table(path: Path, names: Sequence[str] | None = None) -> Table:
    """Read a table.

    Args:
        path: A file ending in .csv, .tsv (either may be .gz), .parquet or .pq. CSV files are UTF-8, and their first
            line names the columns.
        names: The columns to read; all if None, where those that hold neither texts nor numbers are left out.

    Returns:
        The rows that can be read; `faults` names the others.

    Raises:
        SourceError: The file cannot be read, a column is missing, or no row is left.
    """
    table = _read_parquet(path, names) if is_parquet(path) else _read_csv(path, names)
    if not len(table):
        first = f" The first: {table.faults[0]}." if table.faults else ""
        raise SourceError(f"{path}: no row that can be used.{first}{separator_hint(path, column_names(path))}")
    return table


def csv_lines(path: Path) -> tuple[list[str], Iterator[Line]]:
    """The column names of a CSV or TSV file, and its records one by one; blank lines are left out."""
    records = _records(path)
    first = next(records, Line(1, [], None))
    if first.fault is not None:
        raise SourceError(f"{path}: line 1, the names of the columns, cannot be read: {first.fault}.")
    if not first.fields:
        raise SourceError(f"{path}: the file is empty; a first line that names the columns was expected.")
    for name, count in Counter(first.fields).items():
        if count > 1:
            raise SourceError(f"{path}: {count} columns are called {name!r}; give each its own name.")
    return first.fields, _with_width(records, len(first.fields))


def open_parquet(path: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "app") from None
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not a Parquet file that can be read ({error}).") from error


def read_columns(path: Path, file: Any, names: Sequence[str]) -> Any:
    """These columns of an open Parquet file, as a `pyarrow.Table`."""
    import pyarrow as pa

    try:
        return file.read(columns=list(names))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: the file is damaged ({error}).") from error


def arrow_numbers(column: Any) -> np.ndarray | None:
    """An Arrow column as float64 with NaN where it is empty; None where it does not hold numbers."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    return np.concatenate([np.empty(0), *map(_numbers_of, column.cast(pa.float64(), safe=False).chunks)])


def _numbers_of(part: Any) -> np.ndarray:
    """An Arrow array of float64, by its buffers: to_numpy() would import pandas, in a third of a second."""
    valid, values = part.buffers()
    found = np.frombuffer(values, np.float64, len(part), 8 * part.offset) if len(part) else np.empty(0)
    if valid is None:
        return found
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[part.offset : part.offset + len(part)]
    return np.where(bits, found, np.nan)


def number(value: str) -> float | None:
    """The finite number a text holds, or None. Python's own extras ("1_000", "nan", "inf") are not numbers here."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) and "_" not in value else None


def is_missing(text: str) -> bool:
    """Whether a text stands for no value.

    >>> is_missing(" n/a "), is_missing("0")
    (True, False)
    """
    return text.strip().lower() in MISSING


def numbers(values: Values) -> np.ndarray | None:
    """A column as float64 with NaN where it is empty; None where it holds something that is not a number.

    >>> numbers(["1", "?", "2.5"]), numbers(["1", "x"])
    (array([1. , nan, 2.5]), None)
    """
    if isinstance(values, np.ndarray):
        return values
    found = [math.nan if is_missing(value) else number(value.strip()) for value in values]
    return None if None in found else np.array(found, np.float64)


def texts(values: Values) -> list[str]:
    """A column as texts: whole numbers without a point, "" where a value is missing.

    >>> texts(np.array([1.0, np.nan, 2.5])), texts([" a ", "?"])
    (['1', '', '2.5'], ['a', ''])
    """
    if isinstance(values, np.ndarray):
        plain = (int(value) if float(value).is_integer() else value for value in values.tolist())
        return ["" if math.isnan(value) else str(value) for value in plain]
    return ["" if is_missing(value) else value.strip() for value in values]


def _at(values: Values, rows: np.ndarray) -> Values:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]


def _read_csv(path: Path, names: Sequence[str] | None) -> Table:
    header, lines = csv_lines(path)
    names = header if names is None else names
    check_columns(path, names, header)
    positions = [header.index(name) for name in names]
    columns: list[list[str]] = [[] for _ in names]
    ids, places, faults = [], [], []
    for row, line in enumerate(lines):
        if line.fault is not None:
            faults.append(f"{path.name} line {line.number}: {line.fault}")
            continue
        ids.append(row)
        places.append(f"{path.name} line {line.number}")
        for column, position in zip(columns, positions):
            column.append(line.fields[position])
    return Table(np.array(ids, np.int64), dict(zip(names, columns)), places, tuple(faults))


def _read_parquet(path: Path, names: Sequence[str] | None) -> Table:
    import pyarrow as pa

    file = open_parquet(path)
    present = list(file.schema_arrow.names)
    check_columns(path, names or (), present)
    table = read_columns(path, file, present if names is None else names)
    columns: dict[str, Values] = {}
    unreadable: dict[str, str] = {}
    for name in table.column_names:
        try:
            values = _arrow_values(table[name])
        except pa.ArrowException as error:  # a code of a dictionary that it does not have
            raise SourceError(f"{path}: column {name!r} is damaged ({error}).") from error
        if values is not None:
            columns[name] = values
        elif names is None:
            unreadable[name] = str(table[name].type)
        else:
            raise SourceError(f"{path}: column {name!r} holds {table[name].type}; texts or numbers were expected.")
    places = [f"{path.name} row {row}" for row in range(table.num_rows)]
    return Table(np.arange(table.num_rows), columns, places, (), unreadable)


def _arrow_values(column: Any) -> Values | None:
    """An Arrow column as texts or numbers; None where it holds neither."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    found = arrow_numbers(column)
    if found is not None:
        return found
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    try:
        return [value or "" for value in column.cast(pa.string()).to_pylist()]
    except pa.ArrowException:
        return None


def _records(path: Path) -> Iterator[Line]:
    """Every record of a file, the first line among them."""
    with _open(path) as stream:
        # strict: a quote that is never closed would otherwise swallow the rest of the file in silence.
        reader = csv.reader(stream, delimiter=_delimiter(path), strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Line(line, [], str(error))
                continue
            except (EOFError, OSError, zlib.error) as error:
                raise SourceError(f"{path} line {line}: the file is damaged ({error}).") from error
            if fields:
                yield Line(line, fields, _wrong_byte(fields))


def _with_width(records: Iterator[Line], width: int) -> Iterator[Line]:
    for line in records:
        found = len(line.fields)
        if line.fault is None and found != width:
            yield Line(line.number, line.fields, f"expected {width} fields, found {found}")
        else:
            yield line


def _wrong_byte(fields: list[str]) -> str | None:
    for one in fields:
        bad = None if one.isascii() else next((char for char in one if "\udc80" <= char <= "\udcff"), None)
        if bad is not None:
            return f"byte 0x{ord(bad) - 0xDC00:02x} is not UTF-8; save the table as UTF-8"
    return None


def _open(path: Path) -> IO[str]:
    # Bytes that are not UTF-8 come through as lone surrogates, so that their line can be named.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _delimiter(path: Path) -> str:
    return "\t" if path.name.lower().endswith((".tsv", ".tsv.gz")) else ","
