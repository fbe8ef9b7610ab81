"""Standings over several experiments: wins, ties and losses of each pair, average ranks and what they tell apart.

An experiment is one data set with one model. A pair of strategies wins, ties or loses on it by the paired test of
`paired.py` at 5 %, uncorrected: of pairs that are alike, one in twenty shows as a win or a loss by chance. Where the
seeds that both have are too few for any outcome the experiment does not count for the pair.

Ranks: in each experiment the strategies are ranked by their mean area under the curve (1 is best, equals share).
Friedman's test asks whether the average ranks differ at all; the critical difference of Nemenyi, q(0.05, m, inf) /
sqrt(2) * sqrt(m (m + 1) / (6 n)) for m strategies and n experiments, is how far apart two average ranks have to be
(Demsar, Journal of Machine Learning Research 2006). Needs SciPy (extra "bench").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ArgumentError, extra
from labelwise.stats.curves import Array, Curves, area
from labelwise.stats.paired import paired
from labelwise.stats.verdict import LEVEL, single

Experiments = Mapping[str, Mapping[str, Curves]]  # by experiment, by strategy
_PLACE = {"better": 0, "same": 1, "worse": 2}  # in a score


@dataclass(frozen=True)
class Score:
    """How often one strategy won, tied and lost against another, over the experiments that hold both."""

    wins: int
    ties: int
    losses: int

    @property
    def text(self) -> str:
        """Wins, ties and losses as they are written in a table."""
        return f"{self.wins}/{self.ties}/{self.losses}"


@dataclass(frozen=True)
class Ranks:
    """Average ranks over experiments, best first."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    experiments: int
    p: float  # Friedman's; NaN where there are fewer than two experiments or three strategies
    critical: float  # the critical difference; NaN likewise

    def groups(self) -> list[tuple[int, int]]:
        """First and last place of each longest run of strategies that do not differ significantly."""
        if math.isnan(self.critical):
            return []
        found: list[tuple[int, int]] = []
        for first in range(len(self.names)):
            last = max(j for j in range(first, len(self.names)) if self.mean[j] - self.mean[first] < self.critical)
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found


def win_tie_loss(experiments: Experiments) -> dict[tuple[str, str], Score]:
    """The score of every ordered pair of strategies with enough shared seeds on some experiment."""
    counts: dict[tuple[str, str], list[int]] = {}
    for by_strategy in experiments.values():
        names = list(by_strategy)
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                if not set(by_strategy[one].seeds) & set(by_strategy[other].seeds):
                    continue
                found = single(paired(by_strategy[one], by_strategy[other]))
                if found != "open":
                    counts.setdefault((one, other), [0, 0, 0])[_PLACE[found]] += 1
                    counts.setdefault((other, one), [0, 0, 0])[2 - _PLACE[found]] += 1
    return {pair: Score(*found) for pair, found in counts.items()}


def ranks(experiments: Experiments, strategies: Sequence[str] | None = None) -> Ranks:
    """Average ranks of `strategies`, which every experiment must hold; those that all have, if not given."""
    if not experiments:
        raise ArgumentError("ranks need one experiment or more, found none")
    shared = set.intersection(*(set(one) for one in experiments.values()))
    names = [name for name in next(iter(experiments.values())) if name in shared]
    if strategies is not None:
        missing = [name for name in strategies if name not in shared]
        if missing:
            raise ArgumentError(f"ranks need every strategy in every experiment; {', '.join(missing)} is not in all")
        names = list(strategies)
    if not names:
        raise ArgumentError("no strategy is in every experiment, so there is nothing to rank")
    rank_EM = np.array([_ranked([_good(one[name]) for name in names]) for one in experiments.values()])
    mean_M = rank_EM.mean(0)
    order = np.argsort(mean_M, kind="stable")
    p, critical = _friedman(rank_EM), _critical(len(names), len(rank_EM))
    return Ranks(tuple(names[i] for i in order), tuple(float(mean_M[i]) for i in order), len(rank_EM), p, critical)


def _good(curves: Curves) -> float:
    """The mean area, with the sign that makes more better."""
    return float(area(curves).mean()) * (1.0 if curves.metric.higher else -1.0)


def _ranked(values: Sequence[float]) -> list[float]:
    """Ranks from 1 for the largest; equal values share the mean of their places."""
    return [
        1 + sum(other > value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def _friedman(rank_EM: Array) -> float:
    """The p value of Friedman's test, corrected for equal ranks."""
    experiments, strategies = rank_EM.shape
    if experiments < 2 or strategies < 3:
        return math.nan
    ties = sum(float((count**3 - count).sum()) for count in (np.unique(row, return_counts=True)[1] for row in rank_EM))
    spread = float(((rank_EM.mean(0) - (strategies + 1) / 2) ** 2).sum())
    correction = 1 - ties / (experiments * strategies * (strategies**2 - 1))
    if correction <= 0:  # every strategy equal in every experiment
        return 1.0
    statistic = 12 * experiments / (strategies * (strategies + 1)) * spread / correction
    return float(_scipy_stats().chi2.sf(statistic, strategies - 1))


def _critical(strategies: int, experiments: int) -> float:
    """Nemenyi's critical difference at 5 %."""
    if experiments < 2 or strategies < 3:
        return math.nan
    quantile = float(_scipy_stats().studentized_range.ppf(1 - LEVEL, strategies, math.inf))
    return quantile / math.sqrt(2) * math.sqrt(strategies * (strategies + 1) / (6 * experiments))


def _scipy_stats():  # type: ignore[no-untyped-def]
    try:
        from scipy import stats
    except ImportError as error:
        raise extra("scipy", "bench") from error
    return stats
