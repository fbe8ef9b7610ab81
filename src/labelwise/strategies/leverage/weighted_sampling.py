"""Draws of rows with replacement, in proportion to a weight in their state, independent of order, block and shard.

Every row has arrivals at the times of a Poisson process whose rate is its weight over the sum of all weights. In the
order of time the arrivals are independent draws by weight, repeats included. They are made one window of time after
the other: a window of length t has t arrivals on average. Waiting times are hashed from (key, window, turn, row id).
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
    """The arrivals of one window, in the order of time.

    Attributes:
        ids: the rows (J,).
        uniform: a uniform number for each arrival (J,), to accept or reject it by.
    """

    ids: Tensor
    uniform: Tensor


class PoissonSampler:
    """Draws rows by the state `name`, which is at least 0.

    Args:
        pool: the rows.
        name: the state that has their weights.
        key: the key of the waiting times.
    """

    def __init__(self, pool: Shards, name: str, key: Key):
        self.total = _total(pool, name)
        self._pool, self._name, self._key = pool, name, key
        self._number = 0

    def window(self, length: float) -> Window:
        """The next arrivals, `length` of them on average."""
        key = self._key.fold("window", self._number)
        self._number += 1
        parts = self._pool.map(functools.partial(_first_arrivals, self._name, key, length, self.total))
        ids, time, rate = (torch.cat([part[i] for part in parts]) for i in range(3))
        arrivals = []
        turn = 0
        while len(ids):
            arrivals.append((time, ids, key.fold("keep", turn).uniform(ids)))
            time = time + key.fold("next", turn).exponential(ids) / rate
            inside = time < length
            ids, time, rate = ids[inside], time[inside], rate[inside]
            turn += 1
        if not arrivals:
            return Window(ids, time)
        times, rows, uniforms = (torch.cat([one[i] for one in arrivals]) for i in range(3))
        by_id = rows.argsort(stable=True)
        order = by_id[times[by_id].argsort(stable=True)]
        return Window(rows[order], uniforms[order])


def expected_draws(pool: Shards, name: str, distinct: int, most: float) -> float:
    """The number of draws by the state `name` that has `distinct` different rows on average, at most `most`.

    m draws have sum_i 1 - exp(-m p_i) different rows, up to a draw. Rows are counted in bins of p_i first.
    """
    mean = _total(pool, name) / pool.n
    count_B = pool.sum(functools.partial(_histogram, name, mean)).double()
    edge_B = torch.arange(len(count_B), dtype=torch.float64) / BINS_PER_OCTAVE - OCTAVES
    p_B = torch.exp2(edge_B + 0.5 / BINS_PER_OCTAVE) / pool.n
    p_B[0] = 0.0  # rows below the smallest bin are never drawn

    def different(draws: float) -> float:
        return float((count_B * -torch.expm1(-draws * p_B)).sum())

    low, high = float(distinct), float(most)
    if high <= low or different(high) < distinct:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if different(middle) < distinct else (low, middle)
    return high


def _total(pool: Shards, name: str) -> float:
    return float(pool.sum(lambda shard: shard.state[name].double().sum().cpu()))


def _first_arrivals(name: str, key: Key, length: float, total: float, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, times and rates of the rows of this shard with an arrival in the window, at their first arrival."""
    rate_N = shard.state[name].double() / total
    time_N = key.exponential(shard.ids) / rate_N  # a row of rate 0 has no arrivals
    inside = (time_N < length).nonzero()[:, 0]
    return shard.ids[inside].cpu(), time_N[inside].cpu(), rate_N[inside].cpu()


def _histogram(name: str, mean: float, shard: Shard) -> Tensor:
    size_N = (shard.state[name].double() / mean).log2().clamp(-OCTAVES, OCTAVES)
    bin_N = ((size_N + OCTAVES) * BINS_PER_OCTAVE).long()
    return torch.bincount(bin_N, minlength=2 * OCTAVES * BINS_PER_OCTAVE + 1).cpu()
