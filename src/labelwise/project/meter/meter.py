"""The meter: how good the model is, what random labels would have given, and whether to continue. With intervals.

Everything comes from the test slice: rows drawn at random by a known law, with weights that undo it, and never trained
on (`holdout.py`). Labels of the slice are counted on neither side, because random labelling needs test rows as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.project.loop.set_model import set_losses
from labelwise.project.meter import mean_curve
from labelwise.project.meter.sentences import sentences
from labelwise.project.settings import Settings
from labelwise.rng import Key
from labelwise.stats.estimate import pool_mean

FILE = "meter.json"
_REMEDY = "remove it; the next round writes a new one"
MIN_TEST_ROWS, MIN_PER_CLASS = 30, 4  # test rows, in all and for each class, below which only the accuracy is given
MAX_RATIO = 2.0  # an interval around the labels used whose ends differ by a larger factor is too wide to use
HORIZON = 100  # labels over which the gain decides whether to stop
WORTH = {
    "accuracy": 0.005,
    "overlap": 0.005,
    "rmse": 0.01,
}  # smallest gain over HORIZON that is worth it: accuracy, share of the RMSE
_TAIL = 0.025

Metric = Literal["accuracy", "overlap", "rmse"]


@dataclass(frozen=True)
class Span:
    """A value and its 95 % interval; `high` is None where the interval has no upper end."""

    value: float
    low: float
    high: float | None

    def minus(self, value: float) -> Span:
        """The interval shifted down."""
        return Span(self.value - value, self.low - value, None if self.high is None else self.high - value)

    def times(self, factor: float) -> Span:
        """The interval scaled by a positive factor."""
        return Span(self.value * factor, self.low * factor, None if self.high is None else self.high * factor)


@dataclass(frozen=True)
class Meter:
    """What the test slice says after a round; the content of `meter.json`.

    Attributes:
        round, after: the round of the model that was measured, and the last event it was trained on.
        labels: labels it was trained on.
        test: test rows that have a label.
        metric, score: accuracy, overlap (of sets of classes) or RMSE of the model on the test rows; None without one.
        control: the same for a model trained on as many random labels.
        needed: random labels needed for the score that was reached. Its interval, and those of `saved` and `hours`,
            hold at all times at once, since people look at them after every round.
        saved: `needed` less `labels`.
        hours: `saved` in working hours, at `seconds` for a label.
        beyond: whether `needed` and `control` are extrapolated beyond the measured curve.
        gain: expected gain of the metric from the next `batch` labels.
        stop, stop_reason: whether to stop, and the reason.
        early: why it is too early to tell what was saved; "" when it is not.
        words: all of it in sentences.
        baseline: the score without a model: the share of the commonest class, or the spread of the numbers.
        expected: accuracy over the pool, estimated from all labels: the mean calibrated probability of the predicted
            class, where the temperature is fitted by cross-validation on the training rows.
        running: accuracy or RMSE over the pool by all labels, where the rows were drawn with known chances
            (`Session.estimate`); None for other recipes.
        by_class: (class, test rows, share of them that is right) for each class with a test row.
        least: test rows from which on a saving can be estimated.
        random: (labels, score) of models trained on random labels, up to `labels`.
        measured: labels up to which `random` is measured; the rest is extrapolated.
    """

    round: int
    after: int
    labels: int
    test: int
    metric: Metric
    score: Span | None
    control: Span | None
    needed: Span | None
    saved: Span | None
    hours: Span | None
    seconds: float | None
    beyond: bool
    gain: Span | None
    batch: int
    stop: bool
    stop_reason: str
    early: str
    words: list[str]
    baseline: float | None = None
    expected: float | None = None
    by_class: tuple[tuple[str, int, float], ...] = ()
    least: int = MIN_TEST_ROWS
    random: tuple[tuple[int, Span], ...] = ()
    measured: int = 0
    more: tuple[tuple[str, float], ...] = ()  # (name, share) of further measures of sets of classes
    running: Span | None = None


@dataclass(frozen=True)
class History:
    """What the meter is computed from: M test rows and the R models so far, the newest last.

    A loss is 1 for a wrong class and 0 for the right one, or the squared error.
    """

    rows: np.ndarray  # (M,) ids
    x_MD: Tensor
    label_M: np.ndarray
    classes: tuple[str, ...]  # empty for numbers
    labels_R: list[int]  # labels each model was trained on
    losses_RM: list[np.ndarray]
    seconds: float | None  # median of a label
    free: int  # rows that can still be chosen
    expected: float | None = None  # see `Meter.expected`
    weight_M: np.ndarray | None = None  # of the test rows; None for ones
    factor: float = 1.0  # of `stats.estimate.pool_mean`
    hot_MC: np.ndarray | None = None  # labels that are sets of classes, as zeros and ones
    named_MC: np.ndarray | None = None  # the sets that the newest model predicts
    running: Span | None = None  # see `Meter.running`

    @property
    def w_M(self) -> np.ndarray:
        """Weights of the test rows, ones where none are given."""
        return np.ones(len(self.rows)) if self.weight_M is None else self.weight_M


def measure(folder: Path, history: History, settings: Settings, rows: int, round: int, after: int) -> Meter:
    """Compute the meter and put it into `meter.json`."""
    key = Key(settings.seed).fold("project", "meter", after)
    made = compute(history, settings.k, rows, round, after, key)
    write_checked(folder / FILE, asdict(made), indent=1)
    return made


def compute(history: History, batch: int, rows: int, round: int, after: int, key: Key) -> Meter:
    """Measure the newest model.

    Args:
        history: the test rows and the losses of every model on them.
        batch: labels of the next round.
        rows: rows of the pool, the upper limit of any number of labels.
        round, after: the round of the model, and the last event it was trained on.
        key: source of chance.
    """
    metric: Metric = "overlap" if history.hot_MC is not None else "accuracy" if history.classes else "rmse"
    m, labels = len(history.rows), history.labels_R[-1]
    score = score_of(history.losses_RM[-1], metric, history.w_M, history.factor) if m else None
    least = max(MIN_TEST_ROWS, 0 if metric == "overlap" else MIN_PER_CLASS * len(history.classes))
    if history.weight_M is not None:
        least *= 2  # half of the rows are a uniform sample, which the control is trained on
    w_BM = mean_curve.weights(history.w_M, key.fold("rows")) if m >= least else np.empty((0, 0))
    early = "" if m >= least else f"{m} test items have a label; at least {least} are needed"
    control = needed = saved = gain = ahead = None
    beyond, measured = False, 0
    random: tuple[tuple[int, Span], ...] = ()
    if m >= least:
        curves, needed = _against_random(history, w_BM, rows, key)
        measured = int(curves.sizes_S[-1])
        random = tuple((n, _span(_metric(curves.loss_at(n), metric))) for n in _sizes(curves.sizes_S, labels))
        control = _span(_metric(curves.loss_at(labels), metric))
        saved = needed.minus(labels)
        beyond = bool(max(labels, needed.value) > curves.sizes_S[-1])
        early = _too_wide(needed, labels, metric)
        gain, ahead = _gains(history, w_BM, min(batch, history.free), metric, key)
    hours = None if saved is None or history.seconds is None else saved.times(history.seconds / 3600)
    stop, reason = _stop(history, score, ahead, metric)
    made = Meter(
        round, after, labels, m, metric, score, control, needed, saved, hours, history.seconds, beyond, gain, batch,
        stop, reason, early, [], _baseline(history), history.expected, _by_class(history), least, random, measured,
        _of_sets(history), history.running,
    )  # fmt: skip
    made.words.extend(sentences(made))
    return made


def _sizes(sizes_S: np.ndarray, labels: int) -> list[int]:
    """Numbers of labels at which the random control is drawn: the measured ones, and five from there to `labels`."""
    measured = sizes_S.astype(int).tolist()
    beyond = np.linspace(measured[-1], labels, 6)[1:].round().astype(int).tolist() if labels > measured[-1] else []
    return [*measured, *beyond]


def _baseline(history: History) -> float | None:
    """Accuracy of always naming the commonest class of the test rows, or RMSE of always naming their mean."""
    if not len(history.label_M):
        return None
    if history.hot_MC is not None:  # always naming the set that fits best
        sets = np.unique(history.hot_MC, axis=0)
        return float(
            max(1 - set_losses(np.broadcast_to(one, history.hot_MC.shape), history.hot_MC).mean() for one in sets)
        )
    if not history.classes:
        mean = np.average(history.label_M, weights=history.w_M)
        return math.sqrt(np.average((history.label_M - mean) ** 2, weights=history.w_M))
    return float(np.bincount(history.label_M.astype(int)).max() / len(history.label_M))


def _by_class(history: History) -> tuple[tuple[str, int, float], ...]:
    """How much of each class is right, the commonest class first."""
    if not history.classes or not len(history.label_M):
        return ()
    if history.hot_MC is not None:
        if history.named_MC is None:
            return ()
        count_C, right_C = history.hot_MC.sum(0), (history.hot_MC * history.named_MC).sum(0)
        order = [c for c in np.argsort(-count_C, kind="stable").tolist() if count_C[c]]
        return tuple((history.classes[c], int(count_C[c]), float(right_C[c] / count_C[c])) for c in order)
    label_M = history.label_M.astype(int)
    count_C = np.bincount(label_M, minlength=len(history.classes))
    right_C = np.bincount(label_M, 1 - history.losses_RM[-1], len(history.classes))
    order = [number for number in np.argsort(-count_C, kind="stable").tolist() if count_C[number]]
    return tuple((history.classes[c], int(count_C[c]), float(right_C[c] / count_C[c])) for c in order)


def _of_sets(history: History) -> tuple[tuple[str, float], ...]:
    """Exact matches, and F1 over all decisions (micro) and as a mean over classes (macro)."""
    if history.hot_MC is None or history.named_MC is None:
        return ()
    hot_MC, named_MC = history.hot_MC > 0, history.named_MC > 0
    both_C = (hot_MC & named_MC).sum(0)
    either_C = hot_MC.sum(0) + named_MC.sum(0)
    some = either_C > 0
    macro = float((2 * both_C[some] / either_C[some]).mean()) if some.any() else 1.0
    micro = float(2 * both_C.sum() / either_C.sum()) if some.any() else 1.0
    return (("Exactly right", float((hot_MC == named_MC).all(1).mean())), ("F1, micro", micro), ("F1, macro", macro))


def score_of(loss_M: np.ndarray, metric: Metric, weight_M: np.ndarray | None = None, factor: float = 1.0) -> Span:
    """Accuracy with Wilson's interval; RMSE with one that is longer where squared errors have a heavy tail."""
    w_M = np.ones(len(loss_M)) if weight_M is None else weight_M
    if metric != "rmse":
        found = pool_mean(1 - loss_M, w_M, share=True, factor=factor)
        return Span(found.value, found.low, found.high)
    found = pool_mean(loss_M, w_M, factor=factor)
    ends = [math.sqrt(max(end, 0.0)) for end in (found.value, found.low, found.high)]
    return Span(*ends) if len(loss_M) > 1 and all(map(math.isfinite, ends)) else Span(ends[0], 0.0, None)


def _against_random(history: History, w_BM: np.ndarray, rows: int, key: Key) -> tuple[mean_curve.Curves, Span]:
    """Learning curves of random labels, and the labels at which they reach the score of the model."""
    measured = mean_curve.random_curve(
        history.x_MD,
        history.label_M if history.hot_MC is None else history.hot_MC,
        len(history.classes),
        key.fold("random"),
        history.weight_M,
    )
    curves = mean_curve.curves(measured.sizes_S, measured.loss_SM, w_BM, measured.spread, key)
    loss_B, shares = w_BM @ history.losses_RM[-1], len(history.rows) if history.classes else 0
    luck = measured.spread**2 / max(history.labels_R[-1], 1)
    low, high = curves.labels_between(loss_B, float(rows), shares, luck)
    value = min(max(float(np.median(curves.labels_at(loss_B, float(rows)))), low), high)
    return curves, Span(value, low, None if high >= rows else high)


def _gains(history: History, w_BM: np.ndarray, batch: int, metric: Metric, key: Key) -> tuple[Span | None, Span | None]:
    """Gain of the next batch and of the next HORIZON labels, from the curve of the rounds so far.

    None with fewer than four rounds, or when no row is left.
    """
    labels_R = np.array(history.labels_R)
    if len(labels_R) < 4 or batch < 1:
        return None, None
    from_R = labels_R >= labels_R[-1] / 8  # the first steps say little about the next
    sizes, loss = labels_R[from_R], np.stack(history.losses_RM)[from_R]
    curves = mean_curve.curves(sizes, loss, w_BM, 0.0, key.fold("gain"))
    now_B = curves.law_at(sizes[-1])
    found = []
    for more in (batch, min(HORIZON, history.free)):
        better_B = _metric(curves.law_at(sizes[-1] + more), metric) - _metric(now_B, metric)
        found.append(_span(better_B if metric != "rmse" else -better_B))
    return found[0], found[1]


def _stop(history: History, score: Span | None, ahead: Span | None, metric: Metric) -> tuple[bool, str]:
    """Whether to stop, and the reason."""
    if history.free == 0:
        return True, "no items are left to choose for training."
    if ahead is None or score is None:
        return False, "continue: there are too few test items or rounds to estimate what more labels would bring."
    worth = WORTH[metric] * (1.0 if metric != "rmse" else score.value)
    most = ahead.high if ahead.high is not None else math.inf
    more = min(HORIZON, history.free)
    limit = f"{100 * most:.1f}" if metric != "rmse" else f"{most:.3g}"
    expected = f"{_amount(ahead.value, metric)}, at most {limit}"
    if most < worth:
        least = _amount(worth, metric)
        return True, f"the next {more} labels are expected to bring {expected}; that is less than {least}."
    return False, f"continue: the next {more} labels are expected to bring {expected}."


def _amount(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} points of {metric}" if metric != "rmse" else f"{value:.3g} less RMSE"


def _metric(loss: np.ndarray, metric: Metric) -> np.ndarray:
    return np.asarray(1 - loss if metric != "rmse" else np.sqrt(np.maximum(loss, 0.0)))


def _span(values_B: np.ndarray) -> Span:
    """Median and interval of draws."""
    low, median, high = np.quantile(values_B, [_TAIL, 0.5, 1 - _TAIL]).tolist()
    return Span(median, low, high)


def _too_wide(needed: Span, labels: int, metric: Metric) -> str:
    """Why the saving cannot be estimated yet; "" where the interval is on one side of `labels`, or narrow around it."""
    if needed.low > labels or (needed.high is not None and needed.high < labels):
        return ""
    if needed.high is not None and needed.high <= MAX_RATIO * max(needed.low, 1.0):
        return ""
    score = metric if metric != "rmse" else "error"
    if needed.high is None:
        needs = f"at least {needed.low:.0f} labels for this {score}; an upper limit cannot be estimated yet"
    else:
        needs = f"{needed.low:.0f} to {needed.high:.0f} labels for this {score}; more test items will narrow this range"
    return f"Random labelling would have needed {needs} ({labels} were used)"


def losses_of(
    x_MD: np.ndarray,
    label_M: np.ndarray,
    classes: Sequence[str],
    weight_CD: np.ndarray,
    bias_C: np.ndarray,
    model_classes: Sequence[str],
) -> np.ndarray:
    """The loss (M,) of a linear model; a class the model did not know yet counts as wrong."""
    if not len(x_MD):
        return np.empty(0)
    out_MC = x_MD.astype(np.float64) @ weight_CD.T.astype(np.float64) + bias_C
    if not classes:
        return (out_MC[:, 0] - label_M) ** 2
    names = np.array([*model_classes, *[""] * (out_MC.shape[1] - len(model_classes))], dtype=object)
    truth = np.array(list(classes), dtype=object)[label_M.astype(int)]
    return (names[out_MC.argmax(1)] != truth).astype(np.float64)


def read_meter(folder: Path) -> Meter | None:
    """The meter that `measure` wrote last; None before the first."""
    path = folder / FILE
    try:
        found = read_checked(path, _REMEDY, early=None)
        for name in ("score", "control", "needed", "saved", "hours", "gain"):
            found[name] = None if found[name] is None else Span(**found[name])
        found["running"] = Span(**found["running"]) if found.get("running") else None
        found["random"] = tuple((int(labels), Span(**span)) for labels, span in found.get("random", ()))
        found["more"] = tuple((str(name), float(share)) for name, share in found.get("more", ()))
        found["by_class"] = tuple(
            (str(name), int(rows), float(share)) for name, rows, share in found.get("by_class", ())
        )
        return Meter(**found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {_REMEDY}") from error
