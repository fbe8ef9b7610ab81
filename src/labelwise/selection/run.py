"""How a selection is run: in how much memory, who hears of its progress, and where it is kept so that it can go on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.selection.backends import recorded_backends
from labelwise.selection.memory import Size, block_bytes, bytes_of
from labelwise.selection.progress import Listener, told
from labelwise.selection.runtime_warning import say_if_long
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.selection.strategy_digest import identity
from labelwise.shards import Shards, computed_in
from labelwise.shards.checkpoint.journal import FolderJournal
from labelwise.shards.devices import in_full
from labelwise.shards.heap import tight
from labelwise.shards.shards import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES
from labelwise.signals.spec import Signal


@dataclass(frozen=True)
class How:
    """How to run a selection: `limit` in bytes, or None; `folder` of its journal; `progress` hears of its picks.

    A folder is `own` where nothing but journals is ever put there: that of another selection is then removed.
    """

    limit: int | None = None
    folder: Path | None = None
    progress: Listener | None = None
    own: bool = False

    @staticmethod
    def of(max_memory: Any = None, folder: str | Path | None = None, progress: Any = None) -> How:
        """From what the public functions take."""
        return How(bytes_of(max_memory), None if folder is None else Path(folder).absolute()).heard_by(progress)

    def heard_by(self, progress: Any) -> How:
        """With a function that hears of the picks, or with none."""
        if progress is not None and not callable(progress):
            raise ArgumentError(f"progress is a function of (done, total), found {progress!r}")
        return replace(self, progress=progress)

    def kept_in(self, session: Path | None) -> How:
        """With a journal in the folder of a session, if it has one."""
        return self if session is None else replace(self, folder=session / "selection", own=True)


PLAIN = How()


def size_of(
    rows: int,
    k: int,
    columns: Mapping[Signal, Tensor],
    dtype: torch.dtype | None = None,
    labelled: int = 0,
    named: bool = False,
) -> Size:
    """The size of a selection from columns such as these, on their device."""
    number = (computed_in(columns) if dtype is None else dtype).itemsize
    shapes = {signal: tuple(one.shape[1:]) or (1,) for signal, one in columns.items()}
    accelerator = any(one.device.type != "cpu" for one in columns.values())
    return Size(rows, int(k), shapes, number, labelled, named, accelerator)


def select_kept(strategy: Strategy, pool: Shards, labelled: Shards, k: int, key: Key, how: How = PLAIN) -> Selection:
    """`strategy.select` with a journal if there is a folder for one, which is gone once the picks are there.

    How large blocks are is known to the shards: whoever placed them has asked. `notes["backend"]` names the backends
    that were chosen.
    """
    say_if_long(strategy, pool, labelled.n, k)
    with recorded_backends() as names:
        picks = _select(strategy, pool, labelled, k, key, how)
    return replace(picks, notes={**picks.notes, "backend": ", ".join(names)}) if names else picks


def _select(strategy: Strategy, pool: Shards, labelled: Shards, k: int, key: Key, how: How) -> Selection:
    with in_full(), tight(how.limit is not None), told(how.progress):
        if how.folder is None:
            return strategy.select(pool, labelled, k, key)
        try:
            parameters = identity(strategy)
        except ArgumentError:
            if not how.own:
                raise
            return strategy.select(pool, labelled, k, key)  # nobody asked for a journal by name: it goes without
        about = {"strategy": repr(strategy), "parameters": parameters, "k": int(k), "key": repr(key)}
        with closing(FolderJournal(how.folder, about, pool, labelled, own=how.own)) as journal:
            picks = strategy.select(pool.kept(journal), labelled.kept(journal), k, key)
            journal.remove()
        return picks


def checked(strategy: Strategy, size: Size, how: How) -> int | None:
    """How large blocks may be; MemoryLimitError where the limit is too small for this selection."""
    return block_bytes(strategy, size, how.limit, DEVICE_BLOCK_BYTES if size.accelerator else CPU_BLOCK_BYTES)
