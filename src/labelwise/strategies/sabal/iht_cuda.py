"""IHT on one accelerator: an iteration is a fixed row of kernels, and the host looks only once for many of them.

z, w, R and the support stay on the device; on CUDA the iteration is captured in a graph and replayed. Rows are kept in
the order of sigma, then of id, when they are sorted by key, so a stable sort leaves ties as `sparse_iht.top` does.
Once w has stopped moving, an iteration changes nothing. All of it is in float64, whatever rows are stored in.
"""

from __future__ import annotations

import functools
from typing import Protocol

import torch
from torch import Tensor

from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.forms import wide
from labelwise.strategies.sabal.greedy_triton import FEW, WALK, Walk, joined, small_enough
from labelwise.strategies.sabal.iht import KEY_BITS, STEP_BITS, Prox, Solved, mean_cut, rounded
from labelwise.strategies.sabal.problem import Problem, adjoint, forward, line_search, share

LOOK = 25  # iterations between two looks of the host
PART = 1 << 25  # numbers of rows that are widened at once


class Walker(Protocol):
    """One read of rows: u, unless it is given, and sum u g; see `sparse_fused.Walk`."""

    def __call__(
        self, r_AB: Tensor, w: Tensor, u: Tensor, places: Tensor | None, count: Tensor, state: Tensor, kind: str = ""
    ) -> Tensor: ...


class PlainWalk:
    """The same in products, for any shape and device."""

    def __init__(self, problem: Problem, g: Factored):
        self.problem, self.g = problem, g

    def __call__(
        self, r_AB: Tensor, w: Tensor, u: Tensor, places: Tensor | None, count: Tensor, state: Tensor, kind: str = ""
    ) -> Tensor:
        g, total_AB = self.g if places is None else self.g[places], torch.zeros_like(r_AB)
        part = max(1, PART // g.right.shape[1])
        for start in range(0, len(g), part):
            where = slice(start, start + part)
            x, now = wide(g[where]), w[where]
            if kind != "given":
                value = 2 * (forward(x, r_AB) / self.problem.k + self.problem.terms.beta * (now - 1))
                u[where] = value if places is None else torch.where(now != 0, value, 0.0)
            total_AB += adjoint(x, u[where])
        return total_AB


def iht_on_device(problem: Problem, iterations: int, tolerance: float, prox: Prox) -> Solved:
    """The answer of `sparse_iht.iht`, for a pool of one shard."""
    problem = mean_cut(problem)
    loop = functools.partial(_Loop, tolerance=tolerance, prox=prox)
    (found,) = problem.pool.map(lambda shard: loop(problem.at(shard), shard).run(iterations))
    return found


class _Loop:
    """The state of the loop, all of it on the device."""

    def __init__(self, problem: Problem, shard: Shard, tolerance: float, prox: Prox):
        self.problem, self.shard, self.tolerance, self.prox = problem, shard, tolerance, prox
        g, n, k, device = joined(problem, shard), len(shard), problem.k, shard.device
        self.walk: Walker = PlainWalk(problem, g)
        self.few: Walker = self.walk
        self.fused: tuple[Walk, Walk] | None = None
        if small_enough(problem.v_AB.shape, shard):
            self.fused = Walk(problem, g, n, WALK), Walk(problem, g, k, FEW)
            self.walk, self.few = self.fused
        sigma_N = rounded(shard.state["sigma"])
        by_id = shard.ids.argsort()
        self.order = by_id[sigma_N[by_id].argsort(descending=True, stable=True)]
        self.bonus_N = problem.terms.alpha * shard.state["sigma"] ** 2
        self.r_AB, self.rz_AB = -problem.v_AB, -problem.v_AB
        self.w_N, self.z_N, self.u_N, self.key_N = (self.r_AB.new_zeros(n) for _ in range(4))
        self.u_k = self.r_AB.new_zeros(k)
        self.places = torch.zeros(k, dtype=torch.int64, device=device)
        self.values = self.r_AB.new_zeros(k)
        self.next = self.r_AB.new_full((1,), -torch.inf)  # the best key that is left out
        self.going = torch.ones(1, dtype=torch.int32, device=device)
        self.done = torch.zeros(1, dtype=torch.int32, device=device)
        self.all, self.some = (torch.full((1,), many, dtype=torch.int32, device=device) for many in (n, k))
        self.noise = problem.noise  # read now: a graph cannot wait for it

    def run(self, iterations: int) -> Solved:
        self.walk(self.rz_AB, self.z_N, self.u_N, None, self.all, self.going)
        self.shard.state["c"] = self.u_N / 2 - self.problem.terms.beta * (self.z_N - 1)
        first, done, going = share(self.problem), 0, True
        kept = [self.w_N, self.z_N, self.r_AB, self.rz_AB, self.places, self.values, self.next, self.going, self.done]
        step = captured(self._step, kept)
        while done < iterations and going:
            for _ in range(min(LOOK, iterations - done)):
                step()
            done, going = int(self.done), bool(self.going)  # here the host waits
        ids, values = self.shard.ids[self.places].cpu(), self.values.cpu()
        # Ties go to the smaller id, but for those at the edge where more rows are tied than there is room for.
        crowded = (values == values[-1]) & (values[-1] == self.next.cpu())
        by_id = ids.masked_fill(crowded, torch.iinfo(torch.int64).max).argsort(stable=True)
        order = by_id[values[by_id].argsort(descending=True, stable=True)]
        w = self.w_N[self.places[order.to(self.places.device)]]
        stopped = "iterations" if going else "tolerance"
        return Solved(ids[order], w, values[order], self.r_AB, done, stopped, first)

    def _step(self) -> None:
        """One iteration, while `going`."""
        k, beta, alive = self.problem.k, self.problem.terms.beta, self.going != 0
        along_AB = self.walk(self.rz_AB, self.z_N, self.u_N, None, self.all, self.going)
        mu = self._length(self.u_N, along_AB)
        ranked = torch.sort(self._keys(mu), descending=True, stable=True)
        places, w = self._cut(mu, ranked.indices)
        values = ranked.values[:k]
        w, r_AB = self._debiased(places, w)
        w_N = torch.zeros_like(self.w_N).index_copy_(0, places, w)
        step_N, along_AB = w_N - self.w_N, r_AB - self.r_AB
        moved = torch.dot(step_N, step_N)
        slope = (r_AB * along_AB).sum() + beta * torch.dot(w_N - 1, step_N)
        tau = line_search(slope, (along_AB * along_AB).sum() + beta * moved)
        new = {
            self.z_N: w_N - tau * step_N,
            self.rz_AB: r_AB - tau * along_AB,
            self.w_N: w_N,
            self.r_AB: r_AB,
            self.places: places,
            self.values: values,
        }
        if k < len(w_N):
            new[self.next] = ranked.values[k : k + 1]
        for one, value in new.items():
            one.copy_(torch.where(alive, value, one))
        self.done += alive
        self.going *= moved.sqrt() > self.tolerance * torch.linalg.vector_norm(w)

    def _length(self, u: Tensor, along_AB: Tensor) -> Tensor:
        """The step down the gradient u, with sum u g; its numerator is u.u / 2, being the gradient along itself."""
        some = u is self.u_k
        if self.fused is not None:
            mu = torch.empty_like(self.next)
            self.fused[some].step(mu, some, 53 if some else STEP_BITS)
            return mu
        square, along_AB = torch.dot(u, u), along_AB / self.problem.k
        mu = line_search(square / 2, (along_AB * along_AB).sum() + self.problem.terms.beta * square)
        if some:
            return torch.where(u.abs().amax() > self.noise, mu, 0.0)
        return torch.where(square > self.problem.pool.n * self.noise**2, rounded(mu, STEP_BITS), 0.0)

    def _cut(self, mu: Tensor, ranked: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that come first, and the positive part of z - mu u on them."""
        k = self.problem.k
        if self.fused is not None:
            places, w = torch.empty_like(self.places), torch.empty_like(self.u_k)
            self.fused[0].kernels.cut_rows[(-(-k // 128),)](
                self.z_N, self.u_N, mu, self.order, ranked, places, w, k, 53 - STEP_BITS, 128
            )
            return places, w
        places = self.order[ranked[:k]]
        return places, rounded((self.z_N[places] - mu * self.u_N[places]).clamp_(min=0), STEP_BITS)

    def _keys(self, mu: Tensor) -> Tensor:
        """What the threshold keeps the largest of, in the order of `self.order`; see `sparse_iht`."""
        exact = self.prox == "exact"
        if self.fused is not None:
            n = len(self.key_N)
            self.fused[0].kernels.keys_of[(-(-n // 512),)](
                self.z_N, self.u_N, mu, self.bonus_N, self.order, self.key_N, n, 53 - KEY_BITS, exact, 512
            )
            return self.key_N
        s_N = self.z_N - mu * self.u_N
        kept_N = s_N.clamp(min=0).square_() if exact else s_N.clamp(max=0).square_().neg_()
        return rounded(kept_N / 2 + self.bonus_N)[self.order]

    def _debiased(self, places: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """w on the rows at `places` and R, after one step down the gradient of f1 and the cut at zero."""
        k = self.problem.k
        r_AB = self.few(self.r_AB, w, w, places, self.some, self.going, "given") / k - self.problem.v_AB
        along_AB = self.few(r_AB, w, self.u_k, places, self.some, self.going)
        mu = self._length(self.u_k, along_AB)
        w, r_AB = w - mu * self.u_k, r_AB - mu / k * along_AB
        below = w.clamp(max=0)
        return w - below, r_AB - self.few(r_AB, w, below, places, self.some, self.going, "given") / k
