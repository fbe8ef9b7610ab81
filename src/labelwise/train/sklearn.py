"""SklearnLearner: fits a classifier or regressor with the interface of scikit-learn on the labelled rows."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelwiseError, ModelError, StoreError, extra
from labelwise.io.arguments import is_sparse
from labelwise.io.frames import is_frame, take_rows
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
from labelwise.train.few_rows import fit_to_rows
from labelwise.train.learner import BaseLearner, Fit, TrainingData, check_labels, check_targets
from labelwise.train.objectives.loss import CrossEntropy, SquaredError
from labelwise.train.objectives.objective import Mean, Objective, Weighted, scaled
from labelwise.train.torch.initialise import seeded

HOW_TO_GET_PROBABILITIES = (
    "CalibratedClassifierCV(classifier) gives probabilities to a classifier that has none, and voting='soft' to a "
    "VotingClassifier."
)
_SMOOTH = tuple(f"sklearn.{module}" for module in ("linear_model", "neural_network", "svm", "discriminant_analysis"))
CANDIDATES = tuple(10.0**power for power in range(-3, 4))  # values of a parameter to choose from


class SklearnLearner(BaseLearner):
    """Fits a clone of an estimator each round; the estimator given is never changed.

    Every `random_state` among its parameters is set from the key, and torch's generators are seeded from it, so that
    all chance comes from one seed. While only one class is labelled, a constant model answers, since most classifiers
    refuse to be fitted then. While there are few rows, inner folds and neighbours are fewer: see `few_rows`.

    Args:
        estimator: a classifier or regressor with the interface of scikit-learn, such as a pipeline.
        use_weights: whether the weights of picks are passed to `fit`.
        cross_validate: the name of a parameter that is chosen by cross-validation, such as "C".
        takes_frame: whether the estimator gets the rows of a frame as they are; None tries.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from labelwise.pool import Pool
    >>> pool = Pool.of(np.array([[0.0], [1.0], [2.0], [3.0]]))
    >>> learner = SklearnLearner(LogisticRegression())
    >>> fit = learner.fit(pool, pool.ids, torch.tensor([0, 0, 1, 1]), classes=2, key=Key(0))
    >>> fit.notes["rows"]
    4
    """

    read_batch = 4096  # one call of an estimator takes as long as the arithmetic of some hundred rows

    def __init__(
        self,
        estimator: Any,
        use_weights: bool = False,
        cross_validate: str | None = None,
        takes_frame: bool | None = None,
    ):
        """Make a learner of an estimator.

        Args:
            estimator: a classifier with fit and predict_proba, a regressor, or a pipeline that ends in one.
            use_weights: pass the weights of the rows to the final estimator as `sample_weight`.
            cross_validate: the name of a parameter, such as "C" of a logistic regression or "alpha" of a ridge, to
                choose from 0.001, 0.01 ... 1000 by five-fold cross-validation inside the labelled rows: by accuracy
                and then by loss; in regression by loss. Of a pipeline, the name alone is enough where one step has
                it. The same folds give the temperature of LabelProbs. It takes about 29 times as long.
            takes_frame: whether rows of a frame or of a sparse matrix are given to it as they are, and not as dense
                features; None: sparse rows always, those of a frame if it has a pipeline or a ColumnTransformer inside.

        Raises:
            ArgumentError: the estimator is a class, or lacks a method or the parameter.
            ExtraError: scikit-learn is not installed.
        """
        if isinstance(estimator, type):
            raise ArgumentError(f"a classifier was expected, not its class: write {estimator.__name__}().")
        self.task = "regress" if is_regressor(estimator) else "classify"
        if not hasattr(estimator, "fit") or (self.task == "classify" and not gives_probabilities(estimator)):
            raise ArgumentError(
                f"a classifier with fit and predict_proba was expected; {type(estimator).__name__} lacks one of them. "
                f"{HOW_TO_GET_PROBABILITIES}"
            )
        self.estimator = estimator
        self.use_weights = use_weights
        self.cross_validate = cross_validate
        self.takes_frame = takes_frame
        if cross_validate is not None:
            _parameter_name(estimator, cross_validate)

    def fit_data(self, data: TrainingData) -> Fit:
        """Fit on the labelled rows; the fit of the round before is not used.

        Args:
            data: pool, ids, labels and weights of the labelled rows, classes and key.

        Returns:
            The fit.

        Raises:
            LabelError: the estimator refuses the labels.
            ArgumentError: the estimator cannot be cloned, or takes no sample weights although rows have them.
            RowError: there is not one label or weight for each id.
            ExtraError: scikit-learn is not installed.
        """
        ids, classes = data.ids, data.classes
        is_regression = self.task == "regress"
        labels = check_targets(ids, data.labels) if is_regression else check_labels(ids, data.labels, classes)
        weight_n = scaled(data.weights, len(ids)).double().numpy() if self.use_weights else None
        takes_frame = self.takes_frame
        if takes_frame is None:
            takes_frame = data.pool.is_sparse or _has_pipeline(self.estimator)
        X = estimator_inputs(data.pool.inputs(ids, takes_frame))
        rows = _LabelledRows(ids, X, labels, weight_n, classes, data.key)
        notes: dict[str, Any] = {"rows": len(ids)}
        estimator, folds = self._choose(rows, notes)
        if is_regression:
            regressor = rows.fit_regressor(estimator, notes)
            return Fit(_regressor_reader(regressor, takes_frame), ids, {}, notes, None, model=regressor)
        fitted = rows.fit_classifier(estimator, notes)
        predict = functools.partial(rows.predict_fold, estimator)
        calibration: Any = functools.partial(out_of_fold_logits, ids, labels, data.key, predict)
        if folds is not None:
            calibration = functools.partial(tuple, folds)  # those that chose the parameter
        if not fitted.constant and rows.look_alike(fitted):
            notes["warning"] = (
                f"{type(self.estimator).__name__} gives all {len(ids)} labelled rows the same probabilities: it has "
                "learnt nothing from them; lower what needs more rows, such as min_child_samples or min_samples_leaf"
            )
        if fitted.constant:
            calibration = None
            notes["constant"] = f"only class {int(labels[0])} is labelled yet: every row gets the same probabilities"
        reader = EstimatorReader(
            fitted.classifier, classes, steps=fitted.steps, holdout=calibration, takes_frame=takes_frame
        )
        return Fit(reader, ids, {}, notes, None, model=fitted.model)

    def _choose(self, rows: _LabelledRows, notes: dict[str, Any]) -> tuple[Any, tuple[Tensor, Tensor] | None]:
        """The estimator with the value of the parameter that is best on rows it was not fitted on.

        Also its outputs for those rows, and their labels; None where nothing was chosen.
        """
        if self.cross_validate is None:
            return self.estimator, None
        parameter = _parameter_name(self.estimator, self.cross_validate)
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
            return self.estimator, None
        loss = SquaredError() if is_regression else CrossEntropy(rows.classes)
        outputs_nGC, label_n = found[0], rows.labels[found[1]]
        best = best_candidate(outputs_nGC, label_n, loss.rows)
        notes["cross_validation"] = {parameter: CANDIDATES[best], "rows": len(label_n)}
        return candidates[best], (outputs_nGC[:, best], label_n)

    def with_objective(self, objective: Objective) -> SklearnLearner | None:
        """Return a copy that uses the weights of the rows for `Weighted`, and does not for `Mean`; None for others.

        None too for an estimator whose `fit` takes no weights, if it is to use them.

        Args:
            objective: `Mean` or `Weighted`.

        Returns:
            A learner, or None.
        """
        if type(objective) not in (Mean, Weighted) or (type(objective) is Weighted and not _weighable(self.estimator)):
            return None
        return SklearnLearner(self.estimator, type(objective) is Weighted, self.cross_validate, self.takes_frame)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Raise StoreError: fits have no state, since the same labels give the same estimator again.

        Args:
            state: that of a fit.
            ids: (n,) of the rows it was trained on.

        Returns:
            Nothing: it always raises.

        Raises:
            StoreError: always.
        """
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
        if isinstance(self.X, list):
            X: Any = [self.X[position] for position in index.tolist()]
        else:
            X = take_rows(self.X, index.numpy()) if is_frame(self.X) else self.X[index.numpy()]
        weight_n = None if self.weight_n is None else self.weight_n[index.numpy()]
        return replace(self, ids=self.ids[index], X=X, labels=self.labels[index], weight_n=weight_n)

    def fit_regressor(self, estimator: Any, notes: dict[str, Any]) -> Any:
        """A fitted copy of a regressor; `notes` says what was changed for few rows."""
        values = self.labels.numpy()
        # skorch wants one column of numbers of the precision of the weights.
        return self._fit(estimator, notes, values, values[:, None].astype(np.float32))[0]

    def fit_classifier(self, estimator: Any, notes: dict[str, Any]) -> _FittedClassifier:
        """A fitted copy of a classifier; `notes` says what was changed for few rows."""
        seen = self.labels.unique()
        if len(seen) == 1:
            # The steps that make features are still fitted, so that rows have embeddings from the first label on.
            copy = _clone(estimator, self.key.fold("init"))
            steps = self._fit_steps(copy[:-1]) if _is_pipeline(copy) else None
            constant = _ConstantClassifier(self.labels, self.classes)
            return _FittedClassifier(constant, steps, constant=True, model=constant)
        # Some, such as XGBClassifier, want the classes to be 0, 1, 2 ... without a gap.
        places = torch.searchsorted(seen, self.labels)
        others = () if torch.equal(places, self.labels) else (places.numpy(),)
        fitted, form = self._fit(estimator, notes, self.labels.numpy(), *others)
        classifier, steps = _final_step(fitted)
        if form == 1:
            notes["classes"] = f"the model calls the classes {seen.tolist()} 0 to {len(seen) - 1}"
            classifier = _Renumbered(classifier, seen.numpy())
        return _FittedClassifier(classifier, steps, constant=False, model=fitted)

    def look_alike(self, fitted: _FittedClassifier) -> bool:
        """Whether a fitted classifier gives all of these rows the same probabilities."""
        try:
            p_nC = fitted.probabilities(self.X, self.classes)
        except Exception:  # the reader meets it again, and says what to do
            return False
        return bool(torch.allclose(p_nC, p_nC[:1], rtol=0, atol=1e-9))

    def predict_fold(self, estimator: Any, train: Tensor, test: Tensor) -> Tensor | None:
        """Logits (m, C), or numbers (m, 1), for the rows at `test` by an estimator fitted on those at `train`.

        None if it cannot be fitted on them.
        """
        part = self.take(train)
        if part.weight_n is not None and not part.weight_n.any():
            return None
        X = self.take(test).X
        if self.labels.is_floating_point():
            fitted = part.fit_regressor(estimator, {})
            return torch.as_tensor(np.asarray(fitted.predict(X), np.float64)).reshape(-1, 1)
        if len(part.labels.unique()) < 2:
            return None
        return log_probabilities(part.fit_classifier(estimator, {}).probabilities(X, self.classes))

    def _fit_steps(self, steps: Any) -> Any:
        try:
            return steps.fit(self.X, self.labels.numpy())
        except Exception as error:
            raise self._error(steps, error) from error

    def _fit(self, estimator: Any, notes: dict[str, Any], *forms: np.ndarray) -> tuple[Any, int]:
        """A fitted copy, and in which of several forms (n, ...) it took the labels: the first it did not refuse."""
        first: Exception | None = None
        for number, answers in enumerate(forms):
            copy = _clone(estimator, self.key.fold("init"))
            index = fit_to_rows(copy, self.labels, self.key.fold("split"), notes)
            rows = self.take(index) if len(index) > len(self.ids) else self
            weights = {} if self.weight_n is None else {_weight_argument(copy): rows.weight_n}
            try:
                with seeded(self.key.fold("torch")), warnings.catch_warnings():
                    # The loss of a column of outputs against a row of numbers is of all pairs: a wrong one.
                    warnings.filterwarnings("error", "Using a target size")
                    return copy.fit(rows.X, answers[index.numpy()], **weights), number
            except LabelwiseError:
                raise
            except Exception as error:  # of many kinds, by every estimator its own
                first = first or error
        raise self._error(estimator, first) from first

    def _error(self, estimator: Any, error: Exception | None) -> ModelError:
        classes = "" if self.labels.is_floating_point() else f" of {len(self.labels.unique())} classes"
        name, why = type(estimator).__name__, str(error).rstrip(".")
        of_frame, of_texts = is_frame(self.X), isinstance(self.X, list)
        rows = f"{len(self.ids)} labelled {'texts' if of_texts else 'rows'}{' of the frame' * of_frame}{classes}"
        hint = (
            "A pipeline gets the frame as it is: let it begin with a ColumnTransformer for its columns, or pass "
            "SklearnLearner(estimator, takes_frame=False) for the features that Labelwise makes of them"
        )
        if of_texts and not _is_pipeline(estimator):
            return ModelError(
                f"{name} could not be fitted on {rows}: {why}. Let a pipeline make numbers of them, such as "
                f"make_pipeline(TfidfVectorizer(), {name}())"
            )
        if is_sparse(self.X) and "parse" in why:
            return ModelError(
                f"{name} could not be fitted on {rows}, which are sparse: {why}. SklearnLearner({name}(), "
                "takes_frame=False) gives it dense rows"
            )
        if "Double" in why and "Float" in why:
            return ModelError(
                f"{name} could not be fitted on {rows}: {why}. Torch modules are of float32, these "
                "rows of float64: make the pool of X.astype('float32')"
            )
        return ModelError(
            f"{name} could not be fitted on {rows}: {why}. "
            f"{f'{hint}. ' if of_frame else ''}If it needs more rows, label more at first (a larger first batch), or "
            "lower what needs them: the components of a decomposition, or a part that is set aside "
            "(early_stopping=False; in skorch train_split=None)"
        )


def _is_pipeline(estimator: Any) -> bool:
    return hasattr(estimator, "steps") and len(estimator.steps) > 1


def _final_step(fitted: Any) -> tuple[Any, Any]:
    """The last step of a fitted pipeline and the steps before; of a search, those of the estimator it found."""
    while hasattr(fitted, "best_estimator_"):
        fitted = fitted.best_estimator_
    return (fitted[-1], fitted[:-1]) if _is_pipeline(fitted) else (fitted, None)


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


class _Renumbered:
    """A classifier fitted on places in a list of classes, with the classes themselves."""

    def __init__(self, classifier: Classifier, classes: np.ndarray):
        self._classifier = classifier
        self.classes_ = classes

    def predict_proba(self, X: Any) -> np.ndarray:
        return self._classifier.predict_proba(X)


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


def _regressor_reader(fitted: Any, takes_frame: bool) -> RegressorReader:
    regressor, steps = _final_step(fitted)
    return RegressorReader(regressor, steps=steps, takes_frame=takes_frame)


def _has_pipeline(estimator: Any) -> bool:
    """Whether there is a pipeline or a ColumnTransformer in an estimator, at any depth, or it is one."""
    parameters = estimator.get_params() if hasattr(estimator, "get_params") else {}
    return any(hasattr(part, "steps") or hasattr(part, "transformers") for part in (estimator, *parameters.values()))


def is_regressor(estimator: Any) -> bool:
    """Return whether scikit-learn takes the estimator for a regressor."""
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        return False
    try:
        from sklearn.base import is_regressor as sklearn_is_regressor
    except ImportError:
        return False
    try:
        return bool(sklearn_is_regressor(estimator))
    except (AttributeError, TypeError):  # not one of scikit-learn's own, and without its tags
        return False


def gives_probabilities(estimator: Any) -> bool:
    """Return whether a classifier, a pipeline or a search has `predict_proba` once it is fitted."""
    if hasattr(estimator, "predict_proba"):
        return True
    if getattr(estimator, "steps", None):
        return gives_probabilities(estimator.steps[-1][1])
    if getattr(estimator, "refit", False) and hasattr(estimator, "estimator"):
        return gives_probabilities(estimator.estimator)
    # A stack without a final estimator takes a logistic regression when it is fitted.
    return hasattr(estimator, "stack_method") and estimator.final_estimator is None


def is_of_trees(learner: Any) -> bool:
    """Whether a learner fits trees, boosting or neighbours: an estimator that is no linear model, network or SVM.

    Args:
        learner: any learner.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> is_of_trees(SklearnLearner(RandomForestClassifier()))
    True
    """
    inside = getattr(learner, "learner", None)  # of an ensemble
    if inside is not None:
        return is_of_trees(inside)
    if not isinstance(learner, SklearnLearner):
        return False
    estimator = learner.estimator
    while True:
        if getattr(estimator, "steps", None):
            estimator = estimator.steps[-1][1]
        elif getattr(estimator, "estimator", None) is not None:  # calibrated, or searched for parameters
            estimator = estimator.estimator
        else:
            return not type(estimator).__module__.startswith(_SMOOTH)


def _parameter_name(estimator: Any, name: str) -> str:
    """The full name of a parameter: "C" is "logisticregression__C" of a pipeline where no other part has one."""
    known = sorted(_clone(estimator, Key(0)).get_params())
    found = [name] if name in known else [each for each in known if each.endswith(f"__{name}")]
    if len(found) != 1:
        raise ArgumentError(
            f"cross_validate is the name of a parameter of {type(estimator).__name__}, not {name!r}; it has "
            f"{', '.join(found or known)}."
        )
    return found[0]


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


def _weighable(estimator: Any) -> bool:
    """Whether `fit` of this estimator, or of the last step of this pipeline, takes sample weights."""
    from sklearn.utils.validation import has_fit_parameter

    return bool(has_fit_parameter(estimator[-1] if hasattr(estimator, "steps") else estimator, "sample_weight"))


def _weight_argument(estimator: Any) -> str:
    """The name under which `fit` of this estimator, or of a pipeline that ends in one, takes sample weights."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    if not _weighable(estimator):
        raise ArgumentError(
            f"use_weights=True needs a classifier whose fit takes sample_weight; {type(last).__name__} does not."
        )
    return f"{estimator.steps[-1][0]}__sample_weight" if hasattr(estimator, "steps") else "sample_weight"
