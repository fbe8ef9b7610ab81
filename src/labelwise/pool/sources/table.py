"""Rows of tables: CSV (.csv, .csv.gz) and Parquet files with a text column, numeric columns or encoded images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from labelwise.errors import ArgumentError, SourceError
from labelwise.pool.labels import in_class_order
from labelwise.pool.source import Faults, OnError, Read, Source
from labelwise.pool.sources.arrays import ArraySource, TextSource
from labelwise.pool.sources.images import ImageSource, Size, usable

LabelType = Literal["auto", "class", "number"]


@dataclass(frozen=True)
class Wanted:
    """Which columns of a table make a row."""

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
    """What one file gave, by row that could be read."""

    rows: int  # all rows of the file, those left out as well
    numbers: np.ndarray  # which of them were read
    values: Any  # list of texts, list of encoded images, or array (n, columns)
    names: list[str] | None  # a name of each row, where it is not its content
    where: list[str]  # file and line of each row
    labels: list[Any] | None  # numbers or strings as they stand in the file
    classes: tuple[str, ...] | None  # the names the file itself gives its class numbers
    ids: list[int] | None
    wanted: Wanted | None = None  # with the columns found, where another process can read the rows again


def read_table(
    paths: Sequence[Path],
    wanted: Wanted,
    size: Size,
    dtype: torch.dtype,
    label_type: LabelType,
    on_error: OnError,
) -> Read:
    """The rows of one or several files, in order; the rows of the second are numbered on from the first."""
    if label_type not in ("auto", "class", "number"):
        raise ArgumentError(f'label_type is "auto", "class" or "number", not {label_type!r}')
    if sum(way is not None for way in (wanted.text, wanted.image, wanted.columns)) > 1:
        raise ArgumentError("a row of the pool is a text, an image or numbers: give one of text, image and columns.")
    from labelwise.pool.sources.parquet_rows import table_files  # it reads by what is here

    faults = Faults(on_error)
    parts = [_read_file(path, wanted, faults) for path in paths]
    where = ", ".join(str(path) for path in paths)
    starts = np.cumsum([0] + [part.rows for part in parts[:-1]])
    numbers = np.concatenate([part.numbers + start for part, start in zip(parts, starts)])
    places = [place for part in parts for place in part.where]
    labels = None if wanted.label is None else [value for part in parts for value in part.labels or ()]
    source = joined(parts, size, dtype, places)
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
    return Read(source, keep, ids[keep], labels, classes, skipped, table_files(paths, parts, numbers, size, dtype))


def number(value: str) -> float | None:
    """The finite number a field holds, or None. Python's own extras ("1_000", "nan", "inf") are not numbers here."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) and "_" not in value else None


def _read_file(path: Path, wanted: Wanted, faults: Faults) -> Part:
    from labelwise.pool.sources.csv_file import read_csv
    from labelwise.pool.sources.parquet_file import read_parquet

    if not path.is_file():
        raise SourceError(f"{path}: there is no such file.")
    ending = path.name.lower()
    if ending.endswith((".csv", ".csv.gz")):
        if wanted.image is not None:
            raise ArgumentError(f"{path}: images are read from Parquet files or from a folder, not from CSV.")
        return read_csv(path, wanted, faults)
    if ending.endswith((".parquet", ".pq")):
        return read_parquet(path, wanted, faults)
    raise SourceError(f"{path}: a table ends in .csv, .csv.gz or .parquet; this name ends in {path.suffix!r}.")


def joined(parts: list[Part], size: Size, dtype: torch.dtype, places: list[str] | None = None) -> Source:
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
