"""Density: weights for the picks of a strategy without a law, by an estimated probability of being picked.

A deterministic strategy draws nothing, so its picks have no inclusion probabilities. They are estimated by drawing
again under perturbed scores: in each of `draws` draws a random half of the rows cannot be picked (their scores are
-inf), and the strategy, with a key of its own, takes its share of the others. With r_i the draws in which row i could
be picked and c_i those in which it was, and the batch itself as one more draw,

    pi_i = (c_i + 1) / (r_i + 1),    weight_i = 1/pi_i, scaled to a mean of 1

A row that many others could stand in for is picked in few draws and weighs more. Rows that the strategy never picks
have no representative, so these weights are an approximation and no law: nothing is certain or unbiased by them.
Weights leave an effective sample size of at least FLOOR of the batch: they are raised to the largest power from 0 to 1
with which they do. The picks are those of the strategy. Cost: about `draws`/2 further selections, one half of the
rows in memory at a time; from a cluster they come to this process.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from labelwise.io.arguments import check_fields, check_whole
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.progress import stage
from labelwise.selection.strategy import Size
from labelwise.shards import Shard, Shards
from labelwise.weigh.floor import FLOOR, effective_share, tempered

PRESENT = 0.5  # share of the rows that can be picked in a draw


@dataclass(frozen=True)
class Density(Strategy):
    """The picks of a strategy, weighed by the inverse of an estimated probability of being picked.

    Args:
        strategy: chooses the rows.
        draws: how often it is drawn again.
    """

    strategy: Strategy
    draws: int = 32

    weighted = True

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "draws", least=1)
        for name in ("name", "reason", "needs", "cold", "restart", "objective"):
            object.__setattr__(self, name, getattr(self.strategy, name))

    def for_regression(self) -> Density | None:
        found = self.strategy.for_regression()
        return None if found is None else replace(self, strategy=found)

    def memory(self, size: Size) -> int:
        return self.strategy.memory(size) + size.rows * (size.row + 16)

    def work(self, size: Size) -> float:
        return (1 + self.draws / 2) * self.strategy.work(size)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        with stage(0.0, 2 / (2 + self.draws)):
            picks = self.strategy.select(pool, labelled, k, key)
        if k == pool.n:
            return picks
        picked = torch.from_numpy(picks.ids)
        count_k, present_k = np.ones(k), np.ones(k)
        for draw in range(self.draws):
            here = key.fold("density", draw)
            part = _part(pool, here)
            wanted = max(1, round(k * part.n / pool.n)) if part.n else 0
            if not wanted:
                continue
            with stage((2 + draw) / (2 + self.draws), (3 + draw) / (2 + self.draws)):
                again = self.strategy.select(part.with_ties(here), labelled, min(wanted, part.n), here)
            present_k += (here.uniform(picked) < PRESENT).numpy()
            count_k += np.isin(picks.ids, again.ids)
        weight_k, power = tempered(present_k / count_k)
        notes = {"by": "density", "draws": self.draws, "power": power, "floor": FLOOR}
        notes |= {"effective_share": effective_share(weight_k), "least": float((count_k / present_k).min())}
        return Selection(picks.ids, weight_k, picks.scores, {**picks.notes, "weigh": notes})


def _part(pool: Shards, key: Key) -> Shards:
    """The rows that can be picked, copied; they have a state of their own."""
    parts = pool.with_journal(None).map(functools.partial(_thinned, key))
    return Shards([part for part in parts if part is not None])


def _thinned(key: Key, shard: Shard) -> Shard | None:
    """The rows of a shard whose uniform number of `key` is below PRESENT; None if there are none."""
    where: Tensor = (key.uniform(shard.ids) < PRESENT).nonzero()[:, 0]
    if not len(where):
        return None
    part = Shard(shard.ids[where], {signal: column[where] for signal, column in shard.columns.items()}, shard.dtype)
    part.block_bytes = shard.block_bytes
    return part
