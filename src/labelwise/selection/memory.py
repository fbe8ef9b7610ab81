"""The memory contract: what a selection needs beside its inputs, and what a limit on it means.

A limit counts what the process holds above what it held when it was called: columns that are mapped files, or were
there before, do not count. Three things are held. What a strategy keeps for every row and every pick, and its fixed
tables: `Strategy.memory` declares these. A block of rows with its temporaries: blocks are made as small as the limit
asks for. And a little room for what an allocator does not give back at once.

    needed = Strategy.memory + COPIES x block + ROOM,      block from LEAST_BLOCK up to 8 MB
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Integral
from typing import TYPE_CHECKING, Any

from labelwise.errors import ArgumentError, MemoryLimitError
from labelwise.shards.shards import CPU_BLOCK_BYTES
from labelwise.signals.spec import Signal

if TYPE_CHECKING:
    from labelwise.selection.strategy import Strategy

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
COPIES = 5  # blocks that are there at once: the rows as they are computed with, and temporaries of the same size
LEAST_BLOCK = 1 << 18  # a smaller block saves nothing that counts, and calls would cost more than numbers
LEAST_ROWS = 64  # of a block, however wide
ROOM = 12 << 20  # allocators, small tables, the code's own objects
LABELLED_ROW = 48  # ids of a labelled row, those it was given and those it goes by, and a mark or two
ROW, NAMED_ROW = 48, 120  # bytes of a row in any strategy, and where its id was given: ids are checked to be distinct


@dataclass(frozen=True)
class Size:
    """How large a selection is.

    Attributes:
        rows: of the pool, in one process.
        k: picks.
        shapes: of what one row has in each column that is kept: (C,) of probabilities, (K, C) of draws.
        number: bytes of a number it is computed with, 4 or 8.
        labelled: rows already labelled.
        named: whether the caller gave ids.
        accelerator: whether the rows are in the memory of one.
    """

    rows: int
    k: int
    shapes: Mapping[Signal, tuple[int, ...]]
    number: int = 4
    labelled: int = 0
    named: bool = False
    accelerator: bool = False

    def shape(self, kind: type[Signal]) -> tuple[int, ...]:
        """What one row has in the column of this kind; (1,) where there is none."""
        return next((shape for signal, shape in self.shapes.items() if isinstance(signal, kind)), (1,))

    @property
    def with_labelled(self) -> Size:
        """Of a strategy that treats labelled rows as it does those of the pool."""
        return replace(self, rows=self.rows + self.labelled)

    @property
    def numbers(self) -> int:
        """Numbers of one row, all columns together."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def row(self) -> int:
        """Bytes of one row as it is computed with, all columns together."""
        return self.numbers * self.number


def bytes_of(limit: Any) -> int | None:
    """A limit as the public functions take it, in bytes: 4GB, "512 MiB", 2_000_000_000; None is no limit.

    >>> bytes_of("4GB"), bytes_of("1.5 GiB"), bytes_of(1000)
    (4000000000, 1610612736, 1000)
    """
    if limit is None:
        return None
    if isinstance(limit, Integral) and not isinstance(limit, bool) and int(limit) > 0:
        return int(limit)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", limit) if isinstance(limit, str) else None
    if found is None or found[2].upper() not in UNITS or not Decimal(found[1]) > 0:
        raise ArgumentError(
            f"max_memory is a size such as 4GB, 512MB or 2GiB, or a whole number of bytes, found {limit!r}"
        )
    return int(Decimal(found[1]) * UNITS[found[2].upper()])  # whatever its number of digits


def in_words(size: int) -> str:
    """A size that, read back by `bytes_of`, is not smaller.

    >>> in_words(1), in_words(36_000_001), in_words(2_000_000_000)
    ('1MB', '37MB', '2000MB')
    """
    return f"{-(-size // 10**6)}MB"


def _exactly(size: int) -> str:
    """A size with all its digits, so that one just below what is needed does not read as if it were enough."""
    return f"{Decimal(size) / 10**6:f}MB"


def needed(strategy: Strategy, size: Size, block: int = CPU_BLOCK_BYTES) -> int:
    """Bytes the selection holds at most with blocks of this size."""
    at_once = max(block, LEAST_ROWS * size.row)
    kept = max(strategy.memory(size), (NAMED_ROW if size.named else ROW) * (size.rows + size.labelled))
    return kept + COPIES * at_once + size.labelled * (COPIES * size.row + LABELLED_ROW) + ROOM


def block_bytes(strategy: Strategy, size: Size, limit: int | None, most: int = CPU_BLOCK_BYTES) -> int | None:
    """How large blocks may be; None where there is no limit. MemoryLimitError where no block is small enough."""
    if limit is None:
        return None
    if needed(strategy, size, most) <= limit:
        return most
    least = needed(strategy, size, LEAST_BLOCK)
    if least > limit:
        raise MemoryLimitError(
            f"max_memory is {_exactly(limit)}, but {type(strategy).__name__} needs {in_words(least)} to choose "
            f"{size.k:,} of {size.rows:,} rows of {size.numbers:,} numbers; allow {in_words(least)} or more, choose "
            "from fewer rows, or use another strategy (docs/scale.md has a table)",
            least,
        )
    block = LEAST_BLOCK
    while needed(strategy, size, 2 * block) <= limit:
        block *= 2
    return block


def smallest(strategy: Strategy, size: Size) -> int:
    """The smallest limit this selection works with."""
    return needed(strategy, size, LEAST_BLOCK)


def check_each(checks: Iterable[Callable[[], object]]) -> None:
    """Run checks of a limit; where some find it too small, the error of the one that needs most is raised."""
    found: list[MemoryLimitError] = []
    for check in checks:
        try:
            check()
        except MemoryLimitError as error:
            found.append(error)
    if found:
        raise max(found, key=lambda error: error.smallest)
