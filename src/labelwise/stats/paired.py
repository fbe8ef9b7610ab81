"""Paired comparison of two strategies. The same seed gives both the same start, so the test is on differences by seed.

From FLIP seeds on it is a sign-flip test: if the strategies were equal, each difference would have either sign with the
same probability. The p value is the share of sign patterns whose mean is at least as far from 0, on either side. Up to
EXACT seeds all 2^n patterns are counted, above that DRAWS random ones. With n seeds p is at least 2 / 2^n: 0.0625 for
five. Below FLIP seeds the test is therefore Student's paired t-test, which has no such floor. It assumes that the
differences are roughly normal, as means over test rows and rounds are. Below LEAST seeds there is no test. `verdict.py`
turns tests into verdicts.

Of many comparisons some look significant by chance. Holm's correction (Scandinavian Journal of Statistics 1979) keeps
the probability of any false one at the level of the test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ArgumentError, NumericsError
from labelwise.rng import Key
from labelwise.stats.curves import Array, Curves, area

LEAST = 5  # seeds of a test
FLIP = 10  # seeds from which signs are flipped
EXACT = 14
DRAWS = 20_000


@dataclass(frozen=True)
class Paired:
    """A paired test of two strategies: by how much the area of one is better, and the p value."""

    difference: float  # mean over seeds of the areas, signed so that more is better
    p: float  # two-sided; NaN with fewer than LEAST seeds
    seeds: int


def paired(one: Curves, other: Curves, key: Key | None = None) -> Paired:
    """`one` against `other` on the area under the curves, over the seeds and the label counts both have."""
    if one.metric != other.metric:
        raise ArgumentError(f"two curves of one metric were expected, found {one.metric.name} and {other.metric.name}")
    seeds = sorted(set(one.seeds) & set(other.seeds))
    counts = np.intersect1d(one.labels_T, other.labels_T)
    if not seeds or not len(counts):
        raise ArgumentError(
            f"{one.strategy!r} and {other.strategy!r} share no {'seed' if not seeds else 'label count'}; "
            "run both with the same seeds, start and batch sizes"
        )
    sign = 1.0 if one.metric.higher else -1.0
    difference_S = sign * (area(_part(one, seeds, counts)) - area(_part(other, seeds, counts)))
    return paired_test(difference_S, key)


def paired_test(difference_S: Array, key: Key | None = None) -> Paired:
    """The test of differences (S,), one for each seed: Student's t below FLIP seeds, flipped signs from there on."""
    seeds, p = len(difference_S), float("nan")
    if seeds >= LEAST:
        p = t_test(difference_S) if seeds < FLIP else sign_flip(difference_S, key)
    return Paired(float(np.mean(difference_S)), p, seeds)


def name_of_test(seeds: Iterable[int]) -> str:
    """What the tests with these numbers of seeds are called."""
    uses_t = {count < FLIP for count in seeds}
    if len(uses_t) > 1:
        return f"paired t-test, from {FLIP} seeds on sign-flip test,"
    return "paired sign-flip test" if uses_t == {False} else "paired t-test"


def t_test(difference_S: Array) -> float:
    """The two-sided p value of Student's paired t-test.

    >>> round(t_test(np.array([1.0, 2.0, 3.0, 4.0, 5.0])), 6)
    0.013236
    """
    values_S = _finite(difference_S)
    if len(values_S) < 2:
        return float("nan")
    mean, spread = float(values_S.mean()), float(values_S.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(values_S).max()):  # equal up to rounding
        return 1.0 if mean == 0 else 0.0
    return _two_tails(mean / (spread / math.sqrt(len(values_S))), len(values_S) - 1)


def _two_tails(t: float, df: int) -> float:
    """P(|T| > |t|) for Student's t with `df` degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(df))
    cos, odd = math.cos(angle), df % 2
    term = total = cos if odd else 1.0
    for step in range(3 if odd else 2, df - 1, 2):
        term *= cos * cos * (step - 1) / step
        total += term
    inside = math.sin(angle) * (total if df > 1 else 0.0)
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if odd else inside))


def sign_flip(difference_S: Array, key: Key | None = None) -> float:
    """The two-sided p value of the mean of these differences.

    >>> sign_flip(np.array([1.0, 2.0, 3.0, 4.0]))  # only all signs alike are as far out: 2 of 16
    0.125
    """
    values_S = _finite(difference_S)
    seeds = len(values_S)
    if seeds < 2:
        return float("nan")
    exact = seeds <= EXACT
    if exact:
        patterns = (np.arange(2**seeds)[:, None] >> np.arange(seeds)) & 1
    else:
        patterns = (key or Key(0)).fold("sign flip").numpy().integers(2, size=(DRAWS, seeds))
    sums = np.abs((2.0 * patterns - 1.0) @ values_S)
    observed = abs(float(values_S.sum()))
    # Sums of the same numbers in another order differ by rounding: sums that close count as equal.
    extreme = int((sums >= observed - 1e-12 * max(1.0, float(np.abs(values_S).sum()))).sum())
    # The observed pattern is one of those that could have been drawn (Davison and Hinkley 1997, chapter 4).
    return extreme / len(sums) if exact else (extreme + 1) / (len(sums) + 1)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's corrected p values, in the order given; NaN stays NaN and does not count as a test.

    >>> [round(value, 6) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted((value, place) for place, value in enumerate(p) if not np.isnan(value))
    corrected = [float("nan")] * len(p)
    highest = 0.0
    for done, (value, place) in enumerate(order):
        highest = max(highest, min(1.0, value * (len(order) - done)))
        corrected[place] = highest
    return corrected


def least_p(seeds: int) -> float:
    """The smallest p value that this number of seeds can give; NaN if it gives none."""
    if seeds < LEAST:
        return float("nan")
    return 0.0 if seeds < FLIP else 2.0 ** (1 - seeds)


def seeds_needed(compared: int, level: float, have: int = 0) -> int:
    """The fewest seeds, more than `have`, with which a strategy, one of `compared`, can pass after Holm's correction.

    >>> seeds_needed(1, 0.05), seeds_needed(20, 0.05), seeds_needed(40, 0.05, have=10)
    (5, 5, 11)
    """
    seeds = max(LEAST, have + 1)
    while compared * least_p(seeds) > level:
        seeds += 1
    return seeds


def _finite(difference_S: Array) -> Array:
    values_S = np.asarray(difference_S, dtype=np.float64)
    if not np.isfinite(values_S).all():
        raise NumericsError(f"differences have to be finite, found {values_S[~np.isfinite(values_S)][0]}")
    return values_S


def _part(curves: Curves, seeds: Sequence[int], counts: Array) -> Curves:
    rows = [curves.seeds.index(seed) for seed in seeds]
    columns = np.isin(curves.labels_T, counts)
    return Curves(curves.strategy, curves.metric, tuple(seeds), counts, curves.values_ST[rows][:, columns])
