"""Learner: trains a model on labelled rows. Fit: the result. BaseLearner: base class of this package's learners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import LabelError, RowError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.read import Reader
from labelwise.signals.spec import Signal
from labelwise.train import predictions
from labelwise.train.objectives.objective import Objective
from labelwise.train.parameters import Parameters


@dataclass(frozen=True)
class Fit:
    """A trained model and what training knows about the labelled rows.

    Attributes:
        reader: gives the signals of any row.
        ids: (n,) the labelled rows.
        published: signals that only training knows, each a column about the rows `ids`.
        notes: how training went; numbers and short texts that go into JSON.
        state: what a warm start in a new process needs; None if training again on the same labels with the same key
            gives the same model.
        held_out: (m,) ids of the labelled rows that were not trained on, so that they can be validated on.
        model: the trained module or estimator, for an ensemble a tuple of them; None takes that of the reader.
        pool: the pool it was trained on, as whose rows new ones are read.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from labelwise.train import learner_of
    >>> pool = Pool.of(np.array([[0.0], [1.0], [2.0], [3.0]]))
    >>> fit = learner_of(LogisticRegression()).fit(pool, pool.ids, torch.tensor([0, 0, 1, 1]), classes=2, key=Key(0))
    >>> fit.predict(np.array([[-1.0], [5.0]]))
    array([0, 1])
    """

    reader: Reader
    ids: Tensor
    published: Mapping[Signal, Tensor] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, Tensor] | None = None
    held_out: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    model: Any = None
    pool: Pool | None = None

    def __post_init__(self) -> None:
        if self.model is None:
            object.__setattr__(self, "model", getattr(self.reader, "model", None))

    def __repr__(self) -> str:
        model = "no model" if self.model is None else type(self.model).__name__
        if isinstance(self.model, tuple):
            model = f"{len(self.model)} x {type(self.model[0]).__name__}"
        return f"Fit({model}, {len(self.ids)} labelled rows)"

    def predict(self, rows: Any, ids: Any = None, *, batch: int = 256) -> np.ndarray:
        """Predict rows, block by block, on the device of the model.

        Args:
            rows: a Pool, or anything `Pool.of` takes: an array, a tensor, a list of texts, a frame, a Dataset. The
                columns of a frame are encoded as those that were trained on.
            ids: (n,) which rows of it; all if None.
            batch: rows in one forward pass.

        Returns:
            Class numbers (n,), or numbers in regression.

        Raises:
            RowError: an id is not in the pool.
        """
        return predictions.predict(self.reader, self._as_pool(rows), ids, batch)

    def predict_proba(self, rows: Any, ids: Any = None, *, batch: int = 256) -> np.ndarray:
        """Predict class probabilities (n, C); arguments and errors as for `predict`.

        Args:
            rows: (n, ...) as for `predict`.
            ids: (n,) of the rows, where `rows` is a pool; None for all.
            batch: rows of a forward pass.

        Raises:
            NeedError: the model is one of regression.
        """
        return predictions.predict_proba(self.reader, self._as_pool(rows), ids, batch)

    def _as_pool(self, rows: Any) -> Pool:
        if self.pool is not None:
            return self.pool.like(rows)
        return rows if isinstance(rows, Pool) else Pool.of(rows)


@runtime_checkable
class Learner(Protocol):
    """Anything that can be trained on labelled rows. Implement `fit` and `restore` to use a model of your own.

    A learner for regression also has an attribute `task` that is "regress". The methods `with_objective`,
    `with_warm_start`, `with_calibration` and `with_holdout_key` are optional; `BaseLearner` describes them.
    """

    def fit(
        self,
        pool: Pool,
        ids: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        classes: int,
        key: Key,
        previous: Fit | None = None,
    ) -> Fit:
        """Train a model on labelled rows.

        Args:
            pool: the pool the rows belong to.
            ids: (n,) the labelled rows.
            labels: (n,) classes 0..classes-1, or numbers in regression.
            weights: (n,) importance weights of the rows; None for equal ones.
            classes: the number of classes; 0 in regression.
            key: the only source of chance.
            previous: the fit of the round before, for a warm start.

        Returns:
            The fit.
        """

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Rebuild a fit from its `state`.

        Args:
            state: `Fit.state` of an earlier fit of this learner.
            ids: (n,) the rows it was trained on.

        Returns:
            The fit.
        """


@dataclass(frozen=True)
class TrainingData:
    """The arguments of `Learner.fit` as one value."""

    pool: Pool
    ids: Tensor
    labels: Tensor
    weights: Tensor | None
    classes: int
    key: Key
    previous: Fit | None

    def fit(self, learner: Learner) -> Fit:
        """Train `learner` on these data."""
        return learner.fit(
            self.pool,
            self.ids,
            self.labels,
            weights=self.weights,
            classes=self.classes,
            key=self.key,
            previous=self.previous,
        )


READ_BATCH = 256  # rows that a model reads at once
READ_NUMBERS = 1 << 20  # numbers of the rows that an estimator reads at once


class BaseLearner(Parameters, ABC):
    """Base class of learners: implement `fit_data` and `restore`. Parameters are the arguments of `__init__`.

    Attributes:
        task: what it predicts.
        read_batch: rows that its models read at once, where a session is given no number.
    """

    task: Literal["classify", "regress"] = "classify"
    read_batch: int = READ_BATCH

    def fit(
        self,
        pool: Pool,
        ids: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        classes: int,
        key: Key,
        previous: Fit | None = None,
    ) -> Fit:
        """Train a model on labelled rows; arguments as for `Learner.fit`.

        Args:
            pool: the pool of the rows.
            ids: (n,) int64, of the labelled rows.
            labels: (n,) class numbers, or numbers.
            weights: (n,) of the losses; None for equal ones.
            classes: how many classes there are.
            key: the source of chance.
            previous: the fit of the round before, for a warm start.

        Returns:
            The fit.
        """
        return replace(self.fit_data(TrainingData(pool, ids, labels, weights, classes, key, previous)), pool=pool)

    @abstractmethod
    def fit_data(self, data: TrainingData) -> Fit:
        """Train a model on labelled rows.

        Args:
            data: pool, ids, labels and weights of the labelled rows, classes and key.

        Returns:
            The fit.
        """

    @abstractmethod
    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Rebuild a fit from its `state`; `ids` (n,) are the rows it was trained on.

        Args:
            state: that of the fit.
            ids: (n,) of the rows it was trained on.

        Returns:
            The fit.
        """

    def with_objective(self, objective: Objective) -> Learner | None:
        """Return a copy that minimises `objective`; None if the learner cannot give the loss of single rows.

        Args:
            objective: what to minimise.

        Returns:
            A learner, or None.
        """
        return None

    def with_warm_start(self) -> Learner:
        """Return a copy that starts each round from the weights of the round before, if it has weights."""
        return self

    def with_calibration(self) -> Learner:
        """Return a copy that fits the temperature of LabelProbs even if it holds out no rows."""
        return self

    def with_holdout_key(self, key: Key) -> Learner:
        """Return a copy whose hold-out is drawn from `key`, which is the same in every round of a session.

        Args:
            key: of the session.

        Returns:
            A learner.
        """
        return self


class WrappingLearner(BaseLearner):
    """Base class of learners that train by another one, and ask of it what a recipe or a session asks of them."""

    learner: Learner

    def with_objective(self, objective: Objective) -> Learner | None:
        """Return a copy whose learner minimises `objective`; None if it cannot."""
        inner = with_objective(self.learner, objective)
        return None if inner is None else self.adapted(learner=inner)

    def with_warm_start(self) -> Learner:
        """Return a copy whose learner starts each round from the weights of the round before."""
        return self.adapted(learner=adapt(self.learner, "with_warm_start"))

    def with_calibration(self) -> Learner:
        """Return a copy whose learner fits the temperature of LabelProbs even if it holds out no rows."""
        return self.adapted(learner=adapt(self.learner, "with_calibration"))

    def with_holdout_key(self, key: Key) -> Learner:
        """Return a copy whose learner draws its hold-out from `key`."""
        return self.adapted(learner=adapt(self.learner, "with_holdout_key", key))


def with_objective(learner: Learner, objective: Objective) -> Learner | None:
    """`learner.with_objective(objective)`; None for a learner without that method."""
    method = getattr(learner, "with_objective", None)
    return method(objective) if callable(method) else None


def adapt(
    learner: Learner, method: Literal["with_warm_start", "with_calibration", "with_holdout_key"], *given: Key
) -> Learner:
    """What this method of a learner returns; the learner itself if it has no such method."""
    found = getattr(learner, method, None)
    return found(*given) if callable(found) else learner


def read_batch(learner: Any, pool: Pool) -> int:
    """How many rows of the pool the models of a learner read at once, where nobody says.

    As many as the learner says, but of wide rows fewer: about a million numbers, and never below 256.
    """
    while hasattr(learner, "learner"):  # of an ensemble
        learner = learner.learner
    most = int(getattr(learner, "read_batch", READ_BATCH))
    if most <= READ_BATCH:
        return READ_BATCH
    row = pool.inputs(pool.ids[:1])
    return max(READ_BATCH, min(most, READ_NUMBERS // max(1, row.numel()))) if isinstance(row, Tensor) else READ_BATCH


def uses_weights(learner: Any) -> bool:
    """Whether a learner trains with the weights of rows, as far as its parameters say."""
    while hasattr(learner, "learner"):  # of an ensemble
        learner = learner.learner
    options = getattr(learner, "options", None)
    by_objective = "Weighted" in type(getattr(options, "objective", None)).__name__
    return bool(getattr(learner, "use_weights", False)) or by_objective or getattr(options, "sampler", "") == "weights"


def check_labels(ids: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Labels (n,) as int64 classes; an error names the first row whose label is none of them."""
    _check_count(ids, labels)
    whole = labels.to(torch.int64)
    bad = (whole != labels) | (whole < 0) | (whole >= classes)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise LabelError(
            f"labels are whole numbers from 0 to {classes - 1}; row id {int(ids[row])} has {labels[row].item()}. "
            "Correct the label, or say how many classes there are."
        )
    return whole


def check_targets(ids: Tensor, labels: Tensor) -> Tensor:
    """Labels (n,) as float64 numbers; an error names the first row whose label is not finite."""
    _check_count(ids, labels)
    values = labels.to(torch.float64)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise LabelError(f"labels are finite numbers; row id {int(ids[row])} has {float(values[row])}.")
    return values


def _check_count(ids: Tensor, labels: Tensor) -> None:
    if len(ids) == 0:
        raise LabelError("there is no labelled row; label at least one row first.")
    if labels.shape != ids.shape:
        raise RowError(f"one label for each of {len(ids)} rows was expected, shape {tuple(labels.shape)} was found.")
