"""How good a model is on rows whose labels are known."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.errors import ModelError
from labelwise.pool import Pool
from labelwise.signals.check import check_finite
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs
from labelwise.train.learner import check_labels, check_targets


def evaluate(reader: Reader, pool: Pool, ids: Tensor, labels: Tensor, batch: int = 256) -> dict[str, float]:
    """Measure a model on labelled rows, in one pass.

    A probability of the true class below the machine epsilon of its precision (1.2e-7 in float32) counts as that, so
    that one confident mistake does not decide the mean loss.

    Args:
        reader: the model, such as `fit.reader`.
        pool: the pool the rows belong to.
        ids: (n,) the rows.
        labels: (n,) their classes, or numbers in regression.
        batch: rows in one forward pass.

    Returns:
        "accuracy" and "nll", the mean negative log-likelihood in nats; in regression "rmse" in the units of the labels
        and "r2", the share of their variance that is explained.

    Raises:
        LabelError, RowError: a label cannot be used, or there is not one for each row.
        ModelError: a label is none of the classes of the model.
        NumericsError: what the model gives for a row is not finite.
    """
    if reader.gives(Prediction()):
        return _evaluate_regression(reader, pool, ids, check_targets(ids, labels), batch)
    labels = check_labels(ids, labels, int(labels.max()) + 1 if len(labels) else 0)
    right, nll, start = 0, 0.0, 0
    for rows in read(reader, pool, ids, (Probs(),), batch):
        p_BC = rows.tensor(Probs())
        check_finite(Probs(), rows.ids, p_BC)
        label_B = labels[start : start + len(rows)]
        start += len(rows)
        if int(label_B.max()) >= p_BC.shape[1]:
            raise ModelError(f"the model gives {p_BC.shape[1]} classes; a row has the label {int(label_B.max())}.")
        p_B = p_BC.gather(1, label_B[:, None])[:, 0].clamp_min(torch.finfo(p_BC.dtype).eps)
        right += int((p_BC.argmax(1) == label_B).sum())
        nll -= float(p_B.double().log().sum())
    return {"accuracy": right / len(ids), "nll": nll / len(ids)}


def _evaluate_regression(reader: Reader, pool: Pool, ids: Tensor, labels: Tensor, batch: int) -> dict[str, float]:
    predictions = []
    for rows in read(reader, pool, ids, (Prediction(),), batch):
        predictions.append(rows.tensor(Prediction()).double())
        check_finite(Prediction(), rows.ids, predictions[-1][:, None])
    error = float((torch.cat(predictions) - labels).square().sum())
    total = float((labels - labels.mean()).square().sum())
    return {"rmse": (error / len(ids)) ** 0.5, "r2": 1 - error / total if total > 0 else 0.0}
