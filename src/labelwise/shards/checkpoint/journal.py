"""A journal of a selection: stopped at any moment, even killed, it goes on where it was and gives the same picks.

A strategy is a function of what the shards answer: its own part is quick to run again, the sweeps over the rows are
not. So the journal keeps the answers. From time to time it also keeps the shards' state, and then notes how many
answers that state belongs to. A selection that is started again runs from its beginning, is given the kept answers
without any sweep, and from the last noted state on the shards work again. Answers are in the file and never all in
memory: a limit on memory holds with a journal as without.

    FOLDER/lock             held while a selection uses the folder: one at a time; says that this is a journal
    FOLDER/about.json       what is selected; another selection is refused
    FOLDER/progress.json    how many answers count, and checksums; written last and in one step
    FOLDER/answers.bin      the answers, one pickle after another
    FOLDER/state-3-0.pt     the third kept state of the shard whose first row has id 0

A disk that is full, or fails, does not stop a selection: it goes on without its journal, with a warning, and what was
kept before stays. The folder is read back by pickle: open only one that you wrote.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from labelwise.errors import StoreError
from labelwise.io.files import open_locked, write_text
from labelwise.shards.checkpoint.fingerprint import fingerprint
from labelwise.shards.checkpoint.log import Answers
from labelwise.shards.checkpoint.state import restore, save
from labelwise.shards.shard import Once, Shards

T = TypeVar("T")

VERSION = 4  # the questions that strategies ask in turn are part of the format
EVERY = 20.0  # seconds between two kept states
SHARE = 0.05  # of the time, at most, goes into keeping them
LOCK, ABOUT, PROGRESS, ANSWERS = "lock", "about.json", "progress.json", "answers.bin"
# With the temporary files of a killed process.
OURS = re.compile(r"\.?((about|progress)\.(json|tmp)|answers\.bin|state-\d+--?\d+\.pt)(\.[0-9a-f]+)?(\.tmp)?")
NOTED, STATES = ("answers", "bytes", "checksum", "generation"), "states"
MARK, MADE = b"labelwise journal", b", folder made"  # in the lock; a folder that the journal made it removes as well


class JournalStopped(UserWarning):
    """A selection goes on without being kept."""


class FolderJournal:
    """The journal of one selection in a folder, which is held against others until `close`."""

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        pool: Shards,
        labelled: Shards,
        every: float | None = None,
        own: bool = False,
    ):
        """Begin or go on in `folder`; where it is the caller's `own`, the journal of another selection is removed."""
        self._folder, self._every, self._own = folder, EVERY if every is None else every, own
        self._all = pool.join(labelled)
        self._asked = self._generation = self._from = 0  # _from: the state that this start goes on from
        self.found = 0  # answers that need not be computed again
        self._wanted, self._stopped = True, False
        self._sums: dict[str, int] = {}
        made = not folder.exists()
        _refuse_strange(folder)
        self._about = {"version": VERSION, **about, "parts": self._all.sizes, "rows": fingerprint(self._all)}
        self._outer = sys.exception()  # set when all this happens inside a caller's `except`
        with ExitStack() as opening:
            self._made = opening.enter_context(_alone(folder, made))
            opening.callback(self._tidy)
            self._answers = self._opened()
            opening.callback(self._close_answers)
            self._stack = opening.pop_all()
        self._since, self._cost = time.monotonic(), 0.0

    def answers(self, ask: Callable[[], list[T]]) -> list[T]:
        """See `shards.Journal`."""
        if sys.exception() is not self._outer:
            return ask()  # a strategy that was stopped puts its rows in order: that is not part of the way
        self._asked += 1
        if self._asked <= self.found:
            if self._asked == self.found:  # from here on the shards work again
                self._all.map(functools.partial(restore, self._folder, self._generation, self._sums))
            kept: list[T] = self._answers.read()
            return kept
        answers = ask()
        try:
            self._note(answers)
        except (OSError, StoreError) as error:
            self._stop(error)
        return answers

    def _note(self, answers: Any) -> None:
        if self._stopped:
            return
        self._answers.write(answers)
        # A large state that is kept often would cost more than it saves.
        if time.monotonic() - self._since >= max(self._every, self._cost / SHARE):
            self.keep()

    def _stop(self, error: Exception) -> None:
        """Keep nothing more: the picks are worth more than the way to them."""
        self._stopped = True
        with suppress(OSError):
            self._forget_others()  # what was written of a state takes room
        warnings.warn(
            f"{self._folder}: the journal of this selection cannot be kept any more ({error}). The selection goes on "
            "without; if it is stopped, it begins again from what was kept before.",
            JournalStopped,
            stacklevel=2,
        )

    def keep(self) -> None:
        """Keep the shards' state, and note that the answers so far belong to it."""
        began, generation = time.monotonic(), self._generation + 1
        if not (self._folder / ABOUT).exists():
            _write_json(self._folder / ABOUT, self._about)
        sums = dict(self._all.map(Once(functools.partial(save, self._folder, generation))))
        size, checksum = self._answers.sync()
        noted = dict(zip(NOTED, (self._asked, size, checksum, generation)))
        _write_json(self._folder / PROGRESS, {**noted, STATES: sums})
        self._generation, self._sums = generation, sums
        self._forget_others()
        self._since = time.monotonic()
        self._cost = self._since - began

    def remove(self) -> None:
        """The selection is done: there is nothing left to go on with. What the journal did not write stays."""
        self._wanted = False
        self.close()

    def close(self) -> None:
        """Give the folder back, for another start to go on from the last kept state; without one nothing is left."""
        self._stack.close()

    def _close_answers(self) -> None:
        with suppress(OSError):  # on a full disk; what counts was written and synced when it was noted
            self._answers.close()

    def _tidy(self) -> None:
        if self._wanted and (self._folder / ABOUT).exists():
            return
        self._clear()
        (self._folder / LOCK).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # something of somebody else's is in it
                self._folder.rmdir()

    def _opened(self) -> Answers:
        """The answers of the journal that is there, or of a new one, which is noted when the first state is kept."""
        if (self._folder / ABOUT).exists():
            kept = _read_json(self._folder / ABOUT)
            if kept != self._about and not self._own:
                raise StoreError(_differences(self._folder, kept, self._about))
            if kept == self._about and (self._folder / PROGRESS).exists():
                return self._going_on()
        self._clear()
        return Answers(self._folder / ANSWERS)

    def _going_on(self) -> Answers:
        path = self._folder / PROGRESS
        noted = _read_json(path)
        if not all(isinstance(noted.get(name), int) for name in NOTED) or not isinstance(noted.get(STATES), dict):
            expected = ", ".join((*NOTED, STATES))
            raise StoreError(f"{path}: {expected} were expected, found {noted}; {_anew(self._folder)}")
        self.found, size, checksum, self._generation = (noted[name] for name in NOTED)
        self._from = self._generation
        self._sums = noted[STATES]
        self._forget_others()
        return Answers(self._folder / ANSWERS, size, checksum)

    def _clear(self) -> None:
        for path in _ours(self._folder):
            path.unlink(missing_ok=True)

    def _forget_others(self) -> None:
        """Remove the states but the last one, and the one gone on from: a part that is lost may be made from it."""
        wanted = (f"state-{self._generation}-", f"state-{self._from}-")
        for path in _ours(self._folder):
            name = path.name.removeprefix(".")  # of a temporary file
            if name.startswith("state-") and not name.startswith(wanted):
                path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path, made: bool) -> Iterator[bool]:
    """The folder, for one selection alone; whether the journal made it, now or when the selection was begun."""
    while True:
        with ExitStack() as held:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                handle = held.enter_context(open_locked(folder / LOCK))
                made = _marked(handle, made)
            except FileNotFoundError:  # another selection ended just now, and took its folder away
                continue
            except OSError as error:
                raise StoreError(
                    f"{folder}: a journal cannot be kept there ({error}); choose another folder"
                ) from error
            if _is(handle, folder / LOCK):
                yield made
                return


def _marked(handle: int, made: bool) -> bool:
    """Mark a lock as ours, with whether the folder was made for it; what an earlier start noted counts."""
    found = os.pread(handle, len(MARK + MADE), 0)
    if not found:
        os.pwrite(handle, MARK + MADE if made else MARK, 0)
        return made
    return found == MARK + MADE


def _is(handle: int, path: Path) -> bool:
    """Whether the open file still has this name: it has not after the selection that held it ended."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _ours(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if OURS.fullmatch(path.name) and path.is_file()]


def _refuse_strange(folder: Path) -> None:
    """A folder that holds something and no journal may be somebody's own."""
    if not folder.exists() or (folder / ABOUT).exists() or _is_marked(folder / LOCK):
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise StoreError(f"{folder}: a new or an empty folder was expected for the journal of a selection")


def _is_marked(lock: Path) -> bool:
    """Whether a lock is ours; one that was made this moment is still empty, and nothing stands beside it."""
    try:
        found = lock.read_bytes()
        return found.startswith(MARK) or (not found and len(list(lock.parent.iterdir())) == 1)
    except OSError:
        return False


def _differences(folder: Path, kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if all(kept.get(name) == now.get(name) for name in {**kept, **now} if name not in ("parts", "rows")):
        then, here = kept.get("parts", []), now["parts"]
        if then != here and sum(then) == sum(here):
            return (
                f"{folder} holds a selection that was begun with rows in parts of {then}, now they are in parts of "
                f"{here}; go on with as many workers as before, or remove the folder and start anew"
            )
    changed = [name for name in {**now, **kept} if kept.get(name) != now.get(name) and name != "parts"]
    changed = ["seed" if name == "key" else name for name in changed]
    return (
        f"{folder} holds the journal of another selection (it differs in {', '.join(changed)}); choose another "
        "folder, or remove this one if that selection is not wanted any more"
    )


def _anew(folder: Path) -> str:
    return f"remove {folder} and start the selection anew"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {_anew(path.parent)}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path}: an object was expected; {_anew(path.parent)}")
    return found


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(values))
