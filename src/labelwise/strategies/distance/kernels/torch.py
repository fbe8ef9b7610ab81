"""The picks inside one list of candidates, on the host: what the Triton kernels are tested against.

Both functions return the places of the picks in the list (J,) and their squared distances when picked (J,), float64.
A pick needs its own line of the table of distances and no other: `LazyTable` computes the lines of rows that are likely
to be picked next together, as one product, and never those of the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from labelwise.rng import Key, uniforms
from labelwise.signals.rows import Column, sq_dist, sq_norm, take_rows

TOGETHER = 32  # lines of a table that one product computes
TABLE_NUMBERS = 1 << 22  # of the lines that are stored
Likely = Callable[[], np.ndarray]  # the places of rows that are likely to be picked next, the likeliest first


class LazyTable:
    """Squared distances (M, M) of the rows of a list, each line computed when it is first likely to be used.

    At most `numbers` distances are stored at a time.
    """

    def __init__(self, x: Column, numbers: int = TABLE_NUMBERS):
        self._x, self._norm_M, self._numbers = x, sq_norm(x), numbers
        self._lines: dict[int, np.ndarray] = {}

    def line(self, place: int, likely: Likely) -> np.ndarray:
        """The distances (M,) of the row at `place`. Lines of `likely` next picks are computed with it."""
        if place not in self._lines:
            self._compute(place, likely())
        return self._lines[place]

    def _compute(self, place: int, likely: np.ndarray) -> None:
        if (len(self._lines) + TOGETHER) * len(self._norm_M) > self._numbers:
            self._lines.clear()
        new = [one for one in likely.tolist() if one != place and one not in self._lines]
        places = [place, *new[: TOGETHER - 1]]
        at_n = torch.tensor(places * (4 // len(places) + 1) if len(places) < 4 else places)  # products by few are slow
        dist_nM = sq_dist(take_rows(self._x, at_n), self._x, self._norm_M[at_n], self._norm_M).cpu().numpy()
        self._lines.update(zip(places, dist_nM))


class WholeTable:
    """A table (M, M) that is computed already, as `LazyTable`."""

    def __init__(self, dist_MM: Tensor):
        self._lines_M: list[np.ndarray] = list(dist_MM.cpu().numpy())

    def line(self, place: int, likely: Likely) -> np.ndarray:
        return self._lines_M[place]


Table = LazyTable | WholeTable


class ArrivalChance:
    """Chance for the arrivals of the rows of one list: a function of (key, turn, row id).

    Turn t of a row is its (t + 1)-th arrival in the list. `keep` (M,) is uniform and decides whether the arrival is
    kept; `wait` (M,) is a standard exponential, the time to the next arrival at rate 1.
    """

    def __init__(self, key: Key, ids: Tensor):
        self._key, self._ids = key, ids

    def keep(self, turn: int) -> Tensor:
        return self._key.fold("keep", turn).uniform(self._ids)

    def wait(self, turn: int) -> Tensor:
        return self._key.fold("wait", turn).exponential(self._ids)

    def of_turns(self, turns: int) -> tuple[Tensor, Tensor]:
        """`keep` and `wait` (turns, M) of the first turns, by as many operations as for one of them."""
        keys = [self._key.fold(name, turn) for name in ("keep", "wait") for turn in range(turns)]
        uniform_2TM = uniforms(keys, self._ids).view(2, turns, -1)
        return uniform_2TM[0], -uniform_2TM[1].log()


def pick_farthest(
    table: Table | Tensor, near_M: Tensor, start: Tensor, bound: Tensor, tolerance: float, k: int
) -> tuple[Tensor, Tensor]:
    """Farthest first from row `start` on, while the farthest row is surely the farthest of the pool.

    Args:
        table: squared distances (M, M) of the rows of the list, which are in the order of their lots.
        near_M: squared distance of each row to the nearest centre; -inf for picks.
        start: place of the first pick.
        bound: no row outside the list is farther than this.
        tolerance: relative difference up to which two distances are tied; ties go to the first row.
        k: the most picks.
    """
    near, limit, pick = near_M.cpu().numpy().copy(), float(bound), int(start)
    table = WholeTable(table) if isinstance(table, Tensor) else table

    def farthest() -> np.ndarray:
        some = np.argpartition(near, -min(2 * TOGETHER, len(near)))[-2 * TOGETHER :]
        return some[near[some].argsort()[::-1]]

    share = near.dtype.type(tolerance)
    picks: list[int] = []
    values: list[float] = []
    while len(picks) < min(k, len(near)):
        if picks:
            top = near.max()
            floor = top - share * abs(top)
            if floor <= limit:
                break
            pick = int((near >= floor).argmax())
        picks.append(pick)
        values.append(float(near[pick]))
        if len(picks) == k:
            break
        near[pick] = -np.inf
        np.minimum(near, table.line(pick, farthest), out=near)
    return torch.tensor(picks, dtype=torch.int64), torch.tensor(values, dtype=torch.float64)


def draw_by_arrival(
    table: Table | Tensor, time_M: Tensor, near_M: Tensor, chance: ArrivalChance, end: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Draw rows in the order of their arrivals, up to the time `end`; see nearest.py.

    Args:
        table: squared distances (M, M) of the rows of the list.
        time_M: time of each row's first arrival.
        near_M: squared distance of each row to the nearest centre, the rate of its arrivals; float64.
        chance: for the arrivals.
        end: before this time, no row outside the list arrives.
        k: the most picks.
    """
    near, last = near_M.cpu().numpy(), float(end)
    table = WholeTable(table) if isinstance(table, Tensor) else table
    rate, time_of_M = near.tolist(), time_M.cpu().numpy()
    queue = [(time, row, 0) for row, time in enumerate(time_of_M.tolist())]
    heapq.heapify(queue)
    by_time, least = np.argsort(time_of_M), chance.keep(0).cpu().numpy() * near  # rates below which a row is not picked

    def arriving() -> np.ndarray:
        is_possible = (least < near) & (time_of_M >= time)
        some: np.ndarray = by_time[is_possible[by_time]][: 2 * TOGETHER]
        return some

    keeps: list[list[float]] = []
    waits: list[list[float]] = []
    picks: list[int] = []
    values: list[float] = []
    while queue and queue[0][0] <= last and len(picks) < k:
        time, row, turn = heapq.heappop(queue)
        if turn == len(keeps):
            keeps.append(chance.keep(turn).tolist())
        now = float(near[row])
        if keeps[turn][row] * rate[row] < now:
            picks.append(row)
            values.append(now)
            if len(picks) == k:
                break
            near = np.minimum(near, table.line(row, arriving))
        elif now > 0:
            if turn == len(waits):
                waits.append(chance.wait(turn).tolist())
            rate[row] = now
            heapq.heappush(queue, (time + waits[turn][row] / now, row, turn + 1))
    return torch.tensor(picks, dtype=torch.int64), torch.tensor(values, dtype=torch.float64)
