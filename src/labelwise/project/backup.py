"""Backup of a project in one file, while its page may run, and the way back.

A backup is a zip archive of the project folder with `backup.json`: size and SHA-256 of every file. The store is copied
by SQLite's own backup, which sees one moment; the other files are read again if a round was made meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from labelwise import __version__
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.checked import with_checksum, without_checksum
from labelwise.io.files import atomic_file, no_new_parents, sync_file, sync_folder
from labelwise.project.project import store_address
from labelwise.project.repair import check_project
from labelwise.project.settings import read_settings
from labelwise.project.store import Store
from labelwise.project.store.copy import copied_store

MANIFEST = "backup.json"
FORMAT = 1
_STORE = "store.db"
# Files of a running page, its secret, and what is written for people or set aside.
_NEVER = {"worker.json", "worker.lock", "page.lock", "page.key", "log.txt", "report.html"}
_BULK = "features/"  # does not change while a page runs
_TRIES = 5
_PIECE = 1 << 20
_MANIFEST_BYTES = 100 << 20

OnStep = Callable[[int, int], None]  # (steps done, steps in total)


@dataclass(frozen=True)
class Backup:
    """What a backup holds. `data`: where the rows were, which are not part of it."""

    made: float
    events: int
    rounds: int
    features: bool
    data: Path


def _ignore(done: int, total: int) -> None:
    pass


def back_up(folder: Path, to: Path, features: bool = True, force: bool = False, on_step: OnStep = _ignore) -> Backup:
    """Write a backup, open it again and check every file of it. Only then does the file have its name.

    Args:
        folder: the project, whose page may run.
        to: the file to write.
        features: whether the features are part of it; without them `labelwise resume` computes them from the data.
        force: replace an existing file.
        on_step: called with the steps done, and their number.

    Raises:
        StoreError: the answers are in PostgreSQL, `to` exists, or the project is damaged.
    """
    settings = read_settings(folder)
    url = store_address(folder, settings)
    if not url.startswith("sqlite:"):
        raise StoreError(
            f"the answers of {folder} are in PostgreSQL, which has tools of its own: pg_dump --format=custom "
            "--file=answers.dump ADDRESS. Copy the folder as well; see docs/backup.md"
        )
    if (os.path.realpath(to) + os.sep).startswith(os.path.realpath(folder) + os.sep):
        raise ArgumentError(f"--to {to}: a backup in the project folder is lost with it. Choose another place")
    if to.exists() and (to.is_dir() or not force):
        raise StoreError(f"{to} already exists. Choose another file with --to, or replace it with --force")
    if not to.parent.is_dir():
        raise StoreError(f"the folder of {to} does not exist. Make it first, or choose another with --to")
    with tempfile.TemporaryDirectory(prefix=".labelwise-backup-", dir=to.parent) as temporary, atomic_file(to) as file:
        copy = Path(temporary) / _STORE
        names = _names(folder)
        sums: dict[str, list[Any]] = {}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in [name for name in names if name.startswith(_BULK)] if features else []:
                sums[name] = _put(archive, name, folder / name, zipfile.ZIP_STORED)
            on_step(1, 4)
            small, events, rounds = _moment(folder, url, copy)
            for name, content in small.items():
                archive.writestr(name, content)
                sums[name] = [len(content), hashlib.sha256(content).hexdigest()]
            sums[_STORE] = _put(archive, _STORE, copy, zipfile.ZIP_DEFLATED)
            on_step(2, 4)
            about = {
                "format": FORMAT,
                "labelwise": __version__,
                "made": time.time(),
                "data": str(settings.path(folder.resolve())),
                "events": events,
                "rounds": rounds,
                "features": features and any(name.startswith(_BULK) for name in names),
                "files": sums,
            }
            archive.writestr(MANIFEST, json.dumps(with_checksum(about), indent=1))
        file.flush()
        on_step(3, 4)
        found = _unpack(Path(file.name), Path(temporary) / "again", named=to)
        _check(Path(temporary) / "again", to, found)
        on_step(4, 4)
    return found


def restore(file: Path, to: Path, data: Path | None = None, store: str = "") -> tuple[Backup, Path]:
    """Make a project of a backup, all of it or nothing.

    Args:
        file: the backup.
        to: the project folder, which must not exist or be empty.
        data: where the rows are now; by default where they were, seen from the new folder or as an absolute path.
        store: the address of an empty PostgreSQL database for the answers, or env:NAME; "" keeps them in the folder.

    Returns:
        What the backup holds, and where the restored project looks for its rows.

    Raises:
        StoreError: `file` is no backup or is damaged, or `to` or the database is in use.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StoreError(f"{to} already exists and is not empty. Choose another folder with --to")
    if data is not None and not data.exists():
        raise ArgumentError(f"--data {data} does not exist. Name the folder or file with the rows")
    if not file.is_file():
        raise StoreError(f"{file} does not exist or is no file. Name a file that `labelwise backup` wrote")
    with no_new_parents(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".labelwise-restore-", dir=to.parent) as temporary:
            fresh = Path(temporary) / "project"
            found = _unpack(file, fresh, named=file)
            settings = read_settings(fresh)
            known = [data] if data is not None else [settings.path(to.resolve()), found.data]
            rows = next((one for one in known if one.exists()), known[0])
            replace(settings, source=os.path.relpath(rows.resolve(), to.resolve())).write(fresh)
            _check(fresh, file, found)
            with _moved_answers(fresh, store):
                if to.exists():
                    to.rmdir()
                fresh.rename(to)
                sync_folder(to.parent)
    return found, rows


@contextlib.contextmanager
def _moved_answers(folder: Path, address: str) -> Iterator[None]:
    """Move the answers of an unpacked project to another database, if there is one; undone if the block fails."""
    if not address:
        yield
        return
    old = folder / _STORE
    settings = replace(read_settings(folder), store=address)
    with copied_store(f"sqlite:///{old.as_posix()}", store_address(folder, settings)):
        for end in ("", "-wal", "-shm", ".head"):
            Path(f"{old}{end}").unlink(missing_ok=True)
        settings.write(folder)
        yield


# --- writing ---------------------------------------------------------------------------------------------------------


def _names(folder: Path) -> list[str]:
    """The files of a project that a backup has, besides the store."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        parts = name.split("/")
        temporary = any(part.startswith(".") or ".damaged-" in part for part in parts)
        if path.is_symlink() or not path.is_file() or temporary or parts[0] in ("features-new", "features-old"):
            continue
        if name not in _NEVER and not name.startswith(f"{_STORE}") and name != MANIFEST:
            found.append(name)
    return found


def _moment(folder: Path, url: str, copy: Path) -> tuple[dict[str, bytes], int, int]:
    """The store as of one moment, written to `copy`, the small files that belong to it, and its events and rounds."""
    for _ in range(_TRIES):
        copy.unlink(missing_ok=True)
        _copy_store(Path(url.removeprefix("sqlite:///")), copy)
        events, rounds = _counts(f"sqlite:///{copy.as_posix()}")
        small = {}
        for name in _names(folder):
            if not name.startswith(_BULK):
                with contextlib.suppress(FileNotFoundError):  # replaced at this moment
                    small[name] = (folder / name).read_bytes()
        if _counts(url)[1] == rounds:
            return small, events, rounds
    raise StoreError(f"rounds of {folder} are made faster than it can be read; try again")


def _copy_store(path: Path, copy: Path) -> None:
    """SQLite's own online backup: readers and writers continue."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=60)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be copied ({error}); `labelwise doctor` says what is wrong") from error


def _counts(url: str) -> tuple[int, int]:
    with contextlib.closing(Store.open(url)) as store:
        return store.last_seq(), len(store.rounds())


def _put(archive: zipfile.ZipFile, name: str, path: Path, method: int) -> list[Any]:
    """Add a file in pieces. Returns its size and digest."""
    size, sum_ = 0, hashlib.sha256()
    entry = zipfile.ZipInfo(name, time.localtime()[:6])
    entry.compress_type = method
    with open(path, "rb") as source, archive.open(entry, "w", force_zip64=True) as target:
        while piece := source.read(_PIECE):
            target.write(piece)
            sum_.update(piece)
            size += len(piece)
    return [size, sum_.hexdigest()]


# --- reading ---------------------------------------------------------------------------------------------------------


def _unpack(file: Path, folder: Path, named: Path) -> Backup:
    """Write the files of a backup to a new folder, each with its checksum compared."""
    with _readable(named), zipfile.ZipFile(file) as archive:
        if archive.getinfo(MANIFEST).file_size > _MANIFEST_BYTES:
            raise StoreError(f"{named} is no backup of a project: its {MANIFEST} is too large")
        about = json.loads(archive.read(MANIFEST))
        about = without_checksum(about, named, "make another backup")
        if about["format"] != FORMAT:
            raise StoreError(f"{named} has format {about['format']!r}; this Labelwise reads {FORMAT}. Upgrade it")
        needed, free = sum(int(size) for size, _ in about["files"].values()), shutil.disk_usage(folder.parent).free
        if needed > free:
            raise StoreError(
                f"{named} needs {needed:,} bytes, and {free:,} are free in {folder.parent}. Make room first"
            )
        folder.mkdir()
        (folder / "rounds").mkdir()
        for name, (size, digest) in about["files"].items():
            if not _is_inside(name):
                raise StoreError(f"{named} has a file outside of the project, {name!r}; it is no backup of a project")
            if name in _NEVER:  # such as a secret of the page that somebody else knows
                raise StoreError(f"{named} has a file that no backup has, {name!r}; use a backup that you made")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if _extract(archive, name, target, int(size)) != digest:
                raise StoreError(f"{named}: {name} was changed after it was written. Use another backup")
        return Backup(
            float(about["made"]), int(about["events"]), int(about["rounds"]), bool(about["features"]),
            Path(str(about["data"])),
        )  # fmt: skip


@contextlib.contextmanager
def _readable(named: Path) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError, EOFError,
        NotImplementedError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise StoreError(
            f"{named} cannot be read as a backup of a project ({type(error).__name__}: {error}). Name a file that "
            "`labelwise backup` wrote, or use another backup"
        ) from error


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    plain = all(part not in ("..", ".") and not set(part) & set("\\:\0") for part in parts)
    return bool(parts) and not name.startswith("/") and plain and "//" not in name


def _extract(archive: zipfile.ZipFile, name: str, target: Path, size: int) -> str:
    """Write one file, at most `size` bytes of it. Returns its digest."""
    sum_, left = hashlib.sha256(), size + 1
    with archive.open(name) as source, open(target, "xb") as file:
        while left and (piece := source.read(min(_PIECE, left))):
            file.write(piece)
            sum_.update(piece)
            left -= len(piece)
        sync_file(file)
    return sum_.hexdigest()


def _check(folder: Path, file: Path, expected: Backup) -> None:
    """Open the project of a backup and check every file. StoreError if it is not whole."""
    faults = check_project(folder)
    if not faults and _counts(f"sqlite:///{(folder / _STORE).as_posix()}") != (expected.events, expected.rounds):
        faults = ["its store does not have the events it had"]
    if faults:
        raise StoreError(
            f"{file}: the project in it is damaged: {'; '.join(faults[:3])}. Run `labelwise doctor` on the project, "
            "or use another backup"
        )
