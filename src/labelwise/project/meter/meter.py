"""The meter: how good the model is, what random labels would have given, and whether to go on. With intervals.

Everything comes from the test slice, rows drawn uniformly at random and never trained on. Labels of the slice are
counted on neither side: who labels at random needs test rows as well.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from labelwise.io.files import write_text
from labelwise.project.meter import mean_curve
from labelwise.project.meter.reading import FILE, Meter, Metric, Span
from labelwise.project.meter.rows import History
from labelwise.project.meter.sentences import sentences
from labelwise.project.settings import Settings
from labelwise.rng import Key
from labelwise.stats.estimate import pool_mean

FEWEST, EACH = 30, 4  # test rows, and test rows for each class, below which nothing but the accuracy is said
WIDEST = 2.0  # an interval around the labels given whose ends differ by more than this factor says nothing yet
HORIZON = 100  # labels over which the gain decides whether to stop
WORTH = {
    "accuracy": 0.005,
    "rmse": 0.01,
}  # gain of so many labels that is worth them: points of accuracy, share of RMSE
_TAIL = 0.025


def measure(folder: Path, history: History, settings: Settings, rows: int, round: int, after: int) -> Meter:
    """Compute the meter and put it into `meter.json`."""
    key = Key(settings.seed).fold("project", "meter", after)
    made = compute(history, settings.k, rows, round, after, key)
    write_text(folder / FILE, json.dumps(asdict(made), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return made


def compute(history: History, batch: int, rows: int, round: int, after: int, key: Key) -> Meter:
    """The meter of the newest model; `rows` of the pool are the most that could be labelled."""
    metric: Metric = "accuracy" if history.classes else "rmse"
    m, labels = len(history.rows), history.labels_R[-1]
    score = _score(history.losses_RM[-1], metric, key) if m else None
    least = max(FEWEST, EACH * len(history.classes))
    w_BM = mean_curve.weights(m, key.fold("rows")) if m >= least else np.empty((0, 0))
    early = "" if m >= least else f"{m} of at least {least} test rows have a label"
    control = needed = saved = gain = ahead = None
    beyond = False
    if m >= least:
        drawn, labels_B = _against_random(history, w_BM, rows, key)
        control = _span(_metric(drawn.at(labels), metric))
        needed = _span(labels_B, most=float(rows))
        saved = _minus(needed, labels)
        beyond = bool(max(labels, needed.value) > drawn.sizes_S[-1])
        early = _too_wide(needed, labels)
        gain, ahead = _gains(history, w_BM, min(batch, history.free), metric, key)
    hours = None if saved is None or history.seconds is None else _times(saved, history.seconds / 3600)
    stop, reason = _stop(history, score, ahead, metric)
    made = Meter(
        round, after, labels, m, metric, score, control, needed, saved, hours, history.seconds, beyond, gain, batch,
        stop, reason, early, [],
    )  # fmt: skip
    made.words.extend(sentences(made))
    return made


def _score(loss_M: np.ndarray, metric: Metric, key: Key) -> Span:
    """Accuracy with Wilson's interval; RMSE with one that is bent for the skewness of squared errors."""
    if metric == "accuracy":
        found = pool_mean(1 - loss_M, np.ones(len(loss_M)), share=True)
        return Span(found.value, found.low, found.high)
    found = pool_mean(loss_M, np.ones(len(loss_M)))
    ends = [math.sqrt(max(end, 0.0)) for end in (found.value, found.low, found.high)]
    return Span(*ends) if len(loss_M) > 1 and all(map(math.isfinite, ends)) else Span(ends[0], 0.0, None)


def _against_random(history: History, w_BM: np.ndarray, rows: int, key: Key) -> tuple[mean_curve.Drawn, np.ndarray]:
    """Curves of random labels, and how many of them (B,) give what the model has reached, in each draw."""
    measured = mean_curve.random_curve(history.x_MD, history.label_M, len(history.classes), key.fold("random"))
    drawn = mean_curve.curves(measured.sizes_S, measured.loss_SM, w_BM, measured.spread, key)
    return drawn, drawn.reaches(w_BM @ history.losses_RM[-1], float(rows))


def _gains(history: History, w_BM: np.ndarray, batch: int, metric: Metric, key: Key) -> tuple[Span | None, Span | None]:
    """Gain of the next batch, and of the next HORIZON labels, from the curve of the rounds so far; None for too few."""
    labels_R = np.array(history.labels_R)
    if len(labels_R) < 4 or batch < 1:
        return None, None
    from_R = labels_R >= labels_R[-1] / 8  # the first steps say little about the next
    sizes, loss = labels_R[from_R], np.stack(history.losses_RM)[from_R]
    drawn = mean_curve.curves(sizes, loss, w_BM, 0.0, key.fold("gain"))
    now_B = drawn.a_B + drawn.b_B * float(sizes[-1]) ** -drawn.c_B
    found = []
    for more in (batch, min(HORIZON, history.free)):
        then_B = drawn.a_B + drawn.b_B * float(sizes[-1] + more) ** -drawn.c_B
        better_B = _metric(then_B, metric) - _metric(now_B, metric)
        found.append(_span(better_B if metric == "accuracy" else -better_B))
    return found[0], found[1]


def _stop(history: History, score: Span | None, ahead: Span | None, metric: Metric) -> tuple[bool, str]:
    """Whether to stop, and the reason."""
    if history.free == 0:
        return True, "every row that can be chosen has been."
    if ahead is None or score is None:
        return False, "go on: there are too few test rows or rounds to say what more labels would bring."
    worth = WORTH[metric] * (1.0 if metric == "accuracy" else score.value)
    most = ahead.high if ahead.high is not None else math.inf
    more = min(HORIZON, history.free)
    said = (
        f"the next {more} labels are expected to bring {_amount(ahead.value, metric)}, at most {_amount(most, metric)}"
    )
    if most < worth:
        return True, f"{said}; that is less than {_amount(worth, metric)}."
    return False, f"go on: {said}."


def _amount(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} points of accuracy" if metric == "accuracy" else f"{value:.3g} less RMSE"


def _metric(loss: np.ndarray, metric: Metric) -> np.ndarray:
    return np.asarray(1 - loss if metric == "accuracy" else np.sqrt(np.maximum(loss, 0.0)))


def _span(values_B: np.ndarray, most: float | None = None) -> Span:
    """Median and interval of draws; open above where it touches `most`."""
    low, middle, high = np.quantile(values_B, [_TAIL, 0.5, 1 - _TAIL]).tolist()
    return Span(middle, low, None if most is not None and high >= 0.999 * most else high)


def _too_wide(needed: Span, labels: int) -> str:
    """Why nothing can be said yet; "" where the interval lies on one side of `labels`, or is narrow around it."""
    if needed.low > labels or (needed.high is not None and needed.high < labels):
        return ""
    if needed.high is not None and needed.high <= WIDEST * max(needed.low, 1.0):
        return ""
    most = "more than can be told" if needed.high is None else f"{needed.high:.0f}"
    return (
        f"random labelling would need between {needed.low:.0f} and {most} labels for what {labels} have given; more "
        "test rows will narrow this"
    )


def _minus(span: Span, value: float) -> Span:
    return Span(span.value - value, span.low - value, None if span.high is None else span.high - value)


def _times(span: Span, factor: float) -> Span:
    return Span(span.value * factor, span.low * factor, None if span.high is None else span.high * factor)
