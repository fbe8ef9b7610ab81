"""The meter in plain sentences."""

from __future__ import annotations

from labelwise.project.meter.reading import Meter, Span


def sentences(meter: Meter) -> list[str]:
    """What the meter says, for people; "too early to tell" where it is."""
    said = [_score(meter)]
    if meter.early:
        said.append(f"Too early to tell what was saved: {meter.early}.")
    if meter.saved is not None and meter.needed is not None:
        if not meter.early:
            said.append(_saved(meter, meter.saved))
        if meter.control is not None:
            where = " (beyond what was measured)" if meter.beyond else ""
            said.append(f"{meter.labels} random labels would have given {_value(meter, meter.control)}{where}.")
    if meter.gain is not None:
        said.append(f"The next {meter.batch} labels are expected to bring {_gain(meter, meter.gain)}.")
    said.append(("Stop: " if meter.stop else "") + _capital(meter.stop_reason, meter.stop))
    return said


def _score(meter: Meter) -> str:
    what = "Accuracy" if meter.metric == "accuracy" else "Typical error (RMSE)"
    if meter.score is None:
        return f"{what}: not known yet, no test row has a label."
    return f"{what} {_value(meter, meter.score)} on {meter.test} test rows, after {meter.labels} labels."


def _saved(meter: Meter, saved: Span) -> str:
    counted = _range(saved, "{:.0f}")
    needed = _range(meter.needed, "{:.0f}") if meter.needed is not None else ""
    where = ", an estimate that continues the measured curve," if meter.beyond else ""
    start = f"Random labelling would need {needed} labels for this{where} instead of {meter.labels}"
    if saved.low > 0:
        hours = f", {_range(meter.hours, '{:.1f}')} hours" if meter.hours is not None else ""
        return f"{start}: {counted} labels saved{hours}."
    if saved.high is not None and saved.high < 0:
        return f"{start}: choosing has cost labels here, {_range(_negative(saved), '{:.0f}')} of them."
    return f"{start}: no measurable difference ({counted} labels saved)."


def _negative(span: Span) -> Span:
    return Span(-span.value, -span.high if span.high is not None else 0.0, -span.low)


def _range(span: Span, form: str) -> str:
    value, low = form.format(span.value), form.format(span.low)
    if span.high is None:
        return f"at least {low}"
    return f"about {value} ({low} to {form.format(span.high)})"


def _value(meter: Meter, span: Span) -> str:
    if meter.metric == "accuracy":
        top = 1.0 if span.high is None else span.high
        return f"{100 * span.value:.1f} % ({100 * span.low:.1f} to {100 * top:.1f} %)"
    high = "more" if span.high is None else f"{span.high:.3g}"
    return f"{span.value:.3g} ({span.low:.3g} to {high})"


def _gain(meter: Meter, gain: Span) -> str:
    high = gain.value if gain.high is None else gain.high
    if meter.metric == "accuracy":
        return f"{100 * gain.value:.2f} points ({100 * gain.low:.2f} to {100 * high:.2f})"
    return f"{gain.value:.3g} less ({gain.low:.3g} to {high:.3g})"


def _capital(text: str, stop: bool) -> str:
    return text if stop else text[:1].upper() + text[1:]
