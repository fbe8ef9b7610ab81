"""Source: what a pool reads rows from, by position. The pool maps global ids to positions; nothing else sees them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from labelwise.errors import ArgumentError, SourceError
from labelwise.io.text import many

OnError = Literal["stop", "skip"]
_log = logging.getLogger(__name__)


class Source(Protocol):
    """Rows by position 0..n-1; read only.

    A source whose rows are cheap to read may set `whole = True`: the fingerprint then covers all rows, else some.
    One whose `inputs` may be called by another thread sets `reads_ahead = True`: the next batch is then read while one
    is used.
    A source that can be split has `part(positions)`: a source with these rows to send to another process, and their
    positions in it, or None if it holds exactly these rows in this order.
    """

    @property
    def kind(self) -> str:
        """A word for its content, part of the fingerprint: "array", "texts", "images" ..."""

    def __len__(self) -> int: ...

    def inputs(self, positions: np.ndarray) -> Any:
        """Model inputs of the rows at `positions` (n,) int64, in this order."""

    def name(self, position: int) -> str | None:
        """A name of the row for people; None if it has only its id."""

    def sample(self, positions: np.ndarray) -> bytes:
        """Bytes that change when these rows change and are the same in every process and library version."""


class SplitFiles(Protocol):
    """Files that another process can read some rows of."""

    def part(self, positions: np.ndarray) -> tuple[Source, np.ndarray | None]:
        """See `Source`."""


@dataclass(frozen=True)
class Read:
    """The rows of a file or folder that could be read, and their numbers.

    A number is the place among all rows of the file. A skipped row leaves a gap, so that the ids of later rows do not
    depend on it.
    """

    source: Source
    positions: np.ndarray  # the rows of `source` that could be read
    numbers: np.ndarray  # the id of each of them
    labels: Any = None
    classes: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    files: SplitFiles | None = None  # where another process can read them again


class Faults:
    """Handles rows that cannot be read: stop at the first, or collect notes on them."""

    def __init__(self, on_error: OnError):
        if on_error not in ("stop", "skip"):
            raise ArgumentError(f'on_error is "stop" or "skip", not {on_error!r}')
        self.on_error = on_error
        self.notes: list[str] = []

    def add(self, text: str) -> None:
        """Raise `text` as a SourceError, or add it to the notes."""
        if self.on_error == "stop":
            raise SourceError(f'{text}. Repair it, or pass on_error="skip" to leave such rows out.')
        self.notes.append(text)

    def close(self, where: str, rows: int) -> tuple[str, ...]:
        """The notes, which are logged once. Raises SourceError if no row is left."""
        if self.notes and not rows:
            raise SourceError(f"{where}: none of the {len(self.notes)} rows can be read. The first: {self.notes[0]}.")
        if self.notes:
            _log.warning("%s: %s skipped. The first: %s", where, many(len(self.notes), "row"), self.notes[0])
        return tuple(self.notes)


def content(value: Any) -> bytes:
    """The bytes of a value read from a source, with its type and shape, for `sample`."""
    if isinstance(value, np.ndarray):
        # One spelling for all byte orders, and "float32" rather than numpy's "<f4".
        native = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False))
        return f"{native.dtype.name}{native.shape}".encode() + native.tobytes()
    return repr(value).encode("utf-8", "backslashreplace")
