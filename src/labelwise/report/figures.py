"""Learning curves as figures: all lines in one picture (PNG, SVG), or a panel for each strategy. Needs matplotlib."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError
from labelwise.report.style import (
    AGAINST,
    COLOURS,
    INK,
    MUTED,
    RULE,
    caption,
    is_reference,
    line_styles,
    new_figure,
    png_bytes,
    shorten,
    text_style,
    text_width,
    wrap_text,
)
from labelwise.stats.curves import Band, Curves, Spread, area, band
from labelwise.stats.metric import Metric

CROWDED = 8  # with more lines than these, bands are drawn of the best and of the one compared with
BANDS = 3  # shown for this many of the best, then
PANELS_ACROSS = 5
PANEL_WIDTH, PANEL_HEIGHT = 2.0, 1.6  # inches of a panel
PANEL_NAME = 24  # the longest name written in full
SMALLEST = 8.0  # points of the names: a figure of more lines grows instead


@dataclass(frozen=True)
class Size:
    """The size of a figure in inches, its text in points, and the length to which names are cut."""

    width: float
    height: float
    text: float
    name: int


WIDE = Size(8.6, 4.9, 11.0, 28)


def png(by_strategy: Mapping[str, Curves], *, spread: Spread = "t95", against: str = "random") -> bytes:
    """The figure as PNG on white, with a caption.

    Args:
        by_strategy: the learning curves by strategy.
        spread: what the bands show.
        against: the strategy that is compared with.

    Returns:
        The content of a PNG file.

    Raises:
        ExtraError: matplotlib is not installed.
        ArgumentError: there are no curves, or `spread` is unknown.
    """
    return png_bytes(_draw(by_strategy, WIDE, spread, against, written=True), 140)


def svg(
    by_strategy: Mapping[str, Curves],
    *,
    spread: Spread = "t95",
    against: str = "random",
    size: Size = WIDE,
    prefix: str = "curve",
) -> str:
    """The figure as one `<svg>` element, for a page or a file.

    Text stays text, the background is transparent and the width is that of the surrounding box. Colours are custom
    properties with a default (`var(--ink, #1d2126)`), so that a page can change them for a dark scheme. `prefix` makes
    the ids of two figures on one page different. The label describes the bands, like `caption_of`.

    Args:
        by_strategy: the learning curves by strategy.
        spread: what the bands show.
        against: the strategy that is compared with.
        size: width and height in inches.
        prefix: of the ids in the figure.

    Raises:
        ExtraError: matplotlib is not installed.
        ArgumentError: there are no curves, or `spread` is unknown.
    """
    figure = _draw(by_strategy, size, spread, against)
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    metric = next(iter(by_strategy.values())).metric
    label = f"Learning curves: {metric.title} against labels for {', '.join(by_strategy)}. "
    label += caption_of(by_strategy, spread, against)
    return _for_a_page(out.getvalue().decode("utf-8"), prefix, label)


def caption_of(by_strategy: Mapping[str, Curves], spread: Spread = "t95", against: str = "random") -> str:
    """The caption: what lines and bands are, over how many seeds."""
    shaded = banded_strategies(by_strategy, against)
    return caption(list(by_strategy.values()), spread, shaded if len(shaded) < len(by_strategy) else ())


def _draw(by_strategy: Mapping[str, Curves], size: Size, spread: Spread, against: str, written: bool = False) -> Any:
    if not by_strategy:
        raise ArgumentError("A figure needs the curves of one strategy or more; found none.")
    metric = next(iter(by_strategy.values())).metric
    size = replace(size, height=max(size.height, len(by_strategy) * 1.25 * SMALLEST / (0.68 * 72)))
    caption = wrap_text(caption_of(by_strategy, spread, against), size.width - 0.3, size.text - 2) if written else ""
    below = (caption.count("\n") + 1) * 1.35 * (size.text - 2) / 72 if caption else 0.0  # inches
    with text_style(size.text):
        figure = new_figure(size.width, size.height + below)
        axes = figure.add_subplot()
        bands = {name: band(lines, spread) for name, lines in by_strategy.items()}
        _lines(axes, bands, banded_strategies(by_strategy, against), against)
        _axes(axes, metric, size)
        _place(figure, axes, bands, size, against)
        # The caption makes the figure higher and leaves the axes their size.
        whole = size.height + below
        figure.subplots_adjust(bottom=(0.125 * size.height + below) / whole, top=1 - 0.1 * size.height / whole)
        figure.text(0.15 / size.width, 0.09 / whole, caption, color=MUTED, fontsize=size.text - 2, va="bottom")
    return figure


def banded_strategies(by_strategy: Mapping[str, Curves], against: str) -> list[str]:
    """The strategies whose bands are drawn: all, or with many lines the best few and the baseline."""
    names = list(by_strategy)
    if len(names) <= CROWDED:
        return names
    sign = 1.0 if by_strategy[names[0]].metric.higher else -1.0
    best = sorted(names, key=lambda name: -sign * float(area(by_strategy[name]).mean()))
    return [name for name in names if name == against or name in [n for n in best if n != against][:BANDS]]


def _lines(axes: Any, bands: Mapping[str, Band], shaded: list[str], against: str) -> None:
    crowded = len(bands) > CROWDED
    for name, look in line_styles(bands, against).items():
        line, measure = bands[name], is_reference(name, against)
        if np.isfinite(line.low_T).all() and name in shaded:
            axes.fill_between(line.labels_T, line.low_T, line.high_T, color=look["color"], alpha=0.13, linewidth=0)
        axes.plot(
            line.labels_T,
            line.mean_T,
            linewidth=(2.6 if measure else 1.3) if crowded else (2.3 if measure else 2.0),
            markersize=3.2 if crowded else 4.5,
            zorder=4 if measure else 3,
            **look,
        )


def _axes(axes: Any, metric: Metric, size: Size) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    narrow = size.width < WIDE.width
    axes.grid(axis="y", color=RULE, linewidth=1)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=MUTED, length=0, pad=6, labelsize=size.text - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if metric.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    axes.set_xlabel("labels", color=INK, labelpad=6)
    # A horizontal title above the axis is read without turning a phone.
    title = metric.title + ("" if metric.higher else " (lower is better)")
    axes.set_title(title, color=INK, loc="left", fontsize=size.text, pad=12)
    axes.margins(x=0.02, y=0.05)


def _place(figure: Any, axes: Any, bands: Mapping[str, Band], size: Size, against: str) -> None:
    """Write the names at the ends of the lines, spread out, in a margin as wide as the longest."""
    names = [shorten(name, size.name) for name in bands]
    text = min(size.text, 0.72 * 72 * size.height * 0.95 / (1.25 * len(names)))
    right = (max(text_width(name, text) for name in names) + 44 / 72) / size.width
    left = (5.2 * size.text * 0.62 + 14) / 72 / size.width
    figure.subplots_adjust(left=left, right=1 - right)
    low, high = axes.get_ylim()
    first, last = axes.get_xlim()
    height = 72 * size.height * 0.775
    wanted = [(float(line.mean_T[-1]) - low) / (high - low) * height for line in bands.values()]
    placed = space_out(wanted, 1.25 * text, height)
    width = 72 * size.width * (1 - left - right)
    for (name, look), short, y in zip(line_styles(bands, against).items(), names, placed):
        line = bands[name]
        x = (float(line.labels_T[-1]) - first) / (last - first)
        end = (float(line.mean_T[-1]) - low) / (high - low)
        # An elbow from the end of the line to its name, in the same stroke, with the marker before the name.
        turn, stop = 1 + 12 / width, 1 + 30 / width
        stroke = {"transform": axes.transAxes, "clip_on": False, "solid_capstyle": "butt"}
        stroke["linewidth"] = 2.2 if is_reference(name, against) else 1.3
        axes.plot((x, turn, stop), (end, y / height, y / height), **stroke, **{**look, "marker": ""})
        axes.plot(((turn + stop) / 2,), (y / height,), **{**stroke, **look, "linestyle": ""}, markersize=4)
        axes.text(stop + 4 / width, y / height, short, transform=axes.transAxes, color=INK, fontsize=text, va="center")
    axes.set_xlim(first, last)
    axes.set_ylim(low, high)


def space_out(wanted: list[float], gap: float, height: float) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart, in the same order, from 0 to `height`.

    Neighbours that are too close form a block, centred on the mean of their wanted positions.

    >>> space_out([50.0, 50.0, 10.0], 10.0, 100.0)
    [45.0, 55.0, 10.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, height / max(1, len(wanted) - 1))
    blocks: list[tuple[float, int]] = []  # middle, members
    for i in order:
        middle, members = _inside(wanted[i], 1, gap, height), 1
        while blocks and middle - (members - 1) * gap / 2 < blocks[-1][0] + (blocks[-1][1] + 1) * gap / 2:
            other, count = blocks.pop()
            middle = _inside((middle * members + other * count) / (members + count), members + count, gap, height)
            members += count
        blocks.append((middle, members))
    places = [middle + (k - (members - 1) / 2) * gap for middle, members in blocks for k in range(members)]
    placed = dict(zip(order, places))
    return [placed[i] for i in range(len(wanted))]


def _inside(middle: float, members: int, gap: float, height: float) -> float:
    half = (members - 1) * gap / 2
    return min(max(middle, half), height - half)


def _for_a_page(text: str, prefix: str, label: str) -> str:
    """The `<svg>` element alone, with prefixed ids and colours as custom properties."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)  # it would reach the whole page
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    assert box is not None, "matplotlib writes a viewBox"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box.group()} '
        f'width="100%" stroke-linejoin="round" role="img" aria-label="{html.escape(label)}"'
    )
    names = {INK: "ink", MUTED: "muted", RULE: "rule"}
    names |= {shade: f"line-{i}" for i, shade in enumerate(COLOURS)}
    # Inside style attributes alone: a name that looks like a colour stays a name.
    return head + ">" + re.sub(r'style="[^"]*"', lambda m: _custom(m.group(), names), body)


def _custom(style: str, names: Mapping[str, str]) -> str:
    for shade, name in names.items():
        style = re.sub(rf"(?<=: ){shade}\b", f"var(--{name}, {shade})", style)
    return style


def panels_png(by_strategy: Mapping[str, Curves], spread: Spread = "t95", against: str = "random") -> bytes:
    """A panel for each strategy with its band and the baseline, on one scale."""
    return png_bytes(_draw_panels(by_strategy, spread, against), 130)


def _draw_panels(by_strategy: Mapping[str, Curves], spread: Spread, against: str) -> Any:
    names = [name for name in by_strategy if name != against]
    across, down = min(PANELS_ACROSS, len(names)), math.ceil(len(names) / PANELS_ACROSS)
    metric = by_strategy[names[0]].metric
    way = "" if metric.higher else " (lower is better)"
    title = f"{metric.title}{way} by labels; {against} is the dashed line"
    width = max(PANEL_WIDTH * across, 2 * PANEL_WIDTH)
    head, foot = (
        wrap_text(text, width - 0.2, points)
        for text, points in ((title, 9.5), (caption(list(by_strategy.values()), spread), 8.5))
    )
    height = PANEL_HEIGHT * down + 0.17 * (head.count("\n") + foot.count("\n")) + 0.6
    with text_style(8):
        figure = new_figure(width, height, layout="constrained")
        every = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for place, (axes, name) in enumerate(zip(every, names)):
            if against in by_strategy:
                _curve(axes, by_strategy[against], spread, INK, AGAINST)
            _curve(axes, by_strategy[name], spread, COLOURS[0], "-")
            axes.set_title(shorten(name, PANEL_NAME), loc="left", color=INK, fontsize=8.5)
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
