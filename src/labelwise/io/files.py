"""Disk: a lock on an open file, and writes that last."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from labelwise.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows: no lock, one process at a time is up to the user
    fcntl = None  # type: ignore[assignment]

_PATIENCE = 10.0  # seconds to wait for another process
_PAUSE = 0.005


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A handle of the file, locked against all other processes until it is closed."""
    handle = os.open(path, flags, 0o644)
    try:
        _lock(handle, path)
        yield handle
    finally:
        os.close(handle)  # gives the lock back too


def _lock(handle: int, path: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise StoreError(
                    f"{path} is locked by another process, for {_PATIENCE:g} seconds now; nothing was read or written. "
                    "Let one process own it, or try again."
                ) from None
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks, or one that refuses them for reading
            return


def read_all(handle: int) -> bytes:
    """All bytes of an open file."""
    with os.fdopen(os.dup(handle), "rb") as stream:
        return stream.read()


def write_all(handle: int, data: bytes, at: int) -> None:
    """Write `data` from byte `at` on."""
    while data:
        written = os.pwrite(handle, data, at)
        data, at = data[written:], at + written


def sync_folder(folder: Path) -> None:
    """Make the name of a new file durable too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
