"""Picks on a list of rows from their inner products: a fixed row of kernels for each, captured where there are graphs.

Buffers have a fixed size: first room for the rows of the support, then for the rows of the list. In the places of picks
to come may be anything finite, since their weights are zero. So a step is the same for every pick, and the host has
nothing to say in it: which row is picked and where it goes are numbers on the device. See greedy_gram.py for the
algebra.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.shards.graphs import captured
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.problem import TINY, Problem, forward

BUCKET = 1024  # room for the support grows by so many rows: each size is captured anew


class Walk:
    """Support and list, with their products.

    T is room + list, S is room: K = `gram_TS` are products <phi_i, phi_j> of all with the support, c_T those with R.
    """

    def __init__(self, problem: Problem, unit: bool, room: int, listed: int, steps: int, before: Walk | None = None):
        """Room for so many rows of the support and of a list, and for the weights of so many steps."""
        (a, b), zeros = problem.v_AB.shape, problem.v_AB.new_zeros
        self.problem, self.unit, self.room, self.noise = problem, unit, room, problem.noise
        self.g = Factored(zeros(room + listed, a), zeros(room + listed, b))
        self.f_T, self.c_T = zeros(room + listed), zeros(room + listed)  # f = <phi, v>
        self.gram_TS = zeros(room + listed, room)
        self.bonus_M, self.w_S = zeros(listed), zeros(room)
        self.weights_WS, self.found_3W = zeros(steps + 1, room), zeros(3, steps)
        self.at, self.turn = (torch.zeros(1, dtype=torch.int64, device=self.w_S.device) for _ in range(2))
        self._step = captured(self._pick, [self.at])  # on zeros, so that nothing large has to be put back
        for buffer in (*self._of_rows(), self.gram_TS):
            buffer.zero_()
        if before is not None:
            for mine, theirs in zip(self._of_rows(), before._of_rows()):
                mine[: before.room] = theirs[: before.room]
            self.gram_TS[: before.room, : before.room] = before.gram_TS[: before.room]

    def run(self, start: int, w: Tensor, rows: Factored, bonus_M: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """So many picks from a list, with `start` rows picked before at weights w.

        Places in the list, scores and best scores (3, steps); weights (steps + 1, rows) before each pick and after all.
        """
        self._begin(start, w, rows, bonus_M)
        for _ in range(steps):
            self._step()
        # Copies: the next list is walked in the same buffers.
        return self.found_3W[:, :steps].clone(), self.weights_WS[: steps + 1, : start + steps].clone()

    def _of_rows(self) -> tuple[Tensor, ...]:
        return self.g.left, self.g.right, self.f_T

    def _begin(self, start: int, w: Tensor, rows: Factored, bonus_M: Tensor) -> None:
        k, many = self.problem.k, slice(self.room, self.room + len(rows))
        self.g.left[many], self.g.right[many] = rows.left, rows.right
        self.f_T[many] = forward(rows, self.problem.v_AB) / k
        picked = self.g[:start]
        own_MS = (rows.left @ picked.left.T).mul_(rows.right @ picked.right.T)
        self.gram_TS[many, :start] = own_MS.div_(k**2)
        self.bonus_M[: len(rows)], self.bonus_M[len(rows) :] = bonus_M, -torch.inf
        self.w_S.zero_()
        self.w_S[:start] = w
        self.c_T.copy_(torch.mv(self.gram_TS[:, :start], w).sub_(self.f_T))
        self.weights_WS[0] = self.w_S
        self.at.fill_(start)
        self.turn.zero_()

    def _pick(self) -> None:
        """One pick, and the weights after it."""
        score_M = torch.sub(self.bonus_M, self.c_T[self.room :], alpha=2 * self.problem.terms.tau)
        top = score_M.max()
        pick = (score_M >= top - self.problem.slack).to(torch.uint8).argmax(0, keepdim=True)
        found_3 = torch.cat([pick.to(score_M.dtype), score_M.index_select(0, pick), top[None]])
        self.found_3W.index_copy_(1, self.turn, found_3[:, None])
        self.bonus_M.index_fill_(0, pick, -torch.inf)
        place = pick + self.room
        for kept in (*self._of_rows(), self.gram_TS, self.c_T):
            kept.index_copy_(0, self.at, kept.index_select(0, place))
        left, right = (side.index_select(0, place)[0] for side in (self.g.left, self.g.right))
        own_T = torch.mv(self.g.left, left).mul_(torch.mv(self.g.right, right)).div_(self.problem.k**2)
        self.gram_TS.index_copy_(1, self.at, own_T[:, None])
        self._weigh(own_T)
        self.turn += 1
        self.at += 1
        self.weights_WS.index_copy_(0, self.turn, self.w_S[None])

    def _weigh(self, own_T: Tensor) -> None:
        """Line search, de-bias and cut with the row `at` (algorithm 1, lines 5 to 7); c moves with R."""
        beta, w_S, c_T = self.problem.terms.beta, self.w_S, self.c_T
        if self.unit:
            w_S.index_fill_(0, self.at, 1.0)
            c_T += own_T
            return
        curve = own_T.index_select(0, self.at) + beta
        mu = torch.where(curve > 0, (c_T.index_select(0, self.at) - beta) / curve.clamp(min=TINY), 0.0)
        w_S.index_copy_(0, self.at, -mu)
        c_T.addcmul_(own_T, mu, value=-1)
        u_S = torch.where(w_S != 0, torch.add(c_T[: self.room], w_S - 1, alpha=beta) * 2, 0.0)
        u_S = torch.where(u_S.abs().amax() > self.noise, u_S, 0.0)
        square = u_S @ u_S
        curve = (u_S @ torch.mv(self.gram_TS[: self.room], u_S)).clamp(min=0) + beta * square
        mu = torch.where(curve > 0, square / 2 / curve.clamp(min=TINY), 0.0)
        after_S = torch.addcmul(w_S, u_S, mu, value=-1).clamp_(min=0)
        c_T += torch.mv(self.gram_TS, after_S - w_S)
        w_S.copy_(after_S)
