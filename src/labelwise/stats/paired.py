"""Paired comparison of two strategies: the same seeds gave both the same start, so their differences are tested.

The test flips the signs of the differences by seed: if the two strategies were alike, each difference would be as
likely with the other sign. All 2^n sign patterns are counted up to EXACT seeds; beyond, DRAWS of them are drawn from
the key. The p value is the share of patterns whose mean difference is at least as far from 0, either side. With n seeds
it cannot fall below 2 / 2^n: five seeds never give less than 0.0625. verdict.py says what follows from the tests.

Many comparisons at once find a "difference" by chance: Holm's correction (Scandinavian Journal of Statistics 1979)
keeps the chance of any false one among them at the level of the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ArgumentError, NumericsError
from labelwise.rng import Key
from labelwise.stats.curves import Array, Curves, area

EXACT = 14
DRAWS = 20_000


@dataclass(frozen=True)
class Paired:
    """A paired test of two strategies: by how much the area of one is better, and the p value."""

    difference: float  # mean over seeds of the areas, signed so that more is better
    p: float  # two-sided; NaN with fewer than two seeds
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
    return Paired(float(difference_S.mean()), sign_flip(difference_S, key), len(seeds))


def sign_flip(difference_S: Array, key: Key | None = None) -> float:
    """The two-sided p value of the mean of these differences.

    >>> sign_flip(np.array([1.0, 2.0, 3.0, 4.0]))  # only all signs alike are as far out: 2 of 16
    0.125
    """
    values_S = np.asarray(difference_S, dtype=np.float64)
    if not np.isfinite(values_S).all():
        raise NumericsError(f"differences have to be finite, found {values_S[~np.isfinite(values_S)][0]}")
    seeds = len(values_S)
    if seeds < 2:
        return float("nan")
    exact = seeds <= EXACT
    if exact:
        patterns = (np.arange(2**seeds)[:, None] >> np.arange(seeds)) & 1
    else:
        patterns = (key or Key(0)).fold("sign flip").numpy().integers(2, size=(DRAWS, seeds))
    sums = np.abs((2.0 * patterns - 1.0) @ values_S)
    seen = abs(float(values_S.sum()))
    # Sums of the same numbers in another order differ by rounding: what is that near counts as equal.
    beyond = int((sums >= seen - 1e-12 * max(1.0, float(np.abs(values_S).sum()))).sum())
    # The pattern that was seen is one of those that could have been drawn (Davison and Hinkley 1997, chapter 4).
    return beyond / len(sums) if exact else (beyond + 1) / (len(sums) + 1)


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
    """The smallest p value that this number of seeds can give."""
    return 2.0 ** (1 - seeds) if seeds >= 2 else float("nan")


def seeds_needed(compared: int, level: float) -> int:
    """The fewest seeds with which a strategy, one of `compared`, can pass the test after Holm's correction.

    >>> seeds_needed(1, 0.05), seeds_needed(3, 0.05), seeds_needed(20, 0.05)
    (6, 7, 10)
    """
    seeds = 2
    while compared * least_p(seeds) > level:
        seeds += 1
    return seeds


def _part(curves: Curves, seeds: Sequence[int], counts: Array) -> Curves:
    rows = [curves.seeds.index(seed) for seed in seeds]
    columns = np.isin(curves.labels_T, counts)
    return Curves(curves.strategy, curves.metric, tuple(seeds), counts, curves.values_ST[rows][:, columns])
