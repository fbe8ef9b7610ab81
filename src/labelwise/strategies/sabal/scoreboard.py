"""The scoreboard of greedy picks: c_j = <phi_j, R'> of every row for a known R', and the check of picks made since.

See greedy.py for what it is for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.shards import Shard
from labelwise.shards.devices import to_device
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.problem import Problem
from labelwise.strategies.sabal.vectors import TINY, adjoint, forward, wide

EXCLUDED = -1e30  # in place of minus infinity, which a matrix product turns into NaN


@dataclass(frozen=True)
class ScoreTuning:
    """When scores are recomputed; picks do not depend on it.

    Attributes:
        loose: c is recomputed when the bound on R's other moves is this share of the spread of a list,
        costly: or a larger one where R has more lines than this: a product then costs more than a loose bound.
        many: candidates that are scored one by one in float64; if there are more, all rows are read in float64.
    """

    loose: float = 0.02
    costly: int = 64
    many: int = 1024


@dataclass(frozen=True)
class Trial:
    """Picks made on a list that are still to be checked: m steps, of which step t is made after t picks.

    The rows that R moved along since `Scoreboard.r_AB` are e undone ones, at a fixed weight, then (on wide rows) older
    ones, then the m picks.
    """

    ids: list[int]
    scores: list[float]  # the part of each pick's score that differs between rows
    tops: list[float]  # the highest score in the list at each step
    g: Factored  # the rows that R moved along (X = e + m)
    weight_XT: Tensor  # their weights before each step and, last, after all of them (X, m + 1)
    rest_T: Tensor  # how far R moved for other reasons (m + 1,)
    rest: float  # the last of these
    spread: float  # from the best score in the list to the lowest
    r_AB: Tensor  # R after all of them


class Scoreboard:
    """The scores of all rows, stored with them.

    Attributes:
        r_AB: R', for which c is stored.
        undone, back: rows in R' that are not in the support, and the weights that take them out.
        sweeps: how often all rows were read.
        fresh: whether c was recomputed for the R that the last trial began with.
    """

    def __init__(self, problem: Problem, tuning: ScoreTuning):
        self._problem, self._tuning = problem, tuning
        a, b = problem.v_AB.shape
        self._none = Factored(problem.v_AB.new_empty(0, a), problem.v_AB.new_empty(0, b))
        # Rounding of products in the precision of the rows, for vectors of length one.
        self.eps = max(problem.pool.map(lambda shard: torch.finfo(shard.dtype).eps)) * (16 + 2 * max(a, b) ** 0.5)
        self._undone_ids = torch.empty(0, dtype=torch.int64)
        self.undone, self.back = self._none, problem.v_AB.new_empty(0)
        self.sweeps = 0
        self.fresh = self._swept = False
        problem.pool.map(_prepare)
        self.sweep(-problem.v_AB)

    def sweep(self, r_AB: Tensor) -> None:
        """Compute c of every row for this R."""
        self._problem.pool.map(functools.partial(_sweep, self._problem, r_AB, False))
        self._undo(self._none, self.back[:0], [])
        self._settle(r_AB)
        self._swept = True

    def exact(self, r_AB: Tensor) -> tuple[int, float]:
        """The best row and its score by a sweep in float64, for rows too near each other for single precision."""
        pool, tau = self._problem.pool, self._problem.terms.tau
        pool.map(functools.partial(_sweep, self._problem, r_AB, True))
        floor = max(pool.map(lambda shard: float(_score(tau, shard).max()))) - self._problem.slack
        found = [one for one in pool.map(functools.partial(_first_above, tau, floor)) if one is not None]
        ids, scores = (torch.tensor(column) for column in zip(*found))
        first = pool.ties.lots(ids).argmin()
        return int(ids[first]), float(scores[first])

    def best(self, r_AB: Tensor) -> tuple[int, float]:
        """The best row for this R and its score: by c, and in float64 among those within its rounding of the best."""
        problem, tau = self._problem, self._problem.terms.tau
        if self.r_AB is not r_AB:
            self.sweep(r_AB)
        blur = 2 * tau * float(self._blur)
        floor = max(problem.pool.map(functools.partial(_least_best, tau, blur))) - problem.slack
        found = problem.pool.map(functools.partial(_candidates, problem, r_AB, blur, floor, self._tuning.many))
        if any(one is None for one in found):
            return self.exact(r_AB)
        ids, score_n = (torch.cat([one[i].cpu() for one in found if one is not None]) for i in (0, 1))
        tied = (score_n >= score_n.max() - problem.slack).nonzero()[:, 0]
        first = tied[problem.pool.ties.lots(ids[tied]).argmin()]
        return int(ids[first]), float(score_n[first])

    def listed(self, count: int) -> tuple[Tensor, float]:
        """The rows with the best scores, by lot, and how far their scores are apart. The others become unlisted."""
        if len(self.undone) and len(self.r_AB) > self._tuning.costly:
            self._restore()
        best = self._problem.pool.best(functools.partial(_score, self._problem.terms.tau), count)
        free = best.values > -torch.inf
        ids = torch.cat([best.ids[free], self._undone_ids]).unique()
        self._problem.pool.map(functools.partial(_mark_unlisted, ids))
        ids = ids[self._problem.pool.ties.lots(ids).argsort()]  # so that the first of those tied has the smallest lot
        return ids, float(best.values[free][0] - best.values[free][-1])

    def check(self, trial: Trial) -> int:
        """How many steps of the trial are those that all rows would have led to. c moves on to its end."""
        problem, steps, r_AB = self._problem, len(trial.ids), trial.r_AB
        left_X, right_X = (torch.linalg.vector_norm(side, dim=1) for side in (trial.g.left, trial.g.right))
        left_X, right_X = left_X.clamp(min=TINY), right_X.clamp(min=TINY)
        phi_X = left_X * right_X / problem.k
        weight_XT, after_X = trial.weight_XT[:, :steps], trial.weight_XT[:, steps]
        reach = 2 * problem.terms.tau / problem.size
        bound_T = reach * (trial.rest_T[:steps] + self._blur + self.eps * (phi_X @ weight_XT.abs()))
        tops_T = to_device(torch.tensor(trial.tops, dtype=torch.float64), bound_T.device)
        fall_T = (trial.tops[0] - tops_T + problem.slack) / problem.size
        tail_3T = torch.stack([bound_T, torch.ones_like(bound_T), fall_T])
        loose = self._tuning.loose * max(1.0, len(r_AB) / self._tuning.costly) * trial.spread
        recompute = 2 * problem.terms.tau * problem.longest * trial.rest > loose
        check = _Check(
            Factored(trial.g.left / left_X[:, None], trial.g.right / right_X[:, None]),
            torch.cat([-reach / problem.k * phi_X[:, None] * weight_XT, tail_3T]),
            trial.tops[0],
            None if recompute else phi_X / problem.k * after_X,
            r_AB,
        )
        worst = problem.pool.map(functools.partial(_check, problem, check))
        beaten_T = torch.stack([one.cpu() for one in worst]).amax(0) >= 0
        good = int(beaten_T.to(torch.uint8).argmax()) if bool(beaten_T.any()) else steps
        self.fresh, self._swept = self._swept, recompute and good == steps
        if recompute:
            self._settle(r_AB)
        else:
            moved_AB = adjoint(trial.g, after_X) / problem.k
            self._settle(self.r_AB + moved_AB, self._blur + self.eps * (phi_X @ after_X.abs()))
        start = len(trial.g) - steps + good
        self._undo(trial.g[start:], -after_X[start:], trial.ids[good:])
        return good

    def take(self, ids: list[int]) -> None:
        """These rows are picked."""
        self._problem.pool.map(functools.partial(_take, torch.tensor(ids, dtype=torch.int64)))

    def _restore(self) -> None:
        """Take the undone rows out of c.

        Otherwise a list is made by scores that these rows had changed, and its first pick is often undone again. This
        is one more read of the rows, which costs little against their product with R where R has many lines.
        """
        problem, g = self._problem, self.undone
        left_X, right_X = (torch.linalg.vector_norm(side, dim=1).clamp(min=TINY) for side in (g.left, g.right))
        back_X = self.back * left_X * right_X / problem.k
        x = Factored(g.left / left_X[:, None], g.right / right_X[:, None])
        problem.pool.map(functools.partial(_move, problem, x, back_X / problem.k))
        self._settle(self.r_AB + adjoint(g, self.back) / problem.k, self._blur + self.eps * back_X.abs().sum())
        self._undo(self._none, self.back[:0], [])

    def _settle(self, r_AB: Tensor, blur: Tensor | None = None) -> None:
        """c is of this R; `blur` is the rounding in it, as a length of R, where c was not recomputed.

        It is a tensor, so that nothing waits for a device.
        """
        self.r_AB, self._blur = r_AB, self.eps * torch.linalg.vector_norm(r_AB) if blur is None else blur
        self.sweeps += 1

    def _undo(self, g: Factored, back: Tensor, ids: list[int]) -> None:
        self.undone, self.back, self._undone_ids = g, back, torch.tensor(ids, dtype=torch.int64)


class _Check(NamedTuple):
    """A trial as matrices: what every row outside the list is multiplied with, and then what its products are.

    Row j's lead over the pick of step t, in units of the largest score, is at most
    sum_i <g_j, x_i> change_it + |phi_j| bound_t + lead_j + fall_t, with x_i the rows R moved along, at length one.
    """

    x: Factored
    matrix_QT: Tensor  # change (X), bound, ones, fall
    top: float  # of the first step
    move_X: Tensor | None  # what c moves by for each <g_j, x_i>; None to recompute it
    r_AB: Tensor


def _check(problem: Problem, check: _Check, shard: Shard) -> Tensor:
    """The largest lead (T,) of an unlisted row at each step; c moves on."""
    x = Factored(*(side.to(shard.device, shard.dtype) for side in (check.x.left, check.x.right)))
    matrix_TQ, r_AB, moves = check.matrix_QT.T.to(shard.device, shard.dtype), check.r_AB.to(shard.device), len(x)
    moving = None if check.move_X is None else _in_units(check.move_X, shard)
    worst_T = matrix_TQ.new_full((len(matrix_TQ),), -torch.inf)
    lead_N = (_score(problem.terms.tau, shard) - check.top).div_(problem.size).to(shard.dtype)
    lead_N.masked_fill_(~shard.state["unlisted"], EXCLUDED)
    c_N, length_N = shard.state["c"], shard.state["length"]
    for where, g in problem.vectors.blocks(shard, 4 * matrix_TQ.shape[1]):
        # Rows last: quicker in the products, and to reduce.
        row_QN = g.right.new_ones(matrix_TQ.shape[1], len(g))
        along_XN = torch.mul(x.left @ g.left.T, x.right @ g.right.T, out=row_QN[:moves])
        row_QN[moves] = length_N[where]
        row_QN[moves + 1] = lead_N[where]
        worst_T = torch.maximum(worst_T, (matrix_TQ @ row_QN).amax(1))
        if moving is None:
            c_N[where] = forward(g, r_AB) / problem.k
        else:
            c_N[where] += (moving[0] @ along_XN).double() * moving[1]
    return worst_T


def _move(problem: Problem, x: Factored, move_X: Tensor, shard: Shard) -> None:
    """Move c by these multiples of each row's products with x, rows of length one."""
    x = Factored(*(side.to(shard.device, shard.dtype) for side in (x.left, x.right)))
    part_X, unit = _in_units(move_X, shard)
    for where, g in problem.vectors.blocks(shard, 3 * len(x)):
        along_XN = (x.left @ g.left.T).mul_(x.right @ g.right.T)
        shard.state["c"][where] += (part_X @ along_XN).double() * unit


def _in_units(move_X: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """These numbers as multiples of the largest, in the precision of the rows, and the largest."""
    unit = move_X.abs().amax().clamp(min=TINY)
    return (move_X / unit).to(shard.device, shard.dtype), unit.to(shard.device)


def _sweep(problem: Problem, r_AB: Tensor, exact: bool, shard: Shard) -> None:
    r_AB = r_AB.to(shard.device)
    for where, g in problem.vectors.blocks(shard, 4 * problem.v_AB.shape[1] if exact else 2 * problem.v_AB.shape[0]):
        shard.state["c"][where] = forward(wide(g) if exact else g, r_AB) / problem.k


def _least_best(tau: float, blur: float, shard: Shard) -> float:
    """A lower bound of the best score, where the rounding of c is that of R moving by `blur`."""
    return float((_score(tau, shard) - blur * shard.state["length"]).max())


def _candidates(
    problem: Problem, r_AB: Tensor, blur: float, floor: float, many: int, shard: Shard
) -> tuple[Tensor, Tensor] | None:
    """Ids of the rows whose score may be as high as `floor`, with their scores in float64; None if more than `many`."""
    tau = problem.terms.tau
    near = (_score(tau, shard) + blur * shard.state["length"] >= floor).nonzero()[:, 0]
    if len(near) > many:
        return None
    c_n = forward(wide(problem.vectors.take(shard, near)), r_AB.to(shard.device)) / problem.k
    return shard.ids[near], shard.state["bonus"][near] - 2 * tau * c_n


def _first_above(tau: float, floor: float, shard: Shard) -> tuple[int, float] | None:
    """The id of smallest lot with a score of at least `floor`, and its score."""
    score_N = _score(tau, shard)
    above = (score_N >= floor).nonzero()[:, 0]
    if not len(above):
        return None
    place = above[shard.lots[above].argmin()]
    return int(shard.ids[place]), float(score_N[place])


def _prepare(shard: Shard) -> None:
    shard.state["c"] = torch.zeros(len(shard), dtype=torch.float64, device=shard.device)
    shard.state["taken"] = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)


def _score(tau: float, shard: Shard) -> Tensor:
    """The part of the score that differs between rows, from the stored c; -inf for rows already taken."""
    return (shard.state["bonus"] - 2 * tau * shard.state["c"]).masked_fill_(shard.state["taken"], -torch.inf)


def _mark_unlisted(listed: Tensor, shard: Shard) -> None:
    """Mark the rows outside the list that are not taken: a check has to look at them."""
    unlisted_N = ~shard.state["taken"]
    unlisted_N.index_fill_(0, shard.find(listed)[1], False)
    shard.state["unlisted"] = unlisted_N


def _take(ids: Tensor, shard: Shard) -> None:
    shard.state["taken"].index_fill_(0, shard.find(ids)[1], True)
