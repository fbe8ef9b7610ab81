"""The estimator side of a session: predict, predict_proba, score and the trained model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, ModelError, NeedError, RowError
from labelwise.io.frames import check_order
from labelwise.pool import Pool
from labelwise.pool.ids import Finder
from labelwise.train import Fit, Learner, evaluate, predictions


class SessionEstimator(ABC):
    """What a session does with its trained model, in the manner of scikit-learn.

    New rows are passed as `rows`, as scikit-learn's X. Rows of the pool are named by `ids=`. With neither, it is every
    row of the pool. Rows are read `batch` at a time.
    """

    pool: Pool
    learner: Learner | None
    task: Literal["classify", "regress"]
    classes: int | tuple[str, ...] | None
    _fit: Fit | None

    @property
    @abstractmethod
    def batch(self) -> int:
        """Rows in one forward pass."""

    @abstractmethod
    def fit(self) -> Fit:
        """Train on all answers so far, unless the last fit already did."""

    @abstractmethod
    def as_answers(self, labels: Any) -> list[int] | list[float]:
        """Convert labels to what the ledger stores."""

    @abstractmethod
    def _known_answers(self, labels: Any) -> list[int] | list[float]:
        """Convert labels that `score` compares with, which may be of classes that nobody has answered yet."""

    @property
    def model(self) -> Any:
        """The model of the last training: a torch module, or a fitted estimator or pipeline.

        Of an ensemble, a tuple of its members. Before a second class is labelled, a scikit-learn learner gives a
        constant classifier. Looking at the model does not train; after new answers, `fit` brings it up to date.

        Raises:
            NeedError: there is no learner, nothing is trained yet, or the fit of a learner of your own has no model.
        """
        if self._fit is None:
            if self.learner is None:
                raise NeedError(_NO_LEARNER)
            raise NeedError(
                "no model is trained yet: label the rows of ask(k), pass their labels to tell(ids, labels), and call "
                "fit() or predict()"
            )
        if self._fit.model is None:
            raise NeedError(
                f"the fit of {type(self.learner).__name__} has no model; pass Fit(..., model=...) in its method fit"
            )
        return self._fit.model

    def predict(self, rows: Any = None, *, ids: Any = None) -> np.ndarray:
        """Predict the labels of rows, after training on all answers so far.

        Args:
            rows: new rows of the same kind as the pool's: an array, a tensor, a list of texts, a frame, a Dataset, a
                Pool, or image files. They are encoded, tokenised and resized as those of the pool.
            ids: (n,) rows of the session's pool, in place of `rows`.

        Returns:
            Labels (n,): names of classes where the session knows them, else class numbers; numbers in regression.

        Raises:
            LabelError: there is no answer yet.
            NeedError: the session has no learner.
            ArgumentError, RowError: the rows are of another shape than the pool's, or an id is not in the pool.
            ModelError, NumericsError: the model cannot read a row, or gives NaN for it.

        >>> import labelwise as lw
        >>> from sklearn.linear_model import LogisticRegression
        >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> al = lw.Session(X, LogisticRegression(), "margin", classes=["low", "high"])
        >>> al.tell([0, 3], ["low", "high"])
        >>> al.predict(np.array([[-1.0], [5.0]])).tolist()
        ['low', 'high']
        >>> al.predict(ids=[3]).tolist()
        ['high']
        """
        pool, wanted = self._rows(rows, ids)
        reader = self._trained().reader
        with pool.keys_in_errors():
            found = predictions.predict(reader, pool, wanted, self.batch)
        if not isinstance(self.classes, tuple):
            return found
        if len(found) and int(found.max()) >= len(self.classes):
            raise ModelError(
                f"the model predicts class number {int(found.max())}, but the session has {len(self.classes)} classes; "
                "give the model one output for each class"
            )
        return np.asarray(self.classes)[found]

    def predict_proba(self, rows: Any = None, *, ids: Any = None) -> np.ndarray:
        """Predict class probabilities, after training on all answers so far; arguments and errors as for `predict`.

        Args:
            rows: new rows, as for `predict`.
            ids: ids of rows of the pool.

        Returns:
            Probabilities (n, C), in the order of `classes`. They are the model's own, the signal Probs.

        Raises:
            NeedError: the session is one of regression.
            ArgumentError: both `rows` and `ids` are given, or rows of another kind than the pool's.
        """
        pool, wanted = self._rows(rows, ids)
        reader = self._trained().reader
        with pool.keys_in_errors():
            return predictions.predict_proba(reader, pool, wanted, self.batch)

    def score(self, rows: Any = None, labels: Any = None, *, ids: Any = None) -> float:
        """Measure the model on rows whose labels are known; arguments and errors as for `predict`.

        Args:
            rows: new rows.
            labels: (n,) their classes or numbers; None takes those that came with the pool.
            ids: (n,) rows of the session's pool, in place of `rows`.

        Returns:
            The accuracy; in regression R², the share of the variance that is explained. In a session that was started
            without classes, rows of a class that has no answer yet count as wrong.

        Raises:
            ArgumentError: there are no labels.
            LabelError: a label is none of the classes.
            RowError: there are no rows, or not one label for each.
            NeedError: the session has no learner.
        """
        check_order(labels, ids if rows is None else rows)
        pool, wanted = self._rows(rows, ids)
        known = _own_labels(pool, wanted, isinstance(self.classes, tuple)) if labels is None else labels
        answers = self._known_answers(known)
        if len(answers) != len(wanted) or not answers:
            raise RowError(f"one label for each row was expected, found {len(wanted)} rows and {len(answers)} labels")
        reader = self._trained().reader
        with pool.keys_in_errors():
            if self.task == "regress":
                return evaluate(reader, pool, wanted, torch.tensor(answers), self.batch)["r2"]
            return float((predictions.predict(reader, pool, wanted, self.batch) == np.asarray(answers)).mean())

    def _trained(self) -> Fit:
        if self.learner is None:
            raise NeedError(_NO_LEARNER)
        return self.fit()

    def _rows(self, rows: Any, ids: Any) -> tuple[Pool, Tensor]:
        """The pool and the ids in it of what is to be predicted."""
        if rows is None:
            return self.pool, self.pool.ids if ids is None else self.pool.ids_of(ids)
        if ids is not None:
            raise ArgumentError("pass new rows or ids= of rows of the session's pool, not both")
        if (
            isinstance(rows, list | tuple | range)
            and len(rows)
            and all(isinstance(row, int | np.integer) for row in rows)
        ):
            raise ArgumentError(f"rows were expected, found whole numbers ({rows[:3]!r} ...); {_BY_ID}")
        pool = self.pool.like(rows)
        if pool.columns is not None and pool.columns == self.pool.columns:
            return pool, pool.ids
        _check_inputs(self.pool.inputs(self.pool.ids[:1]), pool.inputs(pool.ids[:1]))
        return pool, pool.ids


_NO_LEARNER = (
    "the session has no learner, so it has no model; pass a torch module, a scikit-learn estimator or a Learner to "
    "Session(...)"
)
_BY_ID = "for rows of the pool by their ids write ids=..., as in predict(ids=picks.ids)"


def _check_inputs(expected: Any, found: Any) -> None:
    """Raise ArgumentError where new inputs (1, ...) cannot be of the kind of the pool's (1, ...)."""
    is_same: bool = type(expected) is type(found)
    if isinstance(expected, Tensor) and isinstance(found, Tensor):
        is_same = expected.ndim == found.ndim
        # Images and texts as tokens may differ in size, and a model may take that.
        if expected.ndim == found.ndim == 2 and expected.is_floating_point() and found.is_floating_point():
            is_same = expected.shape == found.shape
    if not is_same:
        kinds = [_kind(inputs) for inputs in (expected, found)]
        raise ArgumentError(f"rows as in the pool were expected, which are {kinds[0]}; found {kinds[1]}; {_BY_ID}")


def _kind(inputs: Any) -> str:
    """The kind of one row in words."""
    if isinstance(inputs, Tensor):
        return f"numbers of shape {tuple(inputs.shape[1:])}"
    return "texts" if isinstance(inputs, list) else f"items of type {type(inputs).__name__}"


def _own_labels(pool: Pool, ids: Tensor, by_name: bool) -> Sequence[Any]:
    """The labels that came with these rows; `by_name` where their pool has names of classes."""
    if pool.labels is None:
        raise ArgumentError("score needs the labels of the rows; pass labels=, or a Pool with labels")
    labels: list[Any] = pool.labels[torch.from_numpy(Finder(pool.ids)(ids))].tolist()
    return [pool.classes[label] for label in labels] if by_name and pool.classes is not None else labels
