"""SklearnLearner: fits a classifier or regressor with the interface of scikit-learn on the labelled rows."""

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
from labelwise.train.cross_val import out_of_fold_logits
from labelwise.train.learner import BaseLearner, Fit, TrainingData, check_labels, check_targets
from labelwise.train.objectives.objective import Mean, Objective, Weighted, scaled


class SklearnLearner(BaseLearner):
    """Fits a clone of an estimator each round; the estimator given is never changed.

    Every `random_state` among its parameters is set from the key, so that all chance comes from one seed. While only
    one class is labelled, a constant model answers, since most classifiers refuse to be fitted then.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from labelwise.pool import Pool
    >>> pool = Pool.of(np.array([[0.0], [1.0], [2.0], [3.0]]))
    >>> learner = SklearnLearner(LogisticRegression())
    >>> fit = learner.fit(pool, pool.ids, torch.tensor([0, 0, 1, 1]), classes=2, key=Key(0))
    >>> fit.notes["rows"]
    4
    """

    def __init__(self, estimator: Any, use_weights: bool = False):
        """Make a learner of an estimator.

        Args:
            estimator: a classifier with fit and predict_proba, a regressor, or a pipeline that ends in one.
            use_weights: pass the weights of the rows to the final estimator as `sample_weight`.

        Raises:
            ArgumentError: the estimator is a class, or lacks a method.
        """
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

    def fit_data(self, data: TrainingData) -> Fit:
        """Fit on the labelled rows; the fit of the round before is not used."""
        ids, classes, key = data.ids, data.classes, data.key
        if self.task == "regress":
            return self._fit_regressor(data)
        labels = check_labels(ids, data.labels, classes)
        X = estimator_inputs(data.pool.inputs(ids))
        weight_n = scaled(data.weights, len(ids)).double().numpy() if self.use_weights else None
        fitted = self._fit_classifier(X, labels, weight_n, classes, key)
        predict = functools.partial(self._predict_fold, X, labels, weight_n, classes, key)
        calibration = None if fitted.constant else functools.partial(out_of_fold_logits, ids, labels, key, predict)
        reader = EstimatorReader(fitted.classifier, classes, steps=fitted.steps, holdout=calibration)
        notes: dict[str, Any] = {"rows": len(ids)}
        if fitted.constant:
            notes["constant"] = f"only class {int(labels[0])} is labelled yet: every row gets the same probabilities"
        return Fit(reader, ids, {}, notes, None)

    def with_objective(self, objective: Objective) -> SklearnLearner | None:
        """Return a copy that uses the weights of the rows for `Weighted`, and does not for `Mean`; None for others."""
        if type(objective) not in (Mean, Weighted):
            return None
        return SklearnLearner(self.estimator, use_weights=type(objective) is Weighted)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Raise StoreError: fits have no state, since the same labels give the same estimator again."""
        raise StoreError("a fit of a scikit-learn classifier has no state to restore; fit it on the labels again.")

    def _fit_regressor(self, data: TrainingData) -> Fit:
        ids, labels = data.ids, check_targets(data.ids, data.labels)
        estimator = _clone(self.estimator, data.key.fold("init"))
        X = estimator_inputs(data.pool.inputs(ids))
        if self.use_weights:
            weight_n = scaled(data.weights, len(ids)).double().numpy()
            estimator.fit(X, labels.numpy(), **{_weight_argument(estimator): weight_n})
        else:
            estimator.fit(X, labels.numpy())
        pipeline = hasattr(estimator, "steps") and len(estimator.steps) > 1
        reader = RegressorReader(estimator[-1], steps=estimator[:-1]) if pipeline else RegressorReader(estimator)
        return Fit(reader, ids, {}, {"rows": len(ids)}, None)

    def _fit_classifier(
        self, X: Any, labels: Tensor, weight_n: np.ndarray | None, classes: int, key: Key
    ) -> _FittedClassifier:
        estimator = _clone(self.estimator, key.fold("init"))
        y = labels.numpy()
        pipeline = hasattr(estimator, "steps") and len(estimator.steps) > 1
        if len(labels.unique()) == 1:
            # The steps that make features are still fitted, so that rows have embeddings from the first label on.
            steps = estimator[:-1].fit(X, y) if pipeline else None
            return _FittedClassifier(_ConstantClassifier(labels, classes), steps, constant=True)
        if weight_n is None:
            estimator.fit(X, y)
        else:
            estimator.fit(X, y, **{_weight_argument(estimator): weight_n})
        if pipeline:
            return _FittedClassifier(estimator[-1], estimator[:-1], constant=False)
        return _FittedClassifier(estimator, None, constant=False)

    def _predict_fold(
        self, X: Any, labels: Tensor, weight_n: np.ndarray | None, classes: int, key: Key, train: Tensor, test: Tensor
    ) -> Tensor | None:
        """Logits of the rows at `test` by the classifier fitted on those at `train`; None if it cannot be fitted."""
        weight = None if weight_n is None else weight_n[train.numpy()]
        if len(labels[train].unique()) < 2 or (weight is not None and not weight.any()):
            return None
        fitted = self._fit_classifier(_take_rows(X, train), labels[train], weight, classes, key)
        return log_probabilities(fitted.probabilities(_take_rows(X, test), classes))


class _FittedClassifier:
    """A fitted classifier and the steps before it."""

    def __init__(self, classifier: Classifier, steps: Any, constant: bool):
        self.classifier = classifier
        self.steps = steps
        self.constant = constant

    def probabilities(self, X: Any, classes: int) -> Tensor:
        """Probabilities (n, classes) of these rows."""
        return class_probabilities(self.classifier, X if self.steps is None else self.steps.transform(X), classes)


class _ConstantClassifier:
    """The classifier before a second class is labelled: class c has probability (n_c + 1) / (n + classes)."""

    def __init__(self, labels: Tensor, classes: int):
        self.classes_ = np.arange(classes)
        self.estimators_ = (self,)  # one draw, for a forest whose members cannot be fitted yet
        self._p_C = ((torch.bincount(labels, minlength=classes) + 1) / (len(labels) + classes)).double().numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        return np.tile(self._p_C, (rows, 1))


def is_regressor(estimator: Any) -> bool:
    """Return whether scikit-learn takes the estimator for a regressor; one with predict_proba is a classifier."""
    if isinstance(estimator, type) or hasattr(estimator, "predict_proba") or not hasattr(estimator, "predict"):
        return False
    try:
        from sklearn.base import is_regressor as sklearn_is_regressor
    except ImportError:
        return False
    try:
        return bool(sklearn_is_regressor(estimator))
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
    random_states = [name for name in copy.get_params() if name.rpartition("__")[2] == "random_state"]
    return copy.set_params(**{name: key.fold(name).small() for name in random_states})


def _weight_argument(estimator: Any) -> str:
    """The name under which `fit` of this estimator, or of a pipeline that ends in one, takes sample weights."""
    from sklearn.utils.validation import has_fit_parameter

    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    if not has_fit_parameter(last, "sample_weight"):
        raise ArgumentError(
            f"use_weights=True needs a classifier whose fit takes sample_weight; {type(last).__name__} does not."
        )
    return f"{estimator.steps[-1][0]}__sample_weight" if hasattr(estimator, "steps") else "sample_weight"


def _take_rows(X: Any, index: Tensor) -> Any:
    return [X[position] for position in index.tolist()] if isinstance(X, list) else X[index.numpy()]
