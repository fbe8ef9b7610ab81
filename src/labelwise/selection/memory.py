"""The memory contract: what a selection needs besides its inputs, what a limit on it means, where signals are stored.

A limit counts what the process holds above what it held when it was called: columns that are mapped files, or were
there before, do not count. Three things are held: what a strategy keeps for every row and every pick, and its fixed
tables, which `Strategy.memory` declares; a block of rows with its temporaries, as small as the limit asks for; and an
allowance for what an allocator does not give back at once.

    needed = Strategy.memory + COPIES x block + ALLOWANCE,      block from MIN_BLOCK up to 8 MB (256 MB on a device)

Signals that a model computed on an accelerator stay there if they fit, with all that the selection holds besides them;
else they go to the CPU's memory; where `max_memory` does not allow that either, to mapped files. A folder that the
caller gave for files is always used. The limit applies to whichever memory holds the signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from labelwise.errors import MemoryLimitError
from labelwise.io.sizes import format_exactly, format_size
from labelwise.selection.strategy import Size, Strategy
from labelwise.shards.devices import free_bytes
from labelwise.shards.placement import RESERVED_PART, Placement
from labelwise.shards.shard import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES
from labelwise.signals.rows import Rows

COPIES = 5  # blocks in memory at once: the rows as they are computed with, and temporaries of the same size
MIN_BLOCK = 1 << 18  # smaller blocks save next to nothing, and calls would cost more than arithmetic
MIN_BLOCK_ROWS = 64  # however wide a row is
ALLOWANCE = 12 << 20  # allocators, small tables, the code's own objects
LABELLED_ROW = 48  # bytes of a labelled row: the id it was given, the id it is known by, and flags
ROW, NAMED_ROW = 48, 120  # bytes of a row in any strategy; more where ids were given, which are checked to be distinct


def needed_bytes(strategy: Strategy, size: Size, block: int = CPU_BLOCK_BYTES) -> int:
    """The most bytes the selection holds with blocks of `block` bytes."""
    block = max(block, MIN_BLOCK_ROWS * size.row)
    rows = max(strategy.memory(size), (NAMED_ROW if size.named else ROW) * (size.rows + size.labelled))
    return rows + COPIES * block + size.labelled * (COPIES * size.row + LABELLED_ROW) + ALLOWANCE


def smallest_limit(strategy: Strategy, size: Size) -> int:
    """The smallest limit this selection works with."""
    return needed_bytes(strategy, size, MIN_BLOCK)


def block_bytes(strategy: Strategy, size: Size, limit: int | None, largest: int | None = None) -> int | None:
    """The largest size of blocks, up to `largest`, with which the selection stays within `limit`.

    Args:
        largest: bytes; None means the usual size on the device of the rows.

    Returns:
        Bytes of a block; None where there is no limit.

    Raises:
        MemoryLimitError: if the selection exceeds the limit even with the smallest blocks.
    """
    if limit is None:
        return None
    if largest is None:
        largest = DEVICE_BLOCK_BYTES if size.accelerator else CPU_BLOCK_BYTES
    if needed_bytes(strategy, size, largest) <= limit:
        return largest
    least = smallest_limit(strategy, size)
    if least > limit:
        raise MemoryLimitError(
            f"max_memory is {format_exactly(limit)}, but {type(strategy).__name__} needs {format_size(least)} to "
            f"choose {size.k:,} of {size.rows:,} rows of {size.numbers:,} numbers; allow {format_size(least)} or more, "
            "choose from fewer rows, or use another strategy (docs/scale.md has a table)",
            least,
        )
    block = MIN_BLOCK
    while needed_bytes(strategy, size, 2 * block) <= limit:
        block *= 2
    return block


def check_each(checks: Iterable[Callable[[], object]]) -> None:
    """Run checks of a limit; where several find it too small, raise the error of the one that needs most."""
    errors: list[MemoryLimitError] = []
    for check in checks:
        try:
            check()
        except MemoryLimitError as error:
            errors.append(error)
    if errors:
        raise max(errors, key=lambda error: error.smallest)


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
