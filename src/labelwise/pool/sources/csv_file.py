"""One CSV file, plain or gzipped, read line by line: a bad line is named by its number and what stands there."""

from __future__ import annotations

import csv
import gzip
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from labelwise.errors import SourceError
from labelwise.pool.source import Faults
from labelwise.pool.sources.table import Part, Wanted, number


def read_csv(path: Path, wanted: Wanted, faults: Faults) -> Part:
    """The rows of a CSV file whose first line names its columns."""
    lines = _lines(path)
    _, header, fault = next(lines, (1, [], None))
    if fault is not None:
        raise SourceError(f"{path}: line 1, the names of the columns, cannot be read: {fault}.")
    if not header:
        raise SourceError(f"{path}: the file is empty; a first line that names the columns was expected.")
    _check_header(path, header, wanted)
    reader = _Fields(path, header, wanted)
    rows, kept, places = 0, [], []
    for line, fields, fault in lines:
        fault = fault or reader.take(fields)
        if fault is None:
            kept.append(rows)
            places.append(f"{path.name} line {line}")
        else:
            faults.add(f"{path} line {line}: {fault}")
        rows += 1
    return reader.part(rows, np.array(kept, np.int64), places)


def read_texts(path: Path) -> dict[str, list[str]]:
    """Every column of a CSV file as the texts that stand there; a line that cannot be read is an error."""
    lines = _lines(path)
    _, header, fault = next(lines, (1, [], None))
    if fault is not None or not header:
        raise SourceError(f"{path}: a first line that names the columns was expected; {fault or 'the file is empty'}.")
    _check_header(path, header, Wanted())
    rows: list[list[str]] = []
    for line, fields, fault in lines:
        if fault is None and len(fields) != len(header):
            fault = f"{len(fields)} fields, {len(header)} were expected"
        if fault is not None:
            raise SourceError(f"{path} line {line}: {fault}.{separator_hint(header)}")
        rows.append(fields)
    return {name: [fields[place] for fields in rows] for place, name in enumerate(header)}


def separator_hint(header: Sequence[str]) -> str:
    """What to do where names of columns look as if another sign than the comma separated them; "" where they do not."""
    other = next((sign for sign in (";", "\t", "|") if sum(name.count(sign) for name in header) >= len(header)), None)
    return f" Its columns seem to be separated by {other!r}; save it with commas." if other else ""


def _check_header(path: Path, header: list[str], wanted: Wanted) -> None:
    for name, count in Counter(header).items():
        if count > 1:
            raise SourceError(f"{path}: {count} columns are called {name!r}; give each its own name.")
    # Who names a column of the file knows that its first line holds names, be they numbers.
    named = bool(wanted.names()) and set(wanted.names()) <= set(header)
    if not named and all(number(name) is not None for name in header):
        raise SourceError(
            f"{path}: the first line must hold the column names, numbers were found: {','.join(header)!r:.60}. Add "
            "such a line; if these are the names, list those of the row in columns=."
        )


class _Fields:
    """Takes one line after the other and keeps what is wanted of it."""

    def __init__(self, path: Path, header: list[str], wanted: Wanted):
        self.header = header
        place = {name: position for position, name in enumerate(header)}
        for name in wanted.names():
            if name not in place:
                raise SourceError(f"{path}: there is no column {name!r}; its columns are {', '.join(header)}.")
        self.text = None if wanted.text is None else place[wanted.text]
        self.label = None if wanted.label is None else place[wanted.label]
        self.id = None if wanted.id is None else place[wanted.id]
        rest = [name for name in header if name not in (wanted.label, wanted.id)]
        self.columns = [place[name] for name in (rest if wanted.columns is None else wanted.columns)]
        self.guessed = wanted.columns is None
        if self.text is None and not self.columns:
            raise SourceError(f"{path}: no column is left to make a row of; its columns are {', '.join(header)}.")
        self.texts: list[str] = []
        self.numbers = array("d")
        self.labels: list[str] = []
        self.ids: list[int] = []

    def take(self, fields: list[str]) -> str | None:
        """Keep the fields of one line, or say what is wrong with them (and keep nothing)."""
        if len(fields) != len(self.header):
            return f"{len(fields)} fields, {len(self.header)} were expected"
        label = None if self.label is None else fields[self.label].strip()
        if label == "":
            return f"no label in column {self.header[self.label or 0]!r}"
        row = None if self.id is None else _whole(fields[self.id])
        if self.id is not None and row is None:
            return f"column {self.header[self.id]!r} holds {fields[self.id]!r}; a whole number was expected as the id"
        if self.text is not None:
            if not fields[self.text].strip():
                return f"no text in column {self.header[self.text]!r}"
            self.texts.append(fields[self.text])
        else:
            found = [number(fields[column]) for column in self.columns]
            if None in found:
                return self._not_a_number(fields, self.columns[found.index(None)])
            self.numbers.extend(value for value in found if value is not None)
        if label is not None:
            self.labels.append(label)
        if row is not None:
            self.ids.append(row)
        return None

    def _not_a_number(self, fields: list[str], column: int) -> str:
        value = fields[column]
        what = f"holds {value!r}; a number was expected" if value.strip() else "is empty; a number was expected"
        hint = " (name the numeric columns with columns=, or a text column with text=)" if self.guessed else ""
        return f"column {self.header[column]!r} {what}{hint}"

    def part(self, rows: int, kept: np.ndarray, places: list[str]) -> Part:
        """All that was kept."""
        width = len(self.columns)
        values = self.texts if self.text is not None else np.array(self.numbers).reshape(-1, width)
        labels = None if self.label is None else self.labels
        return Part(rows, kept, values, None, places, labels, None, None if self.id is None else self.ids)


def _lines(path: Path) -> Iterator[tuple[int, list[str], str | None]]:
    """(number of its first line, fields, what is wrong or None) of each record; blank lines are left out."""
    with _open(path) as stream:
        # strict: a quote that is never closed would otherwise swallow the rest of the file without a word.
        reader = csv.reader(stream, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, [], str(error)
                continue
            except (EOFError, OSError, zlib.error) as error:
                raise SourceError(f"{path} line {line}: the file is damaged ({error}).") from error
            if fields:
                yield line, fields, _encoding(fields)


def _open(path: Path) -> IO[str]:
    # Bytes that are not UTF-8 come through as lone surrogates, so that their line can be named.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _encoding(fields: list[str]) -> str | None:
    for field in fields:
        bad = next((sign for sign in field if "\udc80" <= sign <= "\udcff"), None) if not field.isascii() else None
        if bad is not None:
            return f"byte 0x{ord(bad) - 0xDC00:02x} is not UTF-8"
    return None


def _whole(value: str) -> int | None:
    try:
        return int(value) if "_" not in value else None
    except ValueError:
        return None
