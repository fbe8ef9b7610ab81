"""Words: why an item was picked, said for somebody who has never heard of active learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASONS: Mapping[str, str] = {
    "random": "Drawn at random.",
    "confidence": "The model is not sure of its best guess here.",
    "margin": "The model hesitates between its two best guesses here.",
    "entropy": "The model has no clear opinion on this one.",
    "kcenter": "Unlike anything that has a label so far.",
    "badge": "Its label would change the model a lot, in another way than the rest of this batch.",
    "typiclust": "Typical of a group of items that has no label yet.",
    "probcover": "Has many close neighbours without a label.",
    "sabal-greedy": "With the rest of this batch it stands for the whole pool.",
    "sabal-iht": "With the rest of this batch it stands for the whole pool.",
    "dynamical": "Its label would speed up the training most.",
    "bss": "Drawn because few other items carry the same information.",
    "leverage": "Drawn because few other items carry the same information.",
    "volume": "Chosen to spread the batch over all directions of the data.",
    "ally": "The model is expected to find this one hard to get right.",
    "bait": "Its label would make the model surer about all the others.",
    "albl": "Chosen by the rule that has helped most so far.",
    "bald": "Versions of the model disagree on this one.",
    "batchbald": "Versions of the model disagree on this one, in another way than on the rest of this batch.",
    "acs-fw": "With the rest of this batch it stands for the whole pool.",
}
TEST = "Drawn at random, to measure how good the model is. Its answer is never used for training."


def reason(strategy: str, slice: str, round: int, why: Mapping[str, Any]) -> str:
    """Why this pick. For a test pick nothing of the model is told: its guess would sway the answer that measures it."""
    if slice == "test":
        return TEST
    told = why.get("words")
    return told if isinstance(told, str) and told else _of(strategy, round)


def _of(strategy: str, round: int) -> str:
    first, _, later = strategy.partition("+")  # "typiclust+margin": the first batch by the one, the others by the other
    name = later if later and round > 1 else first
    return REASONS.get(name, f"Chosen by {name}.")


def number(value: float | None, digits: int = 3) -> str:
    """A score as people read it."""
    if value is None or value != value:
        return "none"
    return f"{value:.{digits}g}"


def ago(seconds: float) -> str:
    """A length of time in the unit that fits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
