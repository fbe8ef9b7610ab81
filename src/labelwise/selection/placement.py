"""Where the signals of a session are kept while it chooses.

Signals that a model computed on an accelerator stay there if they fit, with all that the selection holds besides them;
else they go to the CPU's memory; where `max_memory` does not allow that either, to mapped files. A folder that the
caller gave for files is always used. The limit applies to whichever memory holds the signals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from labelwise.selection.memory import Size, block_bytes, needed_bytes, smallest_limit
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import free_bytes, wait_for
from labelwise.shards.placement import RESERVED_PART, Placement
from labelwise.shards.shard import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES
from labelwise.signals.rows import Rows


def choose_storage(
    signals: int, needed_there: int, needed_here: int, free: int | None, limit: int | None
) -> Literal["accelerator", "memory", "files"]:
    """Where signals are kept.

    Args:
        signals: bytes of the signals.
        needed_there: the fewest bytes that the selection needs besides the signals on the accelerator.
        needed_here: the same on the CPU.
        free: bytes free on the accelerator; None if there is no accelerator.
        limit: the caller's limit in bytes; None if there is no limit.

    >>> choose_storage(600, 100, 50, free=1000, limit=None), choose_storage(700, 100, 50, free=1000, limit=None)
    ('accelerator', 'memory')
    >>> choose_storage(600, 100, 50, free=1000, limit=690), choose_storage(600, 100, 50, free=1000, limit=640)
    ('memory', 'files')
    """
    if free is not None and signals + needed_there <= _usable_bytes(free, limit):
        return "accelerator"
    return "memory" if limit is None or signals + needed_here <= limit else "files"


def _usable_bytes(free: int, limit: int | None) -> int:
    usable = free - free // RESERVED_PART  # the rest is for the model's next batch and for others
    return usable if limit is None else min(usable, limit)


@dataclass(frozen=True)
class PlacementPolicy:
    """Chooses the placement of a selection's rows once it sees the first of them; it may run in another process.

    Attributes:
        strategy, k: the selection.
        rows: rows of the pool, in one process.
        labelled: rows already labelled.
        limit: the caller's limit in bytes.
        files: whether the caller gave a folder for files.
        share: the share of the accelerator's memory that this process may use.
    """

    strategy: Strategy
    k: int
    rows: int
    labelled: int
    limit: int | None
    files: bool = False
    share: float = 1.0

    def __call__(self, first: Rows) -> Placement:
        there = replace(Size.of(self.rows, self.k, first.columns, labelled=self.labelled), accelerator=True)
        here = replace(there, accelerator=False)
        signals = self.rows * sum(column[:1].numel() * column.element_size() for column in first.columns.values())
        device = _accelerator(first)
        free = None if device is None or self.files else free_bytes(device)
        free = None if free is None else int(free * self.share)
        needed = needed_bytes(self.strategy, there, CPU_BLOCK_BYTES), smallest_limit(self.strategy, here)
        storage = "files" if self.files else choose_storage(signals, *needed, free, self.limit)
        if storage == "accelerator":
            assert device is not None, "without one nothing is free on it"
            assert free is not None, "without one nothing is free on it"
            left = _usable_bytes(free, self.limit) - signals
            block = block_bytes(self.strategy, there, left, DEVICE_BLOCK_BYTES)
            return Placement(device, False, block, f"selected on {device}")
        note = "" if free is None else f"selected on cpu: no room on {device}"
        limit = self.limit - signals if self.limit is not None and storage == "memory" else self.limit
        return Placement(files=storage == "files", block=block_bytes(self.strategy, here, limit), note=note)


def _accelerator(first: Rows) -> torch.device | None:
    """The device, not the CPU, that signals were computed on, if there is one."""
    return next((column.device for column in first.columns.values() if column.device.type != "cpu"), None)


def placement_note(pool: Shards) -> str:
    """Where the rows were chosen from, for notes["place"], once all work on them is done; "" on the CPU alone."""
    return "; ".join(dict.fromkeys(note for note in pool.map(_finished_note) if note))


def _finished_note(shard: Shard) -> str:
    wait_for(shard.device)
    return shard.placement_note
