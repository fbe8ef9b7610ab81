"""The journal of a selection: stopped at any moment, even killed, it resumes and gives the same picks.

A strategy is a function of what the shards answer. Its own computations are quick to repeat, the sweeps over the rows
are not, so the journal stores the answers. From time to time it also stores the state of the shards, and notes how many
answers came before. A resumed selection starts from its beginning, gets the stored answers without any sweep, and from
the last stored state on the shards compute again. Answers are read one by one from the file, so that a limit on memory
holds with a journal as without.

    FOLDER/lock             locked while a selection uses the folder: one at a time; marks the folder as a journal
    FOLDER/about.json       what is selected; another selection is refused
    FOLDER/progress.json    how many answers count, and checksums; written last and in one step
    FOLDER/answers.bin      the answers, one after another, as `io/values.py` writes them
    FOLDER/state-3-0.bin    the third stored state of the shard whose first row has id 0

Where the disk is full, or fails, the selection continues without its journal, with a warning; what was stored before
stays. All files are data: nothing in the folder runs, whoever wrote it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from labelwise.errors import StoreError, warn
from labelwise.io.checked import read_checked, write_checked
from labelwise.io.files import LOCK_TIMEOUT, open_locked, refuse_links
from labelwise.shards.checkpoint.fingerprint import fingerprint
from labelwise.shards.checkpoint.log import Answers
from labelwise.shards.checkpoint.state import restore, save
from labelwise.shards.shard import Once, Shards

T = TypeVar("T")

VERSION = 7  # the questions that strategies ask in turn are part of the format; up to 5 the files were pickles
LOCK, ABOUT, PROGRESS, ANSWERS = "lock", "about.json", "progress.json", "answers.bin"
# With the temporary files of a killed process.
FILES = re.compile(r"\.?((about|progress)\.(json|tmp)|answers\.bin|state-\d+--?\d+\.(bin|pt))(\.[0-9a-f]+)?(\.tmp)?")
NOTED, STATES = ("answers", "bytes", "crc", "generation"), "states"
MARK, MADE = b"labelwise journal", b", folder made"  # in the lock; the journal removes a folder that it made


@dataclass(frozen=True)
class Tuning:
    """How often states are stored, and how long to wait for another selection in the folder.

    Attributes:
        every: seconds between two of them.
        share: of the time, at most, is spent on storing them.
        lock_timeout: seconds to wait for a process that has the folder locked.
    """

    every: float = 20.0
    share: float = 0.05
    lock_timeout: float = LOCK_TIMEOUT


class JournalStopped(UserWarning):
    """A selection continues without its journal."""


class FolderJournal:
    """The journal of one selection in a folder, which is locked until `close`.

    Attributes:
        found: the number of stored answers, which need not be computed again.
    """

    tuning: ClassVar[Tuning] = Tuning()

    def __init__(
        self, folder: Path, about: Mapping[str, Any], pool: Shards, labelled: Shards, is_private: bool = False
    ):
        """Begin or resume in `folder`.

        Args:
            folder: a new or an empty folder, or one with the journal of this selection.
            about: what is selected; it must be equal to resume.
            pool: the rows to select from.
            labelled: the labelled rows.
            is_private: replace the journal of another selection instead of refusing it.

        Raises:
            StoreError: the folder is in use, holds something else or another selection, or cannot be written.
        """
        self._folder, self._is_private = folder, is_private
        self._all = pool.join(labelled)
        self._calls = self._generation = self._resumed_from = 0
        self.found = 0
        self._is_wanted, self._is_stopped = True, False
        self._sums: dict[str, int] = {}
        made = not folder.exists()
        _check_folder(folder)
        self._about = {"version": VERSION, **about, "parts": self._all.sizes, "rows": fingerprint(self._all)}
        self._outer = sys.exception()  # set where the caller is in an `except` block
        with ExitStack() as opening:
            self._made = opening.enter_context(_locked(folder, made, self.tuning.lock_timeout))
            opening.callback(self._clean_up)
            self._answers = self._open_answers()
            opening.callback(self._close_answers)
            self._stack = opening.pop_all()
        self._stored_at, self._cost = time.monotonic(), 0.0

    def answers(self, compute: Callable[[], list[T]]) -> list[T]:
        """See `shard.Journal`."""
        if sys.exception() is not self._outer:
            return compute()  # a strategy that was stopped cleans up: that is not part of the selection
        self._calls += 1
        if self._calls <= self.found:
            if self._calls == self.found:  # from here on the shards compute again
                self._all.map(functools.partial(restore, self._folder, self._generation, self._sums))
            stored: list[T] = self._answers.read()
            return stored
        answers = compute()
        try:
            self._store(answers)
        except (OSError, StoreError) as error:
            self._stop(error)
        return answers

    def _store(self, answers: Any) -> None:
        if self._is_stopped:
            return
        self._answers.write(answers)
        # Storing a large state often would cost more than it saves.
        if time.monotonic() - self._stored_at >= max(self.tuning.every, self._cost / self.tuning.share):
            self.checkpoint()

    def _stop(self, error: Exception) -> None:
        """Store nothing more: the picks are worth more than their journal."""
        self._is_stopped = True
        with suppress(OSError):
            self._remove_old_states()  # a state that is written in part takes space
        warn(
            f"{self._folder}: the journal of this selection cannot be written any more ({error}). The selection "
            "continues without; if it is stopped, it resumes from what was stored before.",
            JournalStopped,
        )

    def checkpoint(self) -> None:
        """Store the state of the shards, and note that it belongs to the answers so far."""
        began, generation = time.monotonic(), self._generation + 1
        if not (self._folder / ABOUT).exists():
            write_checked(self._folder / ABOUT, self._about)
        sums = dict(self._all.map(Once(functools.partial(save, self._folder, generation))))
        size, checksum = self._answers.sync()
        noted = dict(zip(NOTED, (self._calls, size, checksum, generation)))
        write_checked(self._folder / PROGRESS, {**noted, STATES: sums})
        self._generation, self._sums = generation, sums
        self._remove_old_states()
        self._stored_at = time.monotonic()
        self._cost = self._stored_at - began

    def remove(self) -> None:
        """Remove the journal of a finished selection. Files that the journal did not write stay."""
        self._is_wanted = False
        self.close()

    def close(self) -> None:
        """Unlock the folder, to resume from the last stored state; without one the folder is removed."""
        self._stack.close()

    def _close_answers(self) -> None:
        with suppress(OSError):  # on a full disk; all that counts is on it
            self._answers.close()

    def _clean_up(self) -> None:
        if self._is_wanted and (self._folder / ABOUT).exists():
            return
        self._clear()
        (self._folder / LOCK).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # a file of the user's is in it
                self._folder.rmdir()

    def _open_answers(self) -> Answers:
        """The answers of the stored journal, or of a new one, which counts once its first state is stored."""
        if (self._folder / ABOUT).exists():
            stored = read_checked(self._folder / ABOUT, _remedy(self._folder), early=5)
            if stored != self._about and not self._is_private:
                raise StoreError(_differences(self._folder, stored, self._about))
            if stored == self._about and (self._folder / PROGRESS).exists():
                return self._resumed()
        self._clear()
        return Answers(self._folder / ANSWERS)

    def _resumed(self) -> Answers:
        path = self._folder / PROGRESS
        noted = read_checked(path, _remedy(self._folder))
        if not all(isinstance(noted.get(name), int) for name in NOTED) or not isinstance(noted.get(STATES), dict):
            expected = ", ".join((*NOTED, STATES))
            raise StoreError(f"{path}: expected {expected}, found {noted}; {_remedy(self._folder)}")
        self.found, size, checksum, self._generation = (noted[name] for name in NOTED)
        self._resumed_from = self._generation
        self._sums = noted[STATES]
        self._remove_old_states()
        return Answers(self._folder / ANSWERS, size, checksum)

    def _clear(self) -> None:
        for path in _journal_files(self._folder):
            path.unlink(missing_ok=True)

    def _remove_old_states(self) -> None:
        """Remove all states but the last one and the one resumed from, from which a lost part may be restored."""
        wanted = (f"state-{self._generation}-", f"state-{self._resumed_from}-")
        for path in _journal_files(self._folder):
            name = path.name.removeprefix(".")  # of a temporary file
            if name.startswith("state-") and not name.startswith(wanted):
                path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path, made: bool, timeout: float) -> Iterator[bool]:
    """Lock the folder for one selection. Yields whether the journal made it, now or when the selection began."""
    while True:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                handle = stack.enter_context(open_locked(folder / LOCK, timeout=timeout))
                made = _marked(handle, made)
            except FileNotFoundError:  # another selection ended just now and removed its folder
                continue
            except OSError as error:
                raise StoreError(
                    f"{folder}: a journal cannot be written there ({error}); choose another folder"
                ) from error
            if _is_named(handle, folder / LOCK):
                yield made
                return


def _marked(handle: int, made: bool) -> bool:
    """Mark a lock file as ours, with whether the folder was made for it. Returns the mark of an earlier start."""
    found = os.pread(handle, len(MARK + MADE), 0)
    if not found:
        os.pwrite(handle, MARK + MADE if made else MARK, 0)
        return made
    return found == MARK + MADE


def _is_named(handle: int, path: Path) -> bool:
    """Whether the open file still has this name: another selection may have removed it at its end."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _journal_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if FILES.fullmatch(path.name) and path.is_file()]


def _check_folder(folder: Path) -> None:
    """Raise where a folder holds files and no journal, which may be the user's, or a link."""
    refuse_links(folder)
    if not folder.exists() or (folder / ABOUT).exists() or _is_marked(folder / LOCK):
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise StoreError(f"{folder}: expected a new or an empty folder for the journal of a selection")


def _is_marked(lock: Path) -> bool:
    """Whether a lock file is ours; a new one is still empty, and the only file of its folder."""
    try:
        found = lock.read_bytes()
        return found.startswith(MARK) or (not found and len(list(lock.parent.iterdir())) == 1)
    except OSError:
        return False


def _differences(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if stored.get("version") != VERSION:
        return (
            f"{folder} holds the journal of a selection that another version of Labelwise began (format "
            f"{stored.get('version')!r}, this one reads {VERSION}); {_remedy(folder)}, or continue with that version"
        )
    if all(stored.get(name) == now.get(name) for name in {**stored, **now} if name not in ("parts", "rows")):
        then, here = stored.get("parts", []), now["parts"]
        if then != here and isinstance(then, list) and set(map(type, then)) <= {int} and sum(then) == sum(here):
            return (
                f"{folder} holds a selection that began with rows in parts of {then}, now they are in parts of "
                f"{here}; resume with as many workers as before, or remove the folder and start again"
            )
    changed = [name for name in {**now, **stored} if stored.get(name) != now.get(name) and name != "parts"]
    changed = ["seed" if name == "key" else name for name in changed]
    return (
        f"{folder} holds the journal of another selection (it differs in {', '.join(changed)}); choose another "
        "folder, or remove this one if you do not need that selection"
    )


def _remedy(folder: Path) -> str:
    return f"remove {folder} and start the selection again"
