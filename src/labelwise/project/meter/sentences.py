"""The meter in words: a headline, a few large numbers, and sentences for people."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.project.meter.meter import Meter, Span

_NAMES = {"accuracy": "Accuracy", "overlap": "Overlap of classes", "rmse": "Typical error (RMSE)"}
_NAMING = {
    "accuracy": "Naming the commonest class always",
    "overlap": "Naming the best set always",
    "rmse": "Naming the mean always",
}
_BASELINE = {"accuracy": "Always the commonest class", "overlap": "Always the best set", "rmse": "Always the mean"}
SHOWN = 20  # test rows from which on the score is a number and not a countdown


@dataclass(frozen=True)
class Figure:
    """One number of the meter: its name, the value, and its interval."""

    name: str
    value: str
    detail: str


def headline(meter: Meter | None, labels: int) -> str:
    """The result in one line, with no more than is known."""
    so_far = f"{labels} {'label' if labels == 1 else 'labels'} so far"
    if meter is None or meter.score is None:
        return f"{so_far}; nothing is measured yet"
    if meter.test < SHOWN and meter.running is None:
        return f"{so_far}; the {_score_word(meter)} is shown {_after(meter, SHOWN)}"
    told = meter.score if meter.test >= SHOWN or meter.running is None else meter.running
    reached = f"{100 * told.value:.0f} % {meter.metric}" if meter.metric != "rmse" else f"RMSE {told.value:.3g}"
    reached = f"{reached} with {meter.labels} labels"
    if meter.test < meter.least:
        return f"{reached}; what was saved can be estimated {_after(meter, meter.least)} at the earliest"
    if meter.early:
        return f"{reached}; what was saved is not clear yet"
    if meter.saved is not None and meter.saved.low > 0:
        about = "at least" if meter.saved.high is None else "about"
        saved = meter.saved.low if meter.saved.high is None else meter.saved.value
        return f"{reached}: {about} {saved:.0f} labels saved"
    return f"{reached}; no measurable saving over random labels yet"


def figures(meter: Meter | None) -> list[Figure]:
    """The numbers that can be shown; empty before the first model is measured."""
    if meter is None or meter.score is None:
        return []
    if meter.test < SHOWN:
        detail = f"{meter.test} of {SHOWN} random test items have a label; fewer would mislead"
        found = [Figure(_metric_name(meter), _after(meter, SHOWN), detail)]
    else:
        detail = f"95 % interval {_interval(meter, meter.score)}, {meter.test} test items"
        if meter.metric == "overlap":
            detail = f"of the classes that the model or people name, those that both do; {detail}"
        found = [Figure(_metric_name(meter), _value(meter, meter.score), detail)]
    if meter.test >= SHOWN:
        found += [Figure(name, f"{100 * share:.1f} %", "on the same test items") for name, share in meter.more]
    if meter.running is not None:
        detail = (
            f"95 % interval {_interval(meter, meter.running)}, by cross-validation, corrected for how items are drawn"
        )
        found.append(Figure("Estimate from all labels", _value(meter, meter.running), detail))
    elif meter.expected is not None:
        detail = "mean probability of the predictions for all items, calibrated by cross-validation; no interval"
        found.append(Figure("Estimate from all labels", f"{100 * meter.expected:.0f} %", detail))
    if meter.baseline is not None and meter.test >= SHOWN:
        name = _BASELINE[meter.metric]
        found.append(Figure(name, _number(meter, meter.baseline), "without a model, on the same test items"))
    if meter.control is not None:
        detail = _interval(meter, meter.control) + (", extrapolated" if meter.beyond else "")
        found.append(Figure(f"With {meter.labels} random labels", _value(meter, meter.control), detail))
    if meter.saved is not None and not meter.early:
        found.append(_saved_figure("Labels saved", meter.saved, ".0f"))
        if meter.hours is not None:
            found.append(_saved_figure("Hours saved", meter.hours, ".1f"))
    if meter.gain is not None:
        points = f"{100 * meter.gain.value:+.2f} points"
        value = points if meter.metric != "rmse" else f"{-meter.gain.value:+.3g} RMSE"
        found.append(Figure(f"Expected from the next {meter.batch} labels", value, ""))
    return found


def _after(meter: Meter, wanted: int) -> str:
    """How many answers it takes until `wanted` test rows have a label, at the rate so far.

    The rate is known to one test row more or less, so the number is rounded up to a ten.
    """
    answers = (wanted - meter.test) * (meter.labels + meter.test) / max(meter.test, 1)
    return f"after about {math.ceil(max(answers, 1) / 10) * 10} more answers"


def _score_word(meter: Meter) -> str:
    return meter.metric if meter.metric != "rmse" else "error"


def _saved_figure(name: str, saved: Span, form: str) -> Figure:
    # Without an upper end the value is only a limit of the pool; the lower end is what is known.
    if saved.high is None:
        return Figure(name, f"≥ {saved.low:{form}}", "at least; no upper limit yet")
    return Figure(name, f"{saved.value:{form}}", _range(saved, form))


def sentences(meter: Meter) -> list[str]:
    """Everything the meter knows, one sentence each."""
    score = "not known yet, because no test item has a label."
    if meter.score is not None and meter.test < SHOWN:
        score = f"shown {_after(meter, SHOWN)}; {meter.test} of {SHOWN} random test items have a label."
    elif meter.score is not None:
        score = f"{_with_interval(meter, meter.score)} on {meter.test} test items, after {meter.labels} labels."
    lines = [f"{_metric_name(meter)}: {score}"]
    if meter.running is not None:
        lines.append(f"By all labels: {_with_interval(meter, meter.running)}.")
    elif meter.expected is not None:
        lines.append(f"Accuracy estimated from all labels: about {100 * meter.expected:.0f} %, without an interval.")
    if meter.baseline is not None and meter.test >= SHOWN:
        name = _NAMING[meter.metric]
        lines.append(f"{name} would give {_number(meter, meter.baseline)}.")
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


@cache
def outlook() -> str:
    """After how many labels the meter showed a saving in simulated projects with classes (`benchmarks/saving.py`)."""
    found = json.loads(resources.files("labelwise.project.meter").joinpath("told.json").read_text(encoding="utf-8"))
    shares: dict[str, list[str]] = {}  # with the same answer
    for share, half in sorted(found["half"].items(), reverse=True):
        nine = found["nine"][share]
        when = (
            f"in half of them after {half:,} labels"
            if half
            else f"in fewer than half of them within {found['most']:,} labels"
        )
        when += f", in nine of ten after {nine:,}" if nine else ", in nine of ten later than that" if half else ""
        shares.setdefault(when, []).append(f"{100 * float(share):.0f} %")
    parts = "; ".join(f"of {' or '.join(some)} {when}" for when, some in shares.items())
    told = f"In {found['projects']} simulated projects, the meter showed a true saving over random labels {parts}."
    items = [
        f"about {count:,} for one of {100 * float(share):.0f} %" for share, count in sorted(found["items"].items())
    ]
    if not items:
        return told
    needed = f"Even a comparison with real random labels would take many test items: {', '.join(reversed(items))}"
    return f"{told} {needed} (at {found['labels']} labels)."


def saving(meter: Meter) -> str:
    """How many labels were saved, or why it is too early to tell; "" before anything is known."""
    text = _estimated_saving(meter)
    unclear = meter.test < meter.least or meter.early
    return f"{text} {outlook()}" if unclear and meter.metric == "accuracy" else text


def _estimated_saving(meter: Meter) -> str:
    if meter.test < meter.least:
        return f"What was saved can be estimated {_after(meter, meter.least)} at the earliest: {meter.early}."
    if meter.early:
        return f"What was saved is not clear yet. {_capital(meter.early)}."
    if meter.saved is None or meter.needed is None:
        return ""
    saved, how = meter.saved, " (extrapolated from the measured curve)" if meter.beyond else ""
    score = _score_word(meter)
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
    if meter.metric != "rmse":
        return f"{100 * gain.value:.2f} points of {meter.metric} ({100 * gain.low:.2f} to {100 * high:.2f})"
    return f"{gain.value:.3g} less RMSE ({gain.low:.3g} to {high:.3g})"


def _metric_name(meter: Meter) -> str:
    return _NAMES[meter.metric]


def _value(meter: Meter, span: Span) -> str:
    return _number(meter, span.value)


def _number(meter: Meter, value: float) -> str:
    return f"{100 * value:.1f} %" if meter.metric != "rmse" else f"{value:.3g}"


def _interval(meter: Meter, span: Span) -> str:
    if meter.metric != "rmse":
        return f"{100 * span.low:.1f} to {100 * (1.0 if span.high is None else span.high):.1f} %"
    return _range(span, ".3g")


def _with_interval(meter: Meter, span: Span) -> str:
    return f"{_value(meter, span)} ({_interval(meter, span)})"


def _range(span: Span, form: str) -> str:
    return f"at least {span.low:{form}}" if span.high is None else f"{span.low:{form}} to {span.high:{form}}"


def _count(span: Span, form: str = ".0f") -> str:
    return _range(span, form) if span.high is None else f"about {span.value:{form}} ({_range(span, form)})"
