"""Small figures of the reproductions, as PNG: bars by group, points, lines with bands. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.report.style import (
    COLOURS,
    INK,
    MARKERS,
    MUTED,
    RULE,
    caption,
    is_reference,
    line_styles,
    new_figure,
    png_bytes,
    seeds_text,
    wrap_text,
)
from labelwise.stats.curves import Curves, Spread, band

Line = tuple[Sequence[float], Sequence[float]]  # x, y
Titles = tuple[str, str, str]  # of the figure, of x, of y
SPREAD: Spread = "se"  # of the bands, as in the papers
DPI = 140
SMALL = 9.0  # points of the line under a figure


def bars(titles: Titles, groups: Sequence[str], by_name: Mapping[str, Sequence[float]], log: bool = False) -> bytes:
    """Groups of bars, one bar of a group for each name."""
    return png_bytes(_bars(titles, groups, by_name, log), DPI)


def points(panels: Mapping[str, Line], titles: Titles) -> bytes:
    """Points in panels next to each other, each under its own title."""
    figure, every = _figure(len(panels))
    for place, (axes, (name, (x, y))) in enumerate(zip(every, panels.items())):
        axes.plot(x, y, MARKERS[0], markersize=4, color=COLOURS[place % len(COLOURS)], alpha=0.7, markeredgewidth=0)
        _dress(axes, (name, titles[1], titles[2]))
    figure.suptitle(titles[0], color=INK, fontsize=12, x=0.02, ha="left")
    return png_bytes(figure, DPI)


def lines(titles: Titles, by_name: Mapping[str, Line], level: float | None = None) -> bytes:
    """Lines, one for each name, and a thin one at a level."""
    figure, (axes,) = _figure(1)
    if level is not None:
        axes.axhline(level, color=MUTED, linewidth=1)
    for name, look in line_styles(by_name).items():
        axes.plot(*by_name[name], linewidth=2, markersize=4.5, label=name, **look)
    _dress(axes, titles)
    _legend(figure, [axes])
    return png_bytes(figure, DPI)


def line_panels(panels: Mapping[str, Mapping[str, Line]], titles: Titles, columns: int = 3) -> bytes:
    """Lines in panels on logarithmic scales, `columns` next to each other; a name has one look in all of them."""
    rows = math.ceil(len(panels) / columns)
    figure, every = _figure(min(columns, len(panels)), rows)
    look = line_styles(dict.fromkeys(name for by_name in panels.values() for name in by_name))
    for axes, (title, by_name) in zip(every, panels.items()):
        for name, line in by_name.items():
            axes.plot(*line, linewidth=1.8, markersize=4.5, label=name, **look[name])
        _logarithmic(axes, sorted({x for line in by_name.values() for x in line[0]}))
        _dress(axes, (title, titles[1], titles[2]))
    figure.suptitle(titles[0], color=INK, fontsize=12, x=0.02, ha="left")
    _legend(figure, every)
    return png_bytes(figure, DPI)


def curve_panels(panels: Mapping[str, Mapping[str, Curves]], share: bool = False) -> bytes:
    """Learning curves in panels next to each other, with their standard error; with `share` on one scale.

    A name has one look in all panels, also where one of them lacks a name.
    """
    return png_bytes(_curve_panels(panels, share), DPI)


def image_rows(images: Tensor, titles: list[str], values: Tensor, meaning: str) -> bytes:
    """A row for each state (S) and a column for each image (B) of `images` (S, B, channels, H, W), values beneath.

    `meaning` is what the values are.
    """
    if images.ndim != 5 or images.shape[2] not in (1, 3):
        raise ArgumentError(f"images are (states, images, 1 or 3, height, width), found shape {tuple(images.shape)}.")
    states, count = images.shape[:2]
    figure = new_figure(1.1 * count + 1.0, 1.25 * states, layout="constrained")
    for state in range(states):
        for column in range(count):
            axes = figure.add_subplot(states, count, state * count + column + 1)
            axes.imshow(images[state, column].movedim(0, -1).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_xlabel(f"{float(values[state, column]):.2f}", fontsize=8)
            if column == 0:
                axes.set_ylabel(titles[state], fontsize=8)
    figure.supxlabel(f"under each image: {meaning}", fontsize=9)
    return png_bytes(figure, 130, palette=images.shape[2] == 1)


def _bars(titles: Titles, groups: Sequence[str], by_name: Mapping[str, Sequence[float]], log: bool) -> Any:
    figure, (axes,) = _figure(1)
    width = 0.8 / max(1, len(by_name))
    for place, (name, values) in enumerate(by_name.items()):
        at = [group + (place - (len(by_name) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(at, values, 0.92 * width, label=name, color=COLOURS[place % len(COLOURS)])
    if log:
        axes.set_yscale("log")
    width = (figure.get_figwidth() - 1.2) / max(1, len(groups))
    axes.set_xticks(range(len(groups)), [wrap_text(name, width, 10) for name in groups])
    _dress(axes, titles)
    _legend(figure, [axes])
    return figure


def _curve_panels(panels: Mapping[str, Mapping[str, Curves]], share: bool) -> Any:
    figure, every = _figure(len(panels))
    look = line_styles(dict.fromkeys(name for by_name in panels.values() for name in by_name))
    seeds = {title: seeds_text(list(by_name.values())) for title, by_name in panels.items()}
    for axes, (title, by_name) in zip(every, panels.items()):
        for name, runs in by_name.items():
            line = band(runs, SPREAD)
            shade, width = look[name]["color"], 2.2 if is_reference(name) else 1.6
            axes.fill_between(line.labels_T, line.low_T, line.high_T, color=shade, alpha=0.13, linewidth=0)
            axes.plot(line.labels_T, line.mean_T, label=name, linewidth=width, markersize=4.5, **look[name])
        metric = next(iter(by_name.values())).metric
        if metric.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        panel_title = title if len(set(seeds.values())) == 1 else f"{title}, {seeds[title]}"
        _dress(axes, (panel_title, "labels", metric.title + ("" if metric.higher else " (lower is better)")))
        if share:
            axes.sharey(every[0])
    every_run = [runs for by_name in panels.values() for runs in by_name.values()]
    _legend(figure, every, caption(every_run, SPREAD))
    return figure


def _figure(panels: int, rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure with this number of panels in each row."""
    figure = new_figure(7.2 if panels == 1 else 4.6 * panels, 4.1 * rows, layout="constrained")
    return figure, [figure.add_subplot(rows, panels, place + 1) for place in range(panels * rows)]


def _legend(figure: Any, every: Sequence[Any], text_below: str = "") -> None:
    """Draw one legend for all panels under them, and a caption under the legend.

    There are as few rows as hold every name whole: the width of a name is measured, not guessed from its letters.
    """
    handles: dict[str, Any] = {}
    for axes in every:
        for line, name in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(name, line)
    for rows in range(1, len(handles) + 1):
        legend = figure.legend(
            handles.values(),
            handles,
            loc="lower center",
            ncols=math.ceil(len(handles) / rows),
            frameon=False,
            borderaxespad=0,
            handlelength=3,  # long enough to distinguish strokes
        )
        legend.set_in_layout(False)
        if legend.get_window_extent().width < 0.98 * figure.bbox.width or rows == len(handles):
            break
        legend.remove()
    _under(figure, legend, text_below)


def _under(figure: Any, legend: Any, text_below: str) -> None:
    """Make the figure higher by legend and caption, so that the panels keep their size."""
    text = wrap_text(text_below, figure.get_figwidth() - 0.3, SMALL)
    below = (text.count("\n") + 1) * 1.35 * SMALL / 72 + 0.06 if text else 0.0  # inches
    names = legend.get_window_extent().height / figure.dpi
    height = figure.get_figheight() + below + names
    figure.set_figheight(height)
    figure.get_layout_engine().set(rect=(0, (below + names) / height, 1, 1 - (below + names) / height))
    legend.set_bbox_to_anchor((0, below / height, 1, 1), transform=figure.transFigure)
    figure.text(0.5, 0.06 / height, text, color=MUTED, fontsize=SMALL, ha="center", in_layout=False)


def _logarithmic(axes: Any, places: Sequence[float]) -> None:
    """Logarithmic scales with plain numbers: at most five of the `places` of x."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown: list[float] = []
    for x in places:  # at equal distances, about
        if not shown or math.log(x / shown[-1]) >= 0.9 * math.log(places[-1] / places[0]) / 5:
            shown.append(x)
    axes.set_xticks(shown, [f"{x:.3g}" for x in shown])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _dress(axes: Any, titles: Titles) -> None:
    axes.set_title(titles[0], loc="left", color=INK, fontsize=11)
    axes.set_xlabel(titles[1], color=INK)
    axes.set_ylabel(titles[2], color=INK)
    axes.grid(axis="y", color=RULE, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
