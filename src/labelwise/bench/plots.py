"""Small figures of the reproductions, as PNG: bars by group, points, lines with bands. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from labelwise.errors import extra
from labelwise.report.curves import Curves, band
from labelwise.report.figure import COLOURS, GREY, INK, MARKERS, MUTED, PAPER, RULE

Line = tuple[Sequence[float], Sequence[float]]  # x, y
Titles = tuple[str, str, str]  # of the figure, of x, of y


def bars(titles: Titles, groups: Sequence[str], by_name: Mapping[str, Sequence[float]], log: bool = False) -> bytes:
    """Groups of bars, one bar of a group for each name."""
    figure, (axes,) = _figure(1)
    width = 0.8 / max(1, len(by_name))
    for place, (name, values) in enumerate(by_name.items()):
        at = [group + (place - (len(by_name) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(at, values, 0.92 * width, label=name, color=COLOURS[place % len(COLOURS)])
    if log:
        axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), groups)
    _legend(figure, axes)
    return _png(figure, axes, titles)


def points(panels: Mapping[str, Line], titles: Titles) -> bytes:
    """Points in panels beside each other, each under its own title."""
    figure, every = _figure(len(panels))
    for place, (axes, (name, (x, y))) in enumerate(zip(every, panels.items())):
        axes.plot(x, y, MARKERS[0], markersize=4, color=COLOURS[place % len(COLOURS)], alpha=0.7, markeredgewidth=0)
        _dress(axes, (name, titles[1], titles[2]))
    figure.suptitle(titles[0], color=INK, fontsize=12, x=0.02, ha="left")
    return _png(figure, None, titles)


def lines(titles: Titles, by_name: Mapping[str, Line], level: float | None = None) -> bytes:
    """Lines, one for each name, and a thin one at a level."""
    figure, (axes,) = _figure(1)
    if level is not None:
        axes.axhline(level, color=MUTED, linewidth=1)
    for place, (name, (x, y)) in enumerate(by_name.items()):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.plot(x, y, marker=marker, markersize=4.5, linewidth=2, label=name, color=colour, markeredgewidth=0)
    _legend(figure, axes)
    return _png(figure, axes, titles)


def curve_panels(panels: Mapping[str, Mapping[str, Curves]], share: bool = False) -> bytes:
    """Learning curves in panels beside each other, with their standard error; with `share` on one scale."""
    figure, every = _figure(len(panels))
    for axes, (title, by_name) in zip(every, panels.items()):
        for place, (name, lines) in enumerate(by_name.items()):
            dashed = name == "random"
            at = place - ("random" in list(by_name)[:place])  # random is grey and takes no colour
            shade = GREY if dashed else COLOURS[at % len(COLOURS)]
            line = band(lines, "se")
            axes.fill_between(line.labels_T, line.low_T, line.high_T, color=shade, alpha=0.13, linewidth=0)
            style = {"linestyle": "--"} if dashed else {"marker": MARKERS[at % len(MARKERS)]}
            axes.plot(line.labels_T, line.mean_T, color=shade, label=name, markersize=4.5, markeredgewidth=0, **style)
        metric = next(iter(by_name.values())).metric
        if metric.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        _dress(axes, (title, "labels", metric.title + ("" if metric.higher else " (lower is better)")))
        if share:
            axes.sharey(every[0])
    _legend(figure, every[0])
    return _png(figure, None, ("", "", ""))


def _figure(panels: int) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise extra("matplotlib", "bench") from error
    figure = Figure(figsize=(7.2 if panels == 1 else 4.6 * panels, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def _legend(figure: Any, axes: Any) -> None:
    """The names under the panels, where they cover no line and no band."""
    lines, names = axes.get_legend_handles_labels()
    wide = 14 * figure.get_figwidth()  # letters that fit beside each other
    across = max(1, min(len(names), int(wide // (5 + max(map(len, names))))))
    figure.legend(lines, names, loc="outside lower center", ncols=across, frameon=False)


def _dress(axes: Any, titles: Titles) -> None:
    axes.set_title(titles[0], loc="left", color=INK, fontsize=11)
    axes.set_xlabel(titles[1], color=INK)
    axes.set_ylabel(titles[2], color=INK)
    axes.grid(axis="y", color=RULE, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _png(figure: Any, axes: Any, titles: Titles) -> bytes:
    if axes is not None:
        _dress(axes, titles)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150, facecolor=PAPER, metadata={"Software": None})
    return out.getvalue()
