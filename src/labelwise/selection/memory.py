"""The memory contract: what a selection needs besides its inputs, and what a limit on it means.

A limit counts what the process holds above what it held when it was called: columns that are mapped files, or were
there before, do not count. Three things are held: what a strategy keeps for every row and every pick, and its fixed
tables, which `Strategy.memory` declares; a block of rows with its temporaries, as small as the limit asks for; and an
allowance for what an allocator does not give back at once.

    needed = Strategy.memory + COPIES x block + ALLOWANCE,      block from MIN_BLOCK up to 8 MB (256 MB on a device)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from labelwise.errors import MemoryLimitError
from labelwise.io.sizes import format_exactly, format_size
from labelwise.selection.strategy import Size, Strategy
from labelwise.shards.shard import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES

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
