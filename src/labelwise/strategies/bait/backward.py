"""Rows that were taken, and letting go of those whose loss raises tr(M^-1 F) least: small enough for one process."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.shards import Shard
from labelwise.strategies.bait.design import Design
from labelwise.strategies.bait.fisher import Form, Parts, change_of_trace, in_cache, least_rise, together, traces
from labelwise.strategies.bait.fisher_rows import FIRST, MORE, SOLVED, TIE
from labelwise.strategies.bait.kernels.torch import Board, Limits, Steps, narrowest

GONE = 8  # one in so many rows is gone when those that are left are put together
PER_ROW = ("P", "Q", "probs", "h", "traces", "gone", "place")


class Taken:
    """P and Q of the rows that are left, as `fisher.py` has them; `state` holds them, here or beside a shard."""

    def __init__(self, state: dict[str, Tensor]):
        self._state = state

    def begin(self, parts: Parts, design: Design) -> None:
        """The rows come by rising id, where the design's tables are."""
        state, count = self._state, len(parts.h_ND)
        state["h"] = parts.h_ND
        if parts.p_NC is not None:
            state["probs"] = parts.p_NC
        state["P"], state["Q"] = (parts.h_ND.new_empty(count, parts.rank, parts.rank) for _ in range(2))
        state["gone"] = torch.zeros(count, dtype=torch.bool, device=parts.h_ND.device)
        state["place"] = torch.arange(count, device=parts.h_ND.device)  # where the rows here are among all
        middle_GG = design.middle()
        for where in self._blocks():
            state["P"][where], state["Q"][where] = design.state(self._parts(where), design.inverse_GG, middle_GG)
        state["traces"] = traces(state["P"], state["Q"])

    @property
    def left(self) -> Tensor:
        """Where the rows that are left are among all."""
        return self._state["place"][~self._state["gone"]]

    def let_go(self, many: int, design: Design, shard: Shard | None = None) -> None:
        """Let go of so many rows, each the one whose loss raises the trace least; of a shard without the host."""
        wide = narrowest(self._state["P"].shape[-1])
        while many:
            if shard is not None:
                made = Steps(design, self._board(), 1, Limits(many, wide)).run(shard)
                many, crowded = many - len(made.places), made.open > wide
                wide = max(wide, 2 * made.open)
                if not many or crowded:
                    continue
            self._change(design, self._drop())
            many -= 1
        if shard is not None:
            self._together()

    def _board(self) -> Board:
        """For steps on a device: of rows that are as good, the one with the largest id goes first."""
        state = self._state
        arrays = state["P"], state["Q"], state["traces"], state["gone"], -state["place"]
        return Board(*arrays, self._blocks(), self._parts)

    def _drop(self) -> Parts:
        """Let go of the row whose loss raises the trace least; of rows that are as good the one with the largest id."""
        state = self._state
        rise_M = torch.full_like(state["traces"][:, 0], torch.inf)
        floor_M = state["traces"][:, 1].masked_fill(state["gone"], torch.inf)  # (I - P)^-1 >= I
        first = floor_M.topk(min(FIRST, int((~state["gone"]).sum())), largest=False).indices
        rise_M[first] = change_of_trace(state["P"][first], state["Q"][first], 1)
        most = rise_M.min().abs() * MORE
        for some in (floor_M <= most).nonzero()[:, 0].split(SOLVED):
            p_mrr, q_mrr = state["P"][some], state["Q"][some]
            near = ~(least_rise(p_mrr, q_mrr) > most)  # also where it is not a number
            rise_M[some[near]] = change_of_trace(p_mrr[near], q_mrr[near], 1)
        least = rise_M.min()
        gone = int((rise_M <= least + TIE * least.abs()).nonzero()[-1])
        state["gone"][gone] = True
        return self._parts(slice(gone, gone + 1))

    def _change(self, design: Design, row: Parts) -> None:
        """Take the row out of the design, and bring those that are left up to date."""
        step = design.move(row, 1)
        self._together()
        state = self._state
        for where in self._blocks():
            step.change(self._parts(where), state["P"][where], state["Q"][where])
        state["traces"] = traces(state["P"], state["Q"])

    def _parts(self, where: slice | Tensor) -> Parts:
        return Parts(self._state["probs"][where] if "probs" in self._state else None, self._state["h"][where])

    def _blocks(self) -> list[slice]:
        p_Mrr = self._state["P"]
        cached = p_Mrr.device.type == "cpu"
        size = in_cache(self._parts(slice(0, 1)).classes) if cached else narrowest(p_Mrr.shape[-1])
        return [slice(start, start + size) for start in range(0, len(p_Mrr), size)]

    def _together(self) -> None:
        """Keep nothing of the rows that are gone, where they are many."""
        gone_M = self._state["gone"]
        if GONE * int(gone_M.sum()) > len(gone_M):
            stay = (~gone_M).nonzero()[:, 0]
            for name in PER_ROW:
                if name in self._state:
                    self._state[name] = self._state[name][stay]


def begin(form: Form, ids: Tensor, design: Design, shard: Shard) -> None:
    """Begin to let go of these rows of a shard beside which the design is."""
    positions = shard.find(ids)[1]
    parts = together([form.read(shard.rows(some)) for some in positions.split(SOLVED)])
    Taken(shard.state).begin(parts, design)


def let_go(many: int, design: Design, shard: Shard) -> None:
    """Let go of so many of them."""
    Taken(shard.state).let_go(many, design, shard)


def left(shard: Shard) -> Tensor:
    """Where the rows that are left are among all."""
    return Taken(shard.state).left.cpu()


def end(shard: Shard) -> None:
    """Forget what was kept beside the rows."""
    for name in PER_ROW:
        shard.state.pop(name, None)
