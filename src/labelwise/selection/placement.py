"""Where the signals of a session are kept while it chooses: one rule.

Signals that a model computed on an accelerator stay there if they fit, with all that the selection holds beside them;
else they go to the CPU's memory; where `max_memory` does not allow that either, to mapped files. A folder that the
caller gave for files is always used. The limit is one for whichever memory holds the signals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from labelwise.selection.memory import block_bytes, needed, smallest
from labelwise.selection.run import size_of
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import free_bytes, wait_for
from labelwise.shards.placement import KEPT_FREE, Home
from labelwise.shards.shards import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES
from labelwise.signals.rows import Rows


def where(
    signals: int, beside_there: int, beside_here: int, free: int | None, limit: int | None
) -> Literal["accelerator", "memory", "files"]:
    """The rule, in bytes: `free` on the accelerator (None: there is none), `limit` of the caller (None: there is none).

    `beside_there` and `beside_here` are what the selection needs, at least, beside the signals on either.

    >>> where(600, 100, 50, free=1000, limit=None), where(700, 100, 50, free=1000, limit=None)
    ('accelerator', 'memory')
    >>> where(600, 100, 50, free=1000, limit=690), where(600, 100, 50, free=1000, limit=640)
    ('memory', 'files')
    """
    if free is not None and signals + beside_there <= _room(free, limit):
        return "accelerator"
    return "memory" if limit is None or signals + beside_here <= limit else "files"


def _room(free: int, limit: int | None) -> int:
    room = free - free // KEPT_FREE  # the rest is for the model's next batch and for others
    return room if limit is None else min(room, limit)


@dataclass(frozen=True)
class Rule:
    """What the rule says of a selection, once the first rows are there; it may be asked in another process.

    Attributes:
        strategy, k: the selection.
        rows: of the pool, in one process.
        labelled: rows already labelled.
        limit: of the caller, in bytes.
        files: whether the caller gave a folder for files.
        share: of the accelerator's memory that is for this process.
    """

    strategy: Strategy
    k: int
    rows: int
    labelled: int
    limit: int | None
    files: bool = False
    share: float = 1.0

    def __call__(self, first: Rows) -> Home:
        there = replace(size_of(self.rows, self.k, first.columns, labelled=self.labelled), accelerator=True)
        size = replace(there, accelerator=False)
        signals = self.rows * sum(one[:1].numel() * one.element_size() for one in first.columns.values())
        device = _accelerator(first)
        free = None if device is None or self.files else free_bytes(device)
        free = None if free is None else int(free * self.share)
        beside = needed(self.strategy, there, CPU_BLOCK_BYTES), smallest(self.strategy, size)
        found = "files" if self.files else where(signals, *beside, free, self.limit)
        if found == "accelerator":
            assert device is not None, "without one nothing is free on it"
            assert free is not None, "without one nothing is free on it"
            block = block_bytes(self.strategy, there, _room(free, self.limit) - signals, DEVICE_BLOCK_BYTES)
            return Home(device, False, block, f"selected on {device}")
        said = "" if free is None else f"selected on cpu: no room on {device}"
        limit = self.limit - signals if self.limit is not None and found == "memory" else self.limit
        return Home(files=found == "files", block=block_bytes(self.strategy, size, limit), said=said)


def _accelerator(first: Rows) -> torch.device | None:
    """The device, not the CPU, that signals were computed on, if there is one."""
    return next((one.device for one in first.columns.values() if one.device.type != "cpu"), None)


def placed(pool: Shards) -> str:
    """Where the rows were chosen from, once all work on them is done; nothing where it goes without saying."""
    return "; ".join(dict.fromkeys(one for one in pool.map(_done) if one))


def _done(shard: Shard) -> str:
    wait_for(shard.device)
    return shard.said
