"""The model of a project: a linear layer on the features, trained to the optimum within a second.

Logistic regression (classes) minimises  sum_i -log p(y_i | x_i) + |W|^2 / (2 C)  with rows of length about 1, by L-BFGS
from zero in float64: the same rows give the same model, whatever was trained before. Ridge regression (numbers) takes
the penalty with the lowest generalised cross-validation error. With fewer rows than features, both work in the span of
the rows, which contains the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.project.settings import Task
from labelwise.train import TorchLearner

STRENGTH = 30.0  # C above
_STEPS = 60
_RIDGE = torch.logspace(-4, 3, 22, dtype=torch.float64)  # candidate penalties


def head_learner(width: int, classes: int, task: Task) -> TorchLearner:
    """A learner of the linear layer for `classes` classes, or for numbers."""
    outputs = 1 if task == "regress" else max(classes, 2)
    make: Callable[[], nn.Module] = lambda: nn.Linear(width, outputs)  # noqa: E731
    return TorchLearner(make, loss="mse" if task == "regress" else "cross_entropy", fit=_train)


def _train(model: nn.Module, inputs: Any, labels: Tensor, weights: Tensor | None) -> None:
    """Set a linear layer to its optimum. Row weights are ignored, as by Mean()."""
    assert isinstance(model, nn.Linear)
    if labels.is_floating_point():
        weight, bias = ridge(inputs.double(), labels.double())
    else:
        weight, bias = logistic(inputs.double(), labels, model.out_features)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)


def logistic(x_ND: Tensor, label_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Weight (C, D) and bias (C,) of the logistic regression."""
    z_NM, back = _span(x_ND)
    weight = torch.zeros(classes, z_NM.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-4
    )
    one_hot_NC = nn.functional.one_hot(label_N, classes).double()

    def loss() -> float:
        # By hand: autograd would take twice as long for a layer this small. The bias has a tiny penalty, so that a
        # class without a row has an optimum.
        with torch.no_grad():
            logp_NC = (z_NM @ weight.T + bias).log_softmax(1)
            off_NC = logp_NC.exp() - one_hot_NC
            weight.grad = off_NC.T @ z_NM + weight / STRENGTH
            bias.grad = off_NC.sum(0) + 1e-3 * bias
            penalty = weight.square().sum() / STRENGTH + 1e-3 * bias.square().sum()
            return float(-(logp_NC * one_hot_NC).sum() + penalty / 2)

    descent.step(loss)
    return back(weight.detach()), bias.detach()


def ridge(x_ND: Tensor, y_N: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (1, D) and bias (1,) of the ridge regression."""
    mean_D, mean = x_ND.mean(0), y_N.mean()
    u_NM, s_M, v_MD = torch.linalg.svd(x_ND - mean_D, full_matrices=False)
    along_M = u_NM.T @ (y_N - mean)
    rest = float((y_N - mean).square().sum() - along_M.square().sum())
    keep_PM = s_M.square() / (s_M.square() + _RIDGE[:, None])
    error_P = (((1 - keep_PM) * along_M).square().sum(1) + max(rest, 0.0)) / (len(y_N) - 1 - keep_PM.sum(1)).clamp(
        min=1e-6 * len(y_N)
    ).square()
    best = int(error_P.argmin())
    weight_D = (s_M / (s_M.square() + _RIDGE[best]) * along_M) @ v_MD
    return weight_D[None], (mean - mean_D @ weight_D)[None]


def _span(x_ND: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Rows in coordinates of their span if that is smaller, and a function that maps weights back."""
    if len(x_ND) >= x_ND.shape[1]:
        return x_ND, lambda weight: weight
    q_DN, r_NN = torch.linalg.qr(x_ND.T)
    return r_NN.T.contiguous(), lambda weight: weight @ q_DN.T
