"""Maximum mean discrepancy between the rows labelled first, S, and all rows labelled after a query, S and Q.

Wang et al. 2022, eq. 23 and appendix D.1. S is part of the second set, so pairs of a row with itself are taken out of
the mixed sum too. With m = |S|, n = |S and Q| and Theta over all n rows, S first:

    MMD^2 = a / (m^2 - m) + b / (n^2 - n) - 2 c / (m (n - 1))
    a, b: sums over i != j in S, and in all;        c = sum_{i <= m, j <= n} Theta_ij - sum_{i <= m} Theta_ii

Departs from the paper: eq. 32 prints the last sum over i, j <= m, which takes out m pairs each m times and is far from
0 when both sets have the same law; with the m identical pairs taken out once the estimate is unbiased.
"""

from __future__ import annotations

from torch import Tensor

from labelwise.errors import RowError


def mmd_squared(kernel: Tensor, first: int, literal: bool = False) -> float:
    """The unbiased estimate of MMD^2, which is negative about half the time when both laws are equal.

    `kernel` (n, n) is over S and Q with the `first` rows those of S. `literal` is eq. 32 as printed, to compare.
    """
    n, m = len(kernel), first
    if kernel.ndim != 2 or kernel.shape[1] != n or not 2 <= m < n:
        raise RowError(
            f"a kernel (n, n) whose first m rows are S, 2 <= m < n, was expected; found shape {tuple(kernel.shape)} "
            f"and m = {first}"
        )
    theta_nn = kernel.detach().double()
    own_m, own_n = float(theta_nn.diagonal()[:m].sum()), float(theta_nn.diagonal().sum())
    a = float(theta_nn[:m, :m].sum()) - own_m
    b = float(theta_nn.sum()) - own_n
    c = float(theta_nn[:m].sum()) - own_m * (m if literal else 1)
    return a / (m * m - m) + b / (n * n - n) - 2 * c / (m * (n - 1))


def mmd(kernel: Tensor, first: int) -> float:
    """MMD, the root of the estimate; 0 where the estimate is below 0."""
    return max(0.0, mmd_squared(kernel, first)) ** 0.5
