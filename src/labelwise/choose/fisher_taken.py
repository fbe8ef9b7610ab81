"""Rows that were taken, and letting go of those whose loss raises tr(M^-1 F) least: small enough for one process."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from labelwise.choose.fisher import Design, Parts, Step, change_of_trace, in_cache, traces
from labelwise.choose.fisher_rows import FIRST, MORE, SOLVED, TIE

GONE = 8  # one in so many rows is gone when those that are left are put together


class Taken:
    """P and Q of the rows that are left, as `fisher.py` has them."""

    def __init__(self, parts: Parts, design: Design):
        """The rows come by rising id, on the CPU."""
        self._parts = parts
        count, rank = len(parts.h_ND), parts.rank
        self.left = torch.ones(count, dtype=torch.bool)  # of all rows
        self._place = torch.arange(count)  # where the rows here are among all
        self._here = torch.ones(count, dtype=torch.bool)  # of the rows here
        self._P_Mrr, self._Q_Mrr = (torch.empty(count, rank, rank, dtype=torch.float64) for _ in range(2))
        middle_GG = design.middle()
        for where in self._blocks():
            self._P_Mrr[where], self._Q_Mrr[where] = design.state(self._parts.at(where), design.inverse_GG, middle_GG)
        self._Q_M = traces(self._P_Mrr, self._Q_Mrr)[:, 1]

    def drop(self) -> Parts:
        """Let go of the row whose loss raises the trace least; of rows that are as good the one with the largest id."""
        rise_M = torch.full_like(self._Q_M, torch.inf)
        floor_M = self._Q_M.masked_fill(~self._here, torch.inf)  # (I - P)^-1 >= I
        first = floor_M.topk(min(FIRST, int(self._here.sum())), largest=False).indices
        rise_M[first] = change_of_trace(self._P_Mrr[first], self._Q_Mrr[first], 1)
        most = rise_M.min().abs() * MORE
        for some in (floor_M <= most).nonzero()[:, 0].split(SOLVED):
            p_mrr, q_mrr, q_m = self._P_Mrr[some], self._Q_Mrr[some], self._Q_M[some]
            # 1 / (1 - x) is convex: Jensen.
            lower_m = q_m.square() / (q_m - torch.linalg.vecdot(p_mrr.flatten(1), q_mrr.flatten(1)))
            near = ~(lower_m > most)  # also where it is not a number
            rise_M[some[near]] = change_of_trace(p_mrr[near], q_mrr[near], 1)
        least = rise_M.min()
        gone = int((rise_M <= least + TIE * least.abs()).nonzero()[-1])
        self._here[gone] = self.left[self._place[gone]] = False
        return self._parts.at(slice(gone, gone + 1))

    def change(self, step: Step) -> None:
        """Bring the rows that are left up to date."""
        if GONE * int((~self._here).sum()) > len(self._here):
            self._together()
        for where in self._blocks():
            step.change(self._parts.at(where), self._P_Mrr[where], self._Q_Mrr[where])
        self._Q_M = traces(self._P_Mrr, self._Q_Mrr)[:, 1]

    def _blocks(self) -> Iterator[slice]:
        size = in_cache(self._parts.classes)
        for start in range(0, len(self._here), size):
            yield slice(start, start + size)

    def _together(self) -> None:
        """Keep nothing of the rows that are gone."""
        stay = self._here.nonzero()[:, 0]
        self._parts, self._place, self._here = self._parts.at(stay), self._place[stay], self._here[stay]
        self._P_Mrr = self._P_Mrr[stay]
        self._Q_Mrr = self._Q_Mrr[stay]
