"""How good a model is on rows whose labels are known."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.errors import ModelError
from labelwise.pool import Pool
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs
from labelwise.train.fit import checked_labels, checked_targets


def evaluate(reader: Reader, pool: Pool, ids: Tensor, labels: Tensor, batch: int = 256) -> dict[str, float]:
    """Accuracy and mean negative log-likelihood (nats) on the rows `ids`, in one sweep.

    A probability of the true class below the rounding of its precision (1.2e-7 in float32) counts as that rounding,
    so that one sure mistake does not decide the mean. Of a regression model, the root mean squared error and R².
    """
    if reader.gives(Prediction()):
        return _numbers(reader, pool, ids, checked_targets(ids, labels), batch)
    labels = checked_labels(ids, labels, int(labels.max()) + 1 if len(labels) else 0)
    right, nll, start = 0, 0.0, 0
    for rows in read(reader, pool, ids, (Probs(),), batch):
        p_BC = rows.tensor(Probs())
        label_B = labels[start : start + len(rows)]
        start += len(rows)
        if int(label_B.max()) >= p_BC.shape[1]:
            raise ModelError(f"the model gives {p_BC.shape[1]} classes; a row has the label {int(label_B.max())}.")
        p_B = p_BC.gather(1, label_B[:, None])[:, 0].clamp_min(torch.finfo(p_BC.dtype).eps)
        right += int((p_BC.argmax(1) == label_B).sum())
        nll -= float(p_B.double().log().sum())
    return {"accuracy": right / len(ids), "nll": nll / len(ids)}


def _numbers(reader: Reader, pool: Pool, ids: Tensor, labels: Tensor, batch: int) -> dict[str, float]:
    """RMSE in the units of the labels, and R², the share of their variance that is explained (0 if they have none)."""
    found = [rows.tensor(Prediction()).double() for rows in read(reader, pool, ids, (Prediction(),), batch)]
    error = float((torch.cat(found) - labels).square().sum())
    total = float((labels - labels.mean()).square().sum())
    return {"rmse": (error / len(ids)) ** 0.5, "r2": 1 - error / total if total > 0 else 0.0}
