"""Maximum mean discrepancy between the labelled rows S and all rows labelled after a query, S and Q.

Wang et al. 2022, eq. 23 and appendix D.1. S is part of the second set, so pairs of a row with itself are removed from
the mixed sum too. With m = |S|, n = |S and Q| and Theta over all n rows, S first:

    MMD^2 = a / (m^2 - m) + b / (n^2 - n) - 2 c / (m (n - 1))
    a, b: sums over i != j in S, and in all;        c = sum_{i <= m, j <= n} Theta_ij - sum_{i <= m} Theta_ii

Departs from the paper: eq. 32 prints the last sum over i, j <= m, which removes m pairs m times each and is far from 0
when both sets have the same distribution; with the m identical pairs removed once the estimate is unbiased.
"""

from __future__ import annotations

import math

from torch import Tensor

from labelwise.errors import RowError


def mmd_squared(kernel: Tensor, first: int, literal: bool = False) -> float:
    """The unbiased estimate of MMD^2, which is negative about half the time when both distributions are equal.

    Args:
        kernel: (n, n) over S and Q, S first.
        first: m, the number of rows of S.
        literal: compute eq. 32 as printed, for comparison.

    Raises:
        RowError: the kernel is not square, or `first` leaves fewer than 2 rows of S or none of Q.
    """
    n, m = len(kernel), first
    if kernel.ndim != 2 or kernel.shape[1] != n or not 2 <= m < n:
        raise RowError(
            f"expected a kernel (n, n) whose first m rows are S, 2 <= m < n; found shape {tuple(kernel.shape)} and "
            f"m = {first}"
        )
    theta_nn = kernel.detach().double()
    diagonal_m, diagonal_n = float(theta_nn.diagonal()[:m].sum()), float(theta_nn.diagonal().sum())
    a = float(theta_nn[:m, :m].sum()) - diagonal_m
    b = float(theta_nn.sum()) - diagonal_n
    c = float(theta_nn[:m].sum()) - diagonal_m * (m if literal else 1)
    return a / (m * m - m) + b / (n * n - n) - 2 * c / (m * (n - 1))


def mmd(kernel: Tensor, first: int) -> float:
    """MMD, the root of the estimate; 0 if the estimate is negative."""
    return math.sqrt(max(0.0, mmd_squared(kernel, first)))
