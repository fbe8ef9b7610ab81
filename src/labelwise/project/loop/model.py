"""The model of a project: a linear layer on the features, trained to the optimum within a second.

Logistic regression (classes) minimises  sum_i -log p(y_i | x_i) + |W|^2 / (2 C)  with rows of length about 1, by L-BFGS
from zero in float64: the same rows give the same model, whatever was trained before. Ridge regression (numbers) takes
the penalty that makes the labels most likely. For weights of variance t and noise of variance s, both unknown, with
penalty p = s/t and K = X X^T of centred rows, and the mean integrated out (restricted maximum likelihood; Patterson &
Thompson, Biometrika 1971), that is the least

    (n - 1) log y^T (I + K/p)^-1 y + log det(I + K/p).

Generalised cross-validation, used before, took almost no penalty where there are about as many rows as features, and
the error then rose with more labels. With fewer rows than features, both work in the span of the rows, which contains
the optimum.
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


def head_learner(width: int, classes: int, task: Task, weighted: bool = False) -> TorchLearner:
    """A learner of the linear layer for `classes` classes, or for numbers; `weighted` uses the weights of rows."""
    outputs = 1 if task == "regress" else max(classes, 2)
    make: Callable[[], nn.Module] = lambda: nn.Linear(width, outputs)  # noqa: E731
    return TorchLearner(
        make, loss="mse" if task == "regress" else "cross_entropy", fit=_train_weighted if weighted else _train
    )


def _train(model: nn.Module, inputs: Any, labels: Tensor, weights: Tensor | None) -> None:
    """Set a linear layer to its optimum. Row weights are ignored, as by Mean()."""
    _train_weighted(model, inputs, labels, None)


def _train_weighted(model: nn.Module, inputs: Any, labels: Tensor, weights: Tensor | None) -> None:
    """Set a linear layer to its optimum with row weights, as by Weighted()."""
    assert isinstance(model, nn.Linear)
    weight_N = None if weights is None else weights.double() / weights.double().mean()
    if labels.is_floating_point():
        weight, bias = ridge(inputs.double(), labels.double(), weight_N)
    else:
        weight, bias = logistic(inputs.double(), labels, model.out_features, weight_N)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)


def logistic(
    x_ND: Tensor, label_N: Tensor, classes: int, weight_N: Tensor | None = None, strength: float = STRENGTH
) -> tuple[Tensor, Tensor]:
    """Weight (C, D) and bias (C,) of the logistic regression; `weight_N` has mean 1, `strength` is C above."""
    one = None if weight_N is None else weight_N[None]
    weight_FCD, bias_FC = logistics(x_ND[None], label_N[None], classes, one, strength)
    return weight_FCD[0], bias_FC[0]


def logistics(
    x_FND: Tensor, label_FN: Tensor, classes: int, weight_FN: Tensor | None = None, strength: float = STRENGTH
) -> tuple[Tensor, Tensor]:
    """Weights (F, C, D) and biases (F, C) of F logistic regressions at once, each with N rows.

    Twelve small ones together take a quarter of the time that they take one after the other.
    """
    z_FNM, back = span(x_FND)
    weight = torch.zeros(len(z_FNM), classes, z_FNM.shape[2], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(z_FNM), classes, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-4
    )
    target_FNC = nn.functional.one_hot(label_FN, classes).double()
    weight_FN1 = None if weight_FN is None else weight_FN[..., None]

    def loss() -> float:
        # By hand: autograd would take twice as long for a layer this small. The bias has a tiny penalty, so that a
        # class without a row has an optimum.
        with torch.no_grad():
            logp_FNC = (z_FNM @ weight.mT + bias[:, None]).log_softmax(2)
            off_FNC, fit_FNC = logp_FNC.exp() - target_FNC, logp_FNC * target_FNC
            if weight_FN1 is not None:
                off_FNC, fit_FNC = off_FNC * weight_FN1, fit_FNC * weight_FN1
            weight.grad = off_FNC.mT @ z_FNM + weight / strength
            bias.grad = off_FNC.sum(1) + 1e-3 * bias
            penalty = weight.square().sum() / strength + 1e-3 * bias.square().sum()
            return float(-fit_FNC.sum() + penalty / 2)

    descent.step(loss)
    return back(weight.detach()), bias.detach()


def ridge(x_ND: Tensor, y_N: Tensor, weight_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight (1, D) and bias (1,) of the ridge regression; `weight_N` has mean 1."""
    if weight_N is None:
        mean_D, mean = x_ND.mean(0), y_N.mean()
        z_ND, off_N = x_ND - mean_D, y_N - mean
    else:
        mean_D, mean = weight_N @ x_ND / len(x_ND), (weight_N @ y_N) / len(y_N)
        root_N = weight_N.sqrt()
        z_ND, off_N = root_N[:, None] * (x_ND - mean_D), root_N * (y_N - mean)
    u_NM, s_M, v_MD = torch.linalg.svd(z_ND, full_matrices=False)
    along_M = u_NM.T @ off_N
    whole = float(off_N.square().sum())
    rest = max(whole - float(along_M.square().sum()), 0.0)
    signal_PM = 1 + s_M.square() / _RIDGE[:, None]
    unexplained_P = ((along_M.square() / signal_PM).sum(1) + rest).clamp(min=max(1e-12 * whole, 1e-300))
    best = int(((len(y_N) - 1) * unexplained_P.log() + signal_PM.log().sum(1)).argmin())
    weight_D = (s_M / (s_M.square() + _RIDGE[best]) * along_M) @ v_MD
    return weight_D[None], (mean - mean_D @ weight_D)[None]


def span(x_ND: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Rows (..., N, D) in coordinates of their span if that is smaller, and a function that maps weights back."""
    if x_ND.shape[-2] >= x_ND.shape[-1]:
        return x_ND, lambda weight: weight
    q_DN, r_NN = torch.linalg.qr(x_ND.mT)
    return r_NN.mT.contiguous(), lambda weight: weight @ q_DN.mT
