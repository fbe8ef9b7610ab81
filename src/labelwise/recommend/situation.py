"""Situation: what is available, and the recipe recommended for it.

`recommend` takes the strategies that the findings allows in the situation, the best first, and returns the first one
that can run here: its signals are given, its training is possible, and a batch is chosen within a minute and the limit
on memory. A situation without records takes those of the nearest one. The first batch has findings of its own: cold
starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from labelwise import strategies
from labelwise.errors import ArgumentError
from labelwise.io.sizes import format_size
from labelwise.io.text import many, percent
from labelwise.recommend.findings import Confirmed, Findings, Tried, eligible, read_findings, why_none
from labelwise.selection import Strategy
from labelwise.selection.memory import smallest_limit
from labelwise.selection.run import RATE
from labelwise.selection.strategy import Size
from labelwise.signals.spec import (
    Basis,
    Duals,
    Embedding,
    Features,
    GradNorm,
    GradSketch,
    Label,
    LabelProbs,
    LogProbs,
    LossJvp,
    Prediction,
    Probs,
    Signal,
    stored,
)

RECOMMENDED = "recommended"
COLD, COLD_NUMBERS = "cold-start", "cold-start-regression"
SITUATIONS = {
    "network": "probabilities and embeddings of a network or a linear model",
    "embeddings": "embeddings alone, without a model",
    COLD: "cold starts, before anything is labelled",
    COLD_NUMBERS: "cold starts with numbers to predict",
    "regression": "numbers to predict",
    "trees": "trees and boosting",
    "many-classes": "many classes, 50 or more",
}
# Whose records count where there are none.
LIKE = {"trees": "network", "many-classes": "network", "regression": "embeddings", COLD_NUMBERS: COLD}
MANY = 50  # classes
MINUTE = 60 * RATE  # floating-point operations of one core
Kind = Literal["network", "trees", "none"]

_FREE = frozenset({Features, Label})  # they need no model
_ESTIMATOR = _FREE | {Embedding, Probs, LabelProbs}
_NETWORK = _ESTIMATOR | {GradNorm, LossJvp, GradSketch, Duals}
GIVEN: Mapping[Kind, frozenset[type[Signal]]] = {"network": _NETWORK, "trees": _ESTIMATOR, "none": _FREE}


@dataclass(frozen=True)
class Situation:
    """What is available.

    Attributes:
        model: a network or linear model, trees (forests, boosting, neighbours), or none.
        task: "classify" or "regress".
        classes: how many; None where it is not known yet.
        labels: how many rows have a label.
        rows: how many there are to choose from; None leaves time and memory out of account.
        width: numbers of an embedding.
        k: rows of a batch.
        max_memory: the limit of a selection in bytes.
        signals: what the model gives; None is what models of this kind give.
        labelled: what is given about labelled rows; None is the same as `signals`.
        own_objective: whether the model can be trained by another objective than its own.
    """

    model: Kind = "network"
    task: Literal["classify", "regress"] = "classify"
    classes: int | None = None
    labels: int = 0
    rows: int | None = None
    width: int = 512
    k: int = 100
    max_memory: int | None = None
    signals: frozenset[type[Signal]] | None = None
    labelled: frozenset[type[Signal]] | None = None
    own_objective: bool = True

    @property
    def name(self) -> str:
        """The situation of all batches but the first, a name of `SITUATIONS`."""
        if self.task == "regress":
            return "regression"
        if self.model == "none":
            return "embeddings"
        if self.model == "trees":
            return "trees"
        return "many-classes" if (self.classes or 0) >= MANY else "network"

    def gives(self, signal: Signal, labelled: bool = False) -> bool:
        """Whether a column of this signal is available, for rows of the pool or for labelled rows."""
        given = GIVEN[self.model] if self.signals is None else self.signals
        if labelled and self.labelled is not None:
            given = self.labelled
        if self.task == "regress":
            given = (given - {Probs, LabelProbs, LogProbs}) | ({Prediction} if Embedding in given else set())
        return type(signal) in given


@dataclass(frozen=True)
class Choice:
    """A strategy for a situation.

    Attributes:
        strategy: its name.
        situation: whose records decided; a name of `SITUATIONS`.
        tried: the numbers behind it; None for random.
        why: the same as a sentence.
        passed_over: better strategies that cannot run here, and why.
    """

    strategy: str
    situation: str
    tried: Tried | None
    why: str
    passed_over: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Recommendation:
    """The recipe for a situation: a strategy for the first batch and one for all others."""

    situation: Situation
    start: Choice
    then: Choice

    @property
    def recipe(self) -> str:
        """The name of the recipe, as `lw.Session` takes it."""
        return recipe_of(self.start.strategy, self.then.strategy)

    @property
    def why(self) -> str:
        """Both choices in words."""
        if self.start.strategy == self.then.strategy:
            return self.then.why
        return f"First batch: {self.start.why} Then: {self.then.why}"


def recipe_of(first: str, then: str) -> str:
    """The name of the recipe whose first batch is chosen by `first` and all others by `then`.

    >>> recipe_of("typiclust", "margin"), recipe_of("random", "margin"), recipe_of("typiclust", "typiclust")
    ('typiclust+margin', 'margin', 'typiclust')
    """
    if first == then or (first == "random" and not strategies.ALL[then].cold):
        return then
    return f"{first}+{then}"


def recommend(situation: Situation) -> Recommendation:
    """The recipe for a situation.

    >>> recommend(Situation("none", rows=1000)).recipe in ("random", "typiclust", "random+typiclust", "probcover")
    True
    """
    first = COLD_NUMBERS if situation.task == "regress" else COLD
    return Recommendation(situation, _choose(first, situation), _choose(situation.name, situation))


def to_compare(found: Recommendation) -> str:
    """The recipe to compare with random: the recommended one; where that is random, the one that saved most there.

    "random" where no strategy with records can run.
    """
    if found.recipe != "random":
        return found.recipe
    name = _with_records(found.situation.name)
    tried = () if name is None else read_findings()[name].tried
    runs = (one.strategy for one in tried if not _obstacle(one.strategy, found.situation, cold=False))
    return next(runs, "random")


def recommend_for_arrays(
    arrays: Mapping[str, Any], labelled: Mapping[str, Any] | None, k: int, max_memory: int | None = None
) -> Choice:
    """The strategy for a call of `labelwise.select`; arrays that are None were not given.

    Without a model and without labelled rows it is that of a cold start.

    Raises:
        ArgumentError: `labelled` is not a mapping.
    """
    if labelled is not None and not isinstance(labelled, Mapping):
        raise ArgumentError(f"labelled must be a dict of arrays, found {type(labelled).__name__}")
    given = {name: value for name, value in arrays.items() if value is not None}
    past = {name: value for name, value in (labelled or {}).items() if value is not None}
    probs = next((given[name] for name in ("probs", "label_probs", "log_probs") if name in given), None)
    model: Kind = "none" if set(given) <= {"embedding", "basis", "ids"} else "network"
    situation = Situation(
        model=model,
        classes=None if probs is None else _width(probs),
        labels=max(map(_length, past.values()), default=0),
        rows=max(map(_length, given.values()), default=0) or None,
        width=_width(given.get("embedding")),
        k=k,
        max_memory=max_memory,
        signals=_signals(given),
        labelled=_signals(past),
        own_objective=False,
    )
    return _choose(COLD if model == "none" and not past else situation.name, situation)


def _length(array: Any) -> int:
    return len(array) if hasattr(array, "__len__") else 0


def _width(array: Any) -> int:
    shape = getattr(array, "shape", ())
    return int(tuple(shape)[-1]) if len(shape) > 1 else 1


def _signals(given: Mapping[str, Any]) -> frozenset[type[Signal]]:
    """The signals whose arrays are given."""
    by_array: dict[str, set[type[Signal]]] = {
        "probs": {Probs, LabelProbs},
        "embedding": {Embedding, Features},
        "y": {Label},
        "grad_dot": {LossJvp},
    }
    for kind in (LabelProbs, LogProbs, Basis, Duals, GradNorm, GradSketch):
        by_array.setdefault(kind.array, {kind})
    return frozenset(signal for name in given for signal in by_array.get(name, ()))


def _choose(name: str, situation: Situation) -> Choice:
    """The best strategy that can run here, by the records of the situation `name` or of the nearest one with any."""
    used = _with_records(name)
    if used is None:
        return Choice("random", name, None, f"random, since there are no records of {SITUATIONS[name]}.")
    found = read_findings()[used]
    passed: list[tuple[str, str]] = []
    for tried in eligible(found.tried, len(found.sets)):
        obstacle = _obstacle(tried.strategy, situation, cold=name in (COLD, COLD_NUMBERS))
        if not obstacle:
            near = "" if used == name else f"; there are no records of {SITUATIONS[name]}"
            return Choice(tried.strategy, used, tried, f"{sentence(tried, found)}{near}.", tuple(passed))
        passed.append((tried.strategy, obstacle))
    best = why_none(found, dict(passed))
    why = f"random, since on {many(len(found.sets), found.unit)} no strategy that can run here passed the rule"
    return Choice("random", used, None, f"{why}{best and '; most labels saved: '}{best}.", tuple(passed))


def _with_records(name: str | None) -> str | None:
    """The situation `name`, or the nearest one with records; None if there is none."""
    while name is not None and name not in read_findings():
        name = LIKE.get(name)
    return name


def sentence(tried: Tried, found: Findings) -> str:
    """The numbers behind a strategy in words, without the full stop."""
    saved, by = percent(tried.saved), many(found.seeds, "seed")
    if tried.sets == 1:
        better = "better" if tried.better else "not measurably better"
        return f"{tried.strategy} saved {saved} of the labels on one {found.unit}; {better} than random there ({by})"
    return (
        f"{tried.strategy} saved {saved} of the labels at the median of {many(tried.sets, found.unit)} "
        f"({percent(tried.low)} to {percent(tried.high)}); better than random on {tried.better or 'none'} of them "
        f"after Holm's correction, below it on {tried.below or 'none'} ({by})"
    )


def confirmation(again: Confirmed) -> str:
    """The numbers of a whole recipe in words, without the full stop."""
    one = again.tried
    return (
        f"as a whole, with {again.seeds} seeds that did not choose it, {one.strategy} saved {percent(one.saved)} of "
        f"the labels at the median of {many(one.sets, 'data set')} ({percent(one.low)} to {percent(one.high)}); better "
        f"than random on {one.better or 'none'} of them after Holm's correction, below it on {one.below or 'none'}"
    )


def _obstacle(name: str, situation: Situation, cold: bool) -> str:
    """Why a strategy cannot run in a situation; "" if it can."""
    if name not in strategies.ALL:
        return "it is not installed"
    strategy: Strategy | None = strategies.get(name)
    assert strategy is not None
    if cold and not strategy.cold:
        return "it cannot choose the first batch"
    strategy = strategy.for_regression() if situation.task == "regress" else strategy
    if strategy is None:
        return "it needs class probabilities"
    for one in stored(strategy.needs.pool):
        if not situation.gives(one):
            return f"it needs {type(one).__name__}, which is not given here"
    for one in () if cold or strategy.needs.optional else stored(strategy.needs.labelled):
        if not situation.gives(one, labelled=True):
            return f"it needs {type(one).__name__} of the labelled rows, which is not given here"
    if strategy.objective is not None and not situation.own_objective:
        return "it trains by an objective of its own, which this model does not take"
    return _too_large(strategy, situation)


def _too_large(strategy: Strategy, situation: Situation) -> str:
    """Why a batch takes too long or too much memory; "" if it does not."""
    if situation.rows is None:
        return ""
    classes = (situation.classes or 2,)
    shapes = {
        one: classes if isinstance(one, Probs | LabelProbs) else (situation.width,) if _is_wide(one) else (1,)
        for one in stored(strategy.needs.pool)
    }
    size = Size(situation.rows, min(situation.k, situation.rows), shapes, labelled=situation.labels)
    work = strategy.work(size)
    what = f"for {situation.k:,} of {situation.rows:,} rows"
    if work > MINUTE:
        return f"a batch would take about {many(round(work / MINUTE), 'minute')} of a core {what}"
    if situation.max_memory is not None:
        least = smallest_limit(strategy, size)
        if least > situation.max_memory:
            return f"it needs {format_size(least)} {what}, and the limit is {format_size(situation.max_memory)}"
    return ""


def _is_wide(signal: Signal) -> bool:
    return isinstance(signal, Embedding | Features | GradSketch)
