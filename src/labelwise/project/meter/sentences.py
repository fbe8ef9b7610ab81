"""The meter in words: a headline, a few large numbers, and sentences for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.project.meter.meter import Meter, Span


@dataclass(frozen=True)
class Figure:
    """One number of the meter: its name, the value, and its interval."""

    name: str
    value: str
    detail: str


def headline(meter: Meter | None, labels: int) -> str:
    """The result in one line, with no more than is known."""
    if meter is None or meter.score is None or meter.early:
        return f"{labels} {'label' if labels == 1 else 'labels'} so far; too early to tell how many were saved"
    accuracy = meter.metric == "accuracy"
    reached = f"{100 * meter.score.value:.0f} % accuracy" if accuracy else f"RMSE {meter.score.value:.3g}"
    if meter.saved is not None and meter.saved.low > 0:
        about = "at least" if meter.saved.high is None else "about"
        saved = meter.saved.low if meter.saved.high is None else meter.saved.value
        return f"{reached} with {meter.labels} labels: {about} {saved:.0f} labels saved"
    return f"{reached} with {meter.labels} labels; no measurable saving over random labels yet"


def figures(meter: Meter | None) -> list[Figure]:
    """The numbers that can be shown; empty before the first model is measured."""
    if meter is None or meter.score is None:
        return []
    detail = f"95 % interval {_interval(meter, meter.score)}, {meter.test} test items"
    found = [Figure(_metric_name(meter), _value(meter, meter.score), detail)]
    if meter.control is not None:
        detail = _interval(meter, meter.control) + (", extrapolated" if meter.beyond else "")
        found.append(Figure(f"With {meter.labels} random labels", _value(meter, meter.control), detail))
    if meter.saved is not None and not meter.early:
        found.append(_saved_figure("Labels saved", meter.saved, ".0f"))
        if meter.hours is not None:
            found.append(_saved_figure("Hours saved", meter.hours, ".1f"))
    if meter.gain is not None:
        points = f"{100 * meter.gain.value:+.2f} points"
        value = points if meter.metric == "accuracy" else f"{-meter.gain.value:+.3g} RMSE"
        found.append(Figure(f"Expected from the next {meter.batch} labels", value, ""))
    return found


def _saved_figure(name: str, saved: Span, form: str) -> Figure:
    # Without an upper end the value is only a limit of the pool; the lower end is what is known.
    if saved.high is None:
        return Figure(name, f"≥ {saved.low:{form}}", "at least; no upper limit yet")
    return Figure(name, f"{saved.value:{form}}", _range(saved, form))


def sentences(meter: Meter) -> list[str]:
    """Everything the meter knows, one sentence each."""
    score = "not known yet, because no test item has a label."
    if meter.score is not None:
        score = f"{_with_interval(meter, meter.score)} on {meter.test} test items, after {meter.labels} labels."
    lines = [f"{_metric_name(meter)}: {score}"]
    if saving(meter):
        lines.append(saving(meter))
    if meter.control is not None:
        how = " (extrapolated)" if meter.beyond else ""
        lines.append(f"{meter.labels} random labels would have given {_with_interval(meter, meter.control)}{how}.")
    if meter.gain is not None:
        lines.append(f"The next {meter.batch} labels are expected to bring {_gain(meter, meter.gain)}.")
    return [*lines, advice(meter)]


def advice(meter: Meter) -> str:
    """Whether to stop, and why."""
    return f"You can stop: {meter.stop_reason}" if meter.stop else _capital(meter.stop_reason)


def saving(meter: Meter) -> str:
    """How many labels were saved, or why it is too early to tell; "" before anything is known."""
    if meter.early:
        return f"Too early to tell how many labels were saved. {_capital(meter.early)}."
    if meter.saved is None or meter.needed is None:
        return ""
    saved, how = meter.saved, " (extrapolated from the measured curve)" if meter.beyond else ""
    score = "accuracy" if meter.metric == "accuracy" else "error"
    needed = f"{_count(meter.needed)} labels for this {score}{how}"
    start = f"Random labelling would have needed {needed}; {meter.labels} were used"
    if saved.low > 0:
        hours = f", or {_count(meter.hours, '.1f')} hours" if meter.hours is not None else ""
        return f"{start}. Saved: {_count(saved)} labels{hours}."
    if saved.high is not None and saved.high < 0:
        lost = type(saved)(-saved.value, -saved.high, -saved.low)
        return f"{start}. Choosing has cost labels here: {_count(lost)}."
    return f"{start}. No measurable difference yet: {_range(saved, '.0f')} labels saved."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _gain(meter: Meter, gain: Span) -> str:
    high = gain.value if gain.high is None else gain.high
    if meter.metric == "accuracy":
        return f"{100 * gain.value:.2f} points of accuracy ({100 * gain.low:.2f} to {100 * high:.2f})"
    return f"{gain.value:.3g} less RMSE ({gain.low:.3g} to {high:.3g})"


def _metric_name(meter: Meter) -> str:
    return "Accuracy" if meter.metric == "accuracy" else "Typical error (RMSE)"


def _value(meter: Meter, span: Span) -> str:
    return f"{100 * span.value:.1f} %" if meter.metric == "accuracy" else f"{span.value:.3g}"


def _interval(meter: Meter, span: Span) -> str:
    if meter.metric == "accuracy":
        return f"{100 * span.low:.1f} to {100 * (1.0 if span.high is None else span.high):.1f} %"
    return _range(span, ".3g")


def _with_interval(meter: Meter, span: Span) -> str:
    return f"{_value(meter, span)} ({_interval(meter, span)})"


def _range(span: Span, form: str) -> str:
    return f"at least {span.low:{form}}" if span.high is None else f"{span.low:{form}} to {span.high:{form}}"


def _count(span: Span, form: str = ".0f") -> str:
    return _range(span, form) if span.high is None else f"about {span.value:{form}} ({_range(span, form)})"
