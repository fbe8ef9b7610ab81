"""Slow references in float64 NumPy, written from the papers: explicit gradients and graphs, one pick at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np


def sq_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (N, M), from the differences themselves."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return ((x[:, None, :] - y[None, :, :]) ** 2).sum(2)


def highest_first(ids: Sequence[int], scores: Sequence[float], k: int) -> list[int]:
    """The k ids of highest score, ties to the smaller id."""
    return [i for _, i in sorted(zip([-s for s in scores], [int(i) for i in ids]))[:k]]


# --- uncertainty ----------------------------------------------------------------------------------------------------


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


# --- k-center -------------------------------------------------------------------------------------------------------


def farthest_first(x: np.ndarray, ids: Sequence[int], centres: np.ndarray, k: int, taken: Sequence[int] = ()) -> list:
    """(id, squared distance) of k picks, each the farthest from centres, `taken` ids and picks; ties to smaller ids."""
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
        row = min(free, key=lambda j: (-near[j], ids[j]))
        picks.append((ids[row], float(near[row])))
        near = np.minimum(near, dist[row])
        free.discard(row)
    return picks


# --- BADGE and k-means++ --------------------------------------------------------------------------------------------


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
    return near / near.sum()


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


# --- TypiClust ------------------------------------------------------------------------------------------------------


def typicality(x: np.ndarray, neighbours: int) -> np.ndarray:
    """Inverse mean distance of each row of one cluster to its nearest others."""
    dist = np.sqrt(sq_distances(x, x))
    values = []
    for i in range(len(x)):
        others = sorted(dist[i, j] for j in range(len(x)) if j != i)[:neighbours]
        values.append(1.0 / np.mean(others) if others and np.mean(others) > 0 else np.inf)
    return np.array(values)


def typiclust(
    x: np.ndarray, ids: Sequence[int], number: np.ndarray, labelled_number: Sequence[int], k: int, neighbours: int = 20
) -> list[int]:
    """Picks for given cluster numbers: fewest labels first, then largest, clusters below five rows at the end."""
    ids = np.asarray(ids)
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
        row = min((i for i in free if number[i] == c), key=lambda i: (-value[i], ids[i]))
        picks.append(int(ids[row]))
        labels[c] += 1
        free.discard(row)
    return picks


# --- ProbCover ------------------------------------------------------------------------------------------------------


def probcover(x: np.ndarray, ids: Sequence[int], labelled: np.ndarray, delta: float, k: int) -> list[tuple[int, int]]:
    """(id, rows newly covered) of each pick on the explicit graph, until every row is covered."""
    ids = np.asarray(ids)
    edge = sq_distances(x, x) <= delta**2
    covered = np.zeros(len(x), bool)
    if len(labelled):
        covered |= (sq_distances(x, labelled) <= delta**2).any(1)
    taken = np.zeros(len(x), bool)
    picks = []
    while len(picks) < k:
        degree = (edge & ~covered[None, :]).sum(1)
        row = min(np.flatnonzero(~taken), key=lambda i: (-degree[i], ids[i]))
        if degree[row] == 0:
            break
        picks.append((int(ids[row]), int(degree[row])))
        covered |= edge[row]
        taken[row] = True
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


# --- statistics -----------------------------------------------------------------------------------------------------


def chi_square_p(counts: Sequence[float], law: Sequence[float]) -> float:
    """The p-value of counts against an exact law; cells with small expectations are put together."""
    from scipy.stats import chi2

    counts, law = np.asarray(counts, float), np.asarray(law, float)
    assert abs(law.sum() - 1) < 1e-9
    assert counts[law == 0].sum() == 0, "something impossible was drawn"
    expected = law * counts.sum()
    small = expected < 8
    observed = [*counts[~small]]
    wanted = [*expected[~small]]
    if small.any() and expected[small].sum() > 0:
        observed.append(counts[small].sum())
        wanted.append(expected[small].sum())
    observed, wanted = np.array(observed), np.array(wanted)
    return float(chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1))
