"""The file of a journal's answers: each is written when it is computed and read when it is needed."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from labelwise.errors import StoreError
from labelwise.io.files import sync_file
from labelwise.io.values import read_value, write_value

CHUNK = 1 << 20  # bytes read at once for a checksum


class Answers:
    """Answers, one after the other, in a file that is open while the selection runs."""

    def __init__(self, path: Path, size: int = 0, checksum: int = 0):
        """Open the file at its beginning. What follows `size` bytes was left by a killed selection and is removed."""
        self._path = path
        self._end, self._checksum = size, checksum
        self._file = _open(path)
        try:
            if checksum_of(self._file, size) != checksum:
                raise _damaged(path, f"expected {size} bytes of checksum {checksum}")
            self._file.truncate(size)
            self._file.seek(0)
        except BaseException:
            self.close()
            raise

    def read(self) -> Any:
        """The next stored answer."""
        try:
            return read_value(self._file, self._end - self._file.tell())
        except StoreError as error:
            raise _damaged(self._path, f"an answer cannot be read ({error})") from error

    def write(self, answers: Any) -> None:
        """Add an answer at the end."""
        self._file.seek(self._end)
        write_value(answers, self._add)

    def _add(self, data: Any) -> None:
        self._checksum = zlib.crc32(data, self._checksum)
        self._file.write(data)
        self._end += memoryview(data).nbytes

    def sync(self) -> tuple[int, int]:
        """Put the file on disk. Returns its size in bytes and their checksum."""
        sync_file(self._file)
        return self._end, self._checksum

    def close(self) -> None:
        self._file.close()


def _open(path: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    except OSError as error:
        raise StoreError(f"{path}: a journal cannot be written there ({error}); choose another folder") from error


def checksum_of(file: BinaryIO, size: int) -> int:
    """The checksum of the next `size` bytes of a file; -1 if it ends before."""
    found = 0
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        found, size = zlib.crc32(chunk, found), size - len(chunk)
    return found if not size else -1


def _damaged(path: Path, how: str) -> StoreError:
    return StoreError(f"{path} is damaged: {how}; remove {path.parent} and start the selection again")
