"""Numbers of learning curves, for the JSON of a reproduction."""

from __future__ import annotations

import math
from typing import Any

from labelwise.report.tables import summarise
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record


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


def saved_numbers(records: list[Record], metric: str) -> dict[str, dict[str, Any]]:
    """For each name but random: the share of labels saved, its interval (None where open), and the paired test."""
    shown = {}
    for row in summarise(records, metric).rows:
        if row.saved is not None and row.found is not None:
            ends = (row.saved.share, row.saved.low, row.saved.high, row.found.test.p, row.found.p)
            share, low, high, p, holm = (value if math.isfinite(value) else None for value in ends)
            shown[row.strategy] = {"saved": share, "low": low, "high": high, "verdict": row.verdict}
            shown[row.strategy] |= {"area_gain": row.found.test.difference, "area_p": p, "area_p_holm": holm}
    return shown


def against_random(records: list[Record], metric: str) -> str:
    """Who is measurably better than random, who worse, and who cannot be told from it or not be compared yet."""
    found = {row.strategy: row.found for row in summarise(records, metric).rows if row.found is not None}
    if not found:
        return "Nothing was run beside random."
    first = next(iter(found.values()))
    parts = {
        "better": "better",
        "worse": "worse",
        "same": "no measurable difference",
        "open": f"cannot be compared yet, {first.needed} seeds or more are needed",
    }
    groups = {what: [name for name in found if found[name].outcome == what] for what in parts}
    shown = "; ".join(f"{parts[what]}: {', '.join(names)}" for what, names in groups.items() if names)
    holm = f", Holm's correction for {first.compared} strategies" if first.compared > 1 else ""
    said = f"Area under the curve against random (paired sign-flip test by seed, 5 %{holm}): {shown}."
    if "ally" in found and found["ally"].outcome in ("same", "worse"):
        said += " ALLY does not measurably beat random here."
    return said
