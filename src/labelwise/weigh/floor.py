"""A floor on the effective sample size: m rows of weights w are worth (sum w)^2 / sum w^2 rows of equal weights."""

from __future__ import annotations

import numpy as np

FLOOR = 0.5  # the least share of the labelled rows that weights leave effective
_HALVINGS = 50


def effective_share(weight_M: np.ndarray) -> float:
    """The effective sample size over the number of rows, from 1/m to 1.

    >>> effective_share(np.array([1.0, 1.0, 0.0, 0.0]))
    0.5
    """
    total = float(weight_M.sum())
    return total * total / (len(weight_M) * float(weight_M @ weight_M)) if total > 0 else 0.0


def tempered(weight_M: np.ndarray, floor: float = FLOOR) -> tuple[np.ndarray, float]:
    """Powers of weights, of mean 1, whose effective share is at least `floor`; and the power, 1 where none is needed.

    The power is the largest from 0 to 1 that is enough. A power of 0 makes all weights equal.

    >>> weights, power = tempered(np.array([1.0] * 9 + [100.0]))
    >>> round(effective_share(weights), 6), 0 < power < 1
    (0.5, True)
    """
    low, high = 0.0, 1.0
    if effective_share(weight_M) < floor:
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if effective_share(weight_M**middle) >= floor else (low, middle)
    else:
        low = 1.0
    found = weight_M**low
    return found / found.mean(), low
