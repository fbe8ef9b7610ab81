"""Picks by the distance to the nearest row already taken: farthest first (k-center) and by chance (k-means++).

Both keep near_N, the squared distance of each row to the nearest taken row, and would sweep the pool after every
pick. Here most picks cost no sweep: they are made inside a short list, and the pool then takes in all of them by one
matrix product. The picks of farthest-first are those of the one-by-one form; the picks of k-means++ follow its law.

Farthest first: near_N only falls. The M rows with the largest values are a list, the next value is a guard. While
the farthest row of the list is above the guard it is the farthest row of the pool.

k-means++: let every row ring at the times of a Poisson process of rate near_N. The first ring is a row drawn with
probability proportional to near_N. Once a row is taken the rates fall; a ring that is kept with probability (rate
now) / (rate it was drawn with) is a ring of the process with the new rates, and what happens after it does not depend
on what happened before. So the M rows that ring first, under the rates known when the list is made, give several
picks, exactly in law: walk through their rings in time, keep each with that probability, let a row whose ring is not
kept ring again at its present rate, and stop at the time of the M-th first ring, before which no other row rings.
Ring times are hashed from (key, list number, row id), so they do not depend on the order or the place of the rows.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.memory import Size
from labelwise.selection.progress import tick
from labelwise.selection.strategy import tie_tolerance
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import Column, Rows, checked_norm, sq_dist, sq_near
from labelwise.signals.spec import Signal

FIRST_LIST = 64
LONGEST_LIST = 2048
WIDE = 8  # a product with fewer columns runs on one thread only; more columns, copies of the few, cost less
TABLE_ROWS = 256  # rows of a table of distances that are computed at once
CENTRES = 1024  # rows taken in by one matrix product


def memory(size: Size, k: int) -> int:
    """Bytes of k such picks: a few numbers for each row, and the longest list with its table of distances."""
    longest = min(size.rows, LONGEST_LIST, 12 * k + FIRST_LIST)
    table = longest * (longest + 4 * TABLE_ROWS) * size.number
    return (76 + 2 * size.number) * size.rows + table + 5 * longest * size.row + 128 * k


@contextmanager
def measured(pool: Shards, signal: Signal) -> Iterator[None]:
    """Within, each row keeps its squared length and its distance to what is taken, infinite at first."""
    try:
        pool.map(functools.partial(_begin, signal))
        yield
    finally:
        pool.map(_end)


def take_in(pool: Shards, signal: Signal, centres: Rows, taken: bool = True) -> None:
    """Lower every row's distance to that of its nearest centre; `taken` centres are rows of the pool themselves."""
    for start in range(0, len(centres), CENTRES):
        part = centres.take(slice(start, start + CENTRES))
        pool.map(functools.partial(_take_in, signal, part, taken))


def longest(pool: Shards, slack: float) -> Best:
    """The row with the largest squared length."""
    return pool.best(lambda shard: shard.state["norm"], 1, slack)


def farthest_first(pool: Shards, signal: Signal, k: int) -> Best:
    """k rows, each the farthest from all that is taken so far; values are the squared distances when picked.

    When only copies of taken rows are left, the smallest ids follow.
    """
    from labelwise.strategies.distance import nearest_cuda  # which uses this file

    if nearest_cuda.suits(pool):
        return nearest_cuda.farthest_first(pool, signal, k)
    slack = tie_tolerance(pool)
    parts: list[Best] = []
    length, left = FIRST_LIST, k
    while left:
        first = pool.best(_near, 1, slack)
        if first.values[0] == 0:
            parts.append(pool.best(_near, left))
            break
        listed = pool.best(_near, length)
        part = _walk_farthest(pool, signal, first, listed, left, slack)
        parts.append(part)
        left -= len(part.ids)
        tick(k - left, k)
        if left:
            take_in(pool, signal, pool.take(part.ids))
        length = _next_length(length, len(part.ids), left)
    return Best(*(torch.cat(column) for column in zip(*parts)))


def by_chance(pool: Shards, signal: Signal, k: int, key: Key) -> Best:
    """k rows, each drawn with probability proportional to its squared distance to all that is taken so far.

    When only copies of taken rows are left, the draw is uniform over them.
    """
    from labelwise.strategies.distance import nearest_cuda  # which uses this file

    if nearest_cuda.suits(pool):
        return nearest_cuda.by_chance(pool, signal, k, key)
    parts: list[Best] = []
    length, left, number = FIRST_LIST, k, 0
    while left:
        rings = key.fold("list", number)
        listed = pool.best(functools.partial(_first_ring, rings), length)
        part = _walk_rings(pool, signal, listed, left, rings)
        if not len(part.ids):
            lottery = pool.best(functools.partial(_lottery, rings), left)
            parts.append(Best(lottery.ids, torch.zeros_like(lottery.values)))
            break
        parts.append(part)
        left -= len(part.ids)
        tick(k - left, k)
        if left:
            take_in(pool, signal, pool.take(part.ids))
        length = _next_length(length, len(part.ids), left)
        number += 1
    return Best(*(torch.cat(column) for column in zip(*parts)))


def _next_length(length: int, picked: int, left: int) -> int:
    """How many rows the next list should hold.

    A list costs its length squared, a sweep of the pool the rows of the pool for each pick since the last one: while
    a fair share of a list is used, go for one that holds all the picks still to be made; make it shorter when little
    of it is used.
    """
    share = picked / length
    enough = min(int(1.2 * left / share) + FIRST_LIST, LONGEST_LIST)
    length = enough if share > 0.2 else length * 2 if share > 0.1 else length // 2 if share < 0.03 else length
    return max(FIRST_LIST, min(length, enough))


def _walk_farthest(pool: Shards, signal: Signal, first: Best, listed: Best, k: int, slack: float) -> Best:
    """Picks inside one list, until its farthest row is no longer surely the farthest of the pool."""
    others = (listed.ids != first.ids) & (listed.values > -torch.inf)
    ids = torch.cat([first.ids, listed.ids[others]])
    near_M = torch.cat([first.values, listed.values[others]])
    guard = near_M.amin().clone()  # no row outside the list is above it
    rows = pool.take(ids)
    dist_MM = _table(rows[signal])
    by_id = ids.argsort()
    pick, picked, values = 0, [0], [float(near_M[0])]
    while len(picked) < k:
        torch.minimum(near_M, dist_MM[pick], out=near_M)
        near_M[pick] = -torch.inf
        top = near_M.max()
        floor = top - slack * top.abs()
        if floor <= guard:
            break
        pick = int(by_id[(near_M[by_id] >= floor).to(torch.uint8).argmax()])
        picked.append(pick)
        values.append(float(near_M[pick]))
    return Best(ids[picked], torch.tensor(values, dtype=torch.float64))


def _walk_rings(pool: Shards, signal: Signal, listed: Best, k: int, rings: Key) -> Best:
    """Picks among the rows that ring first, in the order of time (listed values are times, negated)."""
    ids = listed.ids[listed.values > -torch.inf]
    if not len(ids):
        return Best(ids, listed.values[:0])
    times = (-listed.values[: len(ids)]).tolist()
    rows = pool.take(ids)
    dist_MM = _table(rows[signal]).numpy()
    near_M = (rings.exponential(ids) / -listed.values[: len(ids)]).numpy()  # back from times to rates
    rate = near_M.tolist()
    chance = _Chance(rings, ids)
    queue = [(time, row, 0) for row, time in enumerate(times)]  # sorted, so a heap
    picked: list[int] = []
    values: list[float] = []
    while queue and queue[0][0] <= times[-1] and len(picked) < k:
        time, row, turn = heapq.heappop(queue)
        now = float(near_M[row])
        if chance.keep(turn, row) * rate[row] < now:
            picked.append(row)
            values.append(now)
            near_M = np.minimum(near_M, dist_MM[row])
        elif now > 0:
            rate[row] = now
            heapq.heappush(queue, (time + chance.wait(turn, row) / now, row, turn + 1))
    return Best(ids[picked], torch.tensor(values, dtype=torch.float64))


def _table(x: Column) -> Tensor:
    """Squared distances (M, M) of the rows of a list, filled in parts so that temporaries stay small."""
    dist_MM: Tensor | None = None
    for start in range(0, len(x), TABLE_ROWS):
        where = slice(start, start + TABLE_ROWS)
        part = sq_dist(x[where], x).cpu()
        if dist_MM is None:
            dist_MM = part.new_empty(len(x), len(x))
        dist_MM[where] = part
    assert dist_MM is not None, "a list is never empty"
    return dist_MM


class _Chance:
    """Chance for the rings of one list: a function of (key, turn, row id), drawn for all rows of a turn at once."""

    def __init__(self, key: Key, ids: Tensor):
        self._key, self._ids = key, ids
        self._keep: list[list[float]] = []
        self._wait: list[list[float]] = []

    def keep(self, turn: int, row: int) -> float:
        """Uniform in (0, 1)."""
        if turn == len(self._keep):
            self._keep.append(self._key.fold("keep", turn).uniform(self._ids).tolist())
        return self._keep[turn][row]

    def wait(self, turn: int, row: int) -> float:
        """A standard exponential."""
        if turn == len(self._wait):
            self._wait.append(self._key.fold("wait", turn).exponential(self._ids).tolist())
        return self._wait[turn][row]


def _begin(signal: Signal, shard: Shard) -> None:
    shard.state["norm"] = shard.each(lambda rows: checked_norm(rows, signal))
    shard.state["near"] = torch.full_like(shard.state["norm"], torch.inf)


def _end(shard: Shard) -> None:
    shard.state.pop("norm", None)
    shard.state.pop("near", None)


def _take_in(signal: Signal, centres: Rows, taken: bool, shard: Shard) -> None:
    near_N, norm_N = shard.state["near"], shard.state["norm"]
    centres = centres.to(shard.device)
    if len(centres) < WIDE:
        centres = centres.take(torch.arange(WIDE, device=shard.device) % len(centres))
    to = centres[signal]
    for where, rows in shard.blocks(scratch=2 * len(centres)):
        near_N[where] = torch.minimum(near_N[where], sq_near(rows[signal], norm_N[where], to))
    if taken:
        near_N[torch.isin(shard.ids, centres.ids)] = -torch.inf


def _near(shard: Shard) -> Tensor:
    return shard.state["near"]


def _first_ring(rings: Key, shard: Shard) -> Tensor:
    """Minus the time of each row's first ring; -inf for rows that never ring."""
    near_N = shard.state["near"].double()
    return (-rings.exponential(shard.ids) / near_N).masked_fill_(near_N <= 0, -torch.inf)


def _lottery(rings: Key, shard: Shard) -> Tensor:
    """An equal chance for every row that is not taken."""
    return rings.uniform(shard.ids).masked_fill_(shard.state["near"] == -torch.inf, -torch.inf)
