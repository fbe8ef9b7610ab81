"""Slow reference of density.py: the probability of being picked over every half of a small pool."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np


def inclusion(rows: int, k: int, pick: Callable[[Sequence[int], int], Sequence[int]]) -> np.ndarray:
    """pi (n,): the share of the subsets of the rows that hold row i in which it is among the picks.

    Args:
        rows: n; all 2^n subsets are drawn from.
        k: rows picked of all n; of a subset of m, k m / n rounded, at least 1.
        pick: the picks of a strategy from a subset.
    """
    picked, present = np.zeros(rows), np.zeros(rows)
    for chosen in itertools.product((False, True), repeat=rows):
        subset = [row for row, is_in in enumerate(chosen) if is_in]
        if subset:
            present[subset] += 1
            picked[list(pick(subset, min(max(1, round(k * len(subset) / rows)), len(subset))))] += 1
    return picked / present
