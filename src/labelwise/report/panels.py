"""Panels: one small picture for each strategy, its curve and that of random with their bands. Needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from labelwise.errors import extra
from labelwise.report.captions import FONT, caption, cut, wrapped
from labelwise.report.line_styles import AGAINST, COLOURS, INK, MUTED, PAPER, RULE
from labelwise.stats.curves import Curves, Spread, band

ACROSS = 5
WIDTH, HEIGHT = 2.0, 1.6  # inches of a panel
NAME = 24  # the longest name written in full


def panels_png(by_strategy: Mapping[str, Curves], spread: Spread = "t95", against: str = "random") -> bytes:
    """Every strategy but the one compared with, in order, on one scale."""
    out = io.BytesIO()
    _draw(by_strategy, spread, against).savefig(
        out, format="png", dpi=130, facecolor=PAPER, metadata={"Software": None}
    )
    return out.getvalue()


def _draw(by_strategy: Mapping[str, Curves], spread: Spread, against: str) -> Any:
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise extra("matplotlib", "bench") from error
    names = [name for name in by_strategy if name != against]
    across, down = min(ACROSS, len(names)), math.ceil(len(names) / ACROSS)
    metric = by_strategy[names[0]].metric
    way = "" if metric.higher else " (lower is better)"
    title = f"{metric.title}{way} by labels; {against} is the dashed line"
    width = max(WIDTH * across, 2 * WIDTH)
    head, foot = (
        wrapped(text, width - 0.2, points)
        for text, points in ((title, 9.5), (caption(list(by_strategy.values()), spread), 8.5))
    )
    height = HEIGHT * down + 0.17 * (head.count("\n") + foot.count("\n")) + 0.6
    with matplotlib.rc_context({"font.family": FONT, "font.size": 8, "text.parse_math": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        every = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for place, (axes, name) in enumerate(zip(every, names)):
            if against in by_strategy:
                _curve(axes, by_strategy[against], spread, INK, AGAINST)
            _curve(axes, by_strategy[name], spread, COLOURS[0], "-")
            axes.set_title(cut(name, NAME), loc="left", color=INK, fontsize=8.5)
            axes.grid(axis="y", color=RULE, linewidth=0.8)
            axes.tick_params(colors=MUTED, length=0, labelbottom=place + across >= len(names))
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            if metric.percent:
                axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        for axes in every[len(names) :]:
            axes.set_axis_off()
        figure.suptitle(head, color=INK, fontsize=9.5, x=0.01, ha="left")
        figure.supxlabel(foot, color=MUTED, fontsize=8.5, x=0.01, ha="left")
    return figure


def _curve(axes: Any, lines: Curves, spread: Spread, shade: str, stroke: Any) -> None:
    line = band(lines, spread)
    if np.isfinite(line.low_T).all():
        axes.fill_between(line.labels_T, line.low_T, line.high_T, color=shade, alpha=0.18, linewidth=0)
    axes.plot(line.labels_T, line.mean_T, color=shade, linestyle=stroke, linewidth=1.4)
