"""Numbers of learning curves, for the JSON of a reproduction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from labelwise.report import Record, learning_curves, summarise
from labelwise.report.paired import Paired, paired


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
    tests = _tests(records, metric)
    for row in summarise(records, metric).rows:
        if row.saved is not None:
            ends = (row.saved.share, row.saved.low, row.saved.high, tests[row.strategy].p)
            share, low, high, p = (value if math.isfinite(value) else None for value in ends)
            shown[row.strategy] = {"saved": share, "low": low, "high": high, "verdict": row.verdict}
            shown[row.strategy] |= {"area_gain": tests[row.strategy].difference, "area_p": p}
    return shown


def against_random(records: list[Record], metric: str) -> str:
    """Who measurably beats random, who loses to it and who cannot be told from it, by labels saved and by area."""
    rows = [row for row in summarise(records, metric).rows if row.saved is not None]
    tests = _tests(records, metric)
    ahead = {row.strategy for row in rows if row.saved and row.saved.better}
    behind = {row.strategy for row in rows if row.saved and row.saved.worse}
    won = {name for name, test in tests.items() if test.won()}
    lost = {name for name, test in tests.items() if test.lost()}
    said = [
        f"Labels saved against random, at the best level both reach: {_groups(tests, ahead, behind)}.",
        f"Area under the curve against random, paired by seed (sign-flip test at 5 %): {_groups(tests, won, lost)}.",
    ]
    if "ally" in tests and "ally" not in ahead | won:
        said.append("ALLY does not measurably beat random here.")
    return " ".join(said)


def _groups(names: Iterable[str], better: set[str], worse: set[str]) -> str:
    """Names by what was found of them."""
    parts = {"better": better, "worse": worse, "not told apart": set(names) - better - worse}
    found = {what: [name for name in names if name in group] for what, group in parts.items()}
    return "; ".join(f"{what}: {', '.join(group)}" for what, group in found.items() if group)


def _tests(records: list[Record], metric: str) -> dict[str, Paired]:
    curves = learning_curves(records, metric)
    random = curves.get("random")
    return {name: paired(lines, random) for name, lines in curves.items() if random and name != "random"}
