"""Warn before a selection that is estimated to take hours."""

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
    """A selection is estimated to take hours."""


def warn_if_long(strategy: Strategy, pool: Shards, labelled: int, k: int) -> None:
    """Warn where `Strategy.work` comes to more than an hour of one core; rows on accelerators do not count."""
    shapes = [one for one in pool.map(_cpu_shapes) if one is not None]
    if not shapes:
        return
    work = strategy.work(Size(pool.n, k, shapes[0], labelled=labelled))
    if work > HOUR:
        warnings.warn(
            f"{type(strategy).__name__} needs about {work:.0e} floating-point operations to choose {k:,} of "
            f"{pool.n:,} rows, some {work / HOUR:.0f} hours of a core ({strategy.cost}). To choose from a random part "
            "of the pool, draw row numbers first, part = lw.select('random', 50_000, ids=np.arange(len(P))).ids, and "
            "pass P[part], H[part] and ids=part; or use another strategy (docs/scale.md).",
            LongSelection,
            stacklevel=2,
        )


def _cpu_shapes(shard: Shard) -> dict[Signal, tuple[int, ...]] | None:
    """The shape of one row in each column; None where the rows are on an accelerator."""
    if shard.device.type != "cpu":
        return None
    return {signal: tuple(column.shape[1:]) or (1,) for signal, column in shard.columns.items()}
