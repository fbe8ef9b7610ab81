"""Slow reference of ALLY: the dual updates and the choice from clusters, in plain loops."""

from __future__ import annotations

import numpy as np


def duals(losses: list[list[float]], epsilon: float, eta: float) -> list[list[float]]:
    """Duals of each row after each visit: eta times the running sum of slack, at least zero."""
    history = []
    current = [0.0] * len(losses[0])
    for seen in losses:
        current = [max(0.0, dual + eta * (loss - epsilon)) for dual, loss in zip(current, seen)]
        history.append(list(current))
    return history


def topk_in_clusters(scores: np.ndarray, clusters: np.ndarray, ids: np.ndarray, k: int, per_cluster: int) -> list[int]:
    """Ids by falling score, ties to the earlier row: at most `per_cluster` from each cluster, then any."""
    order = sorted(range(len(ids)), key=lambda i: -scores[i])
    used: dict[int, int] = {}
    picked: list[int] = []
    for i in order:
        if len(picked) < k and used.get(int(clusters[i]), 0) < per_cluster:
            used[int(clusters[i])] = used.get(int(clusters[i]), 0) + 1
            picked.append(i)
    for i in order:
        if len(picked) < k and i not in picked:
            picked.append(i)
    return [int(ids[i]) for i in picked]
