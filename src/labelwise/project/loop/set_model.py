"""The model of several classes for an item: a logistic regression for each class, on the same features.

Each has the penalty of `model.py`. A class is predicted where its probability is above one half. The loss of an item is
one minus the overlap: the classes that both name, as a share of those that either names (Jaccard; the "accuracy" of
Godbole & Sarawagi, PAKDD 2004); 0 where both name none.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.project.label_sets import names_of
from labelwise.project.loop.model import STRENGTH, span
from labelwise.project.loop.stored_model import Model

_STEPS = 60


def hot(values: list[str], classes: tuple[str, ...]) -> np.ndarray:
    """The labels (n, C) as zeros and ones."""
    place = {name: at for at, name in enumerate(classes)}
    made = np.zeros((len(values), len(classes)))
    for at, value in enumerate(values):
        made[at, [place[name] for name in names_of(value) if name in place]] = 1.0
    return made


def logistic_each(x_ND: Tensor, hot_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (C, D) and bias (C,) of a logistic regression for each class."""
    z_NM, back = span(x_ND)
    classes = hot_NC.shape[1]
    weight = torch.zeros(classes, z_NM.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-4
    )

    def loss() -> float:
        with torch.no_grad():
            out_NC = z_NM @ weight.T + bias
            off_NC = out_NC.sigmoid() - hot_NC
            weight.grad = off_NC.T @ z_NM + weight / STRENGTH
            bias.grad = off_NC.sum(0) + 1e-3 * bias
            penalty = weight.square().sum() / STRENGTH + 1e-3 * bias.square().sum()
            return float((nn.functional.softplus(out_NC) - hot_NC * out_NC).sum() + penalty / 2)

    descent.step(loss)
    return back(weight.detach()), bias.detach()


def set_losses(named_MC: np.ndarray, hot_MC: np.ndarray) -> np.ndarray:
    """One minus the overlap (M,) of predicted and true sets, both as zeros and ones.

    >>> set_losses(np.array([[1, 1], [0, 0]]), np.array([[1, 0], [0, 0]])).tolist()
    [0.5, 0.0]
    """
    both_M = ((named_MC > 0) & (hot_MC > 0)).sum(1)
    either_M = ((named_MC > 0) | (hot_MC > 0)).sum(1)
    return np.asarray(1 - np.where(either_M > 0, both_M / np.maximum(either_M, 1), 1.0))


def outputs_of(model: Model, x_ND: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """Outputs (n, C) for these classes; one that the model did not know is never predicted."""
    out_NC = x_ND.astype(np.float64) @ model.weight_CD.T + model.bias_C
    place = {name: at for at, name in enumerate(model.classes)}
    never_N = np.full(len(x_ND), -30.0)
    columns = [out_NC[:, place[name]] if name in place else never_N for name in classes]
    return np.stack(columns, axis=1) if columns else np.empty((len(x_ND), 0))
