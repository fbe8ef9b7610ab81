"""Numbers of learning curves, for the JSON of a reproduction."""

from __future__ import annotations

import statistics
from typing import Any

from labelwise.report import Record, learning_curves


def numbers_of(records: list[Record], metric: str) -> dict[str, dict[str, Any]]:
    """For each name: label counts, mean and standard deviation over seeds, and labels to 97 % of the best end."""
    curves = learning_curves(records, metric)
    shown: dict[str, dict[str, Any]] = {}
    ends = [float(lines.values_ST.mean(0)[-1]) for lines in curves.values()]
    for name, lines in curves.items():
        mean_T = lines.values_ST.mean(0)
        labels = [int(count) for count in lines.labels_T]
        shown[name] = {"labels": labels, "mean": mean_T.tolist(), "sd": lines.values_ST.std(0).tolist()}
        if metric == "accuracy":
            shown[name]["labels_to_97"] = labels_to(labels, mean_T.tolist(), 0.97 * max(ends))
    return shown


def labels_to(labels: list[int], values: list[float], level: float) -> float | None:
    """The number of labels at which a curve first reaches a level, by straight lines between its points.

    >>> labels_to([100, 200, 300], [0.5, 0.7, 0.9], 0.8)
    250.0
    """
    if values[0] >= level:
        return float(labels[0])
    for (a, low), (b, high) in zip(zip(labels, values), zip(labels[1:], values[1:])):
        if high >= level:
            return round(a + (b - a) * (level - low) / (high - low), 6)
    return None


def area_of(records: list[Record], name: str, metric: str) -> float:
    """The mean of a metric over all rounds and seeds of one name."""
    return statistics.fmean(record.metrics[metric] for record in records if record.strategy == name)
