"""Source: the data to label. A folder of images, a column of texts, rows of a table, or images in a Parquet file.

Rows keep the numbers they have in the folder or file. A row that cannot be used leaves a gap and is named in `faults`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from labelwise.errors import ArgumentError, SourceError
from labelwise.io.tables import (
    ENDINGS,
    Table,
    check_columns,
    column_names,
    is_parquet,
    is_table,
    read_table,
    separator_hint,
)
from labelwise.pool.ahead import in_threads
from labelwise.pool.source import Faults
from labelwise.pool.sources.images import IMAGES_PER_THREAD, SUFFIXES, decode, image_names
from labelwise.pool.sources.table import Columns, read_parquet
from labelwise.project.settings import Kind, Settings

_PIECE = 1 << 20  # bytes; a file of more than _PIECES such pieces is sampled for its fingerprint
_PIECES = 64
_RESTORE = (
    "Put it back, or mount the disk it is on. If the project was moved, correct `source` in its project.yaml and "
    "remove the line `checksum` there."
)


class Data(Protocol):
    """Rows of a source by position; `ids` says which row of the source each is."""

    @property
    def ids(self) -> np.ndarray: ...

    @property
    def refs(self) -> list[str]:
        """The path of each row, or its place in the file."""

    @property
    def faults(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def take(self, positions: Sequence[int], size: int) -> list[Any]:
        """The input of an encoder for these rows; a SourceError in place of a row that cannot be read."""

    def checksums(self) -> np.ndarray:
        """A number for each row (n,) int64 that changes when the row changes."""


@dataclass(frozen=True)
class Images:
    """Image files under `root`, or encoded images in memory."""

    ids: np.ndarray
    refs: list[str]
    root: Path | None
    encoded: list[bytes] = field(default_factory=list)
    faults: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, position: int) -> Path | bytes:
        """The file or the bytes of one image; SourceError for a link to a file outside the folder."""
        if self.root is None:
            return self.encoded[position]
        path = self.root / self.refs[position]
        if not _inside(path, self.root):
            raise SourceError(f"{path}: a link to a file outside {self.root}. Put the image itself there.")
        return path

    def take(self, positions: Sequence[int], size: int) -> list[Any]:
        images: list[Any] = [None] * len(positions)

        def put(place: int) -> None:
            images[place] = self._pixels(positions[place], size)

        in_threads(put, len(positions), IMAGES_PER_THREAD)
        return images

    def checksums(self) -> np.ndarray:
        if self.root is None:
            return np.array([_hash(one) for one in self.encoded], np.int64)
        return np.array([_size(self.root / ref) for ref in self.refs], np.int64)

    def _pixels(self, position: int, size: int) -> np.ndarray | SourceError:
        """(size, size, 3) uint8."""
        try:
            return decode(self.at(position), size, size)
        except ImportError:
            raise
        except SourceError as error:
            return error
        except Exception as error:
            return SourceError(f"{self.refs[position]}: {broken(error)}")


@dataclass(frozen=True)
class Texts:
    """Texts of one column."""

    ids: np.ndarray
    refs: list[str]
    texts: list[str]
    faults: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int], size: int) -> list[Any]:
        return [self.texts[position] for position in positions]

    def checksums(self) -> np.ndarray:
        return np.array([_hash(text.encode("utf-8", "replace")) for text in self.texts], np.int64)


@dataclass(frozen=True)
class Rows:
    """Rows of a table. An encoder gets positions; it has read the columns before."""

    ids: np.ndarray
    refs: list[str]
    table: Table
    faults: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int], size: int) -> list[Any]:
        return list(positions)

    def fields(self, position: int) -> list[tuple[str, str]]:
        """(column, value) pairs of one row, as text."""
        return [(name, _display_text(values[position])) for name, values in self.table.columns.items()]

    def checksums(self) -> np.ndarray:
        return np.array([_hash(repr(self.fields(p)).encode("utf-8", "replace")) for p in range(len(self))], np.int64)


@dataclass(frozen=True)
class Recognised:
    """The kind of data at a path, and the columns that make a row."""

    kind: Kind
    text: str | None = None
    image: str | None = None
    columns: tuple[str, ...] = ()


def recognise(path: Path, text: str | None = None, features: Sequence[str] = ()) -> Recognised:
    """Recognise the data at `path`.

    Args:
        path: a folder of images or a table.
        text: the column that holds the texts.
        features: the columns that make a row of a table.

    Raises:
        SourceError: there is no data, or a column is missing. The message names the option that helps.
    """
    if text is not None and features:
        raise ArgumentError("a row is either a text or numbers: give --text or --features, not both")
    if not path.exists():
        raise SourceError(f"{path} does not exist. A folder of images or a table was expected.")
    if path.is_dir():
        if text is not None or features:
            raise ArgumentError(f"{path} is a folder of images; --text and --features are for tables")
        if not image_names(path):
            raise SourceError(f"{path} has no images; expected files ending in {', '.join(SUFFIXES)}.")
        return Recognised("image")
    if not is_table(path):
        raise SourceError(
            f"{path}: expected a folder of images, or a table ending in {ENDINGS}; this name ends in {path.suffix!r}."
        )
    names = column_names(path)
    if text not in names and len(names) == 1 and (hint := separator_hint(path, names)):
        raise SourceError(f"{path}:{hint}")
    check_columns(path, (*features, *([text] if text else [])), names)
    if text is not None:
        return Recognised("text", text=text)
    if features:
        return Recognised("table", columns=tuple(features))
    return _guessed(path, names)


def _guessed(path: Path, names: list[str]) -> Recognised:
    """The kind of a table without options: only an unambiguous one is accepted."""
    if is_parquet(path):
        from labelwise.pool.sources.table import image_columns

        images = image_columns(path)
        if len(images) == 1:
            return Recognised("image", image=images[0])
    if len(names) == 1 and not is_parquet(path):
        return Recognised("text", text=names[0])
    raise SourceError(
        f"{path}: which columns make a row? Its columns are {', '.join(names)}. Use --text COLUMN for texts, or "
        "--features a,b,c for numbers and categories."
    )


def open_data(settings: Settings, folder: Path, known: tuple[np.ndarray, list[str]] | None = None) -> Data:
    """The rows of a project's data. `known`: ids and refs of an existing project, so that no folder is listed."""
    path = settings.path(folder)
    if settings.kind == "image" and settings.image is None:
        return _folder(path, folder, known)
    if not path.is_file():
        raise SourceError(f"{path}: the data of the project is missing. {_RESTORE}")
    if settings.kind == "image":
        return _parquet_images(path, str(settings.image))
    if settings.kind == "text":
        return _texts(path, str(settings.text))
    table = read_table(path, settings.columns)
    return Rows(table.ids, table.places, table, table.faults)


def fingerprint(path: Path, data: Data) -> str:
    """16 hex digits that change when the file changes, or the names or sizes of a folder's images."""
    digest = hashlib.blake2b(digest_size=8)
    if path.is_dir():
        digest.update(repr(data.refs).encode("utf-8", "backslashreplace"))
        digest.update(data.checksums().tobytes())
        return digest.hexdigest()
    size = path.stat().st_size
    digest.update(str(size).encode())
    steps = range(0, size, _PIECE) if size <= _PIECES * _PIECE else np.linspace(0, size - _PIECE, _PIECES).astype(int)
    with path.open("rb") as file:
        for start in steps:
            file.seek(int(start))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()


def broken(error: Exception) -> str:
    """What is wrong with an image, in words."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image that can be read"
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    if type(error).__name__ == "DecompressionBombError":
        return "the image has too many pixels to be opened safely; use a smaller one"
    return f"the image cannot be read ({type(error).__name__}: {error})"


def _folder(root: Path, project: Path, known: tuple[np.ndarray, list[str]] | None) -> Images:
    if not root.is_dir():
        raise SourceError(f"{root}: the folder of images is missing. {_RESTORE}")
    if known is not None:
        return Images(known[0], known[1], root)
    inside = os.path.realpath(project) + os.sep  # a project may be inside the folder of its images
    names = [name for name in image_names(root) if not (os.path.realpath(root / name)).startswith(inside)]
    wrong = {i: fault for i, name in enumerate(names) if (fault := _unusable(root, name)) is not None}
    usable = [i for i in range(len(names)) if i not in wrong]
    if not usable:
        first = f" The first: {next(iter(wrong.values()))}." if wrong else ""
        raise SourceError(f"{root} has no images; expected files ending in {', '.join(SUFFIXES)}.{first}")
    return Images(np.array(usable, np.int64), [names[i] for i in usable], root, faults=tuple(wrong.values()))


def _unusable(root: Path, name: str) -> str | None:
    """Why a file cannot be part of a project, whatever its content; None if it can."""
    if not name.isascii() and any("\ud800" <= sign <= "\udfff" for sign in name):
        return f"{name.encode('utf-8', 'backslashreplace').decode()}: its name is not UTF-8; rename the file"
    return None if _inside(root / name, root) else f"{name}: a link to a file outside the folder"


def _parquet_images(path: Path, column: str) -> Images:
    faults = Faults("skip")
    part = read_parquet(path, Columns(image=column), faults)
    return Images(part.numbers, part.where, None, list(part.values), tuple(faults.notes))


def _texts(path: Path, column: str) -> Texts:
    table = read_table(path, [column])
    values = table.columns[column]
    texts = [_display_text(value) for value in values] if isinstance(values, np.ndarray) else values
    usable = [i for i, text in enumerate(texts) if text.strip()]
    empty = tuple(f"{table.places[p]}: no text in column {column!r}" for p in range(len(texts)) if not texts[p].strip())
    if not usable:
        raise SourceError(f"{path}: column {column!r} has no text.")
    places = [table.places[i] for i in usable]
    return Texts(table.ids[usable], places, [texts[i] for i in usable], table.faults + empty)


def _inside(path: Path, root: Path) -> bool:
    """Whether a file is inside the folder, after following links."""
    return (os.path.realpath(path) + os.sep).startswith(os.path.realpath(root) + os.sep)


def _display_text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.10g}"
    return str(value)


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def _size(path: Path) -> int:
    """Bytes of a file; -1 if it is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
