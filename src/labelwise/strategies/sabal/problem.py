"""Sparse approximation of a pool: the problem that both solvers of SABAL work on, its objective and its notes.

With g_j the expected gradient (or centred loss) of row j, n rows and a batch of b,

    v = mean_j g_j      phi_j = g_j / b      R = Phi w - v      f1(w) = |R|^2 + beta |w - 1|^2

A vector is two factors (vectors.py), so R is a small matrix and <g_j, R> of all rows is one product of the right
factors with it. Differences between rows are computed in float64, whatever they are stored in, so that copies of a row
are tied whichever block they are read in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import NumericsError
from labelwise.selection.strategy import Size
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import to_device
from labelwise.shards.shard import TIE
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.vectors import TINY, Vectors, adjoint, forward, wide

PART = 1024  # picked rows that are converted to float64 at once
SMALLEST, LARGEST = 1e-90, 1e90  # of squared vectors and of beta: a step has their third powers
SAME = 1e-9  # numbers of rows that differ by less, next to the largest, are the same up to rounding
NOISE = 1e-14  # a gradient below this share of its scale is rounding
MOST_PRODUCTS = 16_384  # picks up to which products of all pairs of them are stored: 2 GB then
STATE = ("sigma", "length", "bonus", "mean", "left", "c", "z", "u", "taken", "unlisted")


def memory(size: Size, a: int, b: int) -> int:
    """Bytes of a problem whose vectors are matrices (A, B), for either solver.

    The state of all rows, the picked rows with their weights before the last steps, a list of candidates, and R. On an
    accelerator all vectors are copied once, some of them are converted to float64 at a time, and products of all picks
    may be stored.
    """
    picked = size.k * ((a + b) * (2 * size.number + 16) + 8 * 96)
    listed = 6 * 1024 * (a + b) * 8 + 16 * 1024 * 64 * 8
    copied = size.rows * ((2 * a + b) * size.number + 96)
    copied += min(size.rows * (a + b) * 8, 1 << 29) + min(size.k**2 * 8, 1 << 29)
    products = size.k if size.k <= MOST_PRODUCTS else 0
    copied += 32 * products * (products + 2048)  # of picked rows and a list, see GramSupport
    return 144 * size.rows + picked + listed + 16 * 8 * a * b + (copied if size.accelerator else 0)


@dataclass(frozen=True)
class Terms:
    """The parameters of the objective and of the greedy score; `scale` is what sigma is multiplied by."""

    alpha: float
    beta: float
    tau: float
    scale: float
    second_order: bool = False
    unit_weights: bool = False  # greedy without line search and de-bias


@dataclass(frozen=True)
class Problem:
    """A pool with its vectors, ready for a solver."""

    pool: Shards
    vectors: Vectors
    k: int
    terms: Terms
    v_AB: Tensor
    longest: float  # the largest |phi|
    size: float  # how large a score can be
    flat: str = ""  # why every vector is zero, where that is so: rows differ by sigma only

    @property
    def reach(self) -> float:
        """How long R may be: it starts as -v and changes by multiples of phi."""
        return length(self.v_AB) + self.longest

    @property
    def slack(self) -> float:
        """Scores that differ by less are tied."""
        return TIE * self.size

    @property
    def noise(self) -> float:
        """Entries of the gradient of f1 that are smaller are rounding."""
        return NOISE * 2 * (self.longest * self.reach + self.terms.beta)

    @property
    def near_one(self) -> float:
        """What brings R close to length one."""
        return 1 / max(self.reach, TINY)

    def in_shard(self, shard: Shard) -> Problem:
        """The same problem where all rows are in this shard, for a function that runs there, also in another process.

        What that function asks of the rows is part of its own answer, and is not written to a journal.
        """
        return replace(self, pool=Shards([shard], ties=shard.ties), v_AB=self.v_AB.to(shard.device))


@contextmanager
def posed(pool: Shards, vectors: Vectors, k: int, terms: Terms) -> Iterator[Problem]:
    """The problem of choosing k rows. Within, shards store sigma (scaled), |phi| and the bonus of each row."""
    try:
        sums = pool.map(vectors.prepare)
        v_AB = functools.reduce(torch.add, (one.to(sums[0].device) for one in sums)) / pool.n
        longest = max(pool.map(functools.partial(_scale, terms.scale, k)))
        flat = vectors.same if all(pool.map(vectors.is_same)) else vectors.zero if longest == 0 else ""
        yield with_alpha(Problem(pool, vectors, k, terms, v_AB, longest, 0.0, flat), terms.alpha)
    finally:
        pool.map(_remove_state)


def with_alpha(problem: Problem, alpha: float) -> Problem:
    """The same problem with this weight of the variance. Shards store the bonus of each row for it."""
    terms = replace(problem.terms, alpha=alpha)
    bonus = max(problem.pool.map(functools.partial(_store_bonus, terms)))
    size = bonus + 2 * terms.tau * problem.longest * problem.reach
    if not problem.flat:
        _check_range(terms, problem.longest, length(problem.v_AB), size)
    return replace(problem, terms=terms, size=max(size, TINY))


def gather(problem: Problem, ids: Tensor) -> Factored:
    """g of the rows with these ids, in this order, in the precision of the rows."""
    parts = problem.pool.map(functools.partial(_vectors_of, problem.vectors, ids))
    left, right = (_in_order(problem, [(place, getattr(x, side)) for place, x in parts]) for side in ("left", "right"))
    return Factored(left, right)


def gather_state(problem: Problem, name: str, ids: Tensor) -> Tensor:
    """What shards store under `name`, for the rows with these ids, in this order."""
    return _in_order(problem, problem.pool.map(functools.partial(_state_of, name, ids)))


def _in_order(problem: Problem, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Values from all shards, each with its place in the question, in the order of the question."""
    if len(parts) == 1:  # in this order already
        return parts[0][1]
    device = problem.v_AB.device
    order = to_device(torch.cat([place for place, _ in parts]).argsort(), device)
    return torch.cat([values.to(device) for _, values in parts])[order]


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
    sigma = gather_state(problem, "sigma", ids)
    bias = float((r_AB * r_AB).sum())
    beta = terms.beta * (float(((w - 1) ** 2).sum()) + problem.pool.n - len(ids))
    variance = 0.0 - terms.alpha * float((sigma[w > 0] ** 2).sum())  # never -0.0
    return {"objective": bias + beta + variance, "bias": bias, "beta_part": beta, "variance": variance}


def share(problem: Problem, rest: Callable[[Shard], Tensor]) -> float | None:
    """How much of the score is variance: its spread over rows, as a share of that of both terms.

    `rest` gives the other term of each row. None where neither differs between rows.
    """
    variance, other = problem.terms.alpha * spread(problem.pool, _squares), spread(problem.pool, rest)
    return variance / (variance + other) if variance + other > 0 else None


def alpha_of(problem: Problem, wanted: float, rest: Callable[[Shard], Tensor]) -> float:
    """The alpha with which the variance has this share of the score, to six digits: the same in any order of the rows.

    0 where sigma is the same for all rows.

    Raises:
        NumericsError: the other term is the same for all rows.
    """
    variance, other = spread(problem.pool, _squares), spread(problem.pool, rest)
    if variance == 0 or wanted == 0:
        return 0.0
    if other == 0:
        raise NumericsError(
            f"no alpha gives the variance a share of {wanted:g}: the gradient of the bias term is the same for all "
            "rows. Set alpha instead of variance_share, or bias=False to pick the rows of largest variance."
        )
    return float(f"{wanted / (1 - wanted) * (other / variance):.6g}")


def spread(pool: Shards, fn: Callable[[Shard], Tensor]) -> float:
    """Standard deviation over all rows of a number for each row; 0 where they differ by rounding only."""
    parts = [(n, found.tolist()) for n, found in pool.map(functools.partial(_moments, fn))]
    mean = sum(n * one for n, (one, _, _) in parts) / pool.n
    square = sum(squares + n * (one - mean) ** 2 for n, (one, squares, _) in parts) / pool.n
    deviation = math.sqrt(square)
    return deviation if deviation > SAME * max(most for _, (_, _, most) in parts) else 0.0


def score_gradient(problem: Problem, r_AB: Tensor | None = None) -> Callable[[Shard], Tensor]:
    """What the greedy score has of each row besides the variance and beta, from the stored c, or c of this R."""
    if r_AB is not None:
        problem.pool.map(functools.partial(_store_c, problem, r_AB))
    return functools.partial(_score_gradient, problem.terms, NOISE * problem.longest * problem.reach)


def length(x: Tensor) -> float:
    """Euclidean length of all entries."""
    return float(torch.linalg.vector_norm(x))


def _scale(scale: float, k: int, shard: Shard) -> float:
    """Scale sigma and the lengths. Returns the largest |phi|."""
    shard.state["sigma"].mul_(scale)
    return float(shard.state["length"].div_(k).max())


def _store_bonus(terms: Terms, shard: Shard) -> float:
    """Store what the greedy score adds to the gradient. Returns the largest."""
    bonus_N = terms.alpha * shard.state["sigma"] ** 2
    if terms.second_order:
        bonus_N = bonus_N - terms.tau**2 * shard.state["length"] ** 2
    shard.state["bonus"] = bonus_N
    return float(bonus_N.abs().max())


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


def _vectors_of(vectors: Vectors, ids: Tensor, shard: Shard) -> tuple[Tensor, Factored]:
    found, positions = shard.find(ids)
    return found, vectors.take(shard, positions)


def _state_of(name: str, ids: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    found, positions = shard.find(ids)
    return found, shard.state[name][positions]


def _store_c(problem: Problem, r_AB: Tensor, shard: Shard) -> None:
    r_AB, c_N = r_AB.to(shard.device), shard.state["sigma"].new_empty(len(shard))
    for where, g in problem.vectors.blocks(shard, r_AB.shape[1]):
        c_N[where] = forward(wide(g), r_AB) / problem.k
    shard.state["c"] = c_N


def _score_gradient(terms: Terms, noise: float, shard: Shard) -> Tensor:
    c_N = shard.state["c"]
    gradient_N = 2 * terms.tau * c_N.masked_fill(c_N.abs() <= noise, 0.0)
    return gradient_N + terms.tau**2 * shard.state["length"] ** 2 if terms.second_order else gradient_N


def _squares(shard: Shard) -> Tensor:
    return shard.state["sigma"] ** 2


def _moments(fn: Callable[[Shard], Tensor], shard: Shard) -> tuple[int, Tensor]:
    """How many rows there are; mean, sum of squares around it, and the largest size."""
    x_N = fn(shard)
    mean = x_N.mean()
    return len(x_N), torch.stack([mean, ((x_N - mean) ** 2).sum(), x_N.abs().max()]).cpu()


def _remove_state(shard: Shard) -> None:
    for name in STATE:
        shard.state.pop(name, None)
