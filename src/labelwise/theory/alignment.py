"""Alignment of labels with a kernel, its bounds on training speed and generalisation, and a rank correlation.

Wang et al. 2022, section 4, for a positive definite kernel Theta (n, n) and one-hot labels Y (n, C):

    A = Tr[Y^T Theta Y]
    B = sqrt(2 Tr[Y^T Theta^-1 Y] / n)
    E_t^2 = Tr[Y^T (I - eta Theta)^2t Y]

Theorem 1, for eta lambda_max <= 1 and t >= 1:

    Tr[Y^T Y] - 2 t eta A <= E_t^2 <= Tr[Y^T Y] - eta A

Theorem 2:

    Tr[Y^T Y]^2 / A <= n B^2 / 2 <= (lambda_max / lambda_min) Tr[Y^T Y]^2 / A
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NumericsError, RowError

JITTER = 1e-10  # of the mean eigenvalue, added where a kernel of finitely many gradients is singular


class Bounds(NamedTuple):
    """A quantity and the bounds of a theorem on it."""

    low: float
    value: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether low <= value <= high, up to rounding."""
        slack = 1e-9 * max(abs(self.low), abs(self.value), 1e-300)
        return self.low <= self.value + slack and (self.value <= self.high + slack or self.high == float("inf"))


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Labels (n,) as a matrix (n, classes) in float64."""
    return torch.nn.functional.one_hot(labels.long(), classes).double()


def alignment(kernel: Tensor, labels: Tensor) -> float:
    """A(X, Y) = Tr[Y^T Theta Y].

    Raises:
        RowError: the kernel is not (n, n) for labels (n, C).
    """
    theta_nn, y_nC = _checked(kernel, labels)
    return float((y_nC * (theta_nn @ y_nC)).sum())


def bound_term(kernel: Tensor, labels: Tensor) -> float:
    """B(X, Y) = sqrt(2 Tr[Y^T Theta^-1 Y] / n), the leading term of the generalisation bound.

    Raises:
        RowError: the kernel is not (n, n) for labels (n, C).
        NumericsError: the kernel has no inverse.
    """
    theta_nn, y_nC = _checked(kernel, labels)
    return math.sqrt(2 * float((y_nC * _solve(theta_nn, y_nC)).sum()) / len(y_nC))


def error_after(kernel: Tensor, labels: Tensor, eta: float, steps: int) -> float:
    """E_t^2: the squared error after `steps` steps of gradient descent from zero, under a fixed kernel.

    Raises:
        RowError: the kernel is not (n, n) for labels (n, C).
    """
    theta_nn, y_nC = _checked(kernel, labels)
    values_n, vectors_nn = torch.linalg.eigh(theta_nn)
    part_n = (vectors_nn.T @ y_nC).square().sum(1)
    return float(((1 - eta * values_n) ** (2 * steps) * part_n).sum())


def theorem_1(kernel: Tensor, labels: Tensor, eta: float, steps: int) -> Bounds:
    """Theorem 1: E_t^2 and its bounds by the alignment.

    Args:
        kernel: Theta (n, n).
        labels: Y (n, C).
        eta: step size, above 0 and at most 1 / lambda_max.
        steps: t, at least 1.

    Raises:
        ArgumentError: eta or steps are outside the range of the theorem.
        RowError: the kernel is not (n, n) for labels (n, C).
    """
    theta_nn, y_nC = _checked(kernel, labels)
    top = float(torch.linalg.eigvalsh(theta_nn)[-1])
    if not 0 < eta * top <= 1 + 1e-9 or steps < 1:
        raise ArgumentError(
            f"theorem 1 holds for eta above 0 and at most 1 / lambda_max = {1 / top:.3g} and for at least one step; "
            f"found eta = {eta:.3g} and {steps} steps"
        )
    total, aligned = float(y_nC.square().sum()), alignment(theta_nn, y_nC)
    value = error_after(theta_nn, y_nC, eta, steps)
    return Bounds(total - 2 * steps * eta * aligned, value, total - eta * aligned)


def theorem_2(kernel: Tensor, labels: Tensor) -> Bounds:
    """Theorem 2: n B^2 / 2 and its bounds by the alignment.

    Raises:
        RowError: the kernel is not (n, n) for labels (n, C).
    """
    theta_nn, y_nC = _checked(kernel, labels)
    values_n = torch.linalg.eigvalsh(theta_nn)
    low = float(y_nC.square().sum()) ** 2 / alignment(theta_nn, y_nC)
    condition = float(values_n[-1] / values_n[0]) if values_n[0] > 0 else float("inf")
    return Bounds(low, len(y_nC) / 2 * bound_term(theta_nn, y_nC) ** 2, condition * low)


def squared_dynamics(kernel: Tensor, outputs: Tensor, labels: Tensor) -> float:
    """G_MSE(S) = Tr[(f - Y)^T Theta (f - Y)], the training dynamics of the squared error under the kernel."""
    return alignment(kernel, outputs.detach().double().cpu() - labels.double().cpu())


def kendall_tau(x: object, y: object) -> float:
    """Kendall's tau-b between two lists of numbers: 1 for the same order, -1 for the opposite one.

    Raises:
        RowError: the lists differ in length, or have fewer than 2 numbers.
        NumericsError: all numbers of a list are equal.
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (x, y))
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise RowError(f"expected two lists of the same length, at least 2; found {a.shape}, {b.shape}")
    together, with_x, with_y = 0.0, 0.0, 0.0
    for i in range(len(a) - 1):
        down_a, down_b = np.sign(a[i] - a[i + 1 :]), np.sign(b[i] - b[i + 1 :])
        together += float((down_a * down_b).sum())
        with_x += float(np.abs(down_a).sum())
        with_y += float(np.abs(down_b).sum())
    if with_x == 0 or with_y == 0:
        raise NumericsError("the numbers of a list are all equal, so they have no order to compare")
    return together / math.sqrt(with_x * with_y)


def _solve(theta_nn: Tensor, y_nC: Tensor) -> Tensor:
    """Theta^-1 Y by Cholesky; if that fails, with a small number added to the diagonal."""
    mean = float(theta_nn.diagonal().mean())
    for jitter in (0.0, JITTER, 1e3 * JITTER):
        factor_nn, fault = torch.linalg.cholesky_ex(theta_nn + jitter * mean * torch.eye(len(theta_nn)).to(theta_nn))
        if not int(fault):
            return torch.cholesky_solve(y_nC, factor_nn)
    raise NumericsError(
        "the kernel cannot be inverted: its smallest eigenvalue is "
        f"{float(torch.linalg.eigvalsh(theta_nn)[0]):.3g}. Either the model "
        "has fewer parameters than rows, or rows occur twice."
    )


def _checked(kernel: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    theta_nn, y_nC = kernel.detach().double(), labels.detach().double()
    if theta_nn.ndim != 2 or theta_nn.shape != (len(y_nC), len(y_nC)) or y_nC.ndim != 2:
        raise RowError(
            f"expected a kernel (n, n) and labels (n, C), found {tuple(kernel.shape)} and {tuple(labels.shape)}"
        )
    return theta_nn, y_nC
