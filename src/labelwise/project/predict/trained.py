"""The trained model of a project: its linear layer, the temperature that calibrates it, and the encoder of its rows.

The temperature is fitted on rows the model was not trained on: the test slice, and the training rows by
cross-validation. Training rows were chosen because they are hard; the slice is what the pool is like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from labelwise.errors import LabelError, SourceError
from labelwise.project.data import saved_encoders
from labelwise.project.data.encoders import Encoder
from labelwise.project.data.features import checked_features
from labelwise.project.data.source import Data
from labelwise.project.label_sets import value_of
from labelwise.project.loop.model import logistic, ridge
from labelwise.project.loop.set_model import hot, logistic_each, set_losses
from labelwise.project.loop.snapshot import Snapshot, session_of, take_snapshot, training_weights
from labelwise.project.meter.meter import score_of
from labelwise.project.project import Project
from labelwise.project.settings import Kind
from labelwise.rng import Key
from labelwise.signals.model.calibration import label_temperature
from labelwise.train.torch.data import assign_folds

FOLDS = 5
BLOCK = 4096  # rows predicted at a time
COVERED = 0.9  # share of new rows whose number lies between `low` and `high`


@dataclass(frozen=True)
class HeldOutRows:
    """Outputs of models for labelled rows they were not trained on, and the labels (class numbers, or numbers).

    `rows`, `out_MC` and `label_M` are the test slice; `cross_NC` and `cross_label_N` the training rows by
    cross-validation, of which there are none for numbers.
    """

    rows: np.ndarray
    out_MC: np.ndarray
    label_M: np.ndarray
    cross_NC: np.ndarray
    cross_label_N: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A linear layer on the features of an encoder, trained on every label outside the test slice.

    Attributes:
        weight_CD, bias_C: the layer; one output for numbers.
        mean_D, scale_D: what is subtracted from features and what they are divided by.
        classes: names of the outputs; empty for numbers.
        temperature: what outputs are divided by before the softmax.
        margin: half the width of the interval that holds 90 % of numbers; None for classes, or with too few test rows.
        labels: labels it was trained on.
        score: accuracy or RMSE on the test slice, with its 95 % interval and the number of test rows.
        kind: what a row is.
        encoder: the name of what turns a row into features.
        make_encoder: makes it, which may take seconds; it is needed for rows outside the project alone.
        columns, text: the columns of a table, and the column of texts.
    """

    weight_CD: np.ndarray
    bias_C: np.ndarray
    mean_D: np.ndarray
    scale_D: np.ndarray
    classes: tuple[str, ...]
    temperature: float
    margin: float | None
    labels: int
    score: dict[str, Any]
    kind: Kind
    encoder: str
    make_encoder: Callable[[], Encoder]
    columns: tuple[str, ...]
    text: str | None
    sets: bool = False  # whether a label is a set of classes: each class then has its own probability

    def outputs(self, x_ND: np.ndarray) -> np.ndarray:
        """Outputs (N, C) for scaled features, in float64."""
        return np.asarray(x_ND.astype(np.float64) @ self.weight_CD.T + self.bias_C)

    def probabilities(self, out_NC: np.ndarray) -> np.ndarray:
        """Calibrated probabilities (N, C) of outputs."""
        z_NC = out_NC / self.temperature
        if self.sets:
            return np.asarray(1 / (1 + np.exp(-z_NC)))
        p_NC = np.exp(z_NC - z_NC.max(1, keepdims=True))
        return np.asarray(p_NC / p_NC.sum(1, keepdims=True))

    def guess(self, out_NC: np.ndarray) -> tuple[list[str], np.ndarray]:
        """The predicted label of each row and its probability (N,), as if the classes of a set were independent."""
        p_NC = self.probabilities(out_NC)
        if not self.sets:
            return [self.classes[best] for best in p_NC.argmax(1).tolist()], p_NC.max(1, initial=0.0)
        names = np.array(self.classes, object)
        values = [value_of(names[named].tolist(), self.classes) for named in p_NC > 0.5]
        return values, np.maximum(p_NC, 1 - p_NC).prod(1)

    def is_right(self, out_NC: np.ndarray, label_N: np.ndarray) -> np.ndarray:
        """Whether each prediction (N,) is the label: class numbers (N,), or zeros and ones (N, C) for sets."""
        if self.sets:
            return np.asarray(((out_NC > 0) == (label_N > 0)).all(1))
        return np.asarray(self.probabilities(out_NC).argmax(1) == label_N.astype(int))

    def outputs_of(self, data: Data) -> Iterator[tuple[int, np.ndarray | SourceError]]:
        """(position, outputs (C,)) of rows that need not be in the project; a SourceError for an unreadable row."""
        encoder = saved_encoders.on(self.make_encoder(), data)
        for start in range(0, len(data), encoder.batch):
            positions = range(start, min(start + encoder.batch, len(data)))
            rows = data.take(positions, encoder.size)
            good = [i for i, row in enumerate(rows) if not isinstance(row, SourceError)]
            found: list[Any] = list(rows)
            if good:
                x_ND = checked_features(encoder, [rows[i] for i in good])
                for i, out_C in zip(good, self.outputs((x_ND - self.mean_D) / self.scale_D)):
                    found[i] = out_C
            yield from zip(positions, found)


def train(project: Project, encoder: str | None = None) -> tuple[Trained, HeldOutRows]:
    """Train on every label so far, outside the test slice.

    Args:
        project: the project.
        encoder: the name of its encoder, where it is the user's own code and other rows are to be predicted.

    Raises:
        LabelError: there are too few labels to train a model.
    """
    snapshot = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
    if project.settings.task == "multi":
        return _train_sets(project, snapshot, encoder)
    regress = project.settings.task == "regress"
    seen = len(set(snapshot.train.values()))
    if seen < 2:
        rest = "" if regress else f" of {seen} {'class' if seen == 1 else 'classes'}"
        raise LabelError(
            f"a model needs labels of two {'rows' if regress else 'classes'} outside the test slice; found "
            f"{len(snapshot.train)}{rest}. Label more on the page, or import labels"
        )
    rows = torch.tensor(list(snapshot.train))
    x_ND = project.pool.inputs(rows).double()
    y_N = torch.tensor(list(snapshot.train.values()), dtype=torch.float64)
    weight_N = training_weights(
        session_of(project.pool, project.settings, project.reserve, snapshot), list(snapshot.train)
    )
    if regress:
        weight_CD, bias_C = ridge(x_ND, y_N, weight_N)
    else:
        weight_CD, bias_C = logistic(x_ND, y_N.long(), len(snapshot.classes), weight_N)
    test = np.array(list(snapshot.test), np.int64)
    x_MD = project.pool.inputs(test).double() if len(test) else torch.empty(0, x_ND.shape[1]).double()
    out_MC = (x_MD @ weight_CD.T + bias_C).numpy()
    key = Key(project.settings.seed).fold("project", "calibrate", snapshot.after)
    cross = (np.empty((0, 1)), np.empty(0)) if regress else cross_outputs(rows, x_ND, y_N.long(), len(out_MC.T), key)
    held_out = HeldOutRows(test, out_MC, np.array(list(snapshot.test.values())), *cross)
    mean_D, scale_D = project.scale()
    weight_M, factor = project.test_weights(snapshot)
    settings = project.settings
    made = Trained(
        weight_CD.numpy(), bias_C.numpy(), mean_D, scale_D, snapshot.classes,
        1.0 if regress else fit_temperature(held_out), _margin(held_out, weight_M) if regress else None,
        len(snapshot.train),
        _score(held_out, snapshot, weight_M, factor), settings.kind,
        project.feature_info.encoder, partial(project.encoder, encoder), settings.columns, settings.text,
    )  # fmt: skip
    return made, held_out


def _train_sets(project: Project, snapshot: Snapshot, encoder: str | None) -> tuple[Trained, HeldOutRows]:
    """`train` where labels are sets of classes."""
    if len(set(snapshot.train.values())) < 2:
        raise LabelError(
            f"a model needs different labels outside the test slice; found {len(set(snapshot.train.values()))}. Label "
            "more on the page, or import labels"
        )
    classes, settings = snapshot.classes, project.settings
    rows, test = torch.tensor(list(snapshot.train)), np.array(list(snapshot.test), np.int64)
    x_ND, hot_NC = project.pool.inputs(rows).double(), torch.from_numpy(hot(snapshot.values(snapshot.train), classes))
    weight_CD, bias_C = logistic_each(x_ND, hot_NC)
    x_MD = project.pool.inputs(test).double() if len(test) else torch.empty(0, x_ND.shape[1]).double()
    out_MC, hot_MC = (x_MD @ weight_CD.T + bias_C).numpy(), hot(snapshot.values(snapshot.test), classes)
    key = Key(settings.seed).fold("project", "calibrate", snapshot.after)
    fold_N = assign_folds(rows, torch.zeros(len(rows), dtype=torch.int64), FOLDS, key)
    cross_NC = torch.zeros_like(hot_NC)
    for fold in fold_N.unique().tolist():
        out_N = fold_N == fold
        weight, bias = logistic_each(x_ND[~out_N], hot_NC[~out_N])
        cross_NC[out_N] = x_ND[out_N] @ weight.T + bias
    held_out = HeldOutRows(test, out_MC, hot_MC, cross_NC.numpy(), hot_NC.numpy())
    flat_N = torch.from_numpy(np.concatenate([out_MC.ravel(), cross_NC.numpy().ravel()]))
    yes_N = torch.from_numpy(np.concatenate([hot_MC.ravel(), hot_NC.numpy().ravel()])).long()
    temperature, _ = label_temperature(torch.stack([torch.zeros_like(flat_N), flat_N], 1), yes_N)
    score: dict[str, Any] = {"metric": "overlap", "test_rows": len(test)}
    if len(test):
        found = score_of(set_losses(out_MC > 0, hot_MC), "overlap")
        score |= {"value": found.value, "low": found.low, "high": found.high}
    mean_D, scale_D = project.scale()
    made = Trained(
        weight_CD.numpy(), bias_C.numpy(), mean_D, scale_D, classes, temperature, None, len(rows), score,
        settings.kind, project.feature_info.encoder, partial(project.encoder, encoder), settings.columns,
        settings.text, sets=True,
    )  # fmt: skip
    return made, held_out


def cross_outputs(
    rows: torch.Tensor, x_ND: torch.Tensor, y_N: torch.Tensor, classes: int, key: Key
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (n, C) for training rows by models that were not trained on them, and their classes (n,).

    A row is left out if no model can be trained without its fold.
    """
    outputs, labels = [torch.empty(0, classes, dtype=torch.float64)], [y_N[:0]]
    fold_N = assign_folds(rows, y_N, FOLDS, key)
    for fold in range(FOLDS):
        out_N = fold_N == fold
        if bool(out_N.any()) and len(y_N[~out_N].unique()) > 1:
            weight, bias = logistic(x_ND[~out_N], y_N[~out_N], classes)
            outputs.append(x_ND[out_N] @ weight.T + bias)
            labels.append(y_N[out_N])
    return torch.cat(outputs).numpy(), torch.cat(labels).numpy()


def fit_temperature(held_out: HeldOutRows) -> float:
    """The temperature that calibrates the outputs of held-out rows; 1 if they do not determine it."""
    outputs = torch.from_numpy(np.concatenate([held_out.out_MC, held_out.cross_NC]))
    labels = torch.from_numpy(np.concatenate([held_out.label_M, held_out.cross_label_N]).astype(np.int64))
    return label_temperature(outputs, labels)[0] if len(labels) else 1.0


def _margin(held_out: HeldOutRows, weight_M: np.ndarray | None) -> float | None:
    """The distance within which 90 % of new numbers lie of their prediction, by the residuals of the test rows.

    With m residuals of rows drawn uniformly, the ceil(0.9 (m + 1))-th smallest holds the next one with probability 0.9
    or more (split conformal prediction). Rows drawn with weights count with them, and the next one with the largest.
    """
    if not len(held_out.rows):
        return None
    off_M = np.abs(held_out.out_MC[:, 0] - held_out.label_M)
    order, w_M = np.argsort(off_M, kind="stable"), np.ones(len(off_M)) if weight_M is None else weight_M
    enough = np.flatnonzero(np.cumsum(w_M[order]) >= COVERED * (w_M.sum() + w_M.max()) - 1e-9)
    return float(off_M[order[enough[0]]]) if len(enough) else None


def _score(held_out: HeldOutRows, snapshot: Snapshot, weight_M: np.ndarray | None, factor: float) -> dict[str, Any]:
    metric = "accuracy" if snapshot.classes else "rmse"
    if not len(held_out.rows):
        return {"metric": metric, "test_rows": 0}
    if snapshot.classes:
        loss_M = (held_out.out_MC.argmax(1) != held_out.label_M.astype(int)).astype(np.float64)
    else:
        loss_M = (held_out.out_MC[:, 0] - held_out.label_M) ** 2
    found = score_of(loss_M, "accuracy" if snapshot.classes else "rmse", weight_M, factor)
    return {
        "metric": metric,
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "test_rows": len(held_out.rows),
    }
