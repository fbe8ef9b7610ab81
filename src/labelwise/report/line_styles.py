"""Marks: the colour, stroke and marker of each line, alike in every figure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labelwise.stats.verdict import ORACLE

INK, MUTED, RULE, PAPER = "#1d2126", "#5c6570", "#e3e6ea", "#ffffff"
# Three of Okabe and Ito's colours and three more as far from them as the ink allows, also for people with any common
# colour blindness (a test measures that); strokes and markers say the same again.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c76aa0", "#7a4a00", "#6622aa")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# One more each time the colours start again.
STROKES: tuple[Any, ...] = ("-", (0, (1.2, 0.9)), (0, (6, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
AGAINST: Any = (0, (4, 2))  # the stroke of the one compared with


def stands_out(name: str, against: str = "random") -> bool:
    """Whether a line is a measure for the others: the one compared with, and the oracle, which is no strategy."""
    return name in (against, ORACLE)


def looks(names: Iterable[str], against: str = "random") -> dict[str, dict[str, Any]]:
    """Colour, stroke and marker of each name, no two alike.

    The one compared with is dashed and the oracle solid, both in the ink of the text and without markers; they take
    no colour from the others. Of these no two of twenty-four have the same colour and stroke.
    """
    found: dict[str, dict[str, Any]] = {}
    position = 0
    for name in names:
        if stands_out(name, against):
            stroke = AGAINST if name == against else "-"
            found[name] = {"color": INK, "linestyle": stroke, "marker": "", "markeredgewidth": 0}
            continue
        found[name] = {
            "color": COLOURS[position % len(COLOURS)],
            "linestyle": STROKES[position // len(COLOURS) % len(STROKES)],
            "marker": MARKERS[position % len(MARKERS)],
            "markeredgewidth": 0,
        }
        position += 1
    return found
