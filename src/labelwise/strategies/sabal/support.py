"""SABAL's f1 on a fixed support: the weights of given rows with which their gradients stand for the pool's.

With g_j the gradient of row j, v its mean over the pool and M given rows, phi_j = g_j / M,

    minimise over w >= 0    f1(w) = |v - sum_j w_j phi_j|^2 + beta |w - 1|^2

The solvers of SABAL take one line search along the gradient on the support after each pick, and set negative weights
to 0 (de-bias). Here the support is given, so that step is repeated to the optimum: line searches along conjugate
gradients on the rows of positive weight, a projection where a weight reaches 0, and a line search along the others
where one of these would grow (Dostal and Schoeberl, Computational Optimization and Applications 2005). f1 of each
step is below that of the last. Cost: 2 M^2 (A + B) operations for the inner products of rows with factors of A and B
numbers, then M^2 for each step; without a table of products above MOST_PRODUCTS rows, 4 M A B for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.problem import MOST_PRODUCTS
from labelwise.strategies.sabal.vectors import adjoint, forward, wide

TOLERANCE = 1e-10  # of the projected gradient, relative to that at w = 0
STEPS = 20_000
BLOCK = 1024  # rows whose products are computed together


class SupportWeights(NamedTuple):
    """The weights (M,) in float64 on the CPU; f1 with all weights 1 and with these, except for the rows outside."""

    weight_M: Tensor
    before: float
    after: float
    steps: int


@dataclass(frozen=True)
class Support:
    """The problem: M rows as two factors each, in float64, and the mean gradient of the pool.

    Attributes:
        multiply: w (M,) to Phi^T Phi w, on the CPU.
        c_M: <phi_j, v>.
        mean: |v|^2.
        norm: a bound on the largest eigenvalue of Phi^T Phi.
        scale: the mean of |phi_j|^2, the default of beta.
    """

    multiply: Callable[[Tensor], Tensor]
    c_M: Tensor
    mean: float
    norm: float
    scale: float

    @staticmethod
    def of(g: Factored, v_AB: Tensor, most: int = MOST_PRODUCTS) -> Support:
        """From the gradients of the rows and the pool's mean; both on one device. `most` is for a table of products."""
        g, count = wide(g), len(g)
        c_M = forward(g, v_AB) / count
        square_M = g.left.square().sum(1) * g.right.square().sum(1) / count**2
        if count <= most:
            parts = torch.arange(count, device=g.left.device).split(BLOCK)
            products = [(g.left[at] @ g.left.T).mul_(g.right[at] @ g.right.T).div_(count**2) for at in parts]
            table_MM = (products[0] if len(products) == 1 else torch.cat(products)).cpu()
            del products
            multiply: Callable[[Tensor], Tensor] = table_MM.mv
            norm = float(table_MM.abs().sum(1).max())
        else:
            g = Factored(g.left.cpu(), g.right.cpu())
            multiply = lambda w: forward(g, adjoint(g, w)) / count**2  # noqa: E731
            norm = float(square_M.sum())
        return Support(multiply, c_M.cpu(), float(v_AB.square().sum()), norm, float(square_M.mean()))

    def f1(self, w_M: Tensor, beta: float) -> float:
        """f1 except for beta times the number of rows outside the support."""
        bias = self.mean - 2 * float(self.c_M @ w_M) + float(w_M @ self.multiply(w_M))
        return max(bias, 0.0) + beta * float((w_M - 1).square().sum())

    def solve(self, beta: float) -> SupportWeights:
        """The weights that minimise f1."""
        ones_M = torch.ones_like(self.c_M)
        w_M, steps = _minimise(lambda w: self.multiply(w) + beta * w, self.c_M + beta, self.norm + beta, ones_M)
        return SupportWeights(w_M, self.f1(ones_M, beta), self.f1(w_M, beta), steps)


def _minimise(multiply: Callable[[Tensor], Tensor], rhs_M: Tensor, norm: float, w_M: Tensor) -> tuple[Tensor, int]:
    """Minimise w A w / 2 - rhs w over w >= 0 from w; A has eigenvalues from 0 to `norm`."""
    w_M, enough = w_M.clone(), TOLERANCE * float(torch.linalg.vector_norm(rhs_M))
    gradient_M = multiply(w_M) - rhs_M
    along_M: Tensor | None = None
    for step in range(STEPS):
        free_M = gradient_M.masked_fill(w_M <= 0, 0.0)
        grow_M = gradient_M.clamp(max=0).masked_fill(w_M > 0, 0.0)
        free, grow = float(free_M @ free_M), float(grow_M @ grow_M)
        if (free + grow) ** 0.5 <= enough:
            return w_M, step
        if grow > free:
            change_M, along_M = grow_M, None
        else:
            change_M = along_M = free_M if along_M is None else along_M
        image_M = multiply(change_M)
        curvature = float(change_M @ image_M)
        if curvature <= 0:  # f1 is flat there up to rounding
            return w_M, step
        length = float(gradient_M @ change_M) / curvature
        shrinks_M = change_M > 0
        longest = float((w_M[shrinks_M] / change_M[shrinks_M]).min()) if bool(shrinks_M.any()) else float("inf")
        if length <= longest:
            w_M = (w_M - length * change_M).clamp_(min=0)
            gradient_M = gradient_M - length * image_M
            if along_M is not None:
                free_M = gradient_M.masked_fill(w_M <= 0, 0.0)
                along_M = free_M - float(free_M @ image_M) / curvature * along_M
            continue
        w_M = (w_M - longest * change_M).clamp_(min=0)
        w_M[shrinks_M & (w_M <= 1e-15 * longest * change_M)] = 0.0
        gradient_M = gradient_M - longest * image_M
        w_M = (w_M - gradient_M.masked_fill(w_M <= 0, 0.0) / norm).clamp_(min=0)
        gradient_M, along_M = multiply(w_M) - rhs_M, None
    return w_M, STEPS
