"""Labels saved against random: what a strategy is worth in the unit people pay in.

    share saved = 1 - labels_strategy / labels_random

where both are the labels (start set included) at which the running best of the mean curve over the shared
seeds first reaches one level, on straight lines between label counts. The level is

- "common" (the default): the highest level that both mean curves reach, the smaller of their two best values.
  Both label counts then exist, so nothing is censored and nothing is extrapolated.
- "final": the strategy's own best value. Random often stays below it within its budget; the share is then a
  lower bound, "at least".
- a number: a level of interest, such as 0.9.

Curves end at the budget. If random does not reach the level, labels_random is only known to be above its budget and
the share is "at least"; if the strategy does not, it is "at most"; if neither does, it is unknown.

The interval is a percentile bootstrap over seeds. Strategies share start set and model start by seed, so a
resample takes the same seeds for both (paired), and the "common" and "final" levels are found again in each. A
censored resample counts with its whole open range. With n seeds the plain 2.5 and 97.5 percentiles
are too narrow, by (1 - 1/n)^(1/2) and by the difference of Student's t from the normal, so the percentiles taken
are further out: those that give the mean of n normal numbers its 95 % t interval. The interval never leaves the
range of the resamples, which is too narrow for three seeds: below MIN_SEEDS none is shown.

The speed-up factor is labels_random / labels_strategy = 1 / (1 - share saved), and so are the ends of its interval.
verdict.py decides whether a strategy is better than random, on the whole curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from labelwise.errors import ArgumentError
from labelwise.io.text import percent
from labelwise.rng import Key
from labelwise.stats.curves import Array, Curves, crossing, gains, t975

MIN_SEEDS = 4

Level = float | Literal["common", "final"]
Bound = Literal["exact", "at least", "at most", "unknown"]


@dataclass(frozen=True)
class Saved:
    """The labels one strategy saves against random at one level, with an interval.

    Attributes:
        strategy: its name.
        against: the name of the baseline.
        level: value of the metric at which labels are counted.
        labels: labels at which the strategy reaches the level; None if it does not within its budget.
        labels_random: the same of the baseline.
        share: 1 - labels / labels_random, or its bound; NaN where it is unknown.
        bound: "exact", "at least", "at most" or "unknown".
        low: lower end of the 95 % interval of the share; -inf where it is open.
        high: upper end of the 95 % interval; 1 where it is open.
        seeds: how many seeds both have.
    """

    strategy: str
    against: str
    level: float
    labels: float | None
    labels_random: float | None
    share: float
    bound: Bound
    low: float
    high: float
    seeds: int

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is on the side of fewer labels."""
        return self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval is on the side of more labels."""
        return self.high < 0

    @property
    def speed_up(self) -> tuple[float, float, float]:
        """Random's labels for one of the strategy's, with the interval; inf where an end is open."""
        share, low, high = (1 / (1 - each) if each < 1 else math.inf for each in (self.share, self.low, self.high))
        return (math.nan if math.isnan(self.share) else share), low, high


def labels_saved(
    strategy: Curves, random: Curves, *, level: Level = "common", key: Key | None = None, draws: int = 4000
) -> Saved:
    """The share of labels `strategy` saves against `random`, as defined at the top of this file.

    Args:
        strategy: its curves.
        random: the curves of the baseline.
        level: where labels are counted.
        key: of the bootstrap; `Key(0)` if None. The same key gives the same interval.
        draws: number of resamples, at least 100.

    Raises:
        ArgumentError: no shared seed, different metrics, or a level that both reach with the first labels.
    """
    seeds = _shared(strategy, random)
    if draws < 100:
        raise ArgumentError(f"An interval needs 100 draws or more; found draws={draws}.")
    gains_s, gains_r = (gains(c)[[c.seeds.index(seed) for seed in seeds]] for c in (strategy, random))
    generator = (key or Key(0)).fold("labels saved").numpy()
    picks_BS = generator.integers(len(seeds), size=(draws, len(seeds)))
    # The first row is the sample itself: the estimate and the resamples are computed by the same code.
    picks_BS = np.concatenate([np.arange(len(seeds))[None], picks_BS])
    mean_s, mean_r = gains_s[picks_BS].mean(1), gains_r[picks_BS].mean(1)
    level_B = _levels(level, mean_s, mean_r, strategy.metric.higher)
    found_s, found_r = (
        crossing(strategy.labels_T, mean_s, level_B),
        crossing(random.labels_T, mean_r, level_B),
    )
    low_B, high_B = _ends(found_s, found_r, float(strategy.labels_T[-1]), float(random.labels_T[-1]))
    bound = _bound(found_s[0], found_r[0])
    low, high = _interval(low_B[1:], high_B[1:], len(seeds))
    return Saved(
        strategy=strategy.strategy,
        against=random.strategy,
        level=float(level_B[0]) * (1.0 if strategy.metric.higher else -1.0),
        labels=_or_none(found_s[0]),
        labels_random=_or_none(found_r[0]),
        share={"exact": low_B[0], "at least": low_B[0], "at most": high_B[0], "unknown": math.nan}[bound],
        bound=bound,
        low=low,
        high=high,
        seeds=len(seeds),
    )


def interval(saved: Saved) -> str:
    """The interval in words, also if censoring leaves an end open."""
    low, high = percent(saved.low), percent(saved.high)
    if math.isinf(saved.low):
        return "not bounded" if saved.high >= 1 else f"{high} or less"
    return f"{low} or more" if saved.high >= 1 else f"{low} to {high}"


def _shared(strategy: Curves, random: Curves) -> list[int]:
    if strategy.metric != random.metric:
        raise ArgumentError(
            f"Both curves have to be of one metric; found {strategy.metric.name!r} and {random.metric.name!r}."
        )
    seeds = sorted(set(strategy.seeds) & set(random.seeds))
    if not seeds:
        raise ArgumentError(
            f"{strategy.strategy!r} (seeds {_list(strategy.seeds)}) and {random.strategy!r} (seeds "
            f"{_list(random.seeds)}) share no seed; the comparison is by seed. Run both with the same seeds."
        )
    return seeds


def _list(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def _levels(level: Level, mean_s: Array, mean_r: Array, higher: bool) -> Array:
    """The level of each resample (B,), with the sign that makes more better."""
    best_s, best_r = mean_s.max(1), mean_r.max(1)
    if level == "common":
        return np.minimum(best_s, best_r)
    if level == "final":
        return best_s
    if isinstance(level, str) or not math.isfinite(level):
        raise ArgumentError(f"The level is 'common', 'final' or a finite number; found {level!r}.")
    signed = level if higher else -level
    if signed <= min(mean_s[0, 0], mean_r[0, 0]):
        raise ArgumentError(
            f"The level {level} is already reached by both at the first label count; found "
            f"{abs(mean_s[0, 0]):.4g} and {abs(mean_r[0, 0]):.4g} there. Ask for more."
        )
    return np.full(len(mean_s), float(signed))


def _ends(found_s: Array, found_r: Array, budget_s: float, budget_r: float) -> tuple[Array, Array]:
    """The range (B,), (B,) in which each share lies: a point, or half open where a level was not reached."""
    labels_s = np.where(np.isnan(found_s), budget_s, found_s)
    labels_r = np.where(np.isnan(found_r), budget_r, found_r)
    share = 1 - labels_s / labels_r
    return np.where(np.isnan(found_s), -np.inf, share), np.where(np.isnan(found_r), 1.0, share)


def _bound(found_s: float, found_r: float) -> Bound:
    if math.isnan(found_s):
        return "unknown" if math.isnan(found_r) else "at most"
    return "at least" if math.isnan(found_r) else "exact"


def _interval(low_B: Array, high_B: Array, seeds: int) -> tuple[float, float]:
    """The percentiles described at the top of this file, without interpolation, which fails next to -inf."""
    if seeds < 2:
        return -math.inf, 1.0
    reach = math.sqrt(seeds / (seeds - 1)) * t975(seeds - 1)
    tail = 0.5 * math.erfc(reach / math.sqrt(2))
    low = np.quantile(low_B, tail, method="lower")
    return float(low), float(np.quantile(high_B, 1 - tail, method="higher"))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
