"""Greedy sparse approximation of wide rows on an accelerator: the picks of choose/sparse_greedy.py, without R.

With A classes and B numbers R is a matrix (A, B), and a step on a list of M rows with S rows picked multiplies it with
all of them: 4 (M + S) A B operations, 16 GFLOP for a pick at A = 1,000, B = 2,048, M = S = 1,000. But a step needs
nothing except inner products between these rows and v. They are made once for each list, as products of the factors
(<g_i, g_j> = (l_i . l_j)(r_i . r_j), 2 M S (A + B) operations, 6 GFLOP), and a step is then

    c = K w - f,   K = <phi_i, phi_j> over the rows of list and support,   f = <phi_j, v>
    line search:   mu = (c_p - beta) / (K_pp + beta),          c -= mu K_p
    de-bias:       u = 2 (c + beta (w - 1)) on the support,    mu = u.u / 2 / (u^T K u + beta u.u)

two products of a matrix (M + S, S) with a vector: 2 (M + S) S numbers are read, 30 MB, which is 8 us. All of it is in
float64, so that rows are told apart as they are on the CPU with no second look, and c comes from the weights at each
list, so that rounding does not add up. The host waits once for a list: for its picks, which go into the check of the
pool (choose/sparse_board.py). That check multiplies all rows of the pool with the new ones anyway, so the older rows
whose weights moved most go with them; how far R moved for other reasons, which it asks for as well, is the length of
Phi d for the changes d of the other weights, from K. It stays so small that the pool's product with R, 2 N A B
operations, is hardly ever made again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.choose.progress import tick
from labelwise.choose.sparse import MOST_PRODUCTS, TINY, Problem, beside, forward, gather, share
from labelwise.choose.sparse_board import Board, Trial
from labelwise.choose.sparse_device import WIDEST
from labelwise.choose.sparse_form import wide
from labelwise.choose.sparse_greedy import AHEAD, FIRST_STEPS, GROWTH, MOST_STEPS, PULL, Picked
from labelwise.signals.rows import Factored

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
    """The picked rows in float64, their weights, and K; behind them is room for the picks of a list and the list."""

    def __init__(self, problem: Problem, unit: bool):
        (a, b), k = problem.v_AB.shape, problem.k
        empty = problem.v_AB.new_zeros
        room = k + LONGEST + 2 * MOST_STEPS  # a list also holds what was undone
        self.problem, self.unit, self.board, self.noise = problem, unit, Board(problem), problem.noise
        self.g = Factored(empty(room, a), empty(room, b))
        self.f_T = empty(room)  # <phi, v>
        self.w, self.at_w, self.gram = empty(0), empty(0), empty(k, k)  # at_w: weights in the R of the board
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
                board.sweep(self._residual())
                self.at_w = self.w
            # A little more than what stood of late: steps that are undone cost less than sweeps.
            pace += PULL * (good * (GROWTH if good == len(trial.ids) else 1.0) - pace)
            board.take(self.ids[start:])
            tick(len(self.ids), problem.k)
        total = torch.tensor(self.scores, dtype=torch.float64) + 2 * terms.tau * terms.beta
        if terms.second_order:
            total -= terms.tau**2 * terms.beta
        return Picked(torch.tensor(self.ids), self.w, total, self._residual(), board.sweeps, first)

    def _trial(self, steps: int) -> tuple[Trial, Tensor, int]:
        """Picks on a list, weights before each and after the last, and how many of them stand."""
        board, k, start = self.board, self.problem.k, len(self.ids)
        listed, spread = board.listed(max(SHORTEST, min(LIST * steps, LONGEST)))
        undone, back_e = board.undone, board.back
        steps = min(steps, len(listed))
        found_3W, weights_WS = self._walk(listed, steps)
        w, d_WS = weights_WS[-1], weights_WS[:, :start] - self.at_w
        reach_WS = d_WS.abs() * self.gram.diagonal()[:start].sqrt()
        moved = reach_WS[-1].topk(min(OLDER, start)).indices
        weights_WX = torch.cat([back_e.expand(len(weights_WS), -1), d_WS[:, moved], weights_WS[:, start:]], 1)
        rows = [undone, self.g[moved], self.g[start : start + steps]]
        along = Factored(torch.cat([one.left for one in rows]), torch.cat([one.right for one in rows]))
        rest_T = self._rest(d_WS.index_fill(1, moved, 0.0), reach_WS)
        *found, rest = torch.cat([found_3W.flatten(), rest_T[-1:]]).tolist()  # here the host waits
        places, scores, tops = (found[part * steps :][:steps] for part in range(3))
        ids = listed[torch.tensor(places, dtype=torch.int64)].tolist()
        trial = Trial(ids, scores, tops, list(weights_WS), along, weights_WX.T.contiguous(), rest_T, rest, spread)
        left_SA = (self.g.left[: len(w)] * w[:, None]).T
        r_AB = torch.addmm(self.problem.v_AB, left_SA, self.g.right[: len(w)], beta=-1, alpha=1 / k)
        good = board.check(trial, r_AB)
        # The board's R now holds the new weights of these rows or, where it was computed afresh, of all.
        at_w = self.at_w.index_copy(0, moved, w[moved])
        self.at_w = w if board.at_AB is r_AB else torch.cat([at_w, w[start:]])
        return trial, weights_WS, good

    def _rest(self, d_WS: Tensor, reach_WS: Tensor) -> Tensor:
        """The length of Phi d for each line of changes d of the weights of older rows."""
        start = d_WS.shape[1]
        square_W = torch.mul(d_WS @ self.gram[:start, :start], d_WS).sum(1).clamp_(min=0)
        return (square_W + (ROUNDING * reach_WS.sum(1)) ** 2).sqrt()

    def _keep(self, trial: Trial, weights_WS: Tensor, good: int) -> None:
        """Take over the picks that stand."""
        size = len(self.ids) + good
        self.w, self.at_w = weights_WS[good, :size], self.at_w[:size]
        self.ids += trial.ids[:good]
        self.scores += trial.scores[:good]

    def _by_float64(self) -> None:
        """One pick by a sweep in float64, where rows are too near each other to be told apart otherwise."""
        row, score = self.board.exact(self._residual())
        weights_WS = self._walk(torch.tensor([row]), 1)[-1]
        self.ids.append(row)
        self.scores.append(score)
        self.w = weights_WS[1]

    def _residual(self) -> Tensor:
        g = self.g[: len(self.w)]
        left_SA = (g.left * self.w[:, None]).T
        return torch.addmm(self.problem.v_AB, left_SA, g.right, beta=-1, alpha=1 / self.problem.k)

    def _walk(self, listed: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Picks on a list: places in it, scores and best scores (3, steps); weights (steps + 1, rows) before each pick
        and after all.

        Rows are those picked before, then the picks of this list, then the list itself.
        """
        problem, start = self.problem, len(self.ids)
        first, many = start + steps, start + steps + len(listed)
        rows, bonus_M = wide(gather(problem, listed)), beside(problem, "bonus", listed)
        self.g.left[first:many], self.g.right[first:many] = rows.left, rows.right
        self.f_T[first:many] = forward(rows, problem.v_AB) / problem.k
        gram_TS = self._products(rows, first, many)
        c_T = torch.mv(gram_TS[:, :start], self.w).sub_(self.f_T[:many])
        weights_WS = c_T.new_zeros(steps + 1, first)
        weights_WS[0, :start] = self.w
        found_3W = c_T.new_zeros(3, steps)
        for step in range(steps):
            score_M = torch.sub(bonus_M, c_T[first:], alpha=2 * problem.terms.tau)
            top = score_M.max()
            pick = (score_M >= top - problem.slack).to(torch.uint8).argmax(0, keepdim=True)
            found_3W[0, step : step + 1], found_3W[2, step] = pick, top
            found_3W[1, step : step + 1] = score_M.index_select(0, pick)
            bonus_M.index_fill_(0, pick, -torch.inf)
            at = start + step
            self._move(pick + first, at, gram_TS, c_T, many, first)
            weights_WS[step + 1] = self._weighed(weights_WS[step], at, gram_TS, c_T)
        self.gram[start:first, :first] = gram_TS[start:first]
        self.gram[:start, start:first] = gram_TS[:start, start:]
        return found_3W, weights_WS

    def _products(self, rows: Factored, first: int, many: int) -> Tensor:
        """K, for now without the columns of the picks that this list will give."""
        start = len(self.ids)
        gram_TS = self.gram.new_zeros(many, first)
        gram_TS[:start, :start] = self.gram[:start, :start]
        picked = self.g[:start]
        own_MS = (rows.left @ picked.left.T).mul_(rows.right @ picked.right.T)
        gram_TS[first:, :start] = own_MS.div_(self.problem.k**2)
        return gram_TS

    def _move(self, place: Tensor, at: int, gram_TS: Tensor, c_T: Tensor, many: int, first: int) -> None:
        """Put the row of a list at `place` among those picked, with its products with all rows."""
        for kept in (self.g.left, self.g.right, self.f_T, gram_TS, c_T):
            kept[at : at + 1] = kept.index_select(0, place)
        g = self.g[:many]
        own_T = torch.mv(g.left, g.left[at]).mul_(torch.mv(g.right, g.right[at])).div_(self.problem.k**2)
        own_T[at + 1 : first] = 0.0  # places of picks to come
        gram_TS[:, at] = own_T

    def _weighed(self, w_S: Tensor, at: int, gram_TS: Tensor, c_T: Tensor) -> Tensor:
        """Weights after line search, de-bias and cut with the row `at` (algorithm 1, lines 5 to 7); c moves with R."""
        beta, many = self.problem.terms.beta, len(w_S)
        own_T = gram_TS[:, at]
        w_S = w_S.clone()
        if self.unit:
            w_S[at] = 1.0
            c_T += own_T
            return w_S
        curve = own_T[at] + beta
        mu = torch.where(curve > 0, (c_T[at] - beta) / curve.clamp(min=TINY), 0.0)
        w_S[at] = -mu
        c_T.addcmul_(own_T, mu, value=-1)
        u_S = torch.where(w_S != 0, torch.add(c_T[:many], w_S - 1, alpha=beta) * 2, 0.0)
        u_S = torch.where(u_S.abs().amax() > self.noise, u_S, 0.0)
        square = u_S @ u_S
        curve = (u_S @ torch.mv(gram_TS[:many], u_S)).clamp(min=0) + beta * square
        mu = torch.where(curve > 0, square / 2 / curve.clamp(min=TINY), 0.0)
        after_S = torch.addcmul(w_S, u_S, mu, value=-1).clamp_(min=0)
        c_T += torch.mv(gram_TS, after_S - w_S)
        return after_S
