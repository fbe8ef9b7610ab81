"""Arithmetic that takes hours is said before it begins, with what else can be done."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from labelwise.selection.memory import Size
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Signal

if TYPE_CHECKING:
    from labelwise.selection.strategy import Strategy

RATE = 5e10  # floating-point operations of one core in a second, in matrix products
HOUR = 3600 * RATE


class LongSelection(UserWarning):
    """A selection will take hours."""


def say_if_long(strategy: Strategy, pool: Shards, labelled: int, k: int) -> None:
    """Warn where the strategy's arithmetic takes more than an hour of one core; accelerators are not spoken of."""
    widths = [one for one in pool.map(_widths) if one is not None]
    if not widths:
        return
    work = strategy.work(Size(pool.n, int(k), widths[0], labelled=labelled))
    if work > HOUR:
        warnings.warn(
            f"{type(strategy).__name__} needs about {work:.0e} floating-point operations to choose {int(k):,} of "
            f"{pool.n:,} rows, some {work / HOUR:.0f} hours of a core ({strategy.cost}). To choose from a random part "
            "of the pool, draw row numbers first, part = lw.select('random', 50_000, ids=np.arange(len(P))).ids, and "
            "pass P[part], H[part] and ids=part; or use another strategy (docs/scale.md).",
            LongSelection,
            stacklevel=2,
        )


def _widths(shard: Shard) -> dict[Signal, tuple[int, ...]] | None:
    """What one row has in each column; None on an accelerator."""
    if shard.device.type != "cpu":
        return None
    return {signal: tuple(column.shape[1:]) or (1,) for signal, column in shard.columns.items()}
