"""Models compared by one strategy's runs: each model's score on each data set, and how far each is behind the best.

A model here is a network with its training rule. By random picks alone, curves differ by how the model is trained and
not by how rows are chosen. On a data set, values are means over the seeds that all models there finished. A model that
finished less than half as many seeds as another is compared on its own seeds, and its mean over data sets is left out.

Differences are paired: the same seed gives all models the same rows. For each seed, the difference is averaged over the
data sets that both models ran on; the interval is Student's t interval over the seeds. It is about these data sets, and
is not corrected for the number of models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from labelwise.stats.curves import Array, Curves, area, half_width
from labelwise.stats.metric import Metric

Measure = Literal["area", "last"]
MEASURES: dict[Measure, Callable[[Curves], Array]] = {"area": area, "last": lambda curves: curves.values_ST[:, -1]}
ByModel = Mapping[str, Curves]
_Values = dict[str, dict[str, dict[int, float]]]  # by data set, model and seed


@dataclass(frozen=True)
class Gap:
    """By how much a model is better than another, with its 95 % interval; NaN ends with one seed."""

    mean: float
    low: float
    high: float
    seeds: int
    datasets: int


@dataclass(frozen=True)
class ModelRow:
    """One model: its values, its mean, and its distance from the best models."""

    model: str
    values: dict[str, float]  # by data set
    seeds: dict[str, int]  # behind each value
    mean: float  # over the data sets; NaN for an incomplete model
    gap: Gap | None  # to the best model by mean; None for that model itself, and where there is none
    largest_loss: float  # the most that it is worse than the best model of a data set; NaN if it ran on none
    largest_loss_on: str  # that data set


@dataclass(frozen=True)
class ModelTable:
    """The models of some data sets by one measure, best first."""

    measure: Measure
    metric: Metric
    datasets: tuple[str, ...]
    seeds: dict[str, int]  # by data set, shared by its complete models
    rows: tuple[ModelRow, ...]

    @property
    def best(self) -> ModelRow | None:
        """The model with the best mean; None if no model has one."""
        return self.rows[0] if math.isfinite(self.rows[0].mean) else None


def compare_models(by_data: Mapping[str, ByModel], measure: Measure = "area") -> ModelTable:
    """Compare models by their curves under one strategy.

    Args:
        by_data: curves by data set and model, all of one metric.
        measure: "area" under the curve, or the "last" score.
    """
    metric = next(iter(next(iter(by_data.values())).values())).metric
    sign = 1.0 if metric.higher else -1.0
    values: _Values = {
        data: {model: dict(zip(lines.seeds, MEASURES[measure](lines).tolist())) for model, lines in models.items()}
        for data, models in by_data.items()
    }
    names = list(dict.fromkeys(model for models in values.values() for model in models))
    common = {data: _common_seeds(models) for data, models in values.items()}
    counted = {
        data: {model: common[data].get(model) or set(seeds) for model, seeds in models.items()}
        for data, models in values.items()
    }
    levels = {
        data: {
            model: statistics.fmean(values[data][model][seed] for seed in sorted(seeds))
            for model, seeds in each.items()
        }
        for data, each in counted.items()
    }
    means = {
        model: statistics.fmean(levels[data][model] for data in values)
        for model in names
        if all(model in common[data] for data in values)
    }
    if len(values) > 1 and not (metric.percent or metric.name == "r2"):
        means = {}  # the units of the data sets differ
    best = max(means, key=lambda model: sign * means[model], default="")
    rows = [
        ModelRow(
            model,
            {data: models[model] for data, models in levels.items() if model in models},
            {data: len(seeds[model]) for data, seeds in counted.items() if model in seeds},
            means.get(model, math.nan),
            None if not best or model == best else _gap(values, model, best, sign),
            *_largest_loss(model, levels, common, sign),
        )
        for model in names
    ]
    rows.sort(key=lambda row: (-sign * row.mean if math.isfinite(row.mean) else math.inf, row.model))
    seeds = {data: len(next(iter(found.values()), ())) for data, found in common.items()}
    return ModelTable(measure, metric, tuple(values), seeds, tuple(rows))


def _common_seeds(models: Mapping[str, Mapping[int, float]]) -> dict[str, set[int]]:
    """The models with at least half as many seeds as any other, each with the seeds that they all have."""
    most = max(len(seeds) for seeds in models.values())
    many = {model: set(seeds) for model, seeds in models.items() if 2 * len(seeds) >= most}
    seeds = set.intersection(*many.values())
    return dict.fromkeys(many, seeds) if seeds else {}


def _gap(values: _Values, model: str, best: str, sign: float) -> Gap | None:
    both = [models for models in values.values() if model in models and best in models]
    seeds = set.intersection(*(set(models[model]) & set(models[best]) for models in both)) if both else set()
    if not seeds:
        return None
    difference_SD = sign * np.array([[each[model][seed] - each[best][seed] for each in both] for seed in sorted(seeds)])
    mean, half = float(difference_SD.mean()), float(half_width(difference_SD.mean(1)))
    return Gap(mean, mean - half, mean + half, len(seeds), len(both))


def _largest_loss(
    model: str, by_data: Mapping[str, Mapping[str, float]], common: Mapping[str, Mapping[str, set[int]]], sign: float
) -> tuple[float, str]:
    """The largest loss against the best model of a data set, and where; of models with the common seeds."""
    found = [
        (max(sign * (by_data[data][other] - by_data[data][model]) for other in models), data)
        for data, models in common.items()
        if model in models
    ]
    return max(found, default=(math.nan, ""))
