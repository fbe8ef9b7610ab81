"""Panels: one small picture for each strategy, its curve and that of random with their bands. Needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from labelwise.errors import extra
from labelwise.report.curves import Curves, Spread, band
from labelwise.report.figure import AGAINST, COLOURS, GREY, INK, MUTED, PAPER, RULE

ACROSS = 5
WIDTH, HEIGHT = 2.0, 1.6  # inches of a panel


def panels_png(by_strategy: Mapping[str, Curves], spread: Spread = "t95", against: str = "random") -> bytes:
    """Every strategy but the one compared with, in order, on one scale."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise extra("matplotlib", "bench") from error
    names = [name for name in by_strategy if name != against]
    across, down = min(ACROSS, len(names)), math.ceil(len(names) / ACROSS)
    metric = by_strategy[names[0]].metric
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 8, "text.parse_math": False}):
        figure = Figure(figsize=(WIDTH * across, HEIGHT * down + 0.4), layout="constrained")
        FigureCanvasAgg(figure)
        every = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, name in zip(every, names):
            if against in by_strategy:
                _curve(axes, by_strategy[against], spread, GREY, AGAINST)
            _curve(axes, by_strategy[name], spread, COLOURS[0], "-")
            axes.set_title(name, loc="left", color=INK, fontsize=8.5)
            axes.grid(axis="y", color=RULE, linewidth=0.8)
            axes.tick_params(colors=MUTED, length=0)
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            if metric.percent:
                axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        for axes in every[len(names) :]:
            axes.set_axis_off()
        way = "" if metric.higher else " (lower is better)"
        title = f"{metric.title}{way} by labels; {against} is the dashed line"
        figure.suptitle(title, color=INK, fontsize=9.5, x=0.01, ha="left")
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=130, facecolor=PAPER, metadata={"Software": None})
    return out.getvalue()


def _curve(axes: Any, lines: Curves, spread: Spread, shade: str, stroke: Any) -> None:
    line = band(lines, spread)
    if np.isfinite(line.low_T).all():
        axes.fill_between(line.labels_T, line.low_T, line.high_T, color=shade, alpha=0.18, linewidth=0)
    axes.plot(line.labels_T, line.mean_T, color=shade, linestyle=stroke, linewidth=1.4)
