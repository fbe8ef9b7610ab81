"""Critical-difference diagram: average ranks on a line, best left; a bar joins strategies that do not differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from labelwise.errors import ArgumentError
from labelwise.report.style import (
    COLOURS,
    INK,
    MUTED,
    new_figure,
    png_bytes,
    text_style,
    text_width,
)
from labelwise.stats.standings import Ranks

# In inches: a row of a name, a bar, the line of ranks, the smallest margin next to it, from line to name, and from
# a name to the edge.
ROW, BAR, LINE, SIDE, AWAY, EDGE = 0.26, 0.17, 4.67, 1.96, 0.3, 0.12
TEXT, TITLE = 10.5, 11.5  # points


@dataclass(frozen=True)
class Span:
    """Where ranks lie on the picture, in inches; `left` and `right` are the ends of the line."""

    low: int
    high: int
    unit: float  # of one rank
    left: float
    right: float

    def at(self, rank: float) -> float:
        """The place of a rank."""
        return self.left + (rank - self.low) * self.unit


def png(ranks: Ranks, title: str = "") -> bytes:
    """The diagram as a PNG picture."""
    return png_bytes(_draw(ranks, title), 150)


def _draw(ranks: Ranks, title: str) -> Any:
    if len(ranks.names) < 2:
        raise ArgumentError(f"a diagram needs two strategies or more, found {', '.join(ranks.names) or 'none'}")
    groups, half = ranks.groups(), math.ceil(len(ranks.names) / 2)
    under = BAR * len(groups) + 0.25  # from the line down to the first name
    below = under + ROW * half + 0.1
    texts = _texts(ranks, half)
    span = _span(ranks, _margin(texts[:half]))
    width = max(span.right + _margin(texts[half:]), text_width(title, TITLE) + 3 * EDGE)
    with text_style(TEXT):
        figure = new_figure(width, 1.05 + below)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set(xlim=(0, width), ylim=(-below, 1.05))  # in inches, the line is at 0
        _scale(axes, span)
        _critical(axes, ranks, span)
        for place, (first, last) in enumerate(groups):
            ends = (span.at(ranks.mean[first]) - 0.03, span.at(ranks.mean[last]) + 0.03)
            axes.plot(ends, [-0.17 - BAR * place] * 2, color=COLOURS[0], linewidth=4)
        _names(axes, ranks, texts, under, span)
        axes.text(EDGE, 0.93, title, color=INK, fontsize=TITLE, va="top", ha="left")
    return figure


def _texts(ranks: Ranks, half: int) -> list[str]:
    """The texts next to the line: the better half on the left, the rest on the right."""
    pairs = [(name, f"{mean:.1f}") for name, mean in zip(ranks.names, ranks.mean)]
    return [f"{name}  {mean}" for name, mean in pairs[:half]] + [f"{mean}  {name}" for name, mean in pairs[half:]]


def _margin(texts: list[str]) -> float:
    """The margin next to the line, as wide as the longest of its names."""
    return max([SIDE, *(text_width(text, TEXT) + AWAY + EDGE for text in texts)])


def _span(ranks: Ranks, left: float) -> Span:
    """The scale of the ranks, on a line of fixed length that also holds the critical difference."""
    low = math.floor(ranks.mean[0])
    high = max(low + 1, math.ceil(ranks.mean[-1]))
    longest = max(high - low, 0.0 if math.isnan(ranks.critical) else ranks.critical)
    return Span(low, high, LINE / longest, left, left + LINE)


def _scale(axes: Any, span: Span) -> None:
    axes.plot((span.at(span.low), span.at(span.high)), (0, 0), color=INK, linewidth=1.4)
    step = max(1, math.ceil(0.3 / span.unit))  # ranks whose numbers keep clear of each other
    for rank in range(span.low, span.high + 1, step):
        axes.plot([span.at(rank)] * 2, (0, 0.07), color=INK, linewidth=1.2)
        axes.text(span.at(rank), 0.11, str(rank), color=MUTED, ha="center", va="bottom", fontsize=9.5)


def _critical(axes: Any, ranks: Ranks, span: Span) -> None:
    """Draw the length of the critical difference above the line."""
    if math.isnan(ranks.critical):
        return
    axes.plot((span.left, span.at(span.low + ranks.critical)), (0.42, 0.42), color=MUTED, linewidth=2)
    text = f"critical difference {ranks.critical:.2f}"
    axes.text(span.left, 0.47, text, color=MUTED, ha="left", va="bottom", fontsize=9.5)


def _names(axes: Any, ranks: Ranks, texts: list[str], under: float, span: Span) -> None:
    """Draw each name at the end of an elbow from its rank."""
    half = math.ceil(len(texts) / 2)
    for place, (text, mean) in enumerate(zip(texts, ranks.mean)):
        left = place < half
        row = place if left else len(texts) - 1 - place
        y = -(under + ROW * row)
        end, way = (span.left, -1) if left else (span.right, 1)
        at = span.at(mean)
        axes.plot((at, at, end + way * (AWAY - 0.06)), (0, y, y), color=MUTED, linewidth=0.9, zorder=1)
        axes.plot((at,), (0,), "o", color=INK, markersize=3.5)
        axes.text(end + way * AWAY, y, text, color=INK, ha="right" if left else "left", va="center")
