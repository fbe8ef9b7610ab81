"""Removal of the rows whose loss raises tr(M^-1 F) least; the rows added before are few enough for one process."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.selection.backends import is_accelerator
from labelwise.shards import Shard
from labelwise.strategies.bait import fisher
from labelwise.strategies.bait.design import Design
from labelwise.strategies.bait.fisher import REMOVE, Factors
from labelwise.strategies.bait.kernels.torch import (
    FLOOR_ROWS,
    SLIGHTLY_MORE,
    SOLVE_BLOCK,
    TIE,
    Candidates,
    Limits,
    Problem,
    Steps,
    Tuning,
)

COMPACTION = 8  # arrays are compacted when one in this many rows is removed
PER_ROW = ("P", "Q", "probs", "h", "traces", "removed", "position")


class Removal:
    """P and Q of the rows that remain, in `state`: a dict of this process, or the state of a shard."""

    def __init__(self, state: dict[str, Tensor], tuning: Tuning):
        self._state, self._tuning = state, tuning

    def begin(self, factors: Factors, design: Design) -> None:
        """Compute P and Q of these rows, by rising lot, where the tables of the design are."""
        state, count = self._state, len(factors.h_ND)
        state["h"] = factors.h_ND
        if factors.p_NC is not None:
            state["probs"] = factors.p_NC
        state["P"], state["Q"] = (factors.h_ND.new_empty(count, factors.rank, factors.rank) for _ in range(2))
        state["removed"] = torch.zeros(count, dtype=torch.bool, device=factors.h_ND.device)
        state["position"] = torch.arange(count, device=factors.h_ND.device)  # among the rows at the beginning
        sandwich_GG = design.sandwich()
        for block in self._blocks():
            pq = design.compute_pq(self._factors(block), design.inverse_GG, sandwich_GG)
            state["P"][block], state["Q"][block] = pq
        state["traces"] = fisher.traces(state["P"], state["Q"])

    @property
    def remaining(self) -> Tensor:
        """Positions of the rows that remain."""
        return self._state["position"][~self._state["removed"]]

    def remove(self, count: int, design: Design, shard: Shard | None = None) -> None:
        """Remove `count` rows, each the one that raises the trace least.

        With a shard, which is on an accelerator, most of them in steps without the host.
        """
        min_solved = self._tuning.solved(self._state["P"].shape[-1])
        solved = min_solved
        while count:
            if shard is not None:
                done = Steps(self._tuning, design, self._candidates(), REMOVE, Limits(count, solved)).run(shard)
                count, is_crowded = count - len(done.positions), done.open_rows > solved
                solved = max(solved, 2 * done.open_rows)
                if not count or is_crowded:
                    continue
            self._update(design, self._remove_best())
            count -= 1
        if shard is not None:
            self._compact()

    def _candidates(self) -> Candidates:
        """The rows for steps on a device; of tied rows the largest lot is removed."""
        state = self._state
        arrays = state["P"], state["Q"], state["traces"], state["removed"], -state["position"], state["position"]
        return Candidates(*arrays, self._blocks(), self._factors)

    def _remove_best(self) -> Factors:
        """Remove the row that raises the trace least; of tied rows the largest lot."""
        state = self._state
        rise_M = torch.full_like(state["traces"][:, 0], torch.inf)
        floor_M = state["traces"][:, 1].masked_fill(state["removed"], torch.inf)  # (I - P)^-1 >= I
        first = floor_M.topk(min(FLOOR_ROWS, int((~state["removed"]).sum())), largest=False).indices
        rise_M[first] = fisher.trace_change(state["P"][first], state["Q"][first], REMOVE)
        ceiling = rise_M.min().abs() * SLIGHTLY_MORE
        for part in (floor_M <= ceiling).nonzero()[:, 0].split(SOLVE_BLOCK):
            p_mrr, q_mrr = state["P"][part], state["Q"][part]
            is_low = ~(fisher.rise_bound(p_mrr, q_mrr) > ceiling)  # also where it is not a number
            rise_M[part[is_low]] = fisher.trace_change(p_mrr[is_low], q_mrr[is_low], REMOVE)
        least = rise_M.min()
        row = int((rise_M <= least + TIE * least.abs()).nonzero()[-1])
        state["removed"][row] = True
        return self._factors(slice(row, row + 1))

    def _update(self, design: Design, row: Factors) -> None:
        """Remove the row from the design, and update P and Q of those that remain."""
        update = design.move(row, REMOVE)
        self._compact()
        state = self._state
        for block in self._blocks():
            update.apply(self._factors(block), state["P"][block], state["Q"][block])
        state["traces"] = fisher.traces(state["P"], state["Q"])

    def _factors(self, index: slice | Tensor) -> Factors:
        return Factors(self._state["probs"][index] if "probs" in self._state else None, self._state["h"][index])

    def _blocks(self) -> list[slice]:
        p_Mrr = self._state["P"]
        if is_accelerator(p_Mrr.device):
            size = self._tuning.solved(p_Mrr.shape[-1])
        else:
            size = fisher.rows_in_cache(self._factors(slice(0, 1)).classes)
        return [slice(start, start + size) for start in range(0, len(p_Mrr), size)]

    def _compact(self) -> None:
        """Drop the rows that are removed, where they are many."""
        removed_M = self._state["removed"]
        if COMPACTION * int(removed_M.sum()) > len(removed_M):
            stay = (~removed_M).nonzero()[:, 0]
            for name in PER_ROW:
                if name in self._state:
                    self._state[name] = self._state[name][stay]


def begin(problem: Problem, ids: Tensor, design: Design, shard: Shard) -> None:
    """Begin the removal among these rows of the shard that has the design."""
    positions = shard.find(ids)[1]
    blocks = [problem.reader.read(shard.rows(part)) for part in positions.split(SOLVE_BLOCK)]
    Removal(shard.state, problem.tuning).begin(fisher.concatenate(blocks), design)


def remove(tuning: Tuning, count: int, design: Design, shard: Shard) -> None:
    """Remove `count` of them."""
    Removal(shard.state, tuning).remove(count, design, shard)


def remaining(shard: Shard) -> Tensor:
    """Positions of the rows that remain."""
    return shard.state["position"][~shard.state["removed"]].cpu()


def clear(shard: Shard) -> None:
    """Free all state of the removal."""
    for name in PER_ROW:
        shard.state.pop(name, None)
