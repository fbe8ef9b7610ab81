"""Greedy sparse approximation: the picks and weights of one sweep for each pick, from one sweep for many picks.

A pick moves R, and with it the score of every row. Scores follow from R alone, so the M best rows go into a list, and
picks are made in the list, where scores are computed exactly after every pick. This is a guess: a row outside may have
become better. The next sweep finds out. In one read of the rows it computes the products of every row with the rows
picked since the last one, and from them the score of every row outside the list at each of these steps. Where a row
could have beaten a pick, picks from there on are undone. So the picks are those of the one-by-one form, and a wrong
guess costs time only. Where few picks of a list stand (loose weights, rows of very different length), some are made one
by one, with a sweep for each, before a list is tried again: at most about one read of the rows for each pick.

Rows keep c_j = <phi_j, R'> for a known matrix R' (`Board.at_AB`). What R differs from R' by is exact in that check as
far as it comes from rows picked or undone since; the rest, what the de-bias step changes in older weights, is bounded
by |phi_j| times its length, and so is the rounding of the stored precision. When the rest grows, c is computed afresh.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.forms import wide
from labelwise.strategies.sabal.problem import TINY, Problem, adjoint, beside, forward, gather, length, residual, share
from labelwise.strategies.sabal.scoreboard import Board, Trial

FIRST_STEPS, MOST_STEPS = 8, 64  # picks that are made on one list
AHEAD, GROWTH, PULL = 1.2, 1.4, 0.2
LIST = 128  # rows of a list for each pick that is to be made on it
SHORTEST, LONGEST = 512, 1024
FEW = 2.5  # picks of a list below which a sweep for each pick costs less: a list costs about so many
FIRST_ALONE, MOST_ALONE = 8, 64  # picks that are made so before a list is tried again
FRESH = 8  # picks after which R is computed afresh then; after a list it always is


class Picked(NamedTuple):
    """Rows in the order in which they were picked."""

    ids: Tensor
    w: Tensor
    scores: Tensor
    r_AB: Tensor
    sweeps: int
    share: float | None  # of the variance in the first score


class Support:
    """The picked rows with their weights, and R = Phi w - v. Rows are kept in the precision they are stored in."""

    def __init__(self, problem: Problem, unit: bool = False):
        a, b = problem.v_AB.shape
        wide_rows = any(problem.pool.map(lambda shard: shard.dtype == torch.float64))
        empty = problem.v_AB.new_zeros(problem.k, a + b, dtype=torch.float64 if wide_rows else torch.float32)
        self._problem, self._unit = problem, unit
        self._g = Factored(empty[:, :a].contiguous(), empty[:, a:].contiguous())
        self._w = problem.v_AB.new_zeros(problem.k)
        self.size = 0
        self.r_AB = -problem.v_AB
        self._noise = problem.noise
        self._unit_R = 1 / max(length(problem.v_AB) + problem.longest, TINY)  # brings R near to length one

    def g(self, start: int = 0) -> Factored:
        """The picked rows, from the one in place `start` on."""
        return self._g[start : self.size]

    @property
    def w(self) -> Tensor:
        return self._w[: self.size]

    def add(self, row: Factored) -> None:
        """Take one more row in: line search along it, de-bias, negative weights to zero (algorithm 1, lines 5 to 7)."""
        k, beta, place = self._problem.k, self._problem.terms.beta, self.size
        self._g.left[place], self._g.right[place] = row.left[0], row.right[0]
        self.size += 1
        phi_AB = row.left.T @ row.right / k
        if self._unit:
            self._w[place] = 1.0
            self.r_AB = self.r_AB + phi_AB
            return
        curve = float((phi_AB * phi_AB).sum()) + beta
        mu = (float((phi_AB * self.r_AB).sum()) - beta) / curve if curve > 0 else 0.0
        self._w[place] = -mu
        self.r_AB = torch.sub(self.r_AB, phi_AB, alpha=mu)
        self._debias()

    def _debias(self) -> None:
        """`sparse.debias` in place, with few calls: they count for as much as the arithmetic here.

        In the support the gradient of f1 is u itself, so the numerator of the line search is u.u / 2.
        """
        k, beta, g, w = self._problem.k, self._problem.terms.beta, self.g(), self.w
        u = ((self.r_AB * self._unit_R).to(g.right.dtype) @ g.right.T).mul_(g.left.T).sum(0).double()
        u = u.mul_(2 / k / self._unit_R).add_(w - 1, alpha=2 * beta).masked_fill_(w == 0, 0.0)
        top = float(u.abs().max())
        if top > self._noise:
            along_AB = ((g.left * (u / top).to(g.left.dtype)[:, None]).T @ g.right).double()
            square, step = float(u @ u), top / k
            mu = square / 2 / (float((along_AB * along_AB).sum()) * step**2 + beta * square)
            w.sub_(u, alpha=mu)
            self.r_AB.sub_(along_AB, alpha=mu * step)
        if float(w.min()) < 0:
            self.r_AB -= adjoint(g, w.clamp(max=0)) / k
            w.clamp_(min=0)

    def refresh(self) -> None:
        """Compute R afresh: steps in the precision of the rows add up what they round."""
        self.set(self.size, self.w.clone())

    def set(self, size: int, w: Tensor) -> None:
        """Go to `size` rows with weights `w`; R is computed afresh, in float64."""
        self.size = size
        self._w[:size] = w
        self._w[size:] = 0
        self.r_AB = residual(self._problem, self.g(), self.w)


def greedy(problem: Problem, unit: bool = False) -> Picked:
    """k rows by algorithm 1; `scores` are minus the value that is minimised. With `unit`, every weight is 1."""
    terms, loop = problem.terms, _Loop(problem, unit)
    first = share(problem)
    loop.run()
    total = torch.tensor(loop.scores, dtype=torch.float64) + 2 * terms.tau * terms.beta
    if terms.second_order:
        total -= terms.tau**2 * terms.beta
    return Picked(torch.tensor(loop.ids), loop.support.w, total, loop.support.r_AB, loop.board.sweeps, first)


class _Loop:
    """The picks so far; `pace` is how many of a list stood of late, `alone` how many are made one by one next time."""

    def __init__(self, problem: Problem, unit: bool):
        self.problem, self.support, self.board = problem, Support(problem, unit), Board(problem)
        self.ids: list[int] = []
        self.scores: list[float] = []
        self.pace, self.alone = float(FIRST_STEPS), FIRST_ALONE

    def run(self) -> None:
        while len(self.ids) < self.problem.k:
            start = len(self.ids)
            self._by_list()
            self.board.take(self.ids[start:])
            tick(len(self.ids), self.problem.k)
            if self.pace < FEW:
                self._one_by_one(min(self.alone, self.problem.k - len(self.ids)))
                self.alone, self.pace = min(2 * self.alone, MOST_ALONE), FEW
            else:
                self.alone = FIRST_ALONE

    def _by_list(self) -> None:
        """Picks on one list, as far as they stand; one pick by a sweep of its own where none can stand."""
        board, support, start = self.board, self.support, len(self.ids)
        steps = max(1, min(round(AHEAD * self.pace), MOST_STEPS, self.problem.k - start))
        trial = _walk(self.problem, board, support, steps)
        good = board.check(trial, support.r_AB)
        self.ids += trial.ids[:good]
        self.scores += trial.scores[:good]
        if good == len(trial.ids):
            support.refresh()
        else:
            support.set(start + good, trial.before[good])
        if good == 0 and board.fresh:
            self._pick()
        elif good == 0:
            board.sweep(support.r_AB)
        # A little more than what stood of late: steps that are undone cost less than sweeps.
        self.pace += PULL * (good * (GROWTH if good == len(trial.ids) else 1.0) - self.pace)

    def _one_by_one(self, count: int) -> None:
        """So many picks with a sweep for each: where lists give few, that is the cheaper way."""
        for _ in range(count):
            self._pick()
            self.board.take(self.ids[-1:])
            tick(len(self.ids), self.problem.k)
        self.support.refresh()

    def _pick(self) -> None:
        """The best row of all, and c for the R after it."""
        row, score = self.board.best(self.support.r_AB)
        self.ids.append(row)
        self.scores.append(score)
        self.support.add(wide(gather(self.problem, torch.tensor([row]))))
        if len(self.ids) % FRESH == 0:
            self.support.refresh()
        self.board.sweep(self.support.r_AB)


def _walk(problem: Problem, board: Board, support: Support, steps: int) -> Trial:
    """Picks on a list of the rows with the best scores now."""
    tau, k, start = problem.terms.tau, problem.k, support.size
    listed, spread = board.listed(max(SHORTEST, min(LIST * steps, LONGEST)))
    g, bonus_M = gather(problem, listed), beside(problem, "bonus", listed)
    steps = min(steps, len(listed))
    undone, back_e = board.undone, board.back
    base_AB = board.at_AB + adjoint(undone, back_e) / k
    weight_XT, rest_T = base_AB.new_zeros(len(undone) + steps, steps + 1), base_AB.new_zeros(steps + 1)
    weight_XT[: len(undone)] = back_e[:, None]
    places: list[int] = []
    scores: list[float] = []
    tops: list[float] = []
    before: list[Tensor] = []
    for step in range(steps + 1):
        fresh = support.w[start:]
        weight_XT[len(undone) : len(undone) + step, step] = fresh
        rest_T[step] = torch.linalg.vector_norm(support.r_AB - base_AB - adjoint(support.g(start), fresh) / k)
        if step == steps:
            break
        # First in the precision of the rows, then in float64 for those that may be the best.
        score_M = bonus_M - 2 * tau / k * forward(g, support.r_AB)
        blur = 4 * tau * board.eps * problem.longest * length(support.r_AB) + problem.slack
        near = (score_M >= score_M.max() - blur).nonzero()[:, 0]
        score_n = bonus_M[near] - 2 * tau / k * forward(wide(g[near]), support.r_AB)
        tops.append(float(score_n.max()))
        first = int((score_n >= tops[-1] - problem.slack).to(torch.uint8).argmax())
        places.append(int(near[first]))
        scores.append(float(score_n[first]))
        before.append(support.w.clone())
        support.add(wide(_rows(g, places[-1:])))
        bonus_M[places[-1]] = -torch.inf
    picked = wide(_rows(g, places))
    along = Factored(torch.cat([undone.left, picked.left]), torch.cat([undone.right, picked.right]))
    rest = float(rest_T[-1])
    return Trial(listed[places].tolist(), scores, tops, before, along, weight_XT, rest_T, rest, spread)


def _rows(g: Factored, places: list[int]) -> Factored:
    return g[torch.tensor(places, dtype=torch.int64, device=g.left.device)]
