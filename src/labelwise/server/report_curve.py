"""The curve of a report: how good the model of each round is on the test rows there are now, drawn by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import numpy as np

from labelwise.project.loop.rounds import place, read_model
from labelwise.project.loop.snapshot import last_seq, standing
from labelwise.project.meter.rows import losses_of
from labelwise.project.project import Project
from labelwise.stats.estimate import pool_mean

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720.0, 320.0, 64.0, 44.0, 20.0, 20.0


@dataclass(frozen=True)
class Point:
    """A model: labels it was trained on, and what it reaches, with a 95 % interval; `high` may be infinite."""

    labels: int
    value: float
    low: float
    high: float


def points(project: Project) -> tuple[list[Point], int]:
    """A point for each round that had a model, and the number of test rows they are measured on."""
    known = standing(project.store, project.settings, project.reserve, last_seq(project.store))
    rows = list(known.test)
    if not rows:
        return [], 0
    x_MD = project.pool.inputs(rows).numpy()
    label_M = np.array([known.test[row] for row in rows])
    found: dict[int, Point] = {}
    for one in project.store.rounds():
        model = read_model(place(project.folder, one.number))
        if model is not None:
            loss_M = losses_of(x_MD, label_M, known.classes, model.weight_CD, model.bias_C, model.classes)
            found[model.labels] = _point(model.labels, loss_M, bool(known.classes))
    return [found[labels] for labels in sorted(found)], len(rows)


def _point(labels: int, loss_M: np.ndarray, share: bool) -> Point:
    if share:
        right = pool_mean(1 - loss_M, np.ones(len(loss_M)), share=True)
        return Point(labels, right.value, right.low, right.high)
    error = pool_mean(loss_M, np.ones(len(loss_M)))
    low, high = (math.sqrt(max(end, 0.0)) if math.isfinite(end) else math.inf for end in (error.low, error.high))
    return Point(labels, math.sqrt(error.value), low if math.isfinite(low) else 0.0, high)


def svg(curve: list[Point], title: str, percent: bool) -> str:
    """The curve as an `<svg>` with its band of 95 % intervals; needs two points."""
    ends = [end for one in curve for end in (one.value, one.low, one.high) if math.isfinite(end)]
    low, high = min(ends), max(ends)
    pad = 0.05 * (high - low or abs(high) or 1.0)
    low, high = (max(0.0, low - pad), min(1.0, high + pad)) if percent else (max(0.0, low - pad), high + pad)
    first, last = curve[0].labels, curve[-1].labels

    def x(labels: float) -> float:
        return _LEFT + (labels - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        inside = min(max(value, low), high)
        return _TOP + (high - inside) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def at(one: Point, value: float) -> str:
        return f"{x(one.labels):.1f},{y(value):.1f}"

    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{escape(title)}" width="100%">',
        *(_line(y(value), _text(value, percent)) for value in _ticks(low, high)),
        *(_foot(x(labels), str(labels)) for labels in sorted({first, (curve[len(curve) // 2]).labels, last})),
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6:.0f}" text-anchor="middle" fill="var(--muted)">labels</text>',
    ]
    band = [at(one, one.high) for one in curve] + [at(one, one.low) for one in reversed(curve)]
    parts.append(f'<polygon points="{" ".join(band)}" fill="var(--line-0)" fill-opacity=".13"/>')
    line = " ".join(at(one, one.value) for one in curve)
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--line-0)" stroke-width="2"/>')
    for one in curve:
        parts.append(f'<circle cx="{x(one.labels):.1f}" cy="{y(one.value):.1f}" r="3" fill="var(--line-0)"/>')
    return "".join([*parts, "</svg>"])


def _line(y: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT:.0f}" x2="{_WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--rule)"/>'
        f'<text x="{_LEFT - 8:.0f}" y="{y + 5:.1f}" text-anchor="end" fill="var(--muted)">{text}</text>'
    )


def _foot(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 24:.0f}" text-anchor="middle" fill="var(--muted)">{text}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """About four round values between the two."""
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step *= next(by for by in (1, 2, 5, 10) if (high - low) / (by * step) <= 5)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(value: float, percent: bool) -> str:
    return f"{100 * value:.4g}&#160;%" if percent else f"{value:.4g}"
