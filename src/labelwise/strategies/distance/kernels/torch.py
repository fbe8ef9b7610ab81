"""The picks inside one list of candidates, on the host: what the Triton kernels are tested against.

Both functions return the places of the picks in the list (J,) and their squared distances when picked (J,), float64.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from torch import Tensor

from labelwise.rng import Key, uniforms


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
    dist_MM: Tensor, near_M: Tensor, start: Tensor, bound: Tensor, tolerance: float, k: int
) -> tuple[Tensor, Tensor]:
    """Farthest first from row `start` on, while the farthest row is surely the farthest of the pool.

    Args:
        dist_MM: squared distances of the rows of the list, which are in the order of their ids.
        near_M: squared distance of each row to the nearest centre; -inf for picks.
        start: place of the first pick.
        bound: no row outside the list is farther than this.
        tolerance: relative difference up to which two distances are tied; ties go to the first row.
        k: the most picks.
    """
    dist, near, limit, pick = dist_MM.cpu().numpy(), near_M.cpu().numpy().copy(), float(bound), int(start)
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
        np.minimum(near, dist[pick], out=near)
        near[pick] = -np.inf
    return torch.tensor(picks, dtype=torch.int64), torch.tensor(values, dtype=torch.float64)


def draw_by_arrival(
    dist_MM: Tensor, time_M: Tensor, near_M: Tensor, chance: ArrivalChance, end: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Draw rows in the order of their arrivals, up to the time `end`; see nearest.py.

    Args:
        dist_MM: squared distances of the rows of the list.
        time_M: time of each row's first arrival.
        near_M: squared distance of each row to the nearest centre, the rate of its arrivals; float64.
        chance: for the arrivals.
        end: before this time, no row outside the list arrives.
        k: the most picks.
    """
    dist, near, last = dist_MM.cpu().numpy(), near_M.cpu().numpy(), float(end)
    rate = near.tolist()
    queue = [(time, row, 0) for row, time in enumerate(time_M.tolist())]
    heapq.heapify(queue)
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
            near = np.minimum(near, dist[row])
        elif now > 0:
            if turn == len(waits):
                waits.append(chance.wait(turn).tolist())
            rate[row] = now
            heapq.heappush(queue, (time + waits[turn][row] / now, row, turn + 1))
    return torch.tensor(picks, dtype=torch.int64), torch.tensor(values, dtype=torch.float64)
