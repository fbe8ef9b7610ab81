"""Charts of a page: inline SVG that tells its numbers on hover (`data-tip`, shown by static/report.js).

No chart has a style of its own: colours are the custom properties of the page, so that it is right in light and dark,
and under a content security policy without inline styles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from labelwise.report.figures import space_out
from labelwise.report.html import text
from labelwise.report.style import COLOURS, STROKES, is_reference, shorten

LETTER = 0.56  # width of a letter as a share of its height, for names next to lines
NAMES = 24  # letters of a name that are written out


@dataclass(frozen=True)
class Point:
    """A value at a number of labels, and its interval, whose ends may be infinite or not numbers (no interval)."""

    labels: float
    value: float
    low: float
    high: float
    note: str = ""  # follows the value on hover

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Line:
    """A curve with its look. `shaded`: whether its intervals are drawn."""

    name: str
    points: Sequence[Point]
    colour: str
    dash: str = ""
    shaded: bool = True


@dataclass(frozen=True)
class Frame:
    """The size of a chart and of its letters."""

    width: float
    height: float
    letters: float


WIDE, NARROW = Frame(960, 420, 14), Frame(440, 380, 14)


def looks(names: Sequence[str], against: str) -> dict[str, tuple[str, str]]:
    """Colour and dashes of each name: the baseline and the oracle in the colour of the text, the baseline dashed."""
    found, place = {}, 0
    for name in names:
        if is_reference(name, against):
            found[name] = ("var(--ink)", "7 4" if name == against else "")
            continue
        stroke = STROKES[place // len(COLOURS) % len(STROKES)]
        dash = "" if stroke == "-" else " ".join(f"{2 * part:g}" for part in stroke[1])
        found[name] = (f"var(--line-{place % len(COLOURS)})", dash)
        place += 1
    return found


def line_chart(lines: Sequence[Line], title: str, show: Callable[[float], str], share: bool = False) -> str:
    """Curves by number of labels, in a wide and a narrow form, of which the style sheet shows one.

    Args:
        lines: the curves, with at least one point each.
        title: names the chart for screen readers.
        show: a value as text, with its unit.
        share: whether values are shares, which end at 0 and 1.
    """
    return "".join(
        f'<div class="{name}">{_picture(lines, title, show, share, frame)}</div>'
        for name, frame in (("wide", WIDE), ("narrow", NARROW))
    )


def _picture(lines: Sequence[Line], title: str, show: Callable[[float], str], share: bool, frame: Frame) -> str:
    size = frame.letters
    labels = sorted({point.labels for line in lines for point in line.points})
    first, last = labels[0], labels[-1]
    low, high = _range(lines, share)
    ticks = round_values(low, high, 5)
    names = [shorten(line.name, NAMES if frame is WIDE else NAMES * 2 // 3) for line in lines]
    left = max(len(show(tick)) for tick in ticks) * LETTER * size + 14
    right = max(map(len, names)) * LETTER * size + 40
    top, bottom = 12.0, 3.4 * size
    height = max(frame.height, 1.2 * size * len(lines) + top + bottom)
    inner = height - top - bottom

    def x(at: float) -> float:
        share_of = (at - first) / (last - first) if last > first else 0.5
        return left + share_of * (frame.width - left - right)

    def y(value: float) -> float:
        return top + (high - min(max(value, low), high)) / (high - low) * inner

    parts = [
        f'<svg viewBox="0 0 {frame.width:.0f} {height:.0f}" width="100%" role="img" aria-label="{escape(title)}" '
        f'font-size="{size:g}">'
    ]
    for tick in ticks:
        parts.append(
            f'<line x1="{left:.1f}" x2="{frame.width - right:.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="var(--rule)"/>{_words(left - 8, y(tick) + 0.35 * size, show(tick), "end")}'
        )
    for mark in round_values(first, last, 8 if frame is WIDE else 5) if last > first else [first]:
        parts.append(_words(x(mark), height - 1.9 * size, f"{mark:g}", "middle"))
    parts.append(_words((left + frame.width - right) / 2, height - 0.4 * size, "labels", "middle"))
    parts += [_band(line, x, y) for line in lines if line.shaded]
    for line in lines:
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        path = " ".join(f"{x(point.labels):.1f},{y(point.value):.1f}" for point in line.points)
        if len(line.points) > 1:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2.2"{dash}/>')
        if not line.dash:
            parts += [
                f'<circle cx="{x(point.labels):.1f}" cy="{y(point.value):.1f}" r="3" fill="{line.colour}"/>'
                for point in line.points
            ]
    placed = space_out([inner - (y(line.points[-1].value) - top) for line in lines], 1.2 * size, inner)
    for line, name, place in zip(lines, names, placed):
        end, at = line.points[-1], top + inner - place
        turn = x(end.labels)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        parts.append(
            f'<polyline points="{turn:.1f},{y(end.value):.1f} {frame.width - right + 12:.1f},{at:.1f} '
            f'{frame.width - right + 28:.1f},{at:.1f}" fill="none" stroke="{line.colour}" stroke-width="1.2"{dash}/>'
            f'<text x="{frame.width - right + 33:.1f}" y="{at + 0.35 * size:.1f}" fill="var(--ink)">'
            f"{escape(name)}</text>"
        )
    edges = [first, *((one + other) / 2 for one, other in pairwise(labels)), last]
    for place, at in enumerate(labels):
        start, stop = max(x(edges[place]) - 4, 0), x(edges[place + 1]) + 4
        parts.append(
            f'<g class="hit" data-tip="{_attribute(_tip(lines, at, show))}"><rect x="{start:.1f}" y="{top:.1f}" '
            f'width="{stop - start:.1f}" height="{inner:.1f}" fill="transparent"/>'
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top:.1f}" y2="{top + inner:.1f}" stroke="var(--muted)"/></g>'
        )
    return "".join([*parts, "</svg>"])


def _range(lines: Sequence[Line], share: bool) -> tuple[float, float]:
    """The values that the chart covers. An interval without an upper end, or a wild one, does not stretch it."""
    values = [point.value for line in lines for point in line.points]
    spread = max(values) - min(values) or 0.2 * abs(max(values)) or 1.0
    ends = [end for line in lines if line.shaded for p in line.points if p.bounded for end in (p.low, p.high)]
    low = max(min([*values, *ends]), min(values) - 2 * spread)
    high = min(max([*values, *ends]), max(values) + 2 * spread)
    pad = 0.06 * (high - low or abs(high) or 1.0)
    return (max(0.0, low - pad) if low >= 0 else low - pad), (min(1.0, high + pad) if share else high + pad)


def _band(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    inside = [point for point in line.points if math.isfinite(point.low) and not math.isnan(point.high)]
    if len(inside) < 2:
        return ""
    ends = [(p.labels, p.high) for p in inside] + [(p.labels, p.low) for p in reversed(inside)]
    path = " ".join(f"{x(at):.1f},{y(end):.1f}" for at, end in ends)
    return f'<polygon points="{path}" fill="{line.colour}" fill-opacity=".13"/>'


def _tip(lines: Sequence[Line], at: float, show: Callable[[float], str]) -> str:
    found = [f"{at:g} labels"]
    for line in lines:
        point = _at(line.points, at)
        if point is not None:
            span = f" ({show(point.low)} to {show(point.high)})" if point.bounded else ""
            found.append(f"{line.name}: {show(point.value)}{span}{point.note}")
    return "\n".join(found)


def _at(points: Sequence[Point], at: float) -> Point | None:
    """The point of a curve at a number of labels, on the straight line between two if need be; None outside of it."""
    after = next((place for place, point in enumerate(points) if point.labels >= at), None)
    if after is None or points[after].labels == at:
        return None if after is None else points[after]
    if after == 0:
        return None
    one, other = points[after - 1], points[after]
    share = (at - one.labels) / (other.labels - one.labels)
    value, low, high = (
        a + share * (b - a) for a, b in ((one.value, other.value), (one.low, other.low), (one.high, other.high))
    )
    return Point(at, value, low, high, ", between two measured points" if not other.note else other.note)


def _words(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="var(--muted)">{text(words)}</text>'


def _attribute(words: str) -> str:
    return escape(words).replace("\n", "&#10;")


def round_values(low: float, high: float, most: int) -> list[float]:
    """At most `most` round values from low to high.

    >>> round_values(0.12, 0.93, 5)
    [0.2, 0.4, 0.6, 0.8]
    """
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(by for by in (1, 2, 5, 10, 20) if (high - low) / (by * step) <= most)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(step * number, digits) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def share_bar(share: float, low: float | None = None, high: float | None = None, tip: str = "") -> str:
    """A bar of a share from 0 to 1, with a line for its interval."""
    span = ""
    if low is not None and high is not None:
        ends = f'x1="{100 * low:.1f}%" x2="{100 * high:.1f}%" y1="50%" y2="50%"'
        span = f'<line {ends} stroke="var(--ink)" stroke-width="2"/>'
    return (
        f'<svg class="bar" width="100%" height="16" aria-hidden="true" data-tip="{_attribute(tip)}">'
        f'<rect width="100%" height="16" fill="var(--rule)"/>'
        f'<rect width="{100 * share:.1f}%" height="16" fill="var(--line-0)" fill-opacity=".6"/>{span}</svg>'
    )


def confusion_table(classes: Sequence[str], count_CC: Sequence[Sequence[int]]) -> str:
    """Counts by true class (rows) and predicted class (columns), shaded by their share of the row."""
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in classes)
    rows = []
    for true, (name, count_C) in enumerate(zip(classes, count_CC)):
        cells = []
        for other, (predicted, count) in enumerate(zip(classes, count_C)):
            heat = math.ceil(9 * count / max(sum(count_C), 1)) if count else 0
            kind = "right" if true == other else "wrong"
            tip = f"{count} of {sum(count_C)} test items of {name} are predicted {predicted}"
            cells.append(f'<td class="{kind} heat-{heat}" data-tip="{_attribute(tip)}">{count or ""}</td>')
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    return (
        '<div class="box confusion" role="region" tabindex="0" aria-label="Confusion matrix"><table>'
        f'<thead><tr><td><span class="small">true ↓<br>predicted →</span></td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def scatter(pairs: Sequence[tuple[float, float, str]], show: Callable[[float], str], title: str) -> str:
    """Predicted against true numbers, with the line on which they are equal; each pair with the name of its row."""
    size, left, edge = 14.0, 70.0, 460.0
    values = [value for one, other, _ in pairs for value in (one, other)]
    low, high = min(values), max(values)
    pad = 0.05 * (high - low or 1.0)
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (edge - left - 12)

    def y(value: float) -> float:
        return 12 + (high - value) / (high - low) * (edge - 12 - 3.4 * size)

    parts = [
        f'<svg viewBox="0 0 {edge:.0f} {edge:.0f}" width="100%" role="img" aria-label="{escape(title)}" font-size="14">'
    ]
    for tick in round_values(low, high, 5):
        parts.append(
            f'<line x1="{left}" x2="{edge - 12}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="var(--rule)"/>'
            + _words(left - 8, y(tick) + 5, f"{tick:g}", "end")
            + _words(x(tick), edge - 1.9 * size, f"{tick:g}", "middle")
        )
    parts.append(_words((left + edge) / 2, edge - 5, "true (upwards: predicted)", "middle"))
    parts.append(
        f'<line x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" y2="{y(high):.1f}" stroke="var(--muted)" '
        'stroke-dasharray="5 4"/>'
    )
    for true, predicted, name in pairs:
        tip = _attribute(f"{name}\ntrue {show(true)}, predicted {show(predicted)}")
        parts.append(
            f'<circle class="dot" cx="{x(true):.1f}" cy="{y(predicted):.1f}" r="5" fill="var(--line-0)" '
            f'data-tip="{tip}"/>'
        )
    return "".join([*parts, "</svg>"])
