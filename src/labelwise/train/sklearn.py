"""SklearnLearner: fits a classifier or regressor with the interface of scikit-learn on the labelled rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
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
from labelwise.train.cross_val import best_candidate, out_of_fold_logits, out_of_fold_outputs
from labelwise.train.learner import BaseLearner, Fit, TrainingData, check_labels, check_targets
from labelwise.train.objectives.loss import CrossEntropy, SquaredError
from labelwise.train.objectives.objective import Mean, Objective, Weighted, scaled

CANDIDATES = tuple(10.0**power for power in range(-3, 4))  # values of a parameter to choose from


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

    def __init__(self, estimator: Any, use_weights: bool = False, cross_validate: str | None = None):
        """Make a learner of an estimator.

        Args:
            estimator: a classifier with fit and predict_proba, a regressor, or a pipeline that ends in one.
            use_weights: pass the weights of the rows to the final estimator as `sample_weight`.
            cross_validate: the name of a parameter, such as "C" of a logistic regression or "alpha" of a ridge, to
                choose from 0.001, 0.01 ... 1000 by five-fold cross-validation inside the labelled rows: by accuracy
                and then by loss; in regression by loss. It takes about 29 times as long.

        Raises:
            ArgumentError: the estimator is a class, or lacks a method or the parameter.
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
        self.cross_validate = cross_validate
        if cross_validate is not None and cross_validate not in _clone(estimator, Key(0)).get_params():
            known = ", ".join(sorted(_clone(estimator, Key(0)).get_params()))
            raise ArgumentError(
                f"cross_validate is the name of a parameter of {type(estimator).__name__}, not {cross_validate!r}; it "
                f"has {known}."
            )

    def fit_data(self, data: TrainingData) -> Fit:
        """Fit on the labelled rows; the fit of the round before is not used."""
        ids, classes = data.ids, data.classes
        is_regression = self.task == "regress"
        labels = check_targets(ids, data.labels) if is_regression else check_labels(ids, data.labels, classes)
        weight_n = scaled(data.weights, len(ids)).double().numpy() if self.use_weights else None
        rows = _LabelledRows(ids, estimator_inputs(data.pool.inputs(ids)), labels, weight_n, classes, data.key)
        notes: dict[str, Any] = {"rows": len(ids)}
        estimator = self.estimator if self.cross_validate is None else self._choose(rows, self.cross_validate, notes)
        if is_regression:
            regressor = rows.fit_regressor(estimator)
            return Fit(_regressor_reader(regressor), ids, {}, notes, None, model=regressor)
        fitted = rows.fit_classifier(estimator)
        predict = functools.partial(rows.predict_fold, estimator)
        calibration = None if fitted.constant else functools.partial(out_of_fold_logits, ids, labels, data.key, predict)
        if fitted.constant:
            notes["constant"] = f"only class {int(labels[0])} is labelled yet: every row gets the same probabilities"
        reader = EstimatorReader(fitted.classifier, classes, steps=fitted.steps, holdout=calibration)
        return Fit(reader, ids, {}, notes, None, model=fitted.model)

    def _choose(self, rows: _LabelledRows, parameter: str, notes: dict[str, Any]) -> Any:
        """The estimator with the value of the parameter that is best on rows it was not fitted on."""
        candidates = [_clone(self.estimator, Key(0)).set_params(**{parameter: value}) for value in CANDIDATES]
        is_regression = self.task == "regress"

        def predict(train: Tensor, test: Tensor) -> Tensor | None:
            outputs = [rows.predict_fold(candidate, train, test) for candidate in candidates]
            found = [output for output in outputs if output is not None]
            return torch.stack(found, 1) if found else None  # all or none can be fitted

        groups = torch.zeros_like(rows.labels, dtype=torch.int64) if is_regression else rows.labels
        found = out_of_fold_outputs(rows.ids, groups, rows.key, predict)
        if found is None:
            notes["cross_validation"] = "too few labelled rows: nothing was chosen"
            return self.estimator
        loss = SquaredError() if is_regression else CrossEntropy(rows.classes)
        best = best_candidate(found[0], rows.labels[found[1]], loss.rows)
        notes["cross_validation"] = {parameter: CANDIDATES[best], "rows": len(found[1])}
        return candidates[best]

    def with_objective(self, objective: Objective) -> SklearnLearner | None:
        """Return a copy that uses the weights of the rows for `Weighted`, and does not for `Mean`; None for others."""
        if type(objective) not in (Mean, Weighted):
            return None
        return SklearnLearner(self.estimator, type(objective) is Weighted, self.cross_validate)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Raise StoreError: fits have no state, since the same labels give the same estimator again."""
        raise StoreError("a fit of a scikit-learn classifier has no state to restore; fit it on the labels again.")


@dataclass(frozen=True)
class _LabelledRows:
    """What estimators are fitted on."""

    ids: Tensor
    X: Any
    labels: Tensor
    weight_n: np.ndarray | None
    classes: int
    key: Key

    def take(self, index: Tensor) -> _LabelledRows:
        """The rows at these positions."""
        X = [self.X[position] for position in index.tolist()] if isinstance(self.X, list) else self.X[index.numpy()]
        weight_n = None if self.weight_n is None else self.weight_n[index.numpy()]
        return replace(self, ids=self.ids[index], X=X, labels=self.labels[index], weight_n=weight_n)

    def fit_regressor(self, estimator: Any) -> Any:
        return self._fit(_clone(estimator, self.key.fold("init")))

    def fit_classifier(self, estimator: Any) -> _FittedClassifier:
        copy = _clone(estimator, self.key.fold("init"))
        is_pipeline = hasattr(copy, "steps") and len(copy.steps) > 1
        if len(self.labels.unique()) == 1:
            # The steps that make features are still fitted, so that rows have embeddings from the first label on.
            steps = copy[:-1].fit(self.X, self.labels.numpy()) if is_pipeline else None
            constant = _ConstantClassifier(self.labels, self.classes)
            return _FittedClassifier(constant, steps, constant=True, model=constant)
        fitted = self._fit(copy)
        if is_pipeline:
            return _FittedClassifier(fitted[-1], fitted[:-1], constant=False, model=fitted)
        return _FittedClassifier(fitted, None, constant=False, model=fitted)

    def predict_fold(self, estimator: Any, train: Tensor, test: Tensor) -> Tensor | None:
        """Logits (m, C), or numbers (m, 1), for the rows at `test` by an estimator fitted on those at `train`.

        None if it cannot be fitted on them.
        """
        part = self.take(train)
        if part.weight_n is not None and not part.weight_n.any():
            return None
        X = self.take(test).X
        if self.labels.is_floating_point():
            fitted = part._fit(_clone(estimator, self.key.fold("init")))
            return torch.as_tensor(np.asarray(fitted.predict(X), np.float64)).reshape(-1, 1)
        if len(part.labels.unique()) < 2:
            return None
        return log_probabilities(part.fit_classifier(estimator).probabilities(X, self.classes))

    def _fit(self, estimator: Any) -> Any:
        weights = {} if self.weight_n is None else {_weight_argument(estimator): self.weight_n}
        estimator.fit(self.X, self.labels.numpy(), **weights)
        return estimator


class _FittedClassifier:
    """A fitted classifier, the steps before it, and both as one estimator."""

    def __init__(self, classifier: Classifier, steps: Any, constant: bool, model: Any):
        self.classifier = classifier
        self.steps = steps
        self.constant = constant
        self.model = model

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

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)]


def _regressor_reader(fitted: Any) -> RegressorReader:
    is_pipeline = hasattr(fitted, "steps") and len(fitted.steps) > 1
    return RegressorReader(fitted[-1], steps=fitted[:-1]) if is_pipeline else RegressorReader(fitted)


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
