"""Numbers of labels and of pool rows that "Sample complexity of deep active learning" asks for.

For a class of models spanned by d functions, of condition number K = max |v(x)|^2 on the data (v the orthonormalised
functions; K is at least d), and an accuracy epsilon:

    labels      m = 1.57 d (1 - gamma^2)/gamma^2,  gamma = sqrt(epsilon)/3:  14.1 (d/epsilon)(1 - epsilon/9)
    pool        lemma 5.9, k0 of the order of K log d + K/epsilon, times 1 + rho d for a nearly orthonormal basis
    promise     E |f^ - f*|^2 <= epsilon (1 + rho d) E |y - f*|^2  for the weighted least-squares fit f^ in the span,
                f* the best in the span (theorem 5.7), if the output is good

The constant 1.57 of the labels is measured (the theorem says "of the order of d/epsilon"); it counts draws, and a row
drawn twice is labelled once. The theorem leaves the constant of the pool open; two explicit conditions are
sufficient for lemma 5.9 with independent rows: K/k0 <= epsilon/2 is property 2 of definition 5.5, and by the matrix
Chernoff bound (Tropp 2012) k0 >= K log(20 d)/0.0289 puts the eigenvalues in [3/4, 5/4] with probability 0.9, which is
property 1.

Theorem 4.1 is the same for a two-layer network of d inputs whose activation has a C-th derivative that is continuous
and at most 1, C = 10 d + log(1/epsilon0)/log d, with an unknown basis of d~ functions. Our copy of the paper reads d~
<= C; a Taylor basis of degree C in d variables has binom(C + d, d) functions, more than the linear reading allows, so
that is probably what was meant. Both are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.rng import key_of
from labelwise.selection.validate import as_tensor
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Basis, Embedding, Features
from labelwise.strategies.leverage.whiten import Whitened, whitened

C0 = 3.0
DRAWS = 1.57  # measured: draws of the procedure over d (1 - gamma^2) / gamma^2
ALWAYS_GOOD = 0.1165  # the largest gamma at which the barriers alone make every output good
CHANCE = 0.1  # that the pool is not good: definition 5.5 asks for 0.9
LOWER_TAIL = 0.25 + 0.75 * math.log(0.75)  # -log of the Chernoff factors for eigenvalues beyond [3/4, 5/4]
UPPER_TAIL = 1.25 * math.log(1.25) - 0.25


@dataclass(frozen=True)
class Need:
    """What the theorem requires for an accuracy."""

    epsilon: float
    dimension: int
    condition_number: float
    rho: float
    gamma: float
    labels: int  # draws of the procedure, an upper bound of the labels
    pool_order: int  # K log d + K/epsilon, times 1 + rho d; the constant of the theorem is unknown
    pool_enough: int  # explicit and sufficient for independent rows, without rho
    always_good: bool  # whether the output is certain to pass the test of a good output
    excess: float  # the promise: squared distance to the best model, relative to that model's error


def labels_needed(dimension: int, epsilon: float) -> int:
    """Draws of randomised BSS for `dimension` functions at accuracy epsilon, by the measured constant.

    Raises:
        ArgumentError: dimension is below 1, or epsilon not above 0 and at most 1.

    >>> labels_needed(10, 0.1)
    1398
    """
    _check(dimension=dimension, epsilon=epsilon)
    gamma2 = epsilon / C0**2
    return math.ceil(DRAWS * dimension * (1 - gamma2) / gamma2)


def accuracy_of(dimension: int, labels: int) -> float:
    """The epsilon that `labels` draws give; above 1 the theorem says nothing.

    Raises:
        ArgumentError: dimension or labels are below 1.

    >>> round(accuracy_of(10, labels_needed(10, 0.1)), 3)
    0.1
    """
    _check(dimension=dimension)
    if labels < 1:
        raise ArgumentError(f"labels must be at least 1, found {labels}")
    return C0**2 * DRAWS * dimension / (labels + DRAWS * dimension)


def pool_order(condition_number: float, dimension: int, epsilon: float, rho: float = 0.0) -> int:
    """Lemma 5.9 with a constant of 1: (1 + rho d)(K log d + K/epsilon).

    Raises:
        ArgumentError: a number is out of the theorem's range.
    """
    _check(dimension=dimension, epsilon=epsilon, condition_number=condition_number, rho=rho)
    once = condition_number * math.log(max(dimension, 2)) + condition_number / epsilon
    return math.ceil((1 + rho * dimension) * once)


def pool_enough(condition_number: float, dimension: int, epsilon: float) -> int:
    """A sufficient number of independent rows for both properties of definition 5.5, with an orthonormal basis.

    Raises:
        ArgumentError: a number is out of the theorem's range.
    """
    _check(dimension=dimension, epsilon=epsilon, condition_number=condition_number)
    low, high = 0.0, condition_number * math.log(2 * dimension / CHANCE) / min(LOWER_TAIL, UPPER_TAIL)
    for _ in range(200):
        centre = (low + high) / 2
        tails = math.exp(-LOWER_TAIL * centre / condition_number) + math.exp(-UPPER_TAIL * centre / condition_number)
        low, high = (centre, high) if dimension * tails > CHANCE else (low, centre)
    return math.ceil(max(high, 2 * condition_number / epsilon))


def need(dimension: int, condition_number: float, epsilon: float, rho: float = 0.0) -> Need:
    """All counts for a span of `dimension` functions with this condition number.

    Raises:
        ArgumentError: a number is out of the theorem's range.
    """
    _check(dimension=dimension, epsilon=epsilon, condition_number=condition_number, rho=rho)
    gamma = math.sqrt(epsilon) / C0
    return Need(
        epsilon,
        dimension,
        condition_number,
        rho,
        gamma,
        labels_needed(dimension, epsilon),
        pool_order(condition_number, dimension, epsilon, rho),
        pool_enough(condition_number, dimension, epsilon),
        gamma <= ALWAYS_GOOD,
        epsilon * (1 + rho * dimension),
    )


def measured(
    embedding: Any, *, basis: Basis | None = None, rank: int | None = None, tol: float | None = None, seed: int = 0
) -> Whitened:
    """Dimension, condition number and rho of a basis on the rows of an array (N, D); the last layer's by default.

    Raises:
        ArgumentError: there are no rows, or rank or tol are out of range.
    """
    with _on_rows(embedding, basis, rank, tol, seed) as (found, _):
        return found


def functions(
    embedding: Any, *, basis: Basis | None = None, rank: int | None = None, tol: float | None = None, seed: int = 0
) -> Tensor:
    """The functions v of `measured` on these rows (N, rank), whitened: their second moments are the identity.

    Raises:
        ArgumentError: there are no rows, or rank or tol are out of range.
    """
    with _on_rows(embedding, basis, rank, tol, seed) as (found, pool):
        return found.transform(pool.take(torch.arange(pool.n)))


@contextmanager
def _on_rows(
    embedding: Any, basis: Basis | None, rank: int | None, tol: float | None, seed: int
) -> Iterator[tuple[Whitened, Shards]]:
    x_ND = as_tensor("embedding", embedding, 2)
    columns = {Embedding(): x_ND, Features(): x_ND}
    signal = Basis() if basis is None else basis
    pool = shards_of(torch.arange(len(x_ND), device=x_ND.device), {part: columns[part] for part in signal.stored()})
    if not pool.n:
        raise ArgumentError("embedding has no rows; expected at least one")
    cap = len(x_ND) if rank is None else rank
    if cap < 1:
        raise ArgumentError(f"rank must be at least 1, found {rank!r}")
    if tol is not None and not 0 <= tol < 1:
        raise ArgumentError(f"tol must be from 0 up to below 1, found {tol!r}")
    with whitened(pool, signal, cap, tol, key_of(seed)) as found:
        yield found, pool


@dataclass(frozen=True)
class TwoLayer:
    """Theorem 4.1 for one reading of its bound on the dimension."""

    reading: str
    dimension: int
    labels: int
    pool_order: int


def smoothness(inputs: int, epsilon0: float) -> float:
    """C = 10 d + log(1/epsilon0)/log d: the derivative of the activation that has to exist and be at most 1.

    Raises:
        ArgumentError: there are fewer than 2 inputs, or epsilon0 is not between 0 and 1/10.
    """
    if inputs < 2:
        raise ArgumentError(f"theorem 4.1 divides by log d: expected at least 2 inputs, found {inputs}")
    if not 0 < epsilon0 < 0.1:
        raise ArgumentError(f"epsilon0 must be above 0 and below 1/10, as in theorem 4.1, found {epsilon0!r}")
    return 10 * inputs + math.log(1 / epsilon0) / math.log(inputs)


def theorem_4_1(
    inputs: int, condition_number: float, epsilon: float, epsilon0: float, rho: float = 0.0
) -> tuple[TwoLayer, TwoLayer]:
    """Counts for a two-layer network with `inputs` inputs, under both readings of d~.

    Raises:
        ArgumentError: a number is out of the theorem's range.
    """
    if not 0 <= rho < 0.1:
        raise ArgumentError(f"rho must be from 0 to below 1/10, as in theorem 4.1, found {rho!r}")
    c = smoothness(inputs, epsilon0)
    linear, taylor = math.ceil(c), math.comb(math.ceil(c) + inputs, inputs)
    found = []
    for reading, dimension in (("linear, as in our copy", linear), ("binomial, a Taylor basis of that degree", taylor)):
        gamma2 = epsilon / C0**2
        labels = int(DRAWS * (1 - gamma2) / gamma2 * 1000) * dimension // 1000
        once = condition_number * math.log(dimension) + condition_number / epsilon
        rows = int(once) * (1000 + int(1000 * rho) * dimension) // 1000  # in integers: the second reading is huge
        found.append(TwoLayer(reading, dimension, labels, rows))
    return found[0], found[1]


def advice(found: Need, rows: int) -> str:
    """One plain sentence that promises no more than the theorem."""
    if found.labels >= rows:
        return (
            f"The theorem asks for about {found.labels:,} labels, and there are {rows:,} rows: at this accuracy it "
            "does not save labels here. Label everything, or choose a larger epsilon or a lower rank."
        )
    pool = (
        "the pool is large enough for this to hold for new rows too"
        if rows >= found.pool_enough
        else f"this holds for the rows of the pool; for new rows a pool of about {found.pool_enough:,} rows is needed"
    )
    return (
        f"With about {found.labels:,} labels drawn by bss, and their weights used in a least-squares fit of the span's "
        f"{found.dimension} functions, the expected squared distance to the best such fit is at most "
        f"{found.excess:.3g} times the error of that fit, if the output is good; {pool}. The theorem says nothing "
        "about models outside the span, and fewer labels may be enough."
    )


def _check(dimension: int = 1, epsilon: float = 1.0, condition_number: float = math.inf, rho: float = 0.0) -> None:
    if dimension < 1:
        raise ArgumentError(f"dimension must be at least 1, found {dimension}")
    if not 0 < epsilon <= 1:
        raise ArgumentError(f"epsilon must be above 0 and at most 1, found {epsilon!r}")
    if condition_number < dimension * (1 - 1e-9):
        raise ArgumentError(
            f"the condition number must be at least the dimension {dimension}, found {condition_number:g}"
        )
    if not rho >= 0:
        raise ArgumentError(f"rho must be at least 0, found {rho!r}")
