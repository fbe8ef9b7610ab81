"""Slow reference of BAIT in float64 NumPy: every trace from an inverse of an explicit matrix."""

from __future__ import annotations

import numpy as np


def fisher_of(p: np.ndarray | None, h: np.ndarray) -> np.ndarray:
    """The information of a row: (diag p - p p^T) kron h h^T; h h^T in regression."""
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
    """BAIT with every trace from an inverse.

    Returns:
        The rows added, in that order, and those of them that remain after the removals.
    """
    information = [fisher_of(None if probs is None else probs[i], embedding[i]) for i in range(len(embedding))]
    labelled_information = []
    if labelled is not None:
        p, h = labelled
        labelled_information = [fisher_of(None if p is None else p[i], h[i]) for i in range(len(h))]
    count = len(labelled_information)
    target = np.sum([*information, *labelled_information], 0) / (len(information) + count)
    c = (1 if consistent else k) / (count + k)
    start = lambda_ * np.eye(len(target)) + (sum(labelled_information) / (count + k) if count else 0)

    def trace(batch: list[int]) -> float:
        return float(
            np.trace(np.linalg.solve(start + c * sum((information[i] for i in batch), np.zeros_like(start)), target))
        )

    added: list[int] = []
    for _ in range(min(oversample * k, len(information))):
        candidates = [(trace([*added, i]), i) for i in range(len(information)) if i not in added]
        least = min(value for value, _ in candidates)
        added.append(min(i for value, i in candidates if value <= least + 1e-10 * abs(least)))
    left = list(added)
    while len(left) > k:
        candidates = [(trace([j for j in left if j != i]), i) for i in left]
        least = min(value for value, _ in candidates)
        left.remove(max(i for value, i in candidates if value <= least + 1e-10 * abs(least)))
    return added, left
