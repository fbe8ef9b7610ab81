"""Steps of BAIT on one accelerator: each is a fixed row of kernels, and the host looks only once for many of them.

A step finds the row, takes it in or lets it go, and brings the rows up to date, as fisher_rows.py and fisher_taken.py
do step by step. All it needs is on the device: the design, P and Q of the rows, and a bound of what each row gains. The
`wide` rows of the highest bounds are solved exactly; where a row outside may be as good, where rows that are not held
may be, where gains have worn, or where digits do not suffice, the step does nothing and neither do those behind it. The
host reads how far they came, does what is to be done, and goes on. So the picks are those of the other loops, and no
step is ever taken back. On CUDA a step is captured in a graph and replayed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.strategies.bait import fisher_rows
from labelwise.strategies.bait.design import Design, whitened
from labelwise.strategies.bait.fisher import Form, Parts, bounds, least_rise, traces
from labelwise.strategies.bait.fisher_rows import ALMOST, MORE, TIE, UNKNOWN

WORN = 1e-4  # a gain this far below those at the last refresh has lost digits that ties are told by
AT_ONCE = 1 << 19  # numbers of P whose systems are solved at once: what that needs stays in the cache of the device
LEAST_SOLVED = 64  # rows, however large P is
REPEATED = 8  # steps from which on it pays to capture one
LAST = torch.iinfo(torch.int64).max
_graphs: WeakKeyDictionary[Shard, _Graph] = WeakKeyDictionary()


class Board(NamedTuple):
    """The rows that steps choose from."""

    p_Nrr: Tensor
    q_Nrr: Tensor
    traces_N2: Tensor
    out_N: Tensor  # whether a row cannot be chosen any more
    order_N: Tensor  # of rows that are as good the one with the smallest number is chosen
    blocks: list[slice]
    parts: Callable[[slice | Tensor], Parts]


class Limits(NamedTuple):
    """What steps stop at."""

    many: int  # steps
    wide: int  # rows that a step solves exactly
    others: float = -torch.inf  # what rows that are not here may gain
    fresh: float = 0.0  # the highest gain since M was last inverted


class _Graph(NamedTuple):
    """The last graph of a shard's steps."""

    side: torch.cuda.Stream
    pool: Any
    replay: Callable[[], None]


class Made(NamedTuple):
    """Steps that were made."""

    places: Tensor  # of their rows on the board, on the device
    order: Tensor  # their numbers in the order of the board
    values: Tensor  # how far each changed the trace
    open: int  # rows that had to be solved in one step, at most: above `wide` where they were too many


def narrowest(rank: int) -> int:
    """Rows whose systems are solved at once."""
    return max(LEAST_SOLVED, AT_ONCE // rank**2)


def memory(rows: int, rank: int) -> int:
    """Bytes that steps lay out beside so many rows."""
    return 64 * rows + 12 * 8 * min(rows, narrowest(rank)) * rank**2


def take(form: Form, limits: Limits, design: Design, shard: Shard) -> tuple[Tensor, Tensor, int]:
    """Take up to `limits.many` rows in, each the best of those that are held: their ids and gains, and `Made.open`."""
    state = shard.state
    ids_n = shard.ids[state["at"][state["held"]]]
    if not len(ids_n):
        return ids_n.cpu(), torch.empty(0, dtype=torch.float64), 0
    parts = functools.partial(fisher_rows.parts, form, shard)
    blocks = fisher_rows.blocks(form, shard)
    board = Board(state["P"], state["Q"], state["traces"], state["taken"], ids_n, blocks, parts)
    made = Steps(design, board, -1, limits).run(shard)
    state["ever"].index_fill_(0, state["held"][made.places], -UNKNOWN)
    return made.order, made.values, made.open


class Steps:
    """Steps of one kind, and their state, all of it on the device."""

    def __init__(self, design: Design, board: Board, sign: int, limits: Limits):
        """Rows are taken in (sign -1) or let go (1)."""
        self.design, self.board, self.sign, self.limits = design, board, sign, limits
        zero = functools.partial(torch.zeros, device=board.p_Nrr.device)
        self.bound_N = torch.empty_like(board.traces_N2[:, 0])
        self.places = zero(limits.many, dtype=torch.int64)
        self.values = zero(limits.many, dtype=torch.float64)
        self.step, self.open = zero(1, dtype=torch.int64), zero(1, dtype=torch.int64)
        self.fresh = torch.full_like(self.values[:1], limits.fresh)
        self.alive = zero(1, dtype=torch.bool)
        for where in board.blocks:
            self._look(where)

    def run(self, shard: Shard) -> Made:
        """As many steps as can be made without the host."""
        step = self._step
        if self.limits.many >= REPEATED:
            step = _captured(step, [self.alive], shard)  # which is off: nothing is changed while it is captured
        self.alive.fill_(True)
        for _ in range(self.limits.many):
            step()
        order = self.board.order_N[self.places]
        found = torch.cat([self.step, self.open, order, self.values.view(torch.int64)]).cpu()  # here the host waits
        count, open_ = found[:2].tolist()
        order, values = found[2:].view(2, -1)[:, :count]
        if count:
            self.design.noted(self.board.parts(self.places[:count]), self.sign)
        return Made(self.places[:count], order.clone(), values.clone().view(torch.float64), open_)

    def _step(self) -> None:
        """One row, while `alive`."""
        board, sign = self.board, self.sign
        place, score, going, open_ = self._best()
        self.open.copy_(torch.where(self.alive, torch.maximum(self.open, open_), self.open))
        row = board.parts(place)
        z_Gr, w_Gr, fine = self.design.turned(row, sign)
        self.alive &= going & fine
        self.places.index_copy_(0, self.step, place)
        self.values.index_copy_(0, self.step, -sign * score)
        self.step += self.alive
        self.fresh.copy_(torch.where(self.alive, torch.maximum(self.fresh, score), self.fresh))
        board.out_N.index_copy_(0, place, board.out_N.index_select(0, place) | self.alive)
        z_Gr, w_Gr = (torch.where(self.alive, one, 0.0) for one in (z_Gr, w_Gr))
        step = self.design.shifted(z_Gr, w_Gr, row.classes, sign)
        for where in board.blocks:
            step.change(board.parts(where), board.p_Nrr[where], board.q_Nrr[where])
            self._look(where)

    def _look(self, where: slice) -> None:
        """What can be said of these rows without solving."""
        p_nrr, q_nrr = self.board.p_Nrr[where], self.board.q_Nrr[where]
        self.board.traces_N2[where] = traces(p_nrr, q_nrr)
        self.bound_N[where] = bounds(p_nrr, q_nrr)[1] if self.sign < 0 else -least_rise(p_nrr, q_nrr)

    def _best(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best row, its score, whether it is certain to be the best, and how many rows may be: (1,) each.

        A score is the gain of a row that is taken in, and minus the rise where one is let go.
        """
        board, limits = self.board, self.limits
        bound_N = self.bound_N.masked_fill(board.out_N, -torch.inf)
        at_T = bound_N.topk(limits.wide, sorted=False).indices if limits.wide < len(bound_N) else None
        out_T, order_T = (one if at_T is None else one.index_select(0, at_T) for one in (board.out_N, board.order_N))
        score_T, fine_T = self._exactly(at_T)
        score_T = score_T.masked_fill(out_T, -torch.inf)
        top = score_T.amax(0, keepdim=True)
        first = torch.where(score_T >= top - TIE * top.abs(), order_T, LAST).argmin(0, keepdim=True)
        place, score = first if at_T is None else at_T.index_select(0, first), score_T.index_select(0, first)
        floor = score * ALMOST if self.sign < 0 else -score.abs() * MORE
        open_ = (bound_N >= floor).sum(0, keepdim=True)
        going = (score > -torch.inf) & (limits.others < floor) & (open_ <= limits.wide) & (fine_T | out_T).all()
        if self.sign < 0:
            going &= score >= WORN * self.fresh
        return place, score, going, open_

    def _exactly(self, at_T: Tensor | None) -> tuple[Tensor, Tensor]:
        """The scores of these rows, by solving, and whether digits suffice for each."""
        p_Nrr, q_Nrr = self.board.p_Nrr, self.board.q_Nrr
        rank, found = p_Nrr.shape[-1], []
        eye_rr = torch.eye(rank, dtype=torch.float64, device=p_Nrr.device)
        for start in range(0, len(p_Nrr) if at_T is None else len(at_T), narrowest(rank)):
            some = slice(start, start + narrowest(rank))
            p_srr, q_srr = (x[some] if at_T is None else x.index_select(0, at_T[some]) for x in (p_Nrr, q_Nrr))
            # tr A^-1 Q is the sum of L^-1 times L^-1 Q, number by number.
            right = torch.cat([eye_rr.expand_as(q_srr), q_srr], 2)
            both, fine_s = whitened(eye_rr - self.sign * p_srr, right)
            found.append((-self.sign * (both[:, :, :rank] * both[:, :, rank:]).sum((1, 2)), fine_s))
        return torch.cat([score for score, _ in found]), torch.cat([fine for _, fine in found])


def forget(shard: Shard) -> None:
    """Let go of the graph of this shard's steps, and of its memory."""
    _graphs.pop(shard, None)


def _captured(step: Callable[[], None], state: list[Tensor], shard: Shard) -> Callable[[], None]:
    """`step` as a graph; the last one is kept until there is another, so that they take turns in the same memory."""
    if shard.device.type != "cuda":
        return step
    before = _graphs.get(shard)
    side = torch.cuda.Stream(shard.device) if before is None else before.side
    pool = torch.cuda.graph_pool_handle() if before is None else before.pool
    _graphs[shard] = _Graph(side, pool, captured(step, state, pool, side))
    return _graphs[shard].replay
