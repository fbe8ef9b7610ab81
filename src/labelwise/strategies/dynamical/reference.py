"""Slow references of dynamicAL in float64: explicit gradients of single rows, and kernels as defined in the paper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def trained_parameters(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat(
        [torch.zeros(p.numel()).to(p) if g is None else g.flatten() for g, p in zip(gradients, parameters)]
    )


def row_gradients(model: nn.Module, x: Tensor, labels: Tensor | None = None, squared: bool = False) -> Tensor:
    """The gradient (N, P) of each row's loss, by one backward pass for each row; labels default to the argmax."""
    model.eval()
    rows = []
    for i in range(len(x)):
        out = model(x[i : i + 1])
        y = out.argmax(1) if labels is None else labels[i : i + 1]
        if squared:
            y = F.one_hot(y, out.shape[1]).to(out) if not y.is_floating_point() else y.reshape(out.shape)
            loss = (out - y).square().sum() / 2
        else:
            loss = F.cross_entropy(out, y, reduction="sum")
        rows.append(
            flat(torch.autograd.grad(loss, trained_parameters(model), allow_unused=True), trained_parameters(model))
        )
    return torch.stack(rows)


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """The gradient (N, C, P) of every logit of every row."""
    model.eval()
    rows = []
    for i in range(len(x)):
        out = model(x[i : i + 1])[0]
        each = [torch.autograd.grad(f, trained_parameters(model), retain_graph=True, allow_unused=True) for f in out]
        rows.append(torch.stack([flat(g, trained_parameters(model)) for g in each]))
    return torch.stack(rows)


def dynamics_by_kernels(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Eq. 8 literally: the sum over classes i, j of d^i(X, Y)^T K^ij(X, X) d^j(X, Y)."""
    jac_NCP = jacobian(model, x)
    d_NC = (model(x).softmax(1) - F.one_hot(y, jac_NCP.shape[1])).detach()
    total = 0.0
    for i, j in itertools.product(range(jac_NCP.shape[1]), repeat=2):
        kernel_NN = jac_NCP[:, i] @ jac_NCP[:, j].T
        total += float(d_NC[:, i] @ kernel_NN @ d_NC[:, j])
    return total


def delta(sq_norm: np.ndarray, dot: np.ndarray, gamma: float) -> np.ndarray:
    """|g_u|^2 + gamma g_u . g_S; an infinite gamma is the inner product alone."""
    return np.asarray(dot, float) if np.isinf(gamma) else np.asarray(sq_norm, float) + gamma * np.asarray(dot, float)


def greedy_batch(scores: np.ndarray, sketch: np.ndarray, ids: np.ndarray, k: int) -> list[int]:
    """Greedy maximisation of the whole Delta(Q|S) = sum of Delta(u|S) + sum over ordered pairs of g_u . g_u'."""
    picked: list[int] = []

    def whole(rows: list[int]) -> float:
        pairs = sum(float(sketch[a] @ sketch[b]) for a, b in itertools.permutations(rows, 2))
        return float(scores[rows].sum()) + pairs

    for _ in range(k):
        free = [i for i in range(len(ids)) if i not in picked]
        best = max(free, key=lambda i: (round(whole([*picked, i]), 9), -i))
        picked.append(best)
    return [int(ids[i]) for i in picked]


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau-b, pair by pair."""
    concordant = discordant = only_x = only_y = 0
    for i, j in itertools.combinations(range(len(x)), 2):
        a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
        concordant += a * b > 0
        discordant += a * b < 0
        only_x += a != 0 and b == 0
        only_y += a == 0 and b != 0
    known = concordant + discordant
    return (concordant - discordant) / float(np.sqrt((known + only_x) * (known + only_y)))
