"""Greedy sparse approximation of wide rows on an accelerator: the picks of greedy.py, without R.

With A classes and B numbers R is a matrix (A, B), and a step on a list of M rows with S rows picked multiplies it with
all of them: 4 (M + S) A B operations, 16 GFLOP for a pick at A = 1,000, B = 2,048, M = S = 1,000. But a step needs
nothing except inner products between these rows and v. They are made once for each list, as products of the factors
(<g_i, g_j> = (l_i . l_j)(r_i . r_j), 2 M S (A + B) operations, 6 GFLOP), and a step is then

    c = K w - f,   K = <phi_i, phi_j> over the rows of list and support,   f = <phi_j, v>
    line search:   mu = (c_p - beta) / (K_pp + beta),          c -= mu K_p
    de-bias:       u = 2 (c + beta (w - 1)) on the support,    mu = u.u / 2 / (u^T K u + beta u.u)

two products of a matrix (M + S, S) with a vector: 2 (M + S) S numbers are read, 30 MB, which is 8 us
(gram_walk.py). All of it is in
float64, so that rows are told apart as they are on the CPU with no second look, and c comes from the weights at each
list, so that rounding does not add up. The host waits once for a list: for its picks, which go into the check of the
pool (scoreboard.py). That check multiplies all rows of the pool with the new ones anyway, so the older rows
whose weights moved most go with them; how far R moved for other reasons, which it asks for as well, is the length of
Phi d for the changes d of the other weights, from K. It stays so small that the pool's product with R, 2 N A B
operations, is hardly ever made again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.forms import wide
from labelwise.strategies.sabal.gram_walk import BUCKET, Walk
from labelwise.strategies.sabal.greedy import AHEAD, FIRST_STEPS, GROWTH, MOST_STEPS, PULL, Picked
from labelwise.strategies.sabal.greedy_cuda import WIDEST
from labelwise.strategies.sabal.problem import MOST_PRODUCTS, Problem, beside, gather, share
from labelwise.strategies.sabal.scoreboard import Board, Trial

LIST, SHORTEST, LONGEST = 256, 1024, 2048  # rows of a list: for each pick that is to be made on it, least and most
OLDER = 32  # rows picked before whose weights moved most, which a check counts with exactly
ROUNDING = 1e-7  # of a length that comes from squares


def suits(problem: Problem) -> bool:
    """Whether rows are on an accelerator, too wide for a product with R for each pick, and picks not too many.

    It is for rows of this process. Those of a worker answer on the CPU, whatever they are held on, so that they are
    never taken here: a list of factors would have to come from the workers for each few picks.
    """
    return problem.v_AB.device.type == "cuda" and len(problem.v_AB) > WIDEST and problem.k <= MOST_PRODUCTS


def greedy_by_products(problem: Problem, unit: bool = False) -> Picked:
    """The picks of `sparse_greedy.greedy`. With `unit`, every weight is 1."""
    return _Loop(problem, unit).run()


class _Loop:
    """The picked rows with their weights, and lists of rows to pick from."""

    def __init__(self, problem: Problem, unit: bool):
        empty = problem.v_AB.new_zeros
        self.problem, self.unit, self.board = problem, unit, Board(problem)
        self.w, self.at_w = empty(0), empty(0)  # at_w: weights in the R of the board
        self.walk = self._roomier(None)
        self.ids: list[int] = []
        self.scores: list[float] = []

    def run(self) -> Picked:
        problem, board, terms = self.problem, self.board, self.problem.terms
        first, pace = share(problem), float(FIRST_STEPS)
        while len(self.ids) < problem.k:
            start = len(self.ids)
            steps = max(1, min(round(AHEAD * pace), MOST_STEPS, problem.k - start))
            trial, weights_WS, good = self._trial(steps)
            self._keep(trial, weights_WS, good)
            if good == 0 and board.fresh:
                self._by_float64()
            if good == 0:
                board.sweep(self._residual(self.w))
                self.at_w = self.w
            # A little more than what stood of late: steps that are undone cost less than sweeps.
            pace += PULL * (good * (GROWTH if good == len(trial.ids) else 1.0) - pace)
            board.take(self.ids[start:])
            tick(len(self.ids), problem.k)
        total = torch.tensor(self.scores, dtype=torch.float64) + 2 * terms.tau * terms.beta
        if terms.second_order:
            total -= terms.tau**2 * terms.beta
        return Picked(torch.tensor(self.ids), self.w, total, self._residual(self.w), board.sweeps, first)

    def _trial(self, steps: int) -> tuple[Trial, Tensor, int]:
        """Picks on a list, weights before each and after the last, and how many of them stand."""
        board, start = self.board, len(self.ids)
        listed, spread = board.listed(max(SHORTEST, min(LIST * steps, LONGEST)))
        undone, back_e = board.undone, board.back
        steps = min(steps, len(listed))
        found_3W, weights_WS = self._walked(listed, steps)
        g, gram_SS = self.walk.g, self.walk.gram_TS[:start, :start]
        w, d_WS = weights_WS[-1], weights_WS[:, :start] - self.at_w
        reach_WS = d_WS.abs() * gram_SS.diagonal().sqrt()
        moved = reach_WS[-1].topk(min(OLDER, start)).indices
        weights_WX = torch.cat([back_e.expand(len(weights_WS), -1), d_WS[:, moved], weights_WS[:, start:]], 1)
        rows = [undone, g[moved], g[start : start + steps]]
        along = Factored(torch.cat([one.left for one in rows]), torch.cat([one.right for one in rows]))
        rest_T = _rest(d_WS.index_fill(1, moved, 0.0), reach_WS, gram_SS)
        *found, rest = torch.cat([found_3W.flatten(), rest_T[-1:]]).tolist()  # here the host waits
        places, scores, tops = (found[part * steps :][:steps] for part in range(3))
        ids = listed[torch.tensor(places, dtype=torch.int64)].tolist()
        trial = Trial(ids, scores, tops, list(weights_WS), along, weights_WX.T.contiguous(), rest_T, rest, spread)
        r_AB = self._residual(w)
        good = board.check(trial, r_AB)
        # The board's R now holds the new weights of these rows or, where it was computed afresh, of all.
        at_w = self.at_w.index_copy(0, moved, w[moved])
        self.at_w = w if board.at_AB is r_AB else torch.cat([at_w, w[start:]])
        return trial, weights_WS, good

    def _keep(self, trial: Trial, weights_WS: Tensor, good: int) -> None:
        """Take over the picks that stand."""
        size = len(self.ids) + good
        self.w, self.at_w = weights_WS[good, :size], self.at_w[:size]
        self.ids += trial.ids[:good]
        self.scores += trial.scores[:good]

    def _by_float64(self) -> None:
        """One pick by a sweep in float64, where rows are too near each other to be told apart otherwise."""
        row, score = self.board.exact(self._residual(self.w))
        weights_WS = self._walked(torch.tensor([row]), 1)[-1]
        self.ids.append(row)
        self.scores.append(score)
        self.w = weights_WS[1]

    def _residual(self, w: Tensor) -> Tensor:
        """R for these weights of the rows that were picked."""
        g = self.walk.g[: len(w)]
        left_SA = (g.left * w[:, None]).T
        return torch.addmm(self.problem.v_AB, left_SA, g.right, beta=-1, alpha=1 / self.problem.k)

    def _walked(self, listed: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """So many picks on a list, see `Walk.run`."""
        start, walk = len(self.ids), self.walk
        if start + steps > walk.room:
            self.walk = walk = self._roomier(walk)
        rows, bonus_M = wide(gather(self.problem, listed)), beside(self.problem, "bonus", listed)
        return walk.run(start, self.w, rows, bonus_M, steps)

    def _roomier(self, before: Walk | None) -> Walk:
        """Room for more rows of the support."""
        problem, room = self.problem, BUCKET + (0 if before is None else before.room)
        longest = min(problem.pool.n, LONGEST + MOST_STEPS)  # a list also holds what was undone
        return Walk(problem, self.unit, min(room, problem.k), longest, MOST_STEPS, before)


def _rest(d_WS: Tensor, reach_WS: Tensor, gram_SS: Tensor) -> Tensor:
    """The length of Phi d for each line of changes d of the weights of older rows."""
    square_W = torch.mul(d_WS @ gram_SS, d_WS).sum(1).clamp_(min=0)
    return (square_W + (ROUNDING * reach_WS.sum(1)) ** 2).sqrt()
