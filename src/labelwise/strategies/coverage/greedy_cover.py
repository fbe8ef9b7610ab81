"""Greedy cover inside a short list: which of its balls to take while none outside can be ahead."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Picks(NamedTuple):
    """Rows of a short list that were taken, how many rows each covered, and which rows."""

    ids: list[int]
    scores: list[float]
    covered: Tensor  # ids


def from_list(listed: Tensor, ball: Tensor, row: Tensor, guard: tuple[float, int] | None, most: int) -> Picks:
    """At most so many picks from a list, given all pairs of a ball of the list and a row in it that is not covered.

    `guard` is the highest count outside the list, which can only fall, with the smallest id that has it: a pick has to
    be ahead of it.
    """
    rows, place = row.unique(return_inverse=True)
    left_M = torch.bincount(ball, minlength=len(listed)).double()
    covered = torch.zeros(len(rows), dtype=torch.bool)
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < most:
        top = float(left_M.max())
        tied = (left_M == top).nonzero()[:, 0]
        at = tied[listed[tied].argmin()]
        pick = int(listed[at])
        if top <= 0 or (guard is not None and (-top, pick) > (-guard[0], guard[1])):
            break
        new = torch.zeros_like(covered)
        new[place[ball == at]] = True
        new &= ~covered
        covered |= new
        left_M -= torch.bincount(ball[new[place]], minlength=len(listed))
        left_M[at] = -torch.inf
        ids.append(pick)
        scores.append(top)
    return Picks(ids, scores, rows[covered])
