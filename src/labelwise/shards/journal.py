"""A journal of a selection: stopped at any moment, even killed, it goes on where it was and gives the same picks.

A strategy is a function of what the shards answer: its own part is quick to run again, the sweeps over the rows are
not. So the journal keeps the answers. From time to time it also keeps the shards' state, and then notes how many
answers that state belongs to. A selection that is started again runs from its beginning, is given the kept answers
without any sweep, and from the last noted state on the shards work again.

    FOLDER/about.json       what is selected; another selection is refused
    FOLDER/progress.json    how many answers count, written last and in one step
    FOLDER/answers.bin      the answers, one pickle after another
    FOLDER/state-3-0.pt     the third kept state of the shard whose first row has id 0

The folder is read back by pickle: open only one that you wrote.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from labelwise.errors import StoreError
from labelwise.pool.disk import sync_folder
from labelwise.shards.shards import Shard, Shards

T = TypeVar("T")

VERSION = 1
EVERY = 20.0  # seconds between two kept states
SHARE = 0.05  # of the time, at most, goes into keeping them
SAMPLE = 256  # rows of each shard that tell whether the columns are the same


class FolderJournal:
    """The journal of one selection in a folder."""

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
        self._asked = self._bytes = self._generation = 0
        self._old: list[bytes] = []  # kept before this start
        self._new: list[bytes] = []  # not kept yet
        self._about = {"version": VERSION, **about, "rows": _fingerprint(self._all)}
        self._open()
        self._kept = self.found = len(self._old)  # `found` answers need not be computed again
        self._outer = sys.exception()  # set when all this happens inside a caller's `except`
        self._since, self._cost = time.monotonic(), 0.0

    def answers(self, ask: Callable[[], list[T]]) -> list[T]:
        """See `shards.Journal`."""
        if sys.exception() is not self._outer:
            return ask()  # a strategy that was stopped puts its rows in order: that is not part of the way
        place, self._asked = self._asked, self._asked + 1
        if place < len(self._old):
            if place + 1 == len(self._old):  # from here on the shards work again
                self._all.map(functools.partial(_restore, self._folder, self._generation))
            found: list[T] = pickle.loads(self._old[place])
            return found
        answers = ask()
        self._new.append(pickle.dumps(answers, pickle.HIGHEST_PROTOCOL))
        # A large state that is kept often would cost more than it saves.
        if time.monotonic() - self._since >= max(self._every, self._cost / SHARE):
            self.keep()
        return answers

    def keep(self) -> None:
        """Keep the shards' state and the answers so far."""
        began, generation = time.monotonic(), self._generation + 1
        if not (self._folder / "about.json").exists():
            self._begin()
        self._all.map(functools.partial(_save, self._folder, generation))
        with open(self._folder / "answers.bin", "r+b") as file:
            file.seek(self._bytes)  # over what a killed writer left behind the answers that count
            for one in self._new:
                file.write(len(one).to_bytes(8, "little") + one)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            self._bytes = file.tell()
        self._kept += len(self._new)
        progress = {"answers": self._kept, "bytes": self._bytes, "generation": generation}
        _write_json(self._folder / "progress.json", progress)
        self._new.clear()
        self._generation = generation
        self._forget_others()
        self._since = time.monotonic()
        self._cost = self._since - began

    def remove(self) -> None:
        """The selection is done: there is nothing left to go on with."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self) -> None:
        """Read the journal that is there, if one is. A new one is written when the first state is kept."""
        path = self._folder / "about.json"
        if not path.exists():
            if self._folder.exists() and (not self._folder.is_dir() or self._strange()):
                raise StoreError(
                    f"{self._folder}: a new or an empty folder was expected for the journal of a selection"
                )
            return
        kept = _read_json(path)
        changed = [name for name in {**self._about, **kept} if kept.get(name) != self._about.get(name)]
        if changed and self._own:
            self.remove()
            return
        if changed:
            raise StoreError(
                f"{self._folder} holds the journal of another selection ({', '.join(changed)} differ); choose another "
                "folder, or remove this one if that selection is not wanted any more"
            )
        progress = self._folder / "progress.json"
        if progress.exists():
            noted = _read_json(progress)
            self._bytes, self._generation = noted["bytes"], noted["generation"]
            self._old = _read_answers(self._folder / "answers.bin", noted["answers"], noted["bytes"])
        self._forget_others()

    def _strange(self) -> bool:
        """Whether the folder holds anything but what a journal leaves that was killed in its first moment."""
        return bool({path.name for path in self._folder.iterdir()} - {"answers.bin", "about.tmp"})

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "answers.bin").touch()
        _write_json(self._folder / "about.json", self._about)

    def _forget_others(self) -> None:
        """Remove the states that are not the last one."""
        for path in self._folder.glob("state-*"):
            if not path.name.startswith(f"state-{self._generation}-"):
                path.unlink(missing_ok=True)


def _state_path(folder: Path, generation: int, shard: Shard) -> Path:
    return folder / f"state-{generation}-{int(shard.ids[0])}.pt"


def _save(folder: Path, generation: int, shard: Shard) -> None:
    with open(_state_path(folder, generation, shard), "wb") as file:
        torch.save({"state": shard.state, "shift": list(shard.shift.items())}, file)
        file.flush()
        os.fsync(file.fileno())


def _restore(folder: Path, generation: int, shard: Shard) -> None:
    path = _state_path(folder, generation, shard)
    if not path.exists():
        raise StoreError(f"{path} is missing; remove {folder} and start the selection anew")
    kept = torch.load(path, map_location=shard.device, weights_only=False)
    shard.state.clear()
    shard.state.update(kept["state"])
    shard.shift.clear()
    shard.shift.update(dict(kept["shift"]))


def _fingerprint(shards: Shards) -> str:
    """A digest of the ids, and of some rows of every column."""
    parts = shards.map(_digest)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _digest(shard: Shard) -> str:
    found = hashlib.sha256(shard.ids.cpu().numpy().tobytes())
    if shard.device.type != "cpu":  # kept answers hold tensors of it: on another device the selection begins anew
        found.update(str(shard.device).encode())
    step = max(1, len(shard) // SAMPLE)
    for signal, column in shard.columns.items():
        some = column[::step].detach().cpu()
        found.update(f"{signal!r} {tuple(column.shape)} {column.dtype}".encode())
        found.update(some.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _read_answers(path: Path, count: int, size: int) -> list[bytes]:
    data = path.read_bytes()[:size]
    found: list[bytes] = []
    place = 0
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 8], "little")
        found.append(data[place + 8 : place + 8 + length])
        place += 8 + length
    if len(found) != count or place != size:
        raise StoreError(f"{path}: {count} answers were expected, {len(found)} were found; remove {path.parent}")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); remove {path.parent} and start the selection anew"
        ) from error
    if not isinstance(found, dict):
        raise StoreError(f"{path}: an object was expected; remove {path.parent} and start the selection anew")
    return found


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    beside = path.with_suffix(".tmp")
    with open(beside, "w") as file:
        json.dump(values, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_folder(path.parent)
