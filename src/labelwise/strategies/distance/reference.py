"""Slow references for k-center, BADGE and k-means++: a table of all distances, one pick at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def sq_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (N, M), from the differences themselves."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    distances: np.ndarray = ((x[:, None, :] - y[None, :, :]) ** 2).sum(2)
    return distances


def farthest_first(
    x: np.ndarray, ids: Sequence[int], centres: np.ndarray, k: int, taken: Sequence[int] = ()
) -> list[tuple[int, float]]:
    """(id, squared distance) of k picks, each the farthest from centres, `taken` ids and picks.

    Ties go to the earlier row.
    """
    dist = sq_distances(x, x)
    ids = [int(i) for i in ids]
    near = sq_distances(x, centres).min(1) if len(centres) else np.full(len(x), np.inf)
    free = set(range(len(x)))
    for i in taken:
        row = ids.index(int(i))
        near = np.minimum(near, dist[row])
        free.discard(row)
    picks = []
    for _ in range(k):
        row = min(free, key=lambda j: (-near[j], j))
        picks.append((ids[row], float(near[row])))
        near = np.minimum(near, dist[row])
        free.discard(row)
    return picks


def badge_gradients(probs: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    """The gradient of cross-entropy by the last weight matrix, label = most probable class, as an N x CD table."""
    rows = []
    for p, h in zip(np.asarray(probs, np.float64), np.asarray(embedding, np.float64)):
        error = p.copy()
        error[int(np.argmax(p))] -= 1.0
        rows.append(np.outer(error, h).ravel())
    return np.array(rows)


def next_pick_law(dist: np.ndarray, picks: Sequence[int]) -> np.ndarray:
    """The law of the next k-means++ pick (positions): ~ squared distance to the nearest pick, else uniform."""
    near = dist[:, list(picks)].min(1)
    near[list(picks)] = 0.0
    if near.sum() == 0:
        near = np.ones(len(dist))
        near[list(picks)] = 0.0
    law: np.ndarray = near / near.sum()
    return law


def joint_law(dist: np.ndarray, start: int, depth: int) -> dict[tuple[int, ...], float]:
    """The law of the next `depth` k-means++ picks after `start`, by enumerating every sequence."""
    law = {}
    others = [i for i in range(len(dist)) if i != start]
    for sequence in itertools.permutations(others, depth):
        chance, picks = 1.0, [start]
        for row in sequence:
            chance *= float(next_pick_law(dist, picks)[row])
            picks.append(row)
        if chance > 0:
            law[sequence] = chance
    return law


def kmeans_plus_plus(dist: np.ndarray, start: int, k: int, noise: Sequence[np.ndarray]) -> list[int]:
    """k picks after `start`, one at a time: argmax of log weight + Gumbel noise (one vector for each step)."""
    picks = [start]
    for step in range(k):
        law = next_pick_law(dist, picks)
        with np.errstate(divide="ignore"):
            picks.append(int(np.argmax(np.log(law) + noise[step])))
    return picks[1:]
