"""Files: atomic writes, locks and appends that are on disk when they return."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from labelwise.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows: no lock, one process at a time is up to the user
    fcntl = None  # type: ignore[assignment]

# What numpy, zipfile and zlib raise for a damaged .npy or .npz file; the header of one is a Python literal.
DAMAGED = (
    OSError, ValueError, EOFError, LookupError, SyntaxError, TypeError, OverflowError, MemoryError, RuntimeError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
LOCK_TIMEOUT = 10.0  # seconds to wait for another process
_PAUSE = 0.005  # seconds, at first
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)  # of file systems without such a sync

AnyPath = str | os.PathLike[str]


class FileLockedError(StoreError):
    """Another process has the lock of a file."""


@contextlib.contextmanager
def atomic_file(path: AnyPath, durable: bool = True) -> Iterator[BinaryIO]:
    """A new binary file that replaces `path` in one step when the block ends without an error.

    Readers see the old file or the new one, never a part. After an error `path` is as before and no file is left over.

    Args:
        path: The file to replace; a symbolic link is followed. Its folder must exist.
        durable: Sync the file and its folder, so that the new content survives a power cut.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_file(f"{folder}/one.bin") as file:
    ...         _ = file.write(b"content")
    ...     Path(f"{folder}/one.bin").read_bytes()
    b'content'
    """
    target = Path(os.path.realpath(path))
    # Not `tempfile`: only the owner could read its files, and reports are there to be shared.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:  # also on Ctrl-C
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(target.parent)


@contextlib.contextmanager
def no_new_parents(path: AnyPath) -> Iterator[None]:
    """After an error, remove the folders above `path` that were made in the block and are empty."""
    missing = [one for one in Path(path).parents if not one.exists()]
    try:
        yield
    except BaseException:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


def write_bytes(path: AnyPath, content: bytes | Iterable[bytes]) -> None:
    """Replace a file by `content`, given whole or in chunks; missing folders are made. See `atomic_file`."""
    Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for chunk in (content,) if isinstance(content, bytes) else content:
            file.write(chunk)


def write_text(path: AnyPath, text: str) -> None:
    """Replace a file by `text` in UTF-8, line ends unchanged; missing folders are made. See `atomic_file`.

    Args:
        path: the file.
        text: its new content.

    Raises:
        OSError: the file cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def create_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file, whole; where `path` exists, also made by another process this moment, it stays as it is."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            sync_file(file)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_file(file: BinaryIO) -> None:
    """Put what was written to an open file on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder durable."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_locked(
    path: Path,
    flags: int = os.O_RDWR | os.O_CREAT,
    timeout: float = LOCK_TIMEOUT,
    check: Callable[[], object] | None = None,
) -> Iterator[int]:
    """A handle of the file, locked against all other processes until the block or this process ends.

    Args:
        path: The file to open.
        flags: Of `os.open`.
        timeout: Seconds to wait for another process.
        check: Called between two tries; it may raise to stop waiting.

    Raises:
        FileLockedError: Another process has the lock for longer than `timeout`.
    """
    handle = os.open(path, flags, 0o644)
    try:
        _lock(handle, path, timeout, check)
        yield handle
    finally:
        os.close(handle)  # releases the lock too


def _lock(handle: int, path: Path, timeout: float, check: Callable[[], object] | None) -> None:
    until, pause = time.monotonic() + timeout, _PAUSE
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if check is not None:
                check()
            if time.monotonic() >= until:
                raise FileLockedError(
                    f"{path} is locked by another process, for {timeout:g} seconds now; nothing was read or written. "
                    "Let one process own it, or try again."
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        except OSError:  # a file system without locks, or one that refuses them for reading
            return


def refuse_links(folder: AnyPath, allowed: Collection[str] = ()) -> None:
    """Raise StoreError if a folder holds a symbolic link: what is written there would be written elsewhere.

    A folder from someone else may lead its log, or what a worker writes, to a file that a shell reads.

    Args:
        folder: The folder; it need not exist.
        allowed: Names of entries that may be links.
    """
    pending = [os.fspath(folder)]
    while pending:
        place = pending.pop()
        try:
            entries = list(os.scandir(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for one in entries:
            if one.is_symlink() and not (place == os.fspath(folder) and one.name in allowed):
                raise StoreError(
                    f"{one.path} is a link to {os.readlink(one.path)}: what is written to it would be written there. "
                    "If you made the link, put a copy in its place; if the folder is from someone else, do not use it"
                )
            if one.is_dir(follow_symlinks=False):
                pending.append(one.path)


def read_all(handle: int) -> bytes:
    """All bytes of an open file."""
    with os.fdopen(os.dup(handle), "rb") as stream:
        return stream.read()


def append_at(handle: int, content: bytes, end: int) -> None:
    """Write and sync `content` at byte `end` of an open file; what stood there goes.

    After an error the file ends at `end` again, if the disk allows it.
    """
    try:
        os.ftruncate(handle, end)
        position, rest = end, content
        while rest:
            written = os.pwrite(handle, rest, position)
            rest, position = rest[written:], position + written
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise


def append_text(path: Path, text: str) -> None:
    """Add text to the end of a log that is read by people: it is not synced, and any text can be written."""
    with open(path, "a", encoding="utf-8", errors="replace") as file:
        file.write(text)


def append_log(path: Path, text: str) -> None:
    """Add a line with the time of day to the end of a log. See `append_text`."""
    append_text(path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
