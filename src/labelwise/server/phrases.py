"""Words: why an item was picked, said for somebody who has never heard of active learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    from labelwise.strategies import reason_of  # late: a page whose picks all come with words does not load torch

    return reason_of(name)


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
