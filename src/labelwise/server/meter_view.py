"""Readout: the meter as the page shows it, a few large numbers with their intervals and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.project.meter.reading import Meter, Span


@dataclass(frozen=True)
class Line:
    """One number of the meter: what it is, the number, and how sure it is."""

    name: str
    value: str
    detail: str


def readout(meter: Meter | None) -> list[Line]:
    """The numbers that are there to be shown; none before the first model."""
    if meter is None or meter.score is None:
        return []
    name = "Accuracy" if meter.metric == "accuracy" else "Typical error (RMSE)"
    lines = [Line(name, _amount(meter, meter.score), f"{_between(meter, meter.score)}, {meter.test} test rows")]
    if meter.control is not None:
        where = ", estimated" if meter.beyond else ""
        told = f"{_between(meter, meter.control)}{where}"
        lines.append(Line(f"With {meter.labels} random labels", _amount(meter, meter.control), told))
    if meter.saved is not None and not meter.early:
        lines.append(Line("Labels saved", f"{meter.saved.value:.0f}", _range(meter.saved, 0, "")))
        if meter.hours is not None:
            lines.append(Line("Hours saved", f"{meter.hours.value:.1f}", _range(meter.hours, 1, "")))
    if meter.gain is not None:
        points = meter.metric == "accuracy"
        value = f"{100 * meter.gain.value:+.2f} points" if points else f"{meter.gain.value:.3g} less"
        lines.append(Line(f"Next {meter.batch} labels bring", value, "expected"))
    return lines


def headline(meter: Meter | None, labels: int) -> str:
    """The result in one line, and no more than is known."""
    if meter is None or meter.score is None or meter.early:
        return f"{labels} {'label' if labels == 1 else 'labels'} so far; too early to tell what was saved"
    reached = (
        f"{100 * meter.score.value:.0f} % right" if meter.metric == "accuracy" else f"error {meter.score.value:.3g}"
    )
    if meter.saved is not None and meter.saved.low > 0:
        return f"{reached} with {meter.labels} labels: about {meter.saved.value:.0f} labels saved"
    return f"{reached} with {meter.labels} labels; no measurable saving over random labels yet"


def _amount(meter: Meter, span: Span) -> str:
    return f"{100 * span.value:.1f} %" if meter.metric == "accuracy" else f"{span.value:.3g}"


def _between(meter: Meter, span: Span) -> str:
    if meter.metric == "accuracy":
        return f"{100 * span.low:.0f} to {100 * (1.0 if span.high is None else span.high):.0f} %"
    return f"{span.low:.3g} to {'more' if span.high is None else f'{span.high:.3g}'}"


def _range(span: Span, digits: int, unit: str) -> str:
    high = "more" if span.high is None else f"{span.high:.{digits}f}"
    return f"{span.low:.{digits}f} to {high}{unit}"
