"""Probs, LabelProbs and Embedding of a fitted scikit-learn classifier; scikit-learn is not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import LabelwiseError, ModelError, NeedError
from labelwise.io.arguments import is_sparse
from labelwise.io.frames import is_frame
from labelwise.signals.draws.sklearn_members import has_members, member_log_probs
from labelwise.signals.model.calibration import note_temperature
from labelwise.signals.read import as_column
from labelwise.signals.spec import Embedding, LabelProbs, LogProbs, Prediction, Probs, Signal

WIDEST = 1 << 15  # columns up to which a sparse matrix is made dense


class Classifier(Protocol):
    """A fitted classifier with classes and probabilities."""

    classes_: np.ndarray

    def predict_proba(self, X: Any) -> np.ndarray: ...


class EstimatorReader:
    """Reads a fitted classifier with the interface of scikit-learn.

    Probs has one column for each of `classes`, in their order; a class that the classifier never saw has
    probability 0. Embedding is the input of the final step: the output of the earlier steps of a pipeline, else the
    row itself, flattened. LabelProbs is softmax(log Probs / T), with T fitted on held-out rows when it is first read.
    LogProbs has one draw for each member of a scikit-learn ensemble.
    """

    def __init__(
        self,
        classifier: Classifier,
        classes: int,
        *,
        steps: Any = None,
        holdout: Callable[[], tuple[Tensor, Tensor] | None] | None = None,
        takes_frame: bool = False,
    ):
        """Read `classifier`.

        Args:
            classifier: fitted on class numbers.
            classes: how many classes there are.
            steps: the earlier steps of a pipeline, with `transform`; each row is transformed once.
            holdout: returns logits (n, C) and labels (n,) of held-out rows to fit the temperature on.
            takes_frame: whether it was fitted on rows of a frame as they are.
        """
        self.classifier = classifier
        self.classes = classes
        self.steps = steps
        self.takes_frame = takes_frame
        self._holdout = holdout
        self._calibration: dict[str, Any] = {}

    @property
    def temperature(self) -> float:
        """The temperature of LabelProbs, fitted on first access."""
        if not self._calibration:
            found = None if self._holdout is None else self._holdout()
            note_temperature(found, self._calibration)
        return float(self._calibration["temperature"])

    def notes(self) -> dict[str, Any]:
        """The temperature and the calibration errors, once it was fitted."""
        return dict(self._calibration)

    def gives(self, signal: Signal) -> bool:
        has_draws = has_members(self.classifier)
        return all(
            isinstance(part, Probs | LabelProbs | Embedding) or (has_draws and isinstance(part, LogProbs))
            for part in signal.stored()
        )

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        with _named_errors(self.classifier):
            return self._columns(inputs, signals)

    def _columns(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        features, dtype = _final_features(inputs, self.steps)
        columns: dict[Signal, Tensor] = {}
        p_BC: Tensor | None = None
        if any(isinstance(signal, Probs | LabelProbs) for signal in signals):
            p_BC = class_probabilities(self.classifier, features, self.classes)
        for signal in signals:
            if isinstance(signal, Probs) and p_BC is not None:
                columns[signal] = p_BC.to(dtype)
            elif isinstance(signal, LabelProbs) and p_BC is not None:
                columns[signal] = (log_probabilities(p_BC) / self.temperature).softmax(1).to(dtype)
            elif isinstance(signal, LogProbs) and has_members(self.classifier):
                columns[signal] = member_log_probs(self.classifier, features, self.classes).to(dtype)
            elif isinstance(signal, Embedding):
                columns[signal] = as_column(torch.from_numpy(_dense(features)).to(dtype))
            else:
                raise NeedError(f"EstimatorReader does not give {signal!r}; it gives Probs, LabelProbs, Embedding")
        return columns


class RegressorReader:
    """Reads a fitted regressor with the interface of scikit-learn: Prediction, and Embedding as `EstimatorReader`."""

    def __init__(self, regressor: Any, *, steps: Any = None, takes_frame: bool = False):
        self.regressor = regressor
        self.steps = steps
        self.takes_frame = takes_frame

    def gives(self, signal: Signal) -> bool:
        return all(isinstance(part, Prediction | Embedding) for part in signal.stored())

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        with _named_errors(self.regressor):
            return self._columns(inputs, signals)

    def _columns(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        features, dtype = _final_features(inputs, self.steps)
        columns: dict[Signal, Tensor] = {}
        for signal in signals:
            if isinstance(signal, Prediction):
                columns[signal] = predictions(self.regressor, features).to(dtype)
            elif isinstance(signal, Embedding):
                columns[signal] = as_column(torch.from_numpy(_dense(features)).to(dtype))
            else:
                raise NeedError(f"RegressorReader does not give {signal!r}; it gives Prediction, Embedding")
        return columns


@contextmanager
def _named_errors(estimator: Any) -> Iterator[None]:
    """Within, an error of an estimator becomes a ModelError; it is of many kinds, by every estimator its own."""
    try:
        yield
    except LabelwiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(estimator).__name__}, or a step before it, could not read rows of the pool: "
            f"{str(error).rstrip('.')}. Correct the rows or leave them out of the pool; for missing numbers take a "
            "pipeline with an imputer"
        ) from error


def _final_features(inputs: Any, steps: Any) -> tuple[Any, torch.dtype]:
    """The input of the final step of a pipeline, and the dtype of the columns to read."""
    rows = estimator_inputs(inputs)
    wide = (isinstance(inputs, Tensor) or is_sparse(inputs)) and inputs.dtype in (torch.float64, np.float64)
    return rows if steps is None else steps.transform(rows), torch.float64 if wide else torch.float32


def predictions(regressor: Any, features: Any) -> Tensor:
    """The predictions (n,) in float64."""
    rows = features.shape[0] if hasattr(features, "shape") else len(features)
    given = np.asarray(regressor.predict(features), np.float64)
    if given.size != rows:
        raise ModelError(f"predict must give one number for each of {rows} rows, found shape {given.shape}")
    return torch.from_numpy(given.reshape(rows))


def estimator_inputs(inputs: Any) -> Any:
    """Rows as scikit-learn takes them: an array (n, D), a sparse matrix, a list of texts or a frame."""
    if isinstance(inputs, Tensor):
        rows = inputs.detach().cpu()
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        return rows.flatten(1).numpy() if rows.ndim > 1 else rows[:, None].numpy()
    if (
        is_frame(inputs)
        or is_sparse(inputs)
        or (isinstance(inputs, list) and all(isinstance(text, str) for text in inputs))
    ):
        return inputs
    raise ModelError(
        f"a scikit-learn classifier takes rows of numbers or texts; the pool gives {type(inputs).__name__}. "
        "Use a torch model, or a pool whose rows are arrays or texts."
    )


def class_probabilities(classifier: Classifier, features: Any, classes: int) -> Tensor:
    """Probabilities (n, classes) in float64, in the order of the classes, 0 for those the classifier never saw."""
    given_NS = np.asarray(classifier.predict_proba(features), np.float64)
    seen_S = np.asarray(classifier.classes_)
    if given_NS.ndim == 2 and given_NS.shape[1] == classes != len(seen_S):
        seen_S = np.arange(classes)  # a network with one output for each class, also for those not labelled yet
    if given_NS.ndim != 2 or given_NS.shape[1] != len(seen_S):
        raise ModelError(
            f"predict_proba must give one column for each of the {len(seen_S)} classes it was fitted on, found an "
            f"array of shape {given_NS.shape}. A network has one output for each class: give it as many, and name all "
            "classes by classes= where not all of them are labelled yet."
        )
    p_NC = np.zeros((len(given_NS), classes))
    p_NC[:, seen_S.astype(np.int64)] = given_NS
    return torch.from_numpy(p_NC / p_NC.sum(1, keepdims=True))


def log_probabilities(p_NC: Tensor) -> Tensor:
    """Logs of probabilities, used as logits; a probability of 0 counts as 1e-12."""
    return p_NC.clamp_min(1e-12).log()


def _dense(features: Any) -> np.ndarray:
    """Features of a batch as a dense array."""
    if hasattr(features, "toarray"):
        if features.shape[1] > WIDEST:
            raise NeedError(
                f"Embedding: the rows have {features.shape[1]} sparse columns, and at most {WIDEST} are made dense. "
                "Add a step such as TruncatedSVD(300) before the classifier, or set max_features of the vectoriser."
            )
        return np.asarray(features.toarray())
    if isinstance(features, list):
        raise NeedError(
            "Embedding: this classifier takes texts. Put the step that turns them into numbers before it in a "
            "Pipeline, such as make_pipeline(TfidfVectorizer(), LogisticRegression())."
        )
    rows = np.asarray(features)
    if rows.dtype.kind not in "fiub":
        raise NeedError(
            "Embedding: this classifier takes rows of a frame. Put the step that turns them into numbers before it in "
            "a Pipeline, such as make_pipeline(ColumnTransformer(...), classifier)."
        )
    return rows.reshape(len(rows), -1)
