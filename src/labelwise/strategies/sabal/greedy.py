"""The greedy solver of SABAL (algorithm 1): a loop over picks, which are made on lists or by a product for each.

**On lists**, on a CPU, in several shards, or for rows too wide for a product with R for each pick. A pick moves R, and
with it the score of every row. Scores follow from R alone, so the M best rows go into a list, and picks are made in the
list, where scores are computed exactly after every pick. This is a guess: a row outside may have become better. The
next sweep finds out. In one read of the rows it computes the products of every row with the rows picked since the last
one, and from them the score of every row outside the list at each of these steps (scoreboard.py). Where a row could
have beaten a pick, picks from there on are undone. So the picks are those of the one-by-one form, and a wrong guess
costs time only. Where few picks of a list are right (loose weights, rows of very different length), some are made one
by one, with a sweep for each, before a list is tried again: at most about one read of the rows for each pick.

Rows store c_j = <phi_j, R'> for a known matrix R'. What R differs from R' by is exact in that check as far as it comes
from rows picked or undone since; the rest, what the de-bias step changes in older weights, is bounded by |phi_j| times
its length, and so is the rounding of the stored precision. When the rest grows, c is recomputed.

`ResidualPicks` multiplies R with the list at each step: 4 (M + S) A B operations with S rows picked, 16 GFLOP for a
pick at A = 1,000, B = 2,048, M = S = 1,000. `GramPicks`, for wide rows on an accelerator, needs nothing except inner
products between these rows and v (`GramSupport`). They are made once for each list, as products of the factors
(<g_i, g_j> = (l_i . l_j)(r_i . r_j), 2 M S (A + B) operations, 6 GFLOP). All of it is in float64, so that rows are
distinguished as on the CPU without a second step, and c comes from the weights at each list, so that rounding does not
add up.
The host waits once for a list: for its picks, which go into the check of the pool. That check multiplies all rows of
the pool with the new ones anyway, so the older rows whose weights moved most go with them; how far R moved for other
reasons is the length of Phi d for the changes d of the other weights, from K. It stays so small that the pool's
product with R, 2 N A B operations, is hardly ever made again.

**By a product for each pick**, on one accelerator: a step is one product of all rows with R, the row of the best score,
and the weight update, all of it on the device (`TorchSteps`, and fused kernels in kernels/triton.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.kernels.torch import GramSupport, ResidualSupport, update_weights
from labelwise.strategies.sabal.problem import Problem, gather, gather_state, length, residual, score_gradient, share
from labelwise.strategies.sabal.scoreboard import Scoreboard, ScoreTuning, Trial
from labelwise.strategies.sabal.vectors import adjoint, forward, joined, wide

ROUNDING = 1e-7  # of a length that comes from squares


class Picked(NamedTuple):
    """Rows in the order in which they were picked."""

    ids: Tensor
    w: Tensor
    scores: Tensor
    r_AB: Tensor
    sweeps: int
    share: float | None  # of the variance in the first score


class Picks(Protocol):
    """The picks made so far. Creating it stores c of all rows for w = 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def sweeps(self) -> int:
        """How often all rows were read, or on one accelerator how often the host waited."""

    def advance(self) -> None:
        """Make at least one more."""

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids, weights, scores as far as they differ between rows, and R."""


def greedy(problem: Problem, picks: Picks) -> Picked:
    """k rows by algorithm 1; `scores` are minus the value that is minimised."""
    terms = problem.terms
    first = share(problem, score_gradient(problem))
    while picks.size < problem.k:
        picks.advance()
        tick(picks.size, problem.k)
    ids, w, scores, r_AB = picks.result()
    scores = scores + 2 * terms.tau * terms.beta - terms.second_order * terms.tau**2 * terms.beta
    return Picked(ids, w, scores, r_AB, picks.sweeps, first)


@dataclass(frozen=True)
class ListTuning:
    """Lengths of lists; picks do not depend on them.

    Attributes:
        first_steps, most_steps: picks that are made on one list, at first and at most.
        ahead, growth, pull: the next list makes `ahead` times as many picks as were right on average, which moves
            by `pull`; a list whose picks were all right counts `growth` times.
        rows_per_step, shortest, longest: rows of a list for each pick that is to be made on it, least and most.
        few: picks of a list below which a sweep for each pick costs less: a list costs about as much as `few` sweeps.
        first_single, most_single: picks that are made so before a list is tried again.
        refresh: picks after which R is computed from the weights then; after a list it always is.
        older: rows picked before whose weights moved most, which a check counts with exactly (GramPicks only).
        bucket: rows by which the slots for the support grow: each size is captured once (GramPicks only).
    """

    first_steps: int = 8
    most_steps: int = 64
    ahead: float = 1.2
    growth: float = 1.4
    pull: float = 0.2
    rows_per_step: int = 128
    shortest: int = 512
    longest: int = 1024
    few: float = 2.5
    first_single: int = 8
    most_single: int = 64
    refresh: int = 8
    older: int = 32
    bucket: int = 1024
    scores: ScoreTuning = field(default_factory=ScoreTuning)


GRAM_TUNING = ListTuning(rows_per_step=256, shortest=1024, longest=2048, few=0.0)


class ListSupport(Protocol):
    """The picked rows of the right steps, with weights, on which a list tries further picks."""

    def trial(self, scoreboard: Scoreboard, steps: int) -> Trial:
        """Picks on a list of the rows with the best scores now."""

    def accept(self, trial: Trial, good: int, scoreboard: Scoreboard) -> None:
        """Take over the first `good` picks of a trial that was checked."""

    def add_best(self, scoreboard: Scoreboard) -> tuple[int, float]:
        """Pick the best of all rows, and sweep. Returns its id and score."""

    def sweep(self, scoreboard: Scoreboard) -> None:
        """Compute c for R."""

    def refresh(self) -> None:
        """Compute R from the weights: steps in the precision of the rows add up what they round."""

    def result(self) -> tuple[Tensor, Tensor]:
        """Weights and R."""


class Lists:
    """Picks on lists. `_pace` is how many of a list were right on average, `_single` how many to make one by one."""

    def __init__(self, problem: Problem, support: ListSupport, tuning: ListTuning):
        self._problem, self._support, self._tuning = problem, support, tuning
        self._scoreboard = Scoreboard(problem, tuning.scores)
        self._ids: list[int] = []
        self._scores: list[float] = []
        self._pace, self._single, self._next_single = float(tuning.first_steps), 0, tuning.first_single

    @property
    def size(self) -> int:
        return len(self._ids)

    @property
    def sweeps(self) -> int:
        return self._scoreboard.sweeps

    def advance(self) -> None:
        start = self.size
        if self._single:
            self._pick()
            self._single -= 1
            if not self._single:
                self._support.refresh()
        else:
            self._pick_on_list()
            self._choose_single()
        self._scoreboard.take(self._ids[start:])

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w, r_AB = self._support.result()
        return torch.tensor(self._ids), w, torch.tensor(self._scores, dtype=torch.float64), r_AB

    def _pick_on_list(self) -> None:
        """Make picks on one list, as far as they are right; if none can be, make one pick by its own sweep."""
        support, scoreboard, tuning = self._support, self._scoreboard, self._tuning
        steps = max(1, min(round(tuning.ahead * self._pace), tuning.most_steps, self._problem.k - self.size))
        trial = support.trial(scoreboard, steps)
        good = scoreboard.check(trial)
        support.accept(trial, good, scoreboard)
        self._ids += trial.ids[:good]
        self._scores += trial.scores[:good]
        if good == 0 and scoreboard.fresh:
            self._pick()
        elif good == 0:
            support.sweep(scoreboard)
        # A little more than were right on average: steps that are undone cost less than sweeps.
        self._pace += tuning.pull * (good * (tuning.growth if good == len(trial.ids) else 1.0) - self._pace)

    def _choose_single(self) -> None:
        """Whether the next picks are made one by one, and how many."""
        tuning = self._tuning
        if self._pace >= tuning.few:
            self._next_single = tuning.first_single
            return
        self._single, self._pace = min(self._next_single, self._problem.k - self.size), tuning.few
        self._next_single = min(2 * self._next_single, tuning.most_single)
        if not self._single:
            self._support.refresh()

    def _pick(self) -> None:
        row, score = self._support.add_best(self._scoreboard)
        self._ids.append(row)
        self._scores.append(score)


class ResidualPicks:
    """Picked rows with their weights, and R as a matrix. Rows are stored in the precision of the pool."""

    def __init__(self, problem: Problem, tuning: ListTuning):
        a, b = problem.v_AB.shape
        wide_rows = any(problem.pool.map(lambda shard: shard.dtype == torch.float64))
        empty = problem.v_AB.new_zeros(problem.k, a + b, dtype=torch.float64 if wide_rows else torch.float32)
        self._problem, self._tuning = problem, tuning
        self._noise, self._near_one = problem.noise, problem.near_one
        self._g = Factored(empty[:, :a].contiguous(), empty[:, a:].contiguous())
        self._w = problem.v_AB.new_zeros(problem.k)
        self._size, self._r_AB = 0, -problem.v_AB
        self._before: list[Tensor] = []  # weights before each step of the last trial

    def trial(self, scoreboard: Scoreboard, steps: int) -> Trial:
        problem, tuning = self._problem, self._tuning
        tau, k, start = problem.terms.tau, problem.k, self._size
        listed, spread = scoreboard.listed(max(tuning.shortest, min(tuning.rows_per_step * steps, tuning.longest)))
        g, bonus_M = gather(problem, listed), gather_state(problem, "bonus", listed)
        steps = min(steps, len(listed))
        undone, back_e = scoreboard.undone, scoreboard.back
        base_AB = scoreboard.r_AB + adjoint(undone, back_e) / k
        weight_XT, rest_T = base_AB.new_zeros(len(undone) + steps, steps + 1), base_AB.new_zeros(steps + 1)
        weight_XT[: len(undone)] = back_e[:, None]
        positions: list[int] = []
        scores: list[float] = []
        tops: list[float] = []
        self._before = []
        for step in range(steps + 1):
            new_w = self._w[start : self._size]
            weight_XT[len(undone) : len(undone) + step, step] = new_w
            moved_AB = adjoint(self._g[start : self._size], new_w) / k
            rest_T[step] = torch.linalg.vector_norm(self._r_AB - base_AB - moved_AB)
            if step == steps:
                break
            # First in the precision of the rows, then in float64 for those that may be the best.
            score_M = bonus_M - 2 * tau / k * forward(g, self._r_AB)
            blur = 4 * tau * scoreboard.eps * problem.longest * length(self._r_AB) + problem.slack
            near = (score_M >= score_M.max() - blur).nonzero()[:, 0]
            score_n = bonus_M[near] - 2 * tau / k * forward(wide(g[near]), self._r_AB)
            tops.append(float(score_n.max()))
            first = int((score_n >= tops[-1] - problem.slack).to(torch.uint8).argmax())
            positions.append(int(near[first]))
            scores.append(float(score_n[first]))
            self._before.append(self._w[: self._size].clone())
            self._add(g[slice(positions[-1], positions[-1] + 1)])
            bonus_M[positions[-1]] = -torch.inf
        picked = wide(g[torch.tensor(positions, dtype=torch.int64, device=g.left.device)])
        along, ids = joined([undone, picked]), listed[positions].tolist()
        return Trial(ids, scores, tops, along, weight_XT, rest_T, float(rest_T[-1]), spread, self._r_AB)

    def accept(self, trial: Trial, good: int, scoreboard: Scoreboard) -> None:
        undone = len(trial.ids) - good
        if undone:
            self._size -= undone
            self._w[: self._size] = self._before[good]
            self._w[self._size :] = 0
        self.refresh()

    def add_best(self, scoreboard: Scoreboard) -> tuple[int, float]:
        row, score = scoreboard.best(self._r_AB)
        self._add(gather(self._problem, torch.tensor([row])))
        if self._size % self._tuning.refresh == 0:
            self.refresh()
        self.sweep(scoreboard)
        return row, score

    def sweep(self, scoreboard: Scoreboard) -> None:
        scoreboard.sweep(self._r_AB)

    def refresh(self) -> None:
        self._r_AB = residual(self._problem, self._g[: self._size], self._w[: self._size])

    def result(self) -> tuple[Tensor, Tensor]:
        return self._w, self._r_AB

    def _add(self, row: Factored) -> None:
        slot, terms = self._size, self._problem.terms
        self._g.left[slot], self._g.right[slot] = row.left[0], row.right[0]
        self._size += 1
        g, w, k = self._g[: self._size], self._w[: self._size], self._problem.k
        support = ResidualSupport(g, w, self._r_AB, k, self._near_one)
        update_weights(support, terms.beta, self._noise, terms.unit_weights)
        self._r_AB = support.r_AB


class GramPicks:
    """Picked rows with their weights, and no R: inner products of a list and the picked rows, in float64."""

    def __init__(self, problem: Problem, tuning: ListTuning):
        self._problem, self._tuning = problem, tuning
        self._w = self._swept_w = problem.v_AB.new_zeros(0)  # _swept_w: weights in the R of the scoreboard
        self._support = self._grown(None)
        self._weights_WS = self._w[None]  # before each step of the last trial and after all
        self._moved = torch.empty(0, dtype=torch.int64)  # older rows that the last check counted with exactly

    def trial(self, scoreboard: Scoreboard, steps: int) -> Trial:
        start, tuning = len(self._w), self._tuning
        listed, spread = scoreboard.listed(max(tuning.shortest, min(tuning.rows_per_step * steps, tuning.longest)))
        undone, back_e = scoreboard.undone, scoreboard.back
        steps = min(steps, len(listed))
        found_3W, weights_WS = self._picks(listed, steps)
        g, gram_SS = self._support.g, self._support.gram_TS[:start, :start]
        d_WS = weights_WS[:, :start] - self._swept_w
        reach_WS = d_WS.abs() * gram_SS.diagonal().sqrt()
        moved = reach_WS[-1].topk(min(tuning.older, start)).indices
        weights_WX = torch.cat([back_e.expand(len(weights_WS), -1), d_WS[:, moved], weights_WS[:, start:]], 1)
        along = joined([undone, g[moved], g[start : start + steps]])
        rest_T = _rest(d_WS.index_fill(1, moved, 0.0), reach_WS, gram_SS)
        *found, rest = torch.cat([found_3W.flatten(), rest_T[-1:]]).tolist()  # here the host waits
        positions, scores, tops = (found[part * steps :][:steps] for part in range(3))
        ids = listed[torch.tensor(positions, dtype=torch.int64)].tolist()
        self._weights_WS, self._moved = weights_WS, moved
        r_AB = self._residual(weights_WS[-1])
        return Trial(ids, scores, tops, along, weights_WX.T.contiguous(), rest_T, rest, spread, r_AB)

    def accept(self, trial: Trial, good: int, scoreboard: Scoreboard) -> None:
        start, w = len(self._w), self._weights_WS[-1]
        # The scoreboard's R now holds the new weights of these rows or, if it was recomputed, of all.
        swept_w = torch.cat([self._swept_w.index_copy(0, self._moved, w[self._moved]), w[start:]])
        swept_w = w if scoreboard.r_AB is trial.r_AB else swept_w
        self._w, self._swept_w = self._weights_WS[good, : start + good], swept_w[: start + good]

    def add_best(self, scoreboard: Scoreboard) -> tuple[int, float]:
        """By a sweep in float64, because rows are too near each other for single precision."""
        row, score = scoreboard.exact(self._residual(self._w))
        self._w = self._picks(torch.tensor([row]), 1)[-1][1]
        self.sweep(scoreboard)
        return row, score

    def sweep(self, scoreboard: Scoreboard) -> None:
        scoreboard.sweep(self._residual(self._w))
        self._swept_w = self._w

    def refresh(self) -> None:
        """R is always computed from the weights."""

    def result(self) -> tuple[Tensor, Tensor]:
        return self._w, self._residual(self._w)

    def _residual(self, w: Tensor) -> Tensor:
        """R for these weights of the rows that were picked."""
        g = self._support.g[: len(w)]
        left_SA = (g.left * w[:, None]).T
        return torch.addmm(self._problem.v_AB, left_SA, g.right, beta=-1, alpha=1 / self._problem.k)

    def _picks(self, listed: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """`steps` picks on a list, see `GramSupport.picks`."""
        start = len(self._w)
        if start + steps > self._support.slots:
            self._support = self._grown(self._support)
        rows, bonus_M = wide(gather(self._problem, listed)), gather_state(self._problem, "bonus", listed)
        return self._support.picks(start, self._w, rows, bonus_M, steps)

    def _grown(self, before: GramSupport | None) -> GramSupport:
        """Buffers with more slots for the support."""
        problem, tuning = self._problem, self._tuning
        slots = tuning.bucket + (0 if before is None else before.slots)
        longest = min(problem.pool.n, tuning.longest + tuning.most_steps)  # a list includes picks that were undone
        return GramSupport(problem, min(slots, problem.k), longest, tuning.most_steps, before)


def _rest(d_WS: Tensor, reach_WS: Tensor, gram_SS: Tensor) -> Tensor:
    """The length of Phi d for each line of changes d of the weights of older rows."""
    square_W = torch.mul(d_WS @ gram_SS, d_WS).sum(1).clamp_(min=0)
    return (square_W + (ROUNDING * reach_WS.sum(1)) ** 2).sqrt()
