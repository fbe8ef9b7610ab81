"""Counts against an exact law: Pearson's chi-square test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from labelwise.errors import NumericsError

FEWEST = 8.0  # cells with smaller expectations are put together


def chi_square_p(counts: Sequence[float] | np.ndarray, law: Sequence[float] | np.ndarray) -> float:
    """The p-value of counts against an exact law; cells with small expectations are put together."""
    seen, p = np.asarray(counts, float), np.asarray(law, float)
    if abs(p.sum() - 1) >= 1e-9:
        raise NumericsError(f"a law sums to 1, found {p.sum()}")
    if seen[p == 0].sum() != 0:
        raise NumericsError(f"something impossible was drawn: cell {int(np.flatnonzero((p == 0) & (seen > 0))[0])}")
    expected = p * seen.sum()
    small = expected < FEWEST
    observed, wanted = [*seen[~small]], [*expected[~small]]
    if small.any() and expected[small].sum() > 0:
        observed.append(seen[small].sum())
        wanted.append(expected[small].sum())
    value = sum((a - b) ** 2 / b for a, b in zip(observed, wanted))
    # The upper tail of chi-square with m degrees of freedom is Q(m / 2, x / 2), the regularised upper gamma function.
    half = torch.tensor([(len(wanted) - 1) / 2, value / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1])) if len(wanted) > 1 else 1.0
