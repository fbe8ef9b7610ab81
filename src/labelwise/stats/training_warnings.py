"""Warnings of training in records: which strategies trained a model that had hardly learnt, how often, and why.

A fit notes a "warning" if the training loss of its kept weights is near that of equal probabilities, or if they are far
behind the last ones on the labelled rows. Whatever was chosen with such a model was chosen by little more than chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labelwise.io.text import many
from labelwise.stats.record import Record


@dataclass(frozen=True)
class Warned:
    """The warnings of one strategy.

    Attributes:
        rounds: rounds with a warning, of `all_rounds`.
        runs: runs with one, of `all_runs`.
        labels: the fewest and the most labels in such a round.
        example: the first warning.
    """

    rounds: int
    all_rounds: int
    runs: int
    all_runs: int
    labels: tuple[int, int]
    example: str

    @property
    def text(self) -> str:
        """ "3 of 44 rounds, in 2 of 4 runs, at 8 to 20 labels"."""
        low, high = self.labels
        at = f"{low} labels" if low == high else f"{low} to {high} labels"
        rounds = f"{self.rounds} of {many(self.all_rounds, 'round')}"
        return f"{rounds}, in {self.runs} of {many(self.all_runs, 'run')}, at {at}"


def warning_of(notes: Mapping[str, Any]) -> str:
    """The warning in the notes of a fit, of an ensemble that of its first member with one; empty if there is none."""
    members = notes.get("each") or ()
    return str(notes.get("warning") or next((one["warning"] for one in members if one.get("warning")), ""))


def training_warnings(records: Iterable[Record]) -> dict[str, Warned]:
    """The strategies with a warning, in order of appearance."""
    by_strategy: dict[str, list[Record]] = {}
    for record in records:
        by_strategy.setdefault(record.strategy, []).append(record)
    found = {}
    for name, own in by_strategy.items():
        bad = [record for record in own if warning_of(record.notes.get("training") or {})]
        if bad:
            labels = [record.labels for record in bad]
            found[name] = Warned(
                len(bad),
                len(own),
                len({record.seed for record in bad}),
                len({record.seed for record in own}),
                (min(labels), max(labels)),
                warning_of(bad[0].notes["training"]),
            )
    return found


def sentences(records: Iterable[Record]) -> list[str]:
    """The warnings of all strategies in two sentences; none if there is no warning."""
    found = training_warnings(records)
    if not found:
        return []
    each = "; ".join(f"{name} ({one.text})" for name, one in found.items())
    example = next(iter(found.values())).example
    return [f"Training had hardly learnt in some rounds, so their models say little: {each}. For example: {example}."]
