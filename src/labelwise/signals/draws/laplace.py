"""Last-layer Laplace approximation: a Gaussian around the trained weights, from the curvature of the loss.

MacKay 1992; Daxberger et al., "Laplace Redux", NeurIPS 2021, for the last layer. With p_n the probabilities and h_n the
input of the last layer (and a 1 where it has a bias) of labelled row n, the Gauss-Newton matrix of the summed loss is

    sum_n (diag(p_n) - p_n p_n^T) (x) h_n h_n^T

which is its Hessian, the layer being linear. With the prior's precision added to the diagonal it is the inverse
covariance of the weights. Up to FULL weights the whole matrix is stored; above, the product of two factors,
(sum_n diag(p_n) - p_n p_n^T) (x) (sum_n h_n h_n^T) / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.rng import Key

FULL = 1024  # weights up to which the whole matrix is stored: 8 MB
GRID = torch.logspace(-4, 4, 81, dtype=torch.float64)  # candidate precisions of the prior


class Curvature:
    """The Gauss-Newton matrix of a last layer with O outputs and D inputs, summed batch by batch in float64."""

    def __init__(self, outputs: int, width: int, full: int = FULL):
        self.outputs, self.width, self.rows = outputs, width, 0
        self.is_full = outputs * width <= full
        zeros = torch.zeros
        if self.is_full:
            self.matrix = zeros(outputs, width, outputs, width, dtype=torch.float64)
        else:
            self.left, self.right = (zeros(size, size, dtype=torch.float64) for size in (outputs, width))

    def add(self, p_BC: Tensor, h_BD: Tensor) -> None:
        """Add rows by their probabilities and their inputs of the last layer."""
        p_BO = p_BC[:, 1:].double() if self.outputs == 1 else p_BC.double()  # one output: the odds of the second class
        h_BD = h_BD.double()
        self.rows += len(h_BD)
        if not self.is_full:
            self.left += torch.diag(p_BO.sum(0)) - p_BO.T @ p_BO
            self.right += h_BD.T @ h_BD
            return
        for i in range(self.outputs):
            for j in range(i + 1):
                weight_B = p_BO[:, i] * (float(i == j) - p_BO[:, j])
                block_DD = (h_BD * weight_B[:, None]).T @ h_BD
                self.matrix[i, :, j] += block_DD
                if i != j:
                    self.matrix[j, :, i] += block_DD

    def spectrum(self) -> Spectrum:
        """The eigendecomposition of the matrix."""
        if self.is_full:
            size = self.outputs * self.width
            values, vectors = torch.linalg.eigh(self.matrix.view(size, size))
            return Spectrum(values.clamp_min(0).view(self.outputs, self.width), vectors, None)
        of_left, left = torch.linalg.eigh(self.left)
        of_right, right = torch.linalg.eigh(self.right)
        values = of_left.clamp_min(0)[:, None] * of_right.clamp_min(0)[None, :] / self.rows
        return Spectrum(values, left, right)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues (O, D) of a curvature, and its eigenvectors (O D, O D), or (O, O) and (D, D) for two factors."""

    values_OD: Tensor
    left: Tensor
    right: Tensor | None

    def precision(self, weight_OD: Tensor) -> float:
        """The precision of the prior that maximises the evidence over a grid."""
        square, count = float(weight_OD.double().square().sum()), weight_OD.numel()
        values_X = self.values_OD.reshape(-1)
        log_det_G = torch.stack([(values_X + prior).log().sum() for prior in GRID])
        evidence_G = 0.5 * (count * GRID.log() - GRID * square - log_det_G)
        return float(GRID[evidence_G.argmax()])

    def draws(self, weight_OD: Tensor, precision: float, count: int, key: Key) -> Tensor:
        """`count` draws (K, O, D) around the trained weights, in float64."""
        outputs, width = weight_OD.shape
        noise_KOD = torch.randn(count, outputs, width, generator=key.generator(), dtype=torch.float64)
        noise_KOD /= (self.values_OD + precision).sqrt()
        if self.right is None:
            steps_KX = noise_KOD.view(count, -1) @ self.left.T
            return weight_OD.double() + steps_KX.view(count, outputs, width)
        return weight_OD.double() + self.left @ noise_KOD @ self.right.T
