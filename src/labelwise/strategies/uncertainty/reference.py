"""Slow references of confidence, margin and entropy: loops over rows and classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def top_k(ids: Sequence[int] | np.ndarray, scores: Sequence[float], k: int) -> list[int]:
    """The k ids of highest score, ties to the earlier row."""
    return [int(ids[row]) for row in sorted(range(len(ids)), key=lambda row: -scores[row])[:k]]


def confidence(probs: np.ndarray) -> list[float]:
    return [-max(float(p) for p in row) for row in probs]


def margin(probs: np.ndarray) -> list[float]:
    scores = []
    for row in probs:
        top = sorted((float(p) for p in row), reverse=True)
        scores.append(top[1] - top[0] if len(top) > 1 else -top[0])
    return scores


def entropy(probs: np.ndarray) -> list[float]:
    return [math.fsum(-float(p) * math.log(float(p)) for p in row if p > 0) for row in probs]
