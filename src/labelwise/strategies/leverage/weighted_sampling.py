"""Draws of rows with replacement, by a weight kept beside each row, that depend on no order, block or shard.

Every row rings at the times of a Poisson process whose rate is its weight over the sum of all weights. In the order of
time the rings are independent draws by weight, repeats included. They are made one window of time after the other: a
window of length t holds t rings on average. Waiting times are hashed from (key, window, turn, row id).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.shards import Shard, Shards

BINS_PER_OCTAVE = 16
OCTAVES = 60  # weights from 2^-60 to 2^60 times the mean


class Window(NamedTuple):
    """The rings of one window, in the order of time."""

    ids: Tensor  # (J,)
    keep: Tensor  # (J,) a uniform number of each ring, to accept or reject it by


class Rings:
    """Draws by the state `name` of the rows (at least 0)."""

    def __init__(self, pool: Shards, name: str, key: Key):
        self.total = float(pool.sum(lambda shard: shard.state[name].double().sum().cpu()))
        self._pool, self._name, self._key = pool, name, key
        self._number = 0

    def window(self, length: float) -> Window:
        """The next rings, `length` of them on average."""
        key = self._key.fold("window", self._number)
        self._number += 1
        parts = self._pool.map(functools.partial(_first, self._name, key, length, self.total))
        ids, time, rate = (torch.cat([part[i] for part in parts]) for i in range(3))
        rings = []
        turn = 0
        while len(ids):
            rings.append((time, ids, key.fold("keep", turn).uniform(ids)))
            time = time + key.fold("next", turn).exponential(ids) / rate
            here = time < length
            ids, time, rate = ids[here], time[here], rate[here]
            turn += 1
        if not rings:
            return Window(ids, time)
        times, names, keeps = (torch.cat([ring[i] for ring in rings]) for i in range(3))
        by_id = names.argsort(stable=True)
        order = by_id[times[by_id].argsort(stable=True)]
        return Window(names[order], keeps[order])


def expected_draws(pool: Shards, name: str, distinct: int, most: float) -> float:
    """How many draws by the state `name` hold so many distinct rows on average, at most `most`.

    m draws hold sum_i 1 - exp(-m p_i) distinct rows, up to a draw. The rows are counted by the size of p_i first.
    """
    total = float(pool.sum(lambda shard: shard.state[name].double().sum().cpu()))
    mean = total / pool.n
    count_B = pool.sum(functools.partial(_histogram, name, mean)).double()
    edge_B = torch.arange(len(count_B), dtype=torch.float64) / BINS_PER_OCTAVE - OCTAVES
    p_B = torch.exp2(edge_B + 0.5 / BINS_PER_OCTAVE) / pool.n
    p_B[0] = 0.0  # rows below the smallest size are never drawn

    def held(draws: float) -> float:
        return float((count_B * -torch.expm1(-draws * p_B)).sum())

    low, high = float(distinct), float(most)
    if high <= low or held(high) < distinct:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < distinct else (low, middle)
    return high


def _first(name: str, key: Key, length: float, total: float, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, times and rates of the rows here that ring in the window at all, at their first ring."""
    rate_N = shard.state[name].double() / total
    time_N = key.exponential(shard.ids) / rate_N  # a row of rate 0 never rings
    here = (time_N < length).nonzero()[:, 0]
    return shard.ids[here].cpu(), time_N[here].cpu(), rate_N[here].cpu()


def _histogram(name: str, mean: float, shard: Shard) -> Tensor:
    size_N = (shard.state[name].double() / mean).log2().clamp(-OCTAVES, OCTAVES)
    bin_N = ((size_N + OCTAVES) * BINS_PER_OCTAVE).long()
    return torch.bincount(bin_N, minlength=2 * OCTAVES * BINS_PER_OCTAVE + 1).cpu()
