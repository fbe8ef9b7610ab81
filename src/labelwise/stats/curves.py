"""Learning curves: a metric by number of labels and seed, with mean, band, area and labels to reach a level.

Curves are straight lines between the label counts at which a model was trained. Nothing is smoothed or extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import ArgumentError, NumericsError
from labelwise.stats.metric import Metric, metric_named
from labelwise.stats.record import Record

Array = NDArray[np.float64]
Spread = Literal["t95", "se", "std"]

SPREADS: dict[str, str] = {
    "t95": "95 % t interval of the mean over seeds",
    "se": "standard error of the mean over seeds",
    "std": "standard deviation over seeds",
}

# Student's t, 0.975 quantile, for 1 to 30 degrees of freedom.
_T975 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


@dataclass(frozen=True, eq=False)
class Curves:
    """The learning curves of one strategy, one for each seed, on the label counts that every seed has.

    Attributes:
        strategy: its name.
        metric: what the curves show.
        seeds: S seeds, in increasing order.
        labels_T: (T,) label counts, strictly increasing.
        values_ST: (S, T) values of the metric.
    """

    strategy: str
    metric: Metric
    seeds: tuple[int, ...]
    labels_T: Array
    values_ST: Array


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve with its band.

    Attributes:
        labels_T: (T,) label counts.
        mean_T: (T,) mean over the seeds.
        low_T: (T,) lower edge of the band; NaN for one seed.
        high_T: (T,) upper edge of the band; NaN for one seed.
        spread: what the band is, such as "t95", a 95 % Student t interval.
    """

    labels_T: Array
    mean_T: Array
    low_T: Array
    high_T: Array
    spread: Spread


def seed_curves(
    records: Iterable[Record], name: str = "accuracy", higher: bool | None = None
) -> dict[tuple[str, int], list[tuple[int, float]]]:
    """For each (strategy, seed), in order of appearance, its (labels, value) points by increasing labels.

    Args:
        records: of one data set and model, with any strategies and seeds.
        name: of the metric.
        higher: whether more of it is better; needed for metrics that are not known here.

    Raises:
        ArgumentError: records of several experiments, or two of one label count.
        NumericsError: a value of the metric is not finite.
    """
    metric_named(name, higher)
    points: dict[tuple[str, int], dict[int, float]] = {}
    experiments: set[str] = set()
    for record in records:
        experiments |= _experiment(record)
        if len(experiments) > 1:
            raise ArgumentError(
                f"The records mix the experiments {' and '.join(sorted(experiments))}; one curve needs one "
                "data set and one model. Pass the records of one of them."
            )
        curve = points.setdefault((record.strategy, record.seed), {})
        if record.labels in curve:
            raise ArgumentError(
                f"Two records of {record.strategy!r} with seed {record.seed} have {record.labels} labels; "
                f"expected one for each label count. The second is round {record.round} of {record.run!r}."
            )
        curve[record.labels] = _value(record, name)
    return {run: sorted(curve.items()) for run, curve in points.items()}


def learning_curves(records: Iterable[Record], name: str = "accuracy", higher: bool | None = None) -> dict[str, Curves]:
    """The curves of each strategy, in order of appearance, on the label counts that all its seeds have.

    An unfinished run shortens the curve of its strategy, so pass finished runs only.

    Args:
        records: of one data set and model, with any strategies and seeds.
        name: of the metric.
        higher: whether more of it is better; needed for metrics that are not known here.

    Raises:
        ArgumentError: records of several experiments, or two of one label count.
    """
    by_strategy: dict[str, dict[int, dict[int, float]]] = {}
    for (strategy, seed), points in seed_curves(records, name, higher).items():
        by_strategy.setdefault(strategy, {})[seed] = dict(points)
    return {strategy: _stack(strategy, metric_named(name, higher), runs) for strategy, runs in by_strategy.items()}


def band(curves: Curves, spread: Spread = "t95") -> Band:
    """The mean over seeds at each label count and mean ± `spread`: by default a 95 % Student t interval.

    Args:
        curves: of one strategy.
        spread: "t95" for the 95 % interval, "se" for the standard error, "std" for the standard deviation.
    """
    mean_T = curves.values_ST.mean(0)
    half_T = half_width(curves.values_ST, spread)
    return Band(curves.labels_T, mean_T, mean_T - half_T, mean_T + half_T, spread)


def half_width(values_SX: Array, spread: Spread = "t95") -> Array:
    """Half the width of the band over the first axis, the seeds; NaN for one seed, which has no spread."""
    if spread not in SPREADS:
        raise ArgumentError(f"The spread is one of {', '.join(SPREADS)}; found {spread!r}.")
    seeds = len(values_SX)
    if seeds < 2:
        return np.full(values_SX.shape[1:], np.nan)
    std_X: Array = values_SX.std(0, ddof=1)
    scale = {"std": 1.0, "se": seeds**-0.5, "t95": t975(seeds - 1) * seeds**-0.5}[spread]
    return std_X * scale


def t975(df: int) -> float:
    """The 0.975 quantile of Student's t: a table up to 30 degrees of freedom, then its series for many."""
    if df < 1:
        raise ArgumentError(f"Student's t needs 1 degree of freedom or more; found {df}.")
    if df <= len(_T975):
        return _T975[df - 1]
    z = 1.959963984540054
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


def area(curves: Curves, rule: Literal["trapezoid", "mean"] = "trapezoid") -> Array:
    """The area under each seed's curve (S,), divided by the label range: on the scale of the metric.

    "trapezoid" takes the straight lines between counts; "mean" is the plain mean over the counts. A curve of
    one count has the value there as its area under either rule.

    Args:
        curves: of one strategy.
        rule: "trapezoid" or "mean".

    Raises:
        ArgumentError: there is no such rule.
    """
    labels_T, values_ST = curves.labels_T, curves.values_ST
    if rule == "mean" or len(labels_T) == 1:
        return values_ST.mean(1)
    if rule != "trapezoid":
        raise ArgumentError(f"The rule for the area is 'trapezoid' or 'mean'; found {rule!r}.")
    steps = np.diff(labels_T)
    total: Array = (0.5 * (values_ST[:, 1:] + values_ST[:, :-1]) * steps).sum(1)
    return total / (labels_T[-1] - labels_T[0])


def at(curves: Curves, counts: Sequence[float]) -> Array:
    """Each seed's value (S, len(counts)) at these label counts; NaN outside the counts that were run.

    Args:
        curves: of one strategy.
        counts: (c,) numbers of labels.
    """
    wanted = np.asarray(counts, dtype=np.float64)
    rows = [np.interp(wanted, curves.labels_T, values_T) for values_T in curves.values_ST]
    inside = (wanted >= curves.labels_T[0]) & (wanted <= curves.labels_T[-1])
    return np.where(inside, np.stack(rows), np.nan)


def labels_to_reach(curves: Curves, level: float) -> float | None:
    """The labels at which the running best of the mean curve first reaches `level`; None if it never does.

    Args:
        curves: of one strategy.
        level: a value of the metric.
    """
    found = float(crossing(curves.labels_T, gains(curves).mean(0)[None], np.array([_signed(curves, level)]))[0])
    return None if math.isnan(found) else found


def labels_to_reach_by_seed(curves: Curves, level: float) -> Array:
    """`labels_to_reach` on each seed's own curve (S,); NaN where a seed never reaches the level.

    Args:
        curves: of one strategy.
        level: a value of the metric.
    """
    goal_S = np.full(len(curves.seeds), _signed(curves, level))
    return crossing(curves.labels_T, gains(curves), goal_S)


def gains(curves: Curves) -> Array:
    """The values (S, T) with the sign that makes more better."""
    return curves.values_ST if curves.metric.higher else -curves.values_ST


def crossing(labels_T: Array, gains_BT: Array, level_B: Array) -> Array:
    """Where the running maximum of each row first reaches its level, on straight lines between counts (B,).

    A row that starts at or above its level gets the first count; a row that never reaches it gets NaN.
    """
    best_BT = np.maximum.accumulate(gains_BT, axis=1)
    # Means over seeds are rounded: a level taken from one curve is reached by an equal curve.
    slack_B = 1e-9 * np.maximum(1.0, np.abs(level_B))
    reached_BT = best_BT >= (level_B - slack_B)[:, None]
    step_B = reached_BT.argmax(1)
    before_B = np.maximum(step_B - 1, 0)
    each_B = np.arange(len(best_BT))
    low_B, high_B = best_BT[each_B, before_B], best_BT[each_B, step_B]
    rise_B = np.where(high_B > low_B, high_B - low_B, 1.0)
    part_B = np.clip((level_B - low_B) / rise_B, 0.0, 1.0)
    found_B: Array = labels_T[before_B] + part_B * (labels_T[step_B] - labels_T[before_B])
    return np.where(reached_BT.any(1), found_B, np.nan)


def _signed(curves: Curves, level: float) -> float:
    return level if curves.metric.higher else -level


def _experiment(record: Record) -> set[str]:
    """The name of the run without strategy and seed, if it has that form."""
    end = f"/{record.strategy}/{record.seed}"
    return {record.run.removesuffix(end)} if record.run.endswith(end) else set()


def _value(record: Record, name: str) -> float:
    if name not in record.metrics:
        raise ArgumentError(
            f"Round {record.round} of the run {record.run!r} has no metric {name!r}; it has "
            f"{', '.join(record.metrics) or 'none'}."
        )
    value = record.metrics[name]
    if not math.isfinite(value):
        raise NumericsError(
            f"Round {record.round} of the run {record.run!r} has {name} = {value}; a curve needs finite "
            "values. Look at how that round was trained, or leave its run out."
        )
    return value


def _stack(strategy: str, what: Metric, runs: dict[int, dict[int, float]]) -> Curves:
    seeds = tuple(sorted(runs))
    shared = sorted(set.intersection(*(set(points) for points in runs.values())))
    if not shared:
        raise ArgumentError(
            f"The seeds {', '.join(map(str, seeds))} of {strategy!r} have no label count in common; a mean "
            "curve needs one. Run every seed with the same start set size and batch size."
        )
    values = [[runs[seed][count] for count in shared] for seed in seeds]
    return Curves(strategy, what, seeds, np.array(shared, dtype=np.float64), np.array(values, dtype=np.float64))
