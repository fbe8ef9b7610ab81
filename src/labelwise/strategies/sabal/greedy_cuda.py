"""The greedy solver on one accelerator: a step is a fixed row of kernels, and the host looks only once for many picks.

R, the weights, the picked rows and the number of the step stay on the device. A step is one product of all rows with R,
the row of the best score, and its line search, de-bias and clip, on a support padded to a fixed size; on CUDA it is
captured in a graph and replayed. Scores come from a product in the precision of the rows; rows within its rounding of
the best are told apart in float64. Where there are more than NEAR of them, the step does nothing and neither do those
behind it; the host then makes that pick and goes on. So the picks are those of the other loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.forms import wide
from labelwise.strategies.sabal.greedy import Picked
from labelwise.strategies.sabal.problem import TINY, Problem, forward, length, residual, share

CHUNK = 64  # steps between two looks of the host
BUCKET = 512  # the support is padded to this size, twice that, and so on
NEAR = 64  # rows that a step tells apart
WIDEST = 128  # beyond, a product of all rows for each pick costs more than lists and their checks


def fits(problem: Problem) -> bool:
    """Whether all rows are in one shard on one accelerator, and not too wide for a product for each pick."""
    return problem.pool.map(lambda shard: shard.device.type) == ["cuda"] and len(problem.v_AB) <= WIDEST


def greedy_on_device(problem: Problem, unit: bool = False) -> Picked:
    """The picks of `sparse_greedy.greedy`, for a pool of one shard."""
    (found,) = problem.pool.map(lambda shard: _Loop(problem.at(shard), shard, unit).run())
    return found


class _Loop:
    """The state of the loop, all of it on the device."""

    def __init__(self, problem: Problem, shard: Shard, unit: bool):
        self.problem, self.shard, self.unit = problem, shard, unit
        parts = [g for _, g in problem.form.blocks(shard)]
        # One block is a view of the stored columns; several are put together once.
        self.g = parts[0] if len(parts) == 1 else _joined(parts)
        (a, b), places = problem.v_AB.shape, problem.k + BUCKET
        self.r_AB = -problem.v_AB
        # The rows of the support; those after the last pick are zero, but for the next, which may hold anything.
        self.picked = Factored(self.r_AB.new_zeros(places, a), self.r_AB.new_zeros(places, b))
        self.w = self.r_AB.new_zeros(places)
        self.scores = self.r_AB.new_zeros(places)
        self.places = torch.zeros(places, dtype=torch.int64, device=shard.device)
        self.bonus_N = shard.state["bonus"].clone()  # -inf once taken
        self.square_N = (shard.state["length"] ** 2 + problem.terms.beta).clamp_(min=TINY)
        self.step = torch.zeros(1, dtype=torch.int64, device=shard.device)
        self.alive = torch.ones(1, dtype=torch.bool, device=shard.device)
        # What a product loses to rounding; R is brought near length one before it.
        self.blur = 4 * problem.terms.tau * torch.finfo(self.g.right.dtype).eps * (16 + 2 * max(a, b) ** 0.5)
        self.graph_pool = torch.cuda.graph_pool_handle() if shard.device.type == "cuda" else None
        self.noise = problem.noise  # read now: a graph cannot wait for it
        self.near_one = 1 / max(length(problem.v_AB) + problem.longest, TINY)

    def run(self) -> Picked:
        k = self.problem.k
        self.shard.state["c"] = forward(self.g, self.r_AB) / k
        first, done, looks = share(self.problem), 0, 1
        steps: dict[int, Callable[[], None]] = {}
        while done < k:
            size = BUCKET
            while size < min(done + CHUNK, k):  # few sizes, since each is captured
                size *= 2
            size = min(size, k + BUCKET)
            if size not in steps:
                state = [self.w, self.r_AB, self.bonus_N, self.step, self.alive]
                steps[size] = captured(functools.partial(self._step, size), state, self.graph_pool)
            for _ in range(min(CHUNK, k - done)):
                steps[size]()
            done = int(self.step)  # here the host waits
            looks += 1
            if not bool(self.alive):
                self.alive.fill_(True)
                self._take(size, self._by_float64())
                done += 1
        r_AB, terms = residual(self.problem, self.picked[:k], self.w[:k]), self.problem.terms
        scores = self.scores[:k] + 2 * terms.tau * terms.beta - terms.second_order * terms.tau**2 * terms.beta
        return Picked(self.shard.ids[self.places[:k]].cpu(), self.w[:k], scores.cpu(), r_AB, looks, first)

    def _step(self, size: int) -> None:
        """One pick, if few rows are near the best."""
        tau, k, problem = self.problem.terms.tau, self.problem.k, self.problem
        r_AB = (self.r_AB * self.near_one).to(self.g.right.dtype)
        score_N = torch.add(self.bonus_N, forward(self.g, r_AB), alpha=-2 * tau / k / self.near_one)
        top_M, place_M = score_N.topk(min(NEAR + 1, len(score_N)))
        floor = top_M[0] - torch.linalg.vector_norm(self.r_AB) * (self.blur * problem.longest) - problem.slack
        if len(top_M) > NEAR:
            self.alive &= top_M[-1] < floor
        g = wide(Factored(self.g.left.index_select(0, place_M), self.g.right.index_select(0, place_M)))
        exact_M = torch.add(self.bonus_N.index_select(0, place_M), forward(g, self.r_AB), alpha=-2 * tau / k)
        exact_M = torch.where(top_M >= floor, exact_M, -torch.inf)
        ids_M = self.shard.ids.index_select(0, place_M)
        first = torch.where(exact_M >= exact_M.max() - problem.slack, ids_M, torch.iinfo(ids_M.dtype).max)
        self._take(size, place_M.index_select(0, first.argmin(0, keepdim=True)))

    def _by_float64(self) -> Tensor:
        """The next pick, ties to the smaller id."""
        score_N, part = self.bonus_N.clone(), max(1, (1 << 25) // self.g.right.shape[1])
        for start in range(0, len(score_N), part):
            where = slice(start, start + part)
            score_N[where] -= 2 * self.problem.terms.tau / self.problem.k * forward(wide(self.g[where]), self.r_AB)
        near = (score_N >= score_N.max() - self.problem.slack).nonzero()[:, 0]
        return near[self.shard.ids[near].argmin()][None]

    def _take(self, size: int, place: Tensor) -> None:
        """Algorithm 1, lines 4 to 7, where `alive`; else nothing that counts is changed."""
        k, beta = self.problem.k, self.problem.terms.beta
        left, right = (side.index_select(0, place).double() for side in (self.g.left, self.g.right))
        bonus = self.bonus_N.index_select(0, place)
        slope = torch.dot(left[0], torch.mv(self.r_AB, right[0]))[None] / k  # <phi, R>
        self.picked.left.index_copy_(0, self.step, left)
        self.picked.right.index_copy_(0, self.step, right)
        self.places.index_copy_(0, self.step, place)
        self.scores.index_copy_(0, self.step, torch.add(bonus, slope, alpha=-2 * self.problem.terms.tau))
        if self.unit:
            w = self.w[:size].index_fill(0, self.step, 1.0)
        else:
            curve = self.square_N.index_select(0, place)  # |phi|^2 + beta
            mu = (slope - beta) / curve
            w = self._debiased(self.picked[:size], self.w[:size].index_copy(0, self.step, -mu), left * (mu / k), right)
        self.w[:size] = torch.where(self.alive, w, self.w[:size])
        # From the weights, so that rounding does not add up from pick to pick.
        g = self.picked[:size]
        torch.addmm(self.problem.v_AB, (g.left * self.w[:size, None]).T, g.right, beta=-1, alpha=1 / k, out=self.r_AB)
        self.bonus_N.index_copy_(0, place, torch.where(self.alive, -torch.inf, bonus))
        self.step += self.alive

    def _debiased(self, g: Factored, w: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """w after one step down the gradient of f1 in its support and the cut at zero; R moves by -left x right before.

        In its support the gradient is u itself, so the numerator of the line search is u.u / 2.
        """
        k, beta = self.problem.k, self.problem.terms.beta
        c = forward(g, torch.addmm(self.r_AB, left.T, right, alpha=-1))
        u = torch.where(w != 0, torch.add(c / k, w - 1, alpha=beta) * 2, 0.0)
        if not beta:  # without beta a gradient that is rounding alone may point where f1 does not change
            u = torch.where(u.abs().amax() > self.noise, u, 0.0)
        along = ((g.left * u[:, None]).T @ g.right).flatten()
        square = u @ u
        mu = square / 2 / torch.add(square * beta, along @ along, alpha=1 / k**2).clamp(min=TINY)
        return torch.addcmul(w, u, mu, value=-1).clamp_(min=0)


def _joined(parts: list[Factored]) -> Factored:
    return Factored(torch.cat([one.left for one in parts]), torch.cat([one.right for one in parts]))
