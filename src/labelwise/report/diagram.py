"""The critical-difference diagram: average ranks on a line, best left; a bar joins strategies not told apart."""

from __future__ import annotations

import io
import math
from typing import Any

from labelwise.errors import ArgumentError, extra
from labelwise.report.figure import COLOURS, INK, MUTED, PAPER
from labelwise.report.standings import Ranks

ROW, BAR = 0.26, 0.17  # inches for a name, and for a bar


def png(ranks: Ranks, title: str = "") -> bytes:
    """The diagram as a PNG picture."""
    out = io.BytesIO()
    _draw(ranks, title).savefig(out, format="png", dpi=150, facecolor=PAPER, metadata={"Software": None})
    return out.getvalue()


def _draw(ranks: Ranks, title: str) -> Any:
    if len(ranks.names) < 2:
        raise ArgumentError(f"a diagram needs two strategies or more, found {', '.join(ranks.names) or 'none'}")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise extra("matplotlib", "bench") from error
    groups, half = ranks.groups(), math.ceil(len(ranks.names) / 2)
    under = BAR * len(groups) + 0.25  # from the line down to the first name
    height = 1.15 + under + ROW * half
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 10.5, "text.parse_math": False}):
        figure = Figure(figsize=(8.6, height))
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_ylim(-(under + ROW * half + 0.1), 1.05)  # in inches, 0 is the line
        low, high = math.floor(ranks.mean[0]), math.ceil(ranks.mean[-1])
        room = 0.42 * max(1, high - low)  # for the names on both sides
        axes.set_xlim(low - room, high + room)
        _scale(axes, low, high)
        _critical(axes, ranks, low)
        for place, (first, last) in enumerate(groups):
            y = -0.17 - BAR * place
            pad = 0.004 * (high - low + 2 * room)
            axes.plot((ranks.mean[first] - pad, ranks.mean[last] + pad), (y, y), color=COLOURS[0], linewidth=4)
        _names(axes, ranks, half, under, (low, high, room))
        axes.text(low - room * 0.97, 0.93, title, color=INK, fontsize=11.5, va="top", ha="left")
    return figure


def _scale(axes: Any, low: int, high: int) -> None:
    axes.plot((low, high), (0, 0), color=INK, linewidth=1.4)
    step = max(1, math.ceil((high - low) / 12))
    for rank in range(low, high + 1, step):
        axes.plot((rank, rank), (0, 0.07), color=INK, linewidth=1.2)
        axes.text(rank, 0.11, str(rank), color=MUTED, ha="center", va="bottom", fontsize=9.5)


def _critical(axes: Any, ranks: Ranks, low: int) -> None:
    """The length of the critical difference above the line."""
    if math.isnan(ranks.critical):
        return
    axes.plot((low, low + ranks.critical), (0.42, 0.42), color=MUTED, linewidth=2)
    text = f"critical difference {ranks.critical:.2f}"
    axes.text(low, 0.47, text, color=MUTED, ha="left", va="bottom", fontsize=9.5)


def _names(axes: Any, ranks: Ranks, half: int, under: float, span: tuple[int, int, float]) -> None:
    """The better half of the names left, the rest right, each at the end of an elbow from its rank."""
    low, high, room = span
    for place, (name, mean) in enumerate(zip(ranks.names, ranks.mean)):
        left = place < half
        row = place if left else len(ranks.names) - 1 - place
        y = -(under + ROW * row)
        edge = low - room * 0.12 if left else high + room * 0.12
        axes.plot((mean, mean, edge), (0, y, y), color=MUTED, linewidth=0.9, zorder=1)
        axes.plot((mean,), (0,), "o", color=INK, markersize=3.5)
        text = f"{name}  {mean:.1f}" if left else f"{mean:.1f}  {name}"
        where = low - room * 0.15 if left else high + room * 0.15
        axes.text(where, y, text, color=INK, ha="right" if left else "left", va="center")
