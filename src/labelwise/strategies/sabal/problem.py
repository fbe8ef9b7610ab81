"""Sparse approximation of a pool: rows as columns of a matrix, the objective, and the two steps its solvers share.

With g_j the expected gradient (or centred loss) of row j, n rows and a batch of b,

    v = mean_j g_j      phi_j = g_j / b      R = Phi w - v      f1(w) = |R|^2 + beta |w - 1|^2

A row is always two factors: left x right is (p - q) h^T for gradients, and 1 x g for losses under draws, so R is a
small matrix and <g_j, R> of all rows is one product of the right factors with it. What tells two rows apart is
computed in float64, whatever they are stored in, so that copies of a row are tied whichever block they are read in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import NumericsError
from labelwise.selection.memory import Size
from labelwise.selection.strategy import TIE
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import sent
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.forms import Form, wide

TINY = 1e-300
PART = 1024  # picked rows that are widened at once
SMALLEST, LARGEST = 1e-90, 1e90  # of squared vectors and of beta: a step has their third powers
NOISE = 1e-14  # a gradient below this share of its scale is rounding
MOST_PRODUCTS = 16_384  # picks up to which products of all pairs of them are kept: 2 GB then
KEPT = ("sigma", "length", "bonus", "mean", "left", "c", "z", "u", "taken", "open")


def memory(size: Size, a: int, b: int) -> int:
    """Bytes of a problem whose vectors are matrices (A, B), for either solver.

    What rows keep, the picked rows with their weights before the last steps, a list of candidates, and R. The loops of
    an accelerator lay all vectors out once more, widen some of them at a time, and may keep products of all picks.
    """
    picked = size.k * ((a + b) * (2 * size.number + 16) + 8 * 96)
    listed = 6 * 1024 * (a + b) * 8 + 16 * 1024 * 64 * 8
    laid_out = size.rows * ((2 * a + b) * size.number + 96)
    laid_out += min(size.rows * (a + b) * 8, 1 << 29) + min(size.k**2 * 8, 1 << 29)
    products = size.k if size.k <= MOST_PRODUCTS else 0
    laid_out += 32 * products * (products + 2048)  # of picked rows and a list, see sparse_gram.py
    return 144 * size.rows + picked + listed + 16 * 8 * a * b + (laid_out if size.accelerator else 0)


@dataclass(frozen=True)
class Terms:
    """The parameters of the objective and of the greedy score; `scale` is what sigma is multiplied by."""

    alpha: float
    beta: float
    tau: float
    scale: float
    second_order: bool = False


@dataclass(frozen=True)
class Problem:
    """A pool with its vectors, ready for a solver."""

    pool: Shards
    form: Form
    k: int
    terms: Terms
    v_AB: Tensor
    longest: float  # the largest |phi|
    size: float  # how large a score can be
    flat: str = ""  # why every vector is zero, where that is so: only sigma tells rows apart

    @property
    def slack(self) -> float:
        """Scores that differ by less are tied."""
        return TIE * self.size

    @property
    def noise(self) -> float:
        """Entries of the gradient of f1 that are smaller are rounding."""
        return NOISE * 2 * (self.longest * (length(self.v_AB) + self.longest) + self.terms.beta)

    def at(self, shard: Shard) -> Problem:
        """The same where all rows are in this shard, for a function that runs there, be it in another process.

        What it asks of the rows then is part of its own answer, and not of a journal.
        """
        return replace(self, pool=Shards([shard]), v_AB=self.v_AB.to(shard.device))


@contextmanager
def posed(pool: Shards, form: Form, k: int, terms: Terms) -> Iterator[Problem]:
    """The problem of choosing k rows. Within, each row keeps sigma (scaled), |g| and its bonus in the greedy score."""
    try:
        sums = pool.map(form.begin)
        v_AB = functools.reduce(torch.add, (one.to(sums[0].device) for one in sums)) / pool.n
        longest, bonus = (max(found) for found in zip(*pool.map(functools.partial(_bonus, terms, k))))
        # R starts as v and changes by a phi, so this is what scores are made of.
        size = bonus + 2 * terms.tau * longest * (length(v_AB) + longest)
        flat = form.still if all(pool.map(form.is_still)) else form.zero if longest == 0 else ""
        if not flat:
            _check_range(terms, longest, length(v_AB), size)
        yield Problem(pool, form, k, terms, v_AB, longest, max(size, TINY), flat)
    finally:
        pool.map(_end)


def forward(x: Factored, r_AB: Tensor) -> Tensor:
    """<x_j, R> for each row (n,), in the precision of the rows, given in that of R."""
    if x.right.dtype == r_AB.dtype:
        return (r_AB @ x.right.T).mul_(x.left.T).sum(0)  # few lines first: quicker on a CPU than few columns
    size = torch.linalg.vector_norm(r_AB).clamp(min=TINY)  # at length one nothing underflows
    return forward(x, (r_AB / size).to(x.right.dtype)).to(r_AB.dtype) * size


def adjoint(x: Factored, u_N: Tensor) -> Tensor:
    """sum_j u_j x_j, a matrix (A, B), in the precision of the rows, given in that of u."""
    if x.right.dtype == u_N.dtype:
        return (x.left * u_N[:, None]).T @ x.right
    size = torch.linalg.vector_norm(u_N).clamp(min=TINY)
    return adjoint(x, (u_N / size).to(x.right.dtype)).to(u_N.dtype) * size


def line_search(slope: Tensor, curve: Tensor) -> Tensor:
    """The step along a direction that minimises f1 (algorithm 4), from its numerator and denominator.

    A direction in which f1 does not change at all has both equal to zero, and the step is zero.
    """
    return torch.where(curve > 0, slope / curve.clamp(min=torch.finfo(curve.dtype).tiny), 0.0)


def debias(g: Factored, w: Tensor, r_AB: Tensor, k: int, beta: float, noise: float) -> tuple[Tensor, Tensor]:
    """One step down the gradient of f1 within the support of w (algorithm 5), for rows g = k phi; w and R after it."""
    c = forward(g, r_AB) / k
    u = 2 * (c + beta * (w - 1))
    u = torch.where((w != 0) & (u.abs().amax() > noise), u, 0.0)
    along_AB = adjoint(g, u) / k
    mu = line_search(u @ c + beta * (u @ (w - 1)), (along_AB * along_AB).sum() + beta * (u @ u))
    return w - mu * u, r_AB - mu * along_AB


def gather(problem: Problem, ids: Tensor) -> Factored:
    """g of the rows with these ids, in this order, in the precision of the rows."""
    parts = problem.pool.map(functools.partial(_gather, problem.form, ids))
    home = problem.v_AB.device
    if len(parts) == 1:  # in this order already
        return parts[0][1]
    order = sent(torch.cat([place for place, _ in parts]).argsort(), home)
    left, right = (torch.cat([getattr(x, side).to(home) for _, x in parts])[order] for side in ("left", "right"))
    return Factored(left, right)


def beside(problem: Problem, name: str, ids: Tensor) -> Tensor:
    """What rows keep under `name`, for the rows with these ids, in this order."""
    parts = problem.pool.map(functools.partial(_beside, name, ids))
    home = problem.v_AB.device
    if len(parts) == 1:
        return parts[0][1]
    order = sent(torch.cat([place for place, _ in parts]).argsort(), home)
    return torch.cat([values.to(home) for _, values in parts])[order]


def residual(problem: Problem, g: Factored, w: Tensor) -> Tensor:
    """R = Phi w - v in float64, from the rows g of the support."""
    r_AB = -problem.v_AB
    for start in range(0, len(g), PART):
        part = slice(start, start + PART)
        r_AB = r_AB + adjoint(wide(g[part]), w[part]) / problem.k
    return r_AB


def parts_of(problem: Problem, ids: Tensor, w: Tensor, r_AB: Tensor) -> dict[str, Any]:
    """The objective at w, which is zero outside `ids`, and its three parts."""
    terms = problem.terms
    sigma = beside(problem, "sigma", ids)
    bias = float((r_AB * r_AB).sum())
    beta = terms.beta * (float(((w - 1) ** 2).sum()) + problem.pool.n - len(ids))
    variance = 0.0 - terms.alpha * float((sigma[w > 0] ** 2).sum())  # never -0.0
    return {"objective": bias + beta + variance, "bias": bias, "beta_part": beta, "variance": variance}


def share(problem: Problem) -> float | None:
    """alpha std(sigma^2) / std(tau gradient), from the c that rows keep: how much of the score is variance."""
    n = problem.pool.n
    c, cc, s, ss = (float(one) / n for one in problem.pool.sum(_moments))
    gradient = 2 * abs(problem.terms.tau) * math.sqrt(max(0.0, cc - c * c))
    variance = problem.terms.alpha * math.sqrt(max(0.0, ss - s * s))
    return variance / gradient if gradient > 0 else None


def length(x: Tensor) -> float:
    """Euclidean length of all entries."""
    return float(torch.linalg.vector_norm(x))


def _bonus(terms: Terms, k: int, shard: Shard) -> tuple[float, float]:
    """Keep what the greedy score adds to the gradient; the largest |phi| and the largest bonus."""
    sigma_N, length_N = shard.state["sigma"].mul_(terms.scale), shard.state["length"].div_(k)
    bonus_N = terms.alpha * sigma_N**2
    if terms.second_order:
        bonus_N = bonus_N - terms.tau**2 * length_N**2
    shard.state["bonus"] = bonus_N
    return float(length_N.max()), float(bonus_N.abs().max())


def _check_range(terms: Terms, longest: float, mean: float, size: float) -> None:
    """Raise NumericsError where steps of the solvers would leave the range of float64: weights would be a guess."""
    reach = max(longest * (longest + mean), terms.beta)
    if not SMALLEST <= reach <= LARGEST:
        raise NumericsError(
            f"the longest expected gradient or loss, over k, has length {longest:.3g}, and beta is {terms.beta:.3g}; "
            f"the larger of its square and beta must lie between {SMALLEST:g} and {LARGEST:g}. Divide embedding by a "
            "constant s and beta by s^2, and for IHT multiply alpha by s^2: the picks stay the same."
        )
    if not size < math.inf:
        raise NumericsError(
            f"scores leave the range of float64 with alpha = {terms.alpha:.3g} and tau = {terms.tau:.3g}; take smaller "
            "ones, or divide embedding by a constant."
        )


def _gather(form: Form, ids: Tensor, shard: Shard) -> tuple[Tensor, Factored]:
    here, positions = shard.find(ids)
    return here, form.at(shard, positions)


def _beside(name: str, ids: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    here, positions = shard.find(ids)
    return here, shard.state[name][positions]


def _moments(shard: Shard) -> Tensor:
    c_N, square_N = shard.state["c"], shard.state["sigma"] ** 2
    return torch.stack([c_N.sum(), (c_N * c_N).sum(), square_N.sum(), (square_N * square_N).sum()]).cpu()


def _end(shard: Shard) -> None:
    for name in KEPT:
        shard.state.pop(name, None)
