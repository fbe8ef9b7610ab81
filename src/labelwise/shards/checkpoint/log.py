"""The file of a journal's answers: each is written when it is given and read when it is asked for; none is held."""

from __future__ import annotations

import os
import pickle
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from labelwise.errors import StoreError
from labelwise.io.files import sync_file
from labelwise.shards.devices import from_raw, raw

PIECE = 1 << 20  # bytes read at once where all of the file is looked at


class Answers:
    """Answers one after the other in a file that is open while the selection runs."""

    def __init__(self, path: Path, size: int = 0, checksum: int = 0):
        """Open the file at its beginning; what lies behind `size` bytes was left by one that was killed, and goes."""
        self._path = path
        self._end, self._sum = size, checksum
        self._file = _opened(path)
        found = sum_of(self._file, size)
        if found != checksum:
            self.close()
            raise _damaged(path, f"{size} bytes of checksum {checksum} were expected")
        self._file.truncate(size)
        self._file.seek(0)

    def read(self) -> Any:
        """The next answer that was kept."""
        try:
            return pickle.load(self._file)
        except Exception as error:  # a damaged pickle may raise anything
            raise _damaged(self._path, f"an answer cannot be read ({error})") from error

    def write(self, answers: Any) -> None:
        """Add an answer at the end."""
        self._file.seek(self._end)
        _Writing(self).dump(answers)

    def add(self, data: Any) -> None:
        """Bytes of an answer, as the pickler gives them."""
        self._sum = zlib.crc32(data, self._sum)
        self._file.write(data)
        self._end += memoryview(data).nbytes

    def sync(self) -> tuple[int, int]:
        """All of it on the disk; how many bytes that are, and their checksum."""
        sync_file(self._file)
        return self._end, self._sum

    def close(self) -> None:
        self._file.close()


class _Stream:
    """What a pickler writes to."""

    def __init__(self, answers: Answers):
        self.write = answers.add


class _Writing(pickle.Pickler):
    """Writes a tensor as its own bytes: torch's way copies them several times, with all that is behind a view."""

    def __init__(self, answers: Answers):
        pickle.Pickler.__init__(self, _Stream(answers), 5)

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor:
            return NotImplemented
        return from_raw, (raw(value), value.dtype, tuple(value.shape), str(value.device))


def _opened(path: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    except OSError as error:
        raise StoreError(
            f"{path}: the journal of a selection cannot be kept there ({error}); choose another folder"
        ) from error


def sum_of(file: BinaryIO, size: int) -> int:
    """The checksum of the next `size` bytes of a file; -1 where it ends before."""
    found = 0
    while size > 0 and (piece := file.read(min(PIECE, size))):
        found, size = zlib.crc32(piece, found), size - len(piece)
    return found if not size else -1


def _damaged(path: Path, how: str) -> StoreError:
    return StoreError(f"{path} is damaged: {how}; remove {path.parent} and start the selection anew")
