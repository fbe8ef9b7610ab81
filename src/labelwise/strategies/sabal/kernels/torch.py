"""Inner kernels of SABAL in PyTorch, for any device: the weight update, a greedy step, the passes of an IHT iteration.

The weight update of both solvers (algorithm 1, lines 5 to 7; from "de-bias" on also algorithm 2, lines 7 and 8) is
written once, over what a `Support` knows of f1 around the weights w of the picked rows:

    line search   mu = (<phi_p, R> - beta) / (|phi_p|^2 + beta)             w_p = -mu for the new row p
    de-bias       u = 2 (<phi_i, R> + beta (w_i - 1)) where w_i is not 0    else 0; so the slope along u is u.u / 2
                  mu = u.u / 2 / (|Phi u|^2 + beta u.u)                     0 if all of u is rounding, for any beta
    cut           w = max(w - mu u, 0)

Two supports move R = Phi w - v along: `ResidualSupport` by products with the rows, `GramSupport` by their inner
products alone. The kernels of kernels/triton.py hold the same formulas and are tested against these.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from labelwise.selection.backends import is_accelerator
from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.shards.topk import order_by_value
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.kernels.tuning import StepTuning
from labelwise.strategies.sabal.problem import Problem, residual
from labelwise.strategies.sabal.vectors import adjoint, forward, joined, wide

Prox = Literal["exact", "paper"]
# Bits that count in IHT. Iterations amplify rounding, and sums over rows round by the order of the rows: what comes out
# of them is cut to fewer bits, so that the same rows are chosen in any order, in any block, and copies of a row are
# tied.
KEY_BITS, STEP_BITS, MEAN_BITS = 32, 30, 36
# A float on the CPU, where calls of torch cost more than the arithmetic; a tensor on an accelerator, so nothing waits.
Scalar = Tensor | float


# ---- the weight update ----------------------------------------------------------------------------------------------


class Support(Protocol):
    """Picked rows with their weights, and how f1 changes with these. Slots that hold no row have weight 0."""

    w: Tensor  # (S,)

    def last(self) -> tuple[Scalar, Scalar]:
        """<phi, R> and |phi|^2 of the row that was added last, whose weight is still 0."""

    def set_last(self, weight: Any) -> None:
        """Give that row its weight; R moves along it. Follows `last`."""

    def slope(self) -> Tensor:
        """<phi_i, R> of each row (S,)."""

    def curvature(self, u: Tensor) -> Scalar:
        """|Phi u|^2 for a direction u (S,)."""

    def move(self, mu: Any, w: Tensor, cut: Tensor) -> None:
        """Set the weights to w, which are the old ones - mu u - cut; R moves along. Follows `curvature(u)`."""


def scalar(x: Tensor) -> Scalar:
    """A tensor of one number as a `Scalar`."""
    return x if is_accelerator(x.device) else float(x)


def line_search(slope: Any, curvature: Any) -> Any:
    """The step along a direction that minimises f1 (algorithm 4), from its numerator and denominator.

    A direction in which f1 does not change at all has both equal to zero, and the step is zero.
    """
    if isinstance(curvature, float):
        return slope / curvature if curvature > 0 else 0.0
    return torch.where(curvature > 0, slope / curvature, 0.0)


def update_weights(support: Support, beta: float, noise: float, unit: bool = False) -> None:
    """The weights after a row was added (algorithm 1, lines 5 to 7). With `unit`, its weight is 1 and others stay."""
    slope, square = support.last()
    if unit:
        support.set_last(0 * slope + 1)
    else:
        support.set_last(-line_search(slope - beta, square + beta))
        debias(support, beta, noise)


def debias(support: Support, beta: float, noise: float) -> None:
    """One step down the gradient of f1 within the support (algorithm 5), then negative weights to zero."""
    u, mu = debias_step(support, beta, noise)
    w = support.w - mu * u
    cut = w.clamp(max=0)
    support.move(mu, w - cut, cut)


def debias_step(support: Support, beta: float, noise: float) -> tuple[Tensor, Any]:
    """The direction u (S,) of the de-bias step and its length: weights go to w - mu u.

    A gradient whose entries are all below `noise` is rounding; without beta it may point where f1 does not change.
    """
    w = support.w
    u = torch.add(support.slope(), w - 1, alpha=beta).mul_(2).masked_fill_(w == 0, 0.0)
    square = scalar(u @ u)
    mu = line_search(square / 2, support.curvature(u) + beta * square)
    return u, mu * (scalar(torch.linalg.vector_norm(u, torch.inf)) > noise)


class ResidualSupport:
    """Rows g with weights w, and R as a matrix: three products with the rows for each update.

    `near_one` brings R close to length one, where products in single precision do not underflow.
    """

    def __init__(self, g: Factored, w: Tensor, r_AB: Tensor, k: int, near_one: float = 1.0):
        self.g, self.w, self.r_AB, self._k, self._near_one = g, w, r_AB, k, near_one

    def last(self) -> tuple[Scalar, Scalar]:
        row = wide(self.g[len(self.g) - 1 :])
        phi_AB = self._last_phi = row.left.T @ row.right / self._k
        return scalar((phi_AB * self.r_AB).sum()), scalar(phi_AB.square().sum())

    def set_last(self, weight: Any) -> None:
        self.w[-1] = weight
        self.r_AB = self.r_AB + weight * self._last_phi

    def slope(self) -> Tensor:
        if self.g.right.dtype == torch.float64:
            return forward(self.g, self.r_AB).div_(self._k)
        r_AB = (self.r_AB * self._near_one).to(self.g.right.dtype)
        return forward(self.g, r_AB).double().div_(self._k * self._near_one)

    def curvature(self, u: Tensor) -> Scalar:
        self._along_AB = adjoint(self.g, u) / self._k
        return scalar(self._along_AB.square().sum())

    def move(self, mu: Any, w: Tensor, cut: Tensor) -> None:
        self.r_AB = self.r_AB - mu * self._along_AB
        if is_accelerator(cut.device) or bool(cut.any()):  # a device would wait for the answer
            self.r_AB = self.r_AB - adjoint(self.g, cut) / self._k
        self.w.copy_(w)


class GramSupport:
    """Picks on a list of rows from inner products alone, as a fixed row of kernels for each, captured if possible.

    Buffers have a fixed size: first `slots` for the rows of the support, then the rows of the list. Slots of picks to
    come may hold anything finite, since their weights are zero. So a step is the same for every pick, and the host has
    nothing to decide in it: which row is picked and its slot are numbers on the device. T is slots + list, S is slots:
    K = `gram_TS` holds the products <phi_i, phi_j> of all with the support, c_T those with R. With f = <phi, v>,

        c = K w - f        <phi_p, R> = c_p        |phi_p|^2 = K_pp        |Phi u|^2 = u^T K u

    A step multiplies a matrix (M + S, S) with a vector twice, which is 30 MB, 8 us, at M = S = 1,000.
    """

    def __init__(self, problem: Problem, slots: int, listed: int, steps: int, before: GramSupport | None = None):
        """Buffers for `slots` picked rows, a list of `listed` rows, and the weights of `steps` picks."""
        (a, b), zeros = problem.v_AB.shape, problem.v_AB.new_zeros
        self.problem, self.slots, self.noise = problem, slots, problem.noise
        self.g = Factored(zeros(slots + listed, a), zeros(slots + listed, b))
        self.f_T, self.c_T = zeros(slots + listed), zeros(slots + listed)
        self.gram_TS = zeros(slots + listed, slots)
        self.bonus_M, self.w = zeros(listed), zeros(slots)
        self.weights_WS, self.found_3W = zeros(steps + 1, slots), zeros(3, steps)
        self.slot, self.step = (torch.zeros(1, dtype=torch.int64, device=self.w.device) for _ in range(2))
        self._pick = captured(self._pick_row, [self.slot])  # on zeros, so that nothing large has to be restored
        for buffer in (*self._row_buffers(), self.gram_TS):
            buffer.zero_()
        if before is not None:
            for mine, theirs in zip(self._row_buffers(), before._row_buffers()):
                mine[: before.slots] = theirs[: before.slots]
            self.gram_TS[: before.slots, : before.slots] = before.gram_TS[: before.slots]

    def picks(self, start: int, w: Tensor, rows: Factored, bonus_M: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """`steps` picks from a list, with `start` rows picked before at weights w.

        Returns:
            Positions in the list, scores and best scores (3, steps); weights (steps + 1, start + steps) before each
            pick and after all.
        """
        self._load(start, w, rows, bonus_M)
        for _ in range(steps):
            self._pick()
        # Copies: the next list uses the same buffers.
        return self.found_3W[:, :steps].clone(), self.weights_WS[: steps + 1, : start + steps].clone()

    def last(self) -> tuple[Tensor, Tensor]:
        return self.c_T.index_select(0, self.slot), self._last_T.index_select(0, self.slot)

    def set_last(self, weight: Tensor) -> None:
        self.w.index_copy_(0, self.slot, weight)
        self.c_T.addcmul_(self._last_T, weight)

    def slope(self) -> Tensor:
        return self.c_T[: self.slots]

    def curvature(self, u: Tensor) -> Tensor:
        return (u @ torch.mv(self.gram_TS[: self.slots], u)).clamp(min=0)

    def move(self, mu: Tensor, w: Tensor, cut: Tensor) -> None:
        self.c_T += torch.mv(self.gram_TS, w - self.w)
        self.w.copy_(w)

    def _row_buffers(self) -> tuple[Tensor, ...]:
        return self.g.left, self.g.right, self.f_T

    def _load(self, start: int, w: Tensor, rows: Factored, bonus_M: Tensor) -> None:
        k, listed = self.problem.k, slice(self.slots, self.slots + len(rows))
        self.g.left[listed], self.g.right[listed] = rows.left, rows.right
        self.f_T[listed] = forward(rows, self.problem.v_AB) / k
        picked = self.g[:start]
        gram_MS = (rows.left @ picked.left.T).mul_(rows.right @ picked.right.T)
        self.gram_TS[listed, :start] = gram_MS.div_(k**2)
        self.bonus_M[: len(rows)], self.bonus_M[len(rows) :] = bonus_M, -torch.inf
        self.w.zero_()
        self.w[:start] = w
        self.c_T.copy_(torch.mv(self.gram_TS[:, :start], w).sub_(self.f_T))
        self.weights_WS[0] = self.w
        self.slot.fill_(start)
        self.step.zero_()

    def _pick_row(self) -> None:
        """One pick, and the weights after it."""
        terms = self.problem.terms
        score_M = torch.sub(self.bonus_M, self.c_T[self.slots :], alpha=2 * terms.tau)
        top = score_M.max()
        pick = (score_M >= top - self.problem.slack).to(torch.uint8).argmax(0, keepdim=True)
        found_3 = torch.cat([pick.to(score_M.dtype), score_M.index_select(0, pick), top[None]])
        self.found_3W.index_copy_(1, self.step, found_3[:, None])
        self.bonus_M.index_fill_(0, pick, -torch.inf)
        position = pick + self.slots
        for buffer in (*self._row_buffers(), self.gram_TS, self.c_T):
            buffer.index_copy_(0, self.slot, buffer.index_select(0, position))
        left, right = (side.index_select(0, position)[0] for side in (self.g.left, self.g.right))
        self._last_T = torch.mv(self.g.left, left).mul_(torch.mv(self.g.right, right)).div_(self.problem.k**2)
        self.gram_TS.index_copy_(1, self.slot, self._last_T[:, None])
        update_weights(self, terms.beta, self.noise, terms.unit_weights)
        self.step += 1
        self.slot += 1
        self.weights_WS.index_copy_(0, self.step, self.w[None])


# ---- greedy: one product of all rows with R for each pick -----------------------------------------------------------


class Steps(ABC):
    """Greedy picks on one accelerator by one product of all rows with R for each. All of their state is on the device.

    Attributes:
        size: picks made so far.
        sweeps: how often the host waited.
    """

    r_AB: Tensor

    def __init__(self, problem: Problem, shard: Shard, slots: int):
        self.problem, self.shard, self.g = problem, shard, joined([g for _, g in problem.vectors.blocks(shard)])
        self.r_AB = -problem.v_AB
        self.w, self.scores = self.r_AB.new_zeros(slots), self.r_AB.new_zeros(slots)
        self.positions = torch.zeros(slots, dtype=torch.int64, device=shard.device)
        self.bonus_N = shard.state["bonus"].clone()  # -inf once taken
        self.lots_N = shard.lots  # computed now, not while a graph is captured
        self.noise = problem.noise  # read now: a graph cannot wait for it
        self.near_one = problem.near_one
        # What a product loses to rounding, for R at length one.
        eps = torch.finfo(self.g.right.dtype).eps * (16 + 2 * max(problem.v_AB.shape) ** 0.5)
        self.blur = 4 * problem.terms.tau * eps * problem.longest
        self.size, self.sweeps = 0, 1
        shard.state["c"] = forward(self.g, self.r_AB) / problem.k

    @abstractmethod
    def advance(self) -> None:
        """Make many picks; the host waits once."""

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids, weights and scores of the k picks, and R."""
        k = self.problem.k
        return self.shard.ids[self.positions[:k]].cpu(), self.w[:k], self.scores[:k].cpu(), self.final_residual()

    @abstractmethod
    def final_residual(self) -> Tensor:
        """R (A, B) after the last pick."""


class TorchSteps(Steps):
    """Steps as a fixed row of PyTorch operations, captured in a graph on CUDA; the support is padded to a fixed size.

    Scores come from a product in the precision of the rows; rows within its rounding of the best are scored in
    float64. If they are more than `near`, the step does nothing and neither do those after it; the host then makes
    that pick.
    """

    def __init__(self, problem: Problem, shard: Shard, tuning: StepTuning):
        (a, b), slots = problem.v_AB.shape, problem.k + tuning.bucket
        super().__init__(problem, shard, slots)
        self.tuning = tuning
        # Slots after the last pick are zero, except for the next, which may hold anything.
        self.picked = Factored(self.r_AB.new_zeros(slots, a), self.r_AB.new_zeros(slots, b))
        self.square_N = shard.state["length"] ** 2
        self.slot = torch.zeros(1, dtype=torch.int64, device=shard.device)
        self.alive = torch.ones(1, dtype=torch.bool, device=shard.device)
        self._graph_memory = torch.cuda.graph_pool_handle() if shard.device.type == "cuda" else None
        self._steps: dict[int, Callable[[], None]] = {}

    def advance(self) -> None:
        k, chunk = self.problem.k, self.tuning.chunk
        padded = self.tuning.bucket
        while padded < min(self.size + chunk, k):  # few sizes, since each is captured
            padded *= 2
        padded = min(padded, k + self.tuning.bucket)
        if padded not in self._steps:
            state = [self.w, self.r_AB, self.bonus_N, self.slot, self.alive]
            self._steps[padded] = captured(functools.partial(self._step, padded), state, self._graph_memory)
        for _ in range(min(chunk, k - self.size)):
            self._steps[padded]()
        self.size = int(self.slot)  # here the host waits
        self.sweeps += 1
        if not bool(self.alive):
            self.alive.fill_(True)
            self._take(padded, self._best_by_float64())
            self.size += 1

    def final_residual(self) -> Tensor:
        k = self.problem.k
        return residual(self.problem, self.picked[:k], self.w[:k])

    def _step(self, padded: int) -> None:
        """One pick, if few rows are near the best."""
        problem, near, factor = self.problem, self.tuning.near, -2 * self.problem.terms.tau / self.problem.k
        r_AB = (self.r_AB * self.near_one).to(self.g.right.dtype)
        score_N = torch.add(self.bonus_N, forward(self.g, r_AB), alpha=factor / self.near_one)
        top_M, position_M = score_N.topk(min(near + 1, len(score_N)))
        floor = top_M[0] - torch.linalg.vector_norm(self.r_AB) * self.blur - problem.slack
        if len(top_M) > near:
            self.alive &= top_M[-1] < floor
        g = wide(Factored(self.g.left.index_select(0, position_M), self.g.right.index_select(0, position_M)))
        exact_M = torch.add(self.bonus_N.index_select(0, position_M), forward(g, self.r_AB), alpha=factor)
        exact_M = torch.where(top_M >= floor, exact_M, -torch.inf)
        lots_M = self.lots_N.index_select(0, position_M)
        tied_M = torch.where(exact_M >= exact_M.max() - problem.slack, lots_M, torch.iinfo(lots_M.dtype).max)
        self._take(padded, position_M.index_select(0, tied_M.argmin(0, keepdim=True)))

    def _best_by_float64(self) -> Tensor:
        """The position of the next pick, ties by lot."""
        score_N, part = self.bonus_N.clone(), max(1, (1 << 25) // self.g.right.shape[1])
        for start in range(0, len(score_N), part):
            where = slice(start, start + part)
            score_N[where] -= 2 * self.problem.terms.tau / self.problem.k * forward(wide(self.g[where]), self.r_AB)
        near = (score_N >= score_N.max() - self.problem.slack).nonzero()[:, 0]
        return near[self.lots_N[near].argmin()][None]

    def _take(self, padded: int, position: Tensor) -> None:
        """Algorithm 1, lines 4 to 7, where `alive`; else nothing that counts is changed."""
        k, terms = self.problem.k, self.problem.terms
        left, right = (side.index_select(0, position).double() for side in (self.g.left, self.g.right))
        bonus = self.bonus_N.index_select(0, position)
        slope = torch.dot(left[0], torch.mv(self.r_AB, right[0]))[None] / k  # <phi, R>
        self.picked.left.index_copy_(0, self.slot, left)
        self.picked.right.index_copy_(0, self.slot, right)
        self.positions.index_copy_(0, self.slot, position)
        self.scores.index_copy_(0, self.slot, torch.add(bonus, slope, alpha=-2 * terms.tau))
        g, w = self.picked[:padded], self.w[:padded]
        last = left, right, slope, self.square_N.index_select(0, position)
        support = _PaddedSupport(g, w, self.r_AB, k, self.slot, last)
        update_weights(support, terms.beta, self.noise, terms.unit_weights)
        w.copy_(torch.where(self.alive, support.w, w))
        # From the weights, so that rounding does not add up from pick to pick.
        torch.addmm(self.problem.v_AB, (g.left * w[:, None]).T, g.right, beta=-1, alpha=1 / k, out=self.r_AB)
        self.bonus_N.index_copy_(0, position, torch.where(self.alive, -torch.inf, bonus))
        self.slot += self.alive


class _PaddedSupport:
    """The support of one step of `TorchSteps`: the last row is in the slot that a tensor names.

    Weights are new tensors, since the step may still be discarded, and R is not moved: the step computes it from w.
    """

    def __init__(self, g: Factored, w: Tensor, r_AB: Tensor, k: int, slot: Tensor, last: tuple[Tensor, ...]):
        self.g, self.w, self._r_AB, self._k, self._slot = g, w, r_AB, k, slot
        self._left, self._right, self._slope, self._square = last

    def last(self) -> tuple[Tensor, Tensor]:
        return self._slope, self._square

    def set_last(self, weight: Tensor) -> None:
        self.w = self.w.index_copy(0, self._slot, weight)
        self._left = self._left * (weight / self._k)

    def slope(self) -> Tensor:
        return forward(self.g, torch.addmm(self._r_AB, self._left.T, self._right)) / self._k

    def curvature(self, u: Tensor) -> Tensor:
        along = ((self.g.left * u[:, None]).T @ self.g.right).flatten()
        return along @ along / self._k**2

    def move(self, mu: Tensor, w: Tensor, cut: Tensor) -> None:
        self.w = w


# ---- IHT ------------------------------------------------------------------------------------------------------------


def rounded(x: Tensor, bits: int = KEY_BITS) -> Tensor:
    """x (float64) rounded to `bits` bits, nearest and even: the same in any order of summation, on any device."""
    drop = 53 - bits
    whole = x.view(torch.int64)
    whole = (whole + ((1 << (drop - 1)) - 1)).add_((whole >> drop).bitwise_and_(1))
    return whole.bitwise_right_shift_(drop).bitwise_left_shift_(drop).view(torch.float64)


def descent_step(square: Tensor, along_AB: Tensor, problem: Problem, noise: float) -> Tensor:
    """The length of the step down u = grad f1 (algorithm 2, line 5), from u.u and Phi u; 0 where u is rounding."""
    curvature = (along_AB * along_AB).sum() + problem.terms.beta * square
    mu = rounded(line_search(square / 2, curvature), STEP_BITS)
    return torch.where(square > problem.pool.n * noise**2, mu, 0.0)


def threshold_key(s_N: Tensor, bonus_N: Tensor, prox: Prox) -> Tensor:
    """What the threshold (line 6) takes the k largest of, with s = z - mu u and bonus = alpha sigma^2.

    A row that is not taken costs s^2 / 2 more than its best weight, [s]_+: that is the exact rule. The printed one
    forgets it.
    """
    square_N = s_N.clamp(min=0).square_() if prox == "exact" else s_N.clamp(max=0).square_().neg_()
    return rounded(square_N / 2 + bonus_N)


def threshold_weight(s: Tensor) -> Tensor:
    """The weight of the rows that the threshold takes."""
    return rounded(s.clamp(min=0), STEP_BITS)


def debias_taken(problem: Problem, g: Factored, w: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """w of the rows g (float64) and R after de-bias and cut (lines 7 and 8)."""
    support = ResidualSupport(g, w, adjoint(g, w) / problem.k - problem.v_AB, problem.k)
    debias(support, problem.terms.beta, noise)
    return support.w, support.r_AB


class TorchIteration:
    """The passes over rows of one IHT iteration on one device, in float64. Nothing waits for the host.

    Attributes:
        order: rows by sigma, then by lot, in which a stable sort leaves ties as they have to be.
    """

    def __init__(self, problem: Problem, shard: Shard, prox: Prox, part: int):
        """`part` is how many numbers of rows are converted to float64 at once."""
        self.problem, self.prox = problem, prox
        self.g = joined([g for _, g in problem.vectors.blocks(shard)])
        self.part = max(1, part // self.g.right.shape[1])
        sigma_N = rounded(shard.state["sigma"])
        self.order = order_by_value(shard.lots, sigma_N)
        self.bonus_N = problem.terms.alpha * shard.state["sigma"] ** 2
        self.noise = problem.noise  # read now: a graph cannot wait for it

    def descend(self, rz_AB: Tensor, z_N: Tensor, u_N: Tensor, going: Tensor) -> Tensor:
        """Write u = grad f1(z) to u_N. Returns the length of the step down it (lines 4 and 5)."""
        k, beta, along_AB = self.problem.k, self.problem.terms.beta, torch.zeros_like(rz_AB)
        for start in range(0, len(self.g), self.part):
            where = slice(start, start + self.part)
            x = wide(self.g[where])
            u_N[where] = 2 * (forward(x, rz_AB) / k + beta * (z_N[where] - 1))
            along_AB += adjoint(x, u_N[where])
        return descent_step(torch.dot(u_N, u_N), along_AB / k, self.problem, self.noise)

    def keys(self, z_N: Tensor, u_N: Tensor, mu: Tensor) -> Tensor:
        """The key of row order[i] at i."""
        return threshold_key(z_N - mu * u_N, self.bonus_N, self.prox)[self.order]

    def take(self, z_N: Tensor, u_N: Tensor, mu: Tensor, ranked: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the rows of the k best keys, and their weights (line 6)."""
        positions = self.order[ranked[: self.problem.k]]
        return positions, threshold_weight(z_N[positions] - mu * u_N[positions])

    def debias(self, positions: Tensor, w: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        """w of these rows and R after de-bias and cut (lines 7 and 8)."""
        return debias_taken(self.problem, wide(self.g[positions]), w, self.noise)
