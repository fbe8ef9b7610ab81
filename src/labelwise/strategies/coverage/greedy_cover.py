"""Greedy cover within a short list, while no ball outside of it can cover more."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Picks(NamedTuple):
    """Rows selected from a short list.

    Attributes:
        ids: the rows.
        scores: the number of rows that each covered first.
        covered: the ids of all those rows.
    """

    ids: list[int]
    scores: list[float]
    covered: Tensor


def cover_from_list(
    listed: Tensor, lots: Tensor, ball: Tensor, row: Tensor, next_best: tuple[float, int] | None, most: int
) -> Picks:
    """Select at most `most` rows of a short list, each covering the most rows that are not covered yet.

    Args:
        listed: ids of the rows on the list.
        lots: of these rows; they break ties.
        ball: for each pair of a ball and an uncovered row in it, the position of the ball on the list.
        row: the id of the row of each pair.
        next_best: the highest count outside the list, which can only fall, and the smallest lot that has it.
            Every pick is ahead of it.
        most: the maximum of picks.
    """
    rows, position = row.unique(return_inverse=True)
    count_M = torch.bincount(ball, minlength=len(listed)).double()
    covered = torch.zeros(len(rows), dtype=torch.bool)
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < most:
        top = float(count_M.max())
        tied = (count_M == top).nonzero()[:, 0]
        best = tied[lots[tied].argmin()]
        if top <= 0 or (next_best is not None and (-top, int(lots[best])) > (-next_best[0], next_best[1])):
            break
        new = torch.zeros_like(covered)
        new[position[ball == best]] = True
        new &= ~covered
        covered |= new
        count_M -= torch.bincount(ball[new[position]], minlength=len(listed))
        count_M[best] = -torch.inf
        ids.append(int(listed[best]))
        scores.append(top)
    return Picks(ids, scores, rows[covered])
