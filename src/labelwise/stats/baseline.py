"""Learnt: whether models of numbers predict better than their mean. If not, nothing is saved."""

from __future__ import annotations

from collections.abc import Sequence

from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record


def nothing_learnt(records: Sequence[Record]) -> str:
    """A sentence where no strategy's mean R² at its last label count is above 0, with the best; else an empty one."""
    if not records or any("r2" not in record.metrics for record in records):
        return ""
    ends = {name: float(lines.values_ST[:, -1].mean()) for name, lines in learning_curves(records, "r2").items()}
    best = max(ends, key=lambda name: ends[name])
    if ends[best] > 0:
        return ""
    return (
        "No model here predicts better than the mean of the target, also not at the last label count "
        f"(the best R² there is {ends[best]:.2f}, {best}): what is saved on the way to it says little."
    )
