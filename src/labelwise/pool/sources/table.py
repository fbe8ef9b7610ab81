"""Rows of tables: CSV, TSV and Parquet files with a text column, numeric columns or encoded images.

`io.tables` reads the files; this module decides what makes a row, a label and an id. Rows of Parquet files can be read
again by another process, which is sent the names of the files and the numbers of its rows (`ParquetSource`).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from labelwise.errors import ArgumentError, SourceError
from labelwise.io.tables import (
    arrow_numbers,
    check_columns,
    check_file,
    csv_lines,
    is_parquet,
    number,
    open_parquet,
    read_columns,
)
from labelwise.pool.ids import as_runs, from_runs
from labelwise.pool.labels import in_class_order
from labelwise.pool.source import Faults, OnError, Read, Source
from labelwise.pool.sources.arrays import ArraySource, TextSource
from labelwise.pool.sources.images import ImageSource, Size, usable

LabelType = Literal["auto", "class", "number"]


@dataclass(frozen=True)
class Columns:
    """The columns of a table that make a row, its label and its id."""

    text: str | None = None
    image: str | None = None
    columns: tuple[str, ...] | None = None
    label: str | None = None
    id: str | None = None

    def names(self) -> list[str]:
        """The columns named, each once."""
        one = [name for name in (self.text, self.image, *(self.columns or ()), self.label, self.id) if name]
        return list(dict.fromkeys(one))


@dataclass(frozen=True)
class Part:
    """The rows of one file that could be read."""

    rows: int  # all rows of the file, also those left out
    numbers: np.ndarray  # which of them were read
    values: Any  # list of texts, list of encoded images, or array (n, columns)
    names: list[str] | None  # a name of each row, where it is not its content
    where: list[str]  # file and line of each row
    labels: list[Any] | None  # numbers or strings as they stand in the file
    classes: tuple[str, ...] | None  # the names the file itself gives its class numbers
    ids: list[int] | None
    wanted: Columns | None = None  # the columns that were chosen, if another process can read the rows again


def read_files(
    paths: Sequence[Path],
    wanted: Columns,
    size: Size,
    dtype: torch.dtype,
    label_type: LabelType,
    on_error: OnError,
) -> Read:
    """The rows of one or several files, in order. The rows of the second are numbered on from the first."""
    if label_type not in ("auto", "class", "number"):
        raise ArgumentError(f'label_type is "auto", "class" or "number", not {label_type!r}')
    if sum(way is not None for way in (wanted.text, wanted.image, wanted.columns)) > 1:
        raise ArgumentError("a row of the pool is a text, an image or numbers: give one of text, image and columns.")
    faults = Faults(on_error)
    parts = [_read_file(path, wanted, faults) for path in paths]
    where = ", ".join(str(path) for path in paths)
    starts = np.cumsum([0] + [part.rows for part in parts[:-1]])
    numbers = np.concatenate([part.numbers + start for part, start in zip(parts, starts)])
    places = [place for part in parts for place in part.where]
    labels = None if wanted.label is None else [value for part in parts for value in part.labels or ()]
    source = _joined(parts, size, dtype, places)
    keep = usable(source, faults) if isinstance(source, ImageSource) else np.arange(len(places))
    classes = next((part.classes for part in parts if part.classes), None)
    if labels is not None:
        # Where the file itself names its classes, the labels are their numbers.
        kind: LabelType = "number" if classes else label_type
        labels, keep = _typed(labels, keep, places, str(wanted.label), kind, faults)
        if classes is None and labels and isinstance(labels[0], str):
            classes = in_class_order(labels)
    skipped = faults.close(where, len(keep))
    if not len(keep):
        raise SourceError(f"{where}: no rows; a pool needs at least one.")
    ids = numbers if wanted.id is None else np.array([i for part in parts for i in part.ids or ()], np.int64)
    return Read(source, keep, ids[keep], labels, classes, skipped, _table_files(paths, parts, numbers, size, dtype))


def read_parquet(path: Path, wanted: Columns, faults: Faults) -> Part:
    """The rows of a Parquet file; only the wanted columns are read."""
    file = open_parquet(path)
    wanted = _completed(path, file.schema_arrow, wanted)
    table = read_columns(path, file, wanted.names())
    return _parquet_part(path, table, wanted, _class_names(file.schema_arrow, wanted.label), faults)


def image_columns(path: Path) -> list[str]:
    """The names of the columns of a Parquet file that hold encoded images."""
    return [field.name for field in open_parquet(path).schema_arrow if _is_image(field.type)]


def _read_file(path: Path, wanted: Columns, faults: Faults) -> Part:
    check_file(path)
    if is_parquet(path):
        return read_parquet(path, wanted, faults)
    if wanted.image is not None:
        raise ArgumentError(f"{path}: images are read from Parquet files or from a folder, not from CSV.")
    return _read_csv(path, wanted, faults)


def _joined(parts: list[Part], size: Size, dtype: torch.dtype, places: list[str] | None = None) -> Source:
    """The rows of all parts as one source."""
    if len({(type(part.values), _width(part.values)) for part in parts}) > 1:
        raise SourceError("the files do not have the same columns: " + ", ".join(p.where[0] for p in parts if p.where))
    if isinstance(parts[0].values, np.ndarray):
        numbers = np.concatenate([part.values for part in parts])
        return ArraySource(torch.from_numpy(numbers).to(dtype).numpy(), places)
    values = [value for part in parts for value in part.values]
    if parts[0].names is None:
        return TextSource(values)
    return ImageSource(values, [name for part in parts for name in part.names or ()], size)


def _width(values: Any) -> int:
    return values.shape[1] if isinstance(values, np.ndarray) else 0


def _typed(
    labels: list[Any], keep: np.ndarray, places: list[str], column: str, label_type: LabelType, faults: Faults
) -> tuple[list[Any], np.ndarray]:
    """The labels of the rows to keep as all numbers or all class names, and the rows whose label can be used."""
    parsed: dict[int, Any] = {
        row: number(labels[row]) if isinstance(labels[row], str) else labels[row] for row in keep.tolist()
    }
    if label_type == "auto":
        label_type = _guessed(labels, parsed, places, column)
    if label_type == "class":
        return [value if isinstance(value, str) else _name(value) for value in map(labels.__getitem__, parsed)], keep
    for row, found in parsed.items():
        if found is None:
            faults.add(f"{places[row]}: column {column!r} holds {labels[row]!r}; a number was expected")
    good = [row for row, found in parsed.items() if found is not None]
    whole = all(_is_whole(labels[row]) for row in good)
    return [int(labels[row]) if whole else float(parsed[row]) for row in good], np.array(good, np.int64)


def _is_whole(label: Any) -> bool:
    """Written as a whole number: "3" is, "3.0" is not."""
    return label.strip("+-").isdecimal() if isinstance(label, str) else isinstance(label, int)


def _guessed(labels: list[Any], parsed: dict[int, Any], places: list[str], column: str) -> LabelType:
    """Numbers if all labels are, class names if none is; anything between is for the caller to say."""
    name = next((row for row, found in parsed.items() if found is None), None)
    digit = next((row for row, found in parsed.items() if found is not None), None)
    if name is None:
        return "number"
    if digit is None:
        return "class"
    raise SourceError(
        f"column {column!r} mixes numbers and names: {labels[digit]!r} in {places[digit]}, {labels[name]!r} in "
        f'{places[name]}. Pass label_type="class" if all are class names, "number" if names are mistakes.'
    )


def _name(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, wanted: Columns, faults: Faults) -> Part:
    header, lines = csv_lines(path)
    # A caller who names a column of the file knows that its first line holds names, even if they are numbers.
    named = bool(wanted.names()) and set(wanted.names()) <= set(header)
    if not named and all(number(name) is not None for name in header):
        raise SourceError(
            f"{path}: the first line must hold the column names, numbers were found: {','.join(header)!r:.60}. Add "
            "such a line; if these are the names, list those of the row in columns=."
        )
    reader = _Fields(path, header, wanted)
    rows, good, places = 0, [], []
    for line in lines:
        fault = line.fault or reader.take(line.fields)
        if fault is None:
            good.append(rows)
            places.append(f"{path.name} line {line.number}")
        else:
            faults.add(f"{path} line {line.number}: {fault}")
        rows += 1
    return reader.part(rows, np.array(good, np.int64), places)


class _Fields:
    """Takes one line after the other and keeps the wanted fields: as numbers, which take less memory than texts."""

    def __init__(self, path: Path, header: list[str], wanted: Columns):
        self.header = header
        place = {name: position for position, name in enumerate(header)}
        check_columns(path, wanted.names(), header)
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
        label = None if self.label is None else fields[self.label].strip()
        if label == "":
            return f"no label in column {self.header[self.label or 0]!r}"
        row = None if self.id is None else _whole(fields[self.id])
        if self.id is not None and row is None:
            return f"column {self.header[self.id]!r} holds {fields[self.id]!r}; a whole number was expected as the id"
        if row is not None and abs(row) >= 2**63:
            return f"column {self.header[self.id or 0]!r} holds {row}; ids are below 2**63"
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

    def part(self, rows: int, good: np.ndarray, places: list[str]) -> Part:
        """All lines that were taken."""
        width = len(self.columns)
        values = self.texts if self.text is not None else np.array(self.numbers).reshape(-1, width)
        labels = None if self.label is None else self.labels
        return Part(rows, good, values, None, places, labels, None, None if self.id is None else self.ids)


def _whole(value: str) -> int | None:
    try:
        return int(value) if "_" not in value else None
    except ValueError:
        return None


# --- Parquet ---------------------------------------------------------------------------------------------------------


def _completed(path: Path, schema: Any, wanted: Columns) -> Columns:
    """Check the columns named; where none makes the row, take the image column, else all numeric ones."""
    check_columns(path, wanted.names(), schema.names)
    if wanted.text is None and wanted.image is None and wanted.columns is None:
        images = [field.name for field in schema if _is_image(field.type)]
        rest = tuple(name for name in schema.names if name not in (wanted.label, wanted.id))
        if len(images) == 1:
            wanted = Columns(image=images[0], label=wanted.label, id=wanted.id)
        else:
            wanted = Columns(columns=rest, label=wanted.label, id=wanted.id)
    if wanted.image is not None and not _is_image(schema.field(wanted.image).type):
        kind = schema.field(wanted.image).type
        raise SourceError(f"{path}: column {wanted.image!r} holds {kind}; a struct {{bytes, path}} was expected.")
    if wanted.columns is not None and not wanted.columns:
        raise SourceError(f"{path}: no column is left to make a row of; its columns are {', '.join(schema.names)}.")
    return wanted


def _parquet_part(path: Path, table: Any, wanted: Columns, classes: tuple[str, ...] | None, faults: Faults) -> Part:
    values, bad = _row_values(path, table, wanted)
    labels = None if wanted.label is None else _labels(path, table[wanted.label], wanted.label)
    ids = None if wanted.id is None else _ids(path, table[wanted.id], wanted.id)
    for row, label in enumerate(labels or ()):
        if label is None or (isinstance(label, str) and not label.strip()):
            bad.setdefault(row, f"no label in column {wanted.label!r}")
    for row in sorted(bad):
        faults.add(f"{path} row {row}: {bad[row]}")
    good = np.array([row for row in range(table.num_rows) if row not in bad], np.int64)
    where = [f"{path.name} row {row}" for row in good.tolist()]
    names = None
    if wanted.image is not None:
        names = _image_names(path, table, wanted.image, good, good)
    good_values = values[good] if isinstance(values, np.ndarray) else [values[row] for row in good.tolist()]
    return Part(
        rows=table.num_rows,
        numbers=good,
        values=good_values,
        names=names,
        where=where,
        labels=None if labels is None else [labels[row] for row in good.tolist()],
        classes=classes,
        ids=None if ids is None else [ids[row] for row in good.tolist()],
        wanted=wanted,
    )


def _image_names(path: Path, table: Any, column: str, positions: np.ndarray, rows: np.ndarray) -> list[str]:
    """The names of the images at these positions of an Arrow table, which are those `rows` of the file."""
    paths = _member(table[column], "path")
    return [paths[place] or f"{path.name} row {row}" for place, row in zip(positions.tolist(), rows.tolist())]


def _row_values(path: Path, table: Any, wanted: Columns) -> tuple[Any, dict[int, str]]:
    """What makes each row, and what is wrong with those that cannot be used."""
    if wanted.text is not None:
        texts = _strings(path, table[wanted.text], wanted.text)
        return texts, {
            row: f"no text in column {wanted.text!r}" for row, text in enumerate(texts) if not (text or "").strip()
        }
    if wanted.image is not None:
        images = _member(table[wanted.image], "bytes")
        return images, {
            row: f"no image bytes in column {wanted.image!r}" for row, image in enumerate(images) if not image
        }
    columns = [_numbers(path, table[name], name) for name in wanted.columns or ()]
    bad: dict[int, str] = {}
    for name, column in zip(wanted.columns or (), columns):
        for row in np.flatnonzero(~np.isfinite(column)).tolist():
            found = "is empty" if np.isnan(column[row]) else f"holds {column[row]}"
            bad.setdefault(row, f"column {name!r} {found}; a number was expected")
    return np.stack(columns, axis=1), bad


def _numbers(path: Path, column: Any, name: str) -> np.ndarray:
    """A numeric column in float64, NaN where it is empty."""
    import pyarrow as pa

    found = arrow_numbers(column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column)
    if found is None:
        raise SourceError(
            f"{path}: column {name!r} holds {column.type}; numbers were expected. Name the numeric columns with "
            "columns=, or a text column with text=."
        )
    return found


def _strings(path: Path, column: Any, name: str) -> list[str | None]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SourceError(f"{path}: column {name!r} holds {column.type}; texts were expected.")
    return column.to_pylist()


def _labels(path: Path, column: Any, name: str) -> list[Any]:
    """Labels as strings, or as numbers with None where there is none."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(path, column, name)
    if pa.types.is_integer(kind):
        return column.to_pylist()
    values = _numbers(path, column, name).tolist()
    return [value if np.isfinite(value) else None for value in values]


def _ids(path: Path, column: Any, name: str) -> list[int]:
    import pyarrow as pa

    if not pa.types.is_integer(column.type) or column.null_count:
        raise SourceError(
            f"{path}: column {name!r} holds {column.type} with {column.null_count} empty; whole numbers were expected "
            "as ids, one for each row."
        )
    found: list[int] = column.to_pylist()
    if found and max(found) >= 2**63:
        raise SourceError(f"{path}: column {name!r} holds {max(found)}; ids are below 2**63.")
    return found


def _is_image(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(kind) and "bytes" in {kind.field(i).name for i in range(kind.num_fields)}


def _member(column: Any, name: str) -> list[Any]:
    """One field of a column of structs; None where the struct or the field is empty."""
    import pyarrow.compute as pc

    if column.type.get_field_index(name) < 0:
        return [None] * len(column)
    return pc.struct_field(column, name).to_pylist()


def _class_names(schema: Any, label: str | None) -> tuple[str, ...] | None:
    """The names that Hugging Face's metadata gives to the numbers of a label column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


# --- Parquet rows that another process reads -------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A Parquet file, the columns to read, and the numbers of its rows among those of all files."""

    path: Path
    wanted: Columns
    start: int
    rows: int


@dataclass(frozen=True)
class TableFiles:
    """The files of the rows of a source; `numbers` are their places among all rows of the files."""

    files: tuple[File, ...]
    numbers: np.ndarray
    size: Size
    dtype: torch.dtype

    def part(self, positions: np.ndarray) -> tuple[ParquetSource, None]:
        """See `Source`."""
        return ParquetSource(self.files, self.numbers[positions], self.size, self.dtype), None


def _table_files(
    paths: Sequence[Path], parts: Sequence[Part], numbers: np.ndarray, size: Size, dtype: torch.dtype
) -> TableFiles | None:
    """Of these files; None where one of them cannot be read in pieces (CSV)."""
    files, start = [], 0
    for path, part in zip(paths, parts):
        if part.wanted is None:
            return None
        wanted = replace(part.wanted, label=None, id=None)
        files.append(File(path.resolve(), wanted, start, part.rows))
        start += part.rows
    return TableFiles(tuple(files), numbers, size, dtype)


class ParquetSource:
    """Some rows of Parquet files. They are read into memory when the first of them is needed."""

    def __init__(self, files: tuple[File, ...], numbers: np.ndarray, size: Size, dtype: torch.dtype):
        self.files, self.numbers, self.size, self.dtype = files, numbers, size, dtype
        self._loaded: tuple[Source, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "numbers": as_runs(self.numbers), "_loaded": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, numbers=from_runs(state["numbers"]))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def kind(self) -> str:
        return self._read()[0].kind

    def inputs(self, positions: np.ndarray) -> Any:
        source, index = self._read()
        return source.inputs(index[positions])

    def name(self, position: int) -> str | None:
        source, index = self._read()
        return source.name(int(index[position]))

    def sample(self, positions: np.ndarray) -> bytes:
        source, index = self._read()
        return source.sample(index[positions])

    def _read(self) -> tuple[Source, np.ndarray]:
        """The rows in memory, and the position of each in it."""
        if self._loaded is None:
            in_order = np.unique(self.numbers)
            parts = [part for file in self.files for part in _groups(file, in_order, self.dtype)]
            self._loaded = _joined(parts, self.size, self.dtype), np.searchsorted(in_order, self.numbers)
        return self._loaded


def _groups(file: File, numbers: np.ndarray, dtype: torch.dtype) -> Iterator[Part]:
    """Those of the rows, in order, that are in this file, one row group after the other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = numbers[np.searchsorted(numbers, file.start) : np.searchsorted(numbers, file.start + file.rows)] - file.start
    if not len(rows):
        return
    try:
        with pq.ParquetFile(file.path) as opened:
            if opened.metadata.num_rows != file.rows:
                raise _changed(file, f"it has {opened.metadata.num_rows} rows, and had {file.rows}")
            stop = 0
            for group in range(opened.num_row_groups):
                start, stop = stop, stop + opened.metadata.row_group(group).num_rows
                some = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
                if len(some):
                    yield _rows(file, opened.read_row_group(group, columns=file.wanted.names()), some, start, dtype)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file.path}: a worker cannot read the file ({error}).") from error


def _rows(file: File, table: Any, rows: np.ndarray, start: int, dtype: torch.dtype) -> Part:
    """These rows of the file from the table of their row group, whose first is row `start`."""
    positions = rows - start
    values, bad = _row_values(file.path, table, file.wanted)
    wrong = next((row for row in rows.tolist() if row - start in bad), None)
    if wrong is not None:
        raise _changed(file, f"row {wrong}: {bad[wrong - start]}")
    if isinstance(values, np.ndarray):
        found: Any = torch.from_numpy(values[positions]).to(dtype).numpy()  # now: in float64 it may be twice as large
    else:
        found = [values[place] for place in positions.tolist()]
    image = file.wanted.image
    names = None if image is None else _image_names(file.path, table, image, positions, rows)
    return Part(len(rows), rows, found, names, [], None, None, None)


def _changed(file: File, how: str) -> SourceError:
    return SourceError(f"{file.path}: the file has changed since the pool was made ({how}); make the pool again.")
