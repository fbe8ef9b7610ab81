"""Slow references of TypiClust and ProbCover: given clusters, explicit graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from labelwise.strategies.distance.reference import sq_distances


def typicality(x: np.ndarray, neighbours: int) -> np.ndarray:
    """Inverse mean distance of each row of one cluster to its nearest others."""
    dist = np.sqrt(sq_distances(x, x))
    values = []
    for i in range(len(x)):
        others = sorted(dist[i, j] for j in range(len(x)) if j != i)[:neighbours]
        values.append(1.0 / np.mean(others) if others and np.mean(others) > 0 else np.inf)
    return np.array(values)


def typiclust(
    x: np.ndarray,
    ids: Sequence[int] | np.ndarray,
    number: np.ndarray,
    labelled_number: Sequence[int],
    k: int,
    neighbours: int = 20,
) -> list[int]:
    """Picks for given cluster numbers: fewest labels first, then largest, clusters below five rows at the end.

    Ties between rows go to the earlier row.
    """
    names = np.asarray(ids)
    count = int(max([*number, *labelled_number])) + 1
    size = [int(np.sum(number == c)) for c in range(count)]
    labels = [list(labelled_number).count(c) for c in range(count)]
    value = np.zeros(len(x))
    for c in range(count):
        if size[c]:
            value[number == c] = typicality(x[number == c], neighbours)
    free = set(range(len(x)))
    picks = []
    for _ in range(k):
        open_clusters = {int(number[i]) for i in free}
        c = min(open_clusters, key=lambda c: (size[c] < 5, labels[c], -size[c], c))
        row = min((i for i in free if number[i] == c), key=lambda i: (-value[i], i))
        picks.append(int(names[row]))
        labels[c] += 1
        free.discard(row)
    return picks


def probcover(
    x: np.ndarray, ids: Sequence[int] | np.ndarray, labelled: np.ndarray, delta: float, k: int
) -> list[tuple[int, int]]:
    """(id, rows newly covered) of each pick on the explicit graph, until every row is covered.

    Ties go to the earlier row.
    """
    names = np.asarray(ids)
    edge = sq_distances(x, x) <= delta**2
    covered = np.zeros(len(x), bool)
    if len(labelled):
        covered |= (sq_distances(x, labelled) <= delta**2).any(1)
    selected = np.zeros(len(x), bool)
    picks: list[tuple[int, int]] = []
    while len(picks) < k:
        degree = (edge & ~covered[None, :]).sum(1)
        row = min(np.flatnonzero(~selected), key=lambda i: (-degree[i], i))
        if degree[row] == 0:
            break
        picks.append((int(names[row]), int(degree[row])))
        covered |= edge[row]
        selected[row] = True
    return picks


def purity(x: np.ndarray, number: np.ndarray, delta: float) -> float:
    """The share of balls of radius delta that hold rows of one cluster only."""
    edge = sq_distances(x, x) <= delta**2
    return float(np.mean([len(set(number[edge[i]])) == 1 for i in range(len(x))]))


def largest_pure_radius(x: np.ndarray, number: np.ndarray, share: float) -> tuple[float, float]:
    """Candidate radii (a, b): balls of radius a are pure enough, those of the next candidate b are not."""
    dist = np.sqrt(sq_distances(x, x))
    radii = sorted({0.0, *(float(d) for d in dist.ravel())})
    inside = 0.0
    for radius in radii:
        # A hair above the candidate, so that rows at exactly this distance are in the ball.
        if purity(x, number, radius * (1 + 1e-9)) + 1e-12 < share:
            return inside, radius
        inside = radius
    return inside, math.inf
