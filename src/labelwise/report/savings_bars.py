"""Labels saved on each data set as bars: right of the line fewer labels than random, left of it more."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.errors import ArgumentError
from labelwise.io.text import percent
from labelwise.report.style import COLOURS, INK, MUTED, RULE, new_figure, png_bytes, text_style

FEWER, MORE, ALIKE = COLOURS[0], COLOURS[1], "#aab2bb"
MEANING = {"better": ("significantly better", FEWER), "worse": ("significantly worse", MORE)}
LOWEST, HIGHEST = -0.6, 0.8  # of the axis; longer bars are cut there and say their number
WIDTH, ROW, TEXT = 7.6, 0.36, 11.0
NUMBER, ENDS = 1.14, 1.2  # columns right of the bars, in widths of the axis


@dataclass(frozen=True)
class Bar:
    """One data set.

    Attributes:
        name: as the picture shows it.
        share: of labels saved.
        low: the lower end of its interval; -inf if open.
        high: the upper end.
        outcome: "better", "worse" or "same", after correction.
        ends: both results at the last label count, in words.
    """

    name: str
    share: float
    low: float
    high: float
    outcome: str
    ends: str


def png(bars: Sequence[Bar], title: str, ends: str) -> bytes:
    """The picture; `ends` heads the column of results at the last label count."""
    if not bars:
        raise ArgumentError("a picture needs one data set or more, found none")
    with text_style(TEXT):
        return png_bytes(_draw(bars, title, ends), 130)


def _draw(bars: Sequence[Bar], title: str, ends: str) -> Any:
    height = ROW * len(bars) + 1.85
    figure = new_figure(WIDTH, height)
    axes = figure.add_axes((0.18, 1.05 / height, 0.52, ROW * len(bars) / height))
    for place, bar in enumerate(bars):
        _row(axes, place, bar)
    axes.set(xlim=(LOWEST, HIGHEST), ylim=(len(bars) - 0.5, -0.5), yticks=range(len(bars)))
    axes.set_yticklabels([bar.name for bar in bars])
    ticks = [-0.5, -0.25, 0.0, 0.25, 0.5, 0.75]
    axes.set_xticks(ticks)
    axes.set_xticklabels(["as random" if tick == 0 else percent(tick) for tick in ticks], color=MUTED, size=TEXT - 1.5)
    axes.set_xlabel("labels saved for the same result", color=MUTED, size=TEXT - 1.5)
    axes.tick_params(length=0)
    axes.grid(axis="x", color=RULE, zorder=0)
    axes.axvline(0, color=INK, linewidth=1.4, zorder=3)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.text(0.02, 1 - 0.3 / height, title, weight="bold", size=TEXT + 1, color=INK)
    heads = {"transform": axes.get_yaxis_transform(), "color": MUTED, "size": TEXT - 1.5, "va": "bottom"}
    axes.text(NUMBER, -0.55, "saved", ha="right", **heads)
    axes.text(ENDS, -0.55, ends, **heads)
    _legend(figure, bars, 0.2 / height)
    return figure


def _row(axes: Any, place: int, bar: Bar) -> None:
    known = bar.outcome in MEANING
    colour = MEANING[bar.outcome][1] if known else ALIKE
    share = min(max(bar.share, LOWEST), HIGHEST)
    axes.barh(place, share, height=0.62, color=colour, zorder=2)
    low, high = max(bar.low, LOWEST), min(bar.high, HIGHEST)
    axes.plot([low, high], [place, place], color=INK, linewidth=1.2, alpha=0.75, zorder=4)
    where = {"transform": axes.get_yaxis_transform(), "va": "center"}
    number = {"color": colour, "weight": "bold"} if known else {"color": MUTED}
    axes.text(NUMBER, place, percent(bar.share), ha="right", size=TEXT, **number, **where)
    axes.text(ENDS, place, bar.ends, size=TEXT - 1, color=MUTED, **where)


def _legend(figure: Any, bars: Sequence[Bar], bottom: float) -> None:
    """What the colours and the lines mean, for those that are there."""
    outcomes = dict.fromkeys(bar.outcome for bar in bars)
    parts = [MEANING[name] for name in ("better", "worse") if name in outcomes]
    parts += [("no measurable difference", ALIKE)] if set(outcomes) - set(MEANING) else []
    left = 0.02
    for text, colour in parts:
        figure.text(left, bottom, "■", color=colour, size=TEXT)
        figure.text(left + 0.022, bottom, text, color=MUTED, size=TEXT - 1.5)
        left += 0.05 + 0.0096 * len(text)
    figure.text(left, bottom, "— 95 % interval", color=MUTED, size=TEXT - 1.5)


def alternative(bars: Sequence[Bar], title: str) -> str:
    """The picture in words."""
    rows = ", ".join(f"{bar.name} {percent(bar.share)}" for bar in bars)
    return textwrap.shorten(f"{title}: {rows}", 400)
