"""Pearson's chi-square test of counts against an exact distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from labelwise.errors import NumericsError

ALARM = 1e-7  # the chance that a correct strategy fails a test of its law
FEWEST = 8.0  # cells with smaller expected counts are merged


def chi_square_p(counts: Sequence[float] | np.ndarray, law: Sequence[float] | np.ndarray) -> float:
    """The p-value of counts under an exact distribution; cells with small expected counts are merged.

    Args:
        counts: how often each outcome was seen.
        law: the probability of each outcome; sums to 1.
    """
    seen, p = np.asarray(counts, float), np.asarray(law, float)
    if abs(p.sum() - 1) >= 1e-9:
        raise NumericsError(f"probabilities must sum to 1, found {p.sum()}")
    if seen[p == 0].sum() != 0:
        raise NumericsError(
            f"an outcome of probability 0 was drawn: cell {int(np.flatnonzero((p == 0) & (seen > 0))[0])}"
        )
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
