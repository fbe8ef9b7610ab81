"""SklearnLearner: fits any classifier or regressor in the manner of scikit-learn on the labelled rows and reads it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, StoreError, extra
from labelwise.rng import Key
from labelwise.signals.model.estimator import (
    Classifier,
    EstimatorReader,
    RegressorReader,
    class_probabilities,
    estimator_inputs,
    log_probabilities,
)
from labelwise.train.cross_val import left_out
from labelwise.train.fit import Fit, checked_labels, checked_targets
from labelwise.train.objectives.objective import Mean, Objective, Weighted, scaled
from labelwise.train.training_data import Lesson, Taught


class SklearnLearner(Taught):
    """Fits a clone of `estimator` each round; the estimator given is never changed.

    Every `random_state` among its parameters is set from the key, so that all chance comes from one seed. While only
    one class is labelled, a constant model answers: most classifiers refuse to be fitted then.
    """

    def __init__(self, estimator: Any, use_weights: bool = False):
        """`use_weights` hands the weights of the rows to the final estimator as `sample_weight`."""
        if isinstance(estimator, type):
            raise ArgumentError(f"a classifier was expected, not its class: write {estimator.__name__}().")
        self.task = "regress" if is_regressor(estimator) else "classify"
        if not hasattr(estimator, "fit") or (self.task == "classify" and not hasattr(estimator, "predict_proba")):
            raise ArgumentError(
                f"a classifier with fit and predict_proba was expected; {type(estimator).__name__} lacks one of them. "
                "CalibratedClassifierCV(estimator) gives probabilities to a classifier that has none."
            )
        self.estimator = estimator
        self.use_weights = use_weights

    def learn(self, lesson: Lesson) -> Fit:
        """Fit on the rows of the lesson; the fit of the round before is not looked at."""
        ids, classes, key = lesson.ids, lesson.classes, lesson.key
        if self.task == "regress":
            return self._fit_numbers(lesson)
        labels = checked_labels(ids, lesson.labels, classes)
        X = estimator_inputs(lesson.pool.inputs(ids))
        weight_n = scaled(lesson.weights, len(ids)).double().numpy() if self.use_weights else None
        fitted = self._fitted(X, labels, weight_n, classes, key)
        answer = functools.partial(self._left_out, X, labels, weight_n, classes, key)
        calibration = functools.partial(left_out, ids, labels, key, answer)
        reader = EstimatorReader(
            fitted.classifier, classes, steps=fitted.steps, holdout=None if fitted.constant else calibration
        )
        notes: dict[str, Any] = {"rows": len(ids)}
        if fitted.constant:
            notes["constant"] = f"only class {int(labels[0])} is labelled yet: every row gets the same probabilities"
        return Fit(reader, ids, {}, notes, None)

    def with_objective(self, objective: Objective) -> SklearnLearner | None:
        """A learner like this one that uses the weights of its rows, `Weighted`, or does not, `Mean`."""
        if type(objective) not in (Mean, Weighted):
            return None
        return SklearnLearner(self.estimator, use_weights=type(objective) is Weighted)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Never needed: the same fit on the same labels gives the same classifier."""
        raise StoreError("a fit of a scikit-learn classifier has no state to restore; fit it on the labels again.")

    def _fit_numbers(self, lesson: Lesson) -> Fit:
        ids, labels = lesson.ids, checked_targets(lesson.ids, lesson.labels)
        estimator = _clone(self.estimator, lesson.key.fold("init"))
        X = estimator_inputs(lesson.pool.inputs(ids))
        if self.use_weights:
            weight_n = scaled(lesson.weights, len(ids)).double().numpy()
            estimator.fit(X, labels.numpy(), **{_weight_argument(estimator): weight_n})
        else:
            estimator.fit(X, labels.numpy())
        pipeline = hasattr(estimator, "steps") and len(estimator.steps) > 1
        reader = RegressorReader(estimator[-1], steps=estimator[:-1]) if pipeline else RegressorReader(estimator)
        return Fit(reader, ids, {}, {"rows": len(ids)}, None)

    def _fitted(self, X: Any, labels: Tensor, weight_n: np.ndarray | None, classes: int, key: Key) -> _Fitted:
        estimator = _clone(self.estimator, key.fold("init"))
        y = labels.numpy()
        pipeline = hasattr(estimator, "steps") and len(estimator.steps) > 1
        if len(labels.unique()) == 1:
            # The steps that make features are still fitted, so that rows have embeddings from the first label on.
            steps = estimator[:-1].fit(X, y) if pipeline else None
            return _Fitted(_Constant(labels, classes), steps, constant=True)
        if weight_n is None:
            estimator.fit(X, y)
        else:
            estimator.fit(X, y, **{_weight_argument(estimator): weight_n})
        if pipeline:
            return _Fitted(estimator[-1], estimator[:-1], constant=False)
        return _Fitted(estimator, None, constant=False)

    def _left_out(
        self, X: Any, labels: Tensor, weight_n: np.ndarray | None, classes: int, key: Key, rest: Tensor, out: Tensor
    ) -> Tensor | None:
        """Logits of the rows at `out` by the classifier fitted on those at `rest`; None where it cannot be."""
        weight = None if weight_n is None else weight_n[rest.numpy()]
        if len(labels[rest].unique()) < 2 or (weight is not None and not weight.any()):
            return None
        fitted = self._fitted(_rows(X, rest), labels[rest], weight, classes, key)
        return log_probabilities(fitted.probabilities(_rows(X, out), classes))


class _Fitted:
    """A fitted classifier and the steps before it."""

    def __init__(self, classifier: Classifier, steps: Any, constant: bool):
        self.classifier = classifier
        self.steps = steps
        self.constant = constant

    def probabilities(self, X: Any, classes: int) -> Tensor:
        """Probabilities (n, classes) of these rows."""
        return class_probabilities(self.classifier, X if self.steps is None else self.steps.transform(X), classes)


class _Constant:
    """The answer before a second class is labelled: class c has probability (n_c + 1) / (n + classes)."""

    def __init__(self, labels: Tensor, classes: int):
        self.classes_ = np.arange(classes)
        self.estimators_ = (self,)  # one draw, for a forest whose members cannot be fitted yet
        self._p_C = ((torch.bincount(labels, minlength=classes) + 1) / (len(labels) + classes)).double().numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        return np.tile(self._p_C, (rows, 1))


def is_regressor(estimator: Any) -> bool:
    """Whether scikit-learn takes it for a regressor; an object with predict_proba is a classifier."""
    if isinstance(estimator, type) or hasattr(estimator, "predict_proba") or not hasattr(estimator, "predict"):
        return False
    try:
        from sklearn.base import is_regressor as says
    except ImportError:
        return False
    try:
        return bool(says(estimator))
    except (AttributeError, TypeError):  # not one of scikit-learn's own, and without its tags
        return False


def _clone(estimator: Any, key: Key) -> Any:
    """An unfitted copy with every random_state set from the key."""
    try:
        from sklearn.base import clone
    except ImportError:
        raise extra("sklearn", "bench") from None
    try:
        copy = clone(estimator)
    except TypeError as error:
        raise ArgumentError(
            f"{type(estimator).__name__} cannot be cloned by scikit-learn ({error}); give it get_params and "
            "set_params, for instance by deriving it from sklearn.base.BaseEstimator."
        ) from error
    chance = [name for name in copy.get_params() if name.rpartition("__")[2] == "random_state"]
    return copy.set_params(**{name: key.fold(name).small() for name in chance})


def _weight_argument(estimator: Any) -> str:
    """The name under which `fit` of this estimator, or of a pipeline that ends in one, takes sample weights."""
    from sklearn.utils.validation import has_fit_parameter

    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    if not has_fit_parameter(last, "sample_weight"):
        raise ArgumentError(
            f"use_weights=True needs a classifier whose fit takes sample_weight; {type(last).__name__} does not."
        )
    return f"{estimator.steps[-1][0]}__sample_weight" if hasattr(estimator, "steps") else "sample_weight"


def _rows(X: Any, at: Tensor) -> Any:
    return [X[place] for place in at.tolist()] if isinstance(X, list) else X[at.numpy()]
