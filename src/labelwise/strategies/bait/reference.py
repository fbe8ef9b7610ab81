"""Slow reference of BAIT in float64 NumPy: every trace from an inverse of an explicit matrix."""

from __future__ import annotations

import numpy as np


def fisher_of(p: np.ndarray | None, h: np.ndarray) -> np.ndarray:
    """(diag p - p p^T) kron h h^T; h h^T in regression."""
    square = np.outer(h, h)
    return square if p is None else np.kron(np.diag(p) - np.outer(p, p), square)


def bait(
    probs: np.ndarray | None,
    embedding: np.ndarray,
    k: int,
    labelled: tuple[np.ndarray | None, np.ndarray] | None = None,
    lambda_: float = 1.0,
    consistent: bool = False,
    oversample: int = 2,
) -> tuple[list[int], list[int]]:
    """Rows taken forward, in order, and those left after pruning, in that order: every trace from an inverse."""
    ours = [fisher_of(None if probs is None else probs[i], embedding[i]) for i in range(len(embedding))]
    behind = []
    if labelled is not None:
        theirs, rows = labelled
        behind = [fisher_of(None if theirs is None else theirs[i], rows[i]) for i in range(len(rows))]
    count = len(behind)
    target = np.sum([*ours, *behind], 0) / (len(ours) + count)
    c = (1 if consistent else k) / (count + k)
    start = lambda_ * np.eye(len(target)) + (sum(behind) / (count + k) if count else 0)

    def trace(batch: list[int]) -> float:
        return float(np.trace(np.linalg.solve(start + c * sum((ours[i] for i in batch), np.zeros_like(start)), target)))

    taken: list[int] = []
    for _ in range(min(oversample * k, len(ours))):
        options = [(trace([*taken, i]), i) for i in range(len(ours)) if i not in taken]
        least = min(value for value, _ in options)
        taken.append(min(i for value, i in options if value <= least + 1e-10 * abs(least)))
    left = list(taken)
    while len(left) > k:
        options = [(trace([j for j in left if j != i]), i) for i in left]
        least = min(value for value, _ in options)
        left.remove(max(i for value, i in options if value <= least + 1e-10 * abs(least)))
    return taken, left
