"""Strategies of distances: k-center, BADGE, TypiClust and ProbCover against tables of all distances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Features
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.coverage import reference as slow_clusters
from labelwise.strategies.distance import nearest
from labelwise.strategies.distance import reference as slow
from labelwise.strategies.distance.centering import about_the_middle
from labelwise.verify.case import Case
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.compare.scores import ALARM
from labelwise.verify.problems import close, same_ids, true

TRIES = 5
DRAWN = 400


def kcenter(case: Case) -> None:
    """Each pick the farthest from labelled rows and picks; with nothing labelled the first is the highest hash."""
    for turn in range(TRIES):
        rng = case.rng("kcenter", turn)
        x, ids = rng.normal(size=(90, 4)), rng.permutation(900)[:90]
        if turn == 0:
            x = np.round(2 * x)  # copies and ties, exact in floats
        behind = rng.normal(size=(6, 4))
        got = case.select(50, {"embedding": x}, ids, {"embedding": behind} if turn else None, seed=turn)
        if turn:
            expected = slow.farthest_first(x, ids.tolist(), behind, 50)
            close(got.scores, [value for _, value in expected], "squared distances", 1e-8)
            same_ids(got.ids, [row for row, _ in expected], "from labelled rows")
            continue
        first = int(ids[int(Key(turn).uniform(torch.from_numpy(ids)).argmax())])
        expected = slow.farthest_first(x, ids.tolist(), x[:0], 49, taken=[first])
        same_ids(got.ids, [first, *(row for row, _ in expected)], "from the row of the highest hash")


@contextmanager
def _lists_of(first: int, longest: int) -> Iterator[None]:
    """How many rows a list of candidates holds; one is the one-by-one form."""
    before = nearest.FIRST_LIST, nearest.LONGEST_LIST
    nearest.FIRST_LIST, nearest.LONGEST_LIST = first, longest
    try:
        yield
    finally:
        nearest.FIRST_LIST, nearest.LONGEST_LIST = before


def badge_replayed(case: Case) -> None:
    """Explicit gradients; k-means++ one row at a time with the same noise, and distances of any list as scores."""
    for turn in range(TRIES):
        rng = case.rng("badge", turn)
        p, h, ids = rng.dirichlet(np.ones(4), 40), rng.normal(size=(40, 3)), rng.permutation(500)[:40]
        arrays = {"probs": p, "embedding": h}
        g = slow.badge_gradients(p, h)
        dist, first = slow.sq_distances(g, g), int(np.argmax((g**2).sum(1)))
        noise = [Key(turn).fold("list", step).gumbel(torch.from_numpy(ids)).numpy() for step in range(14)]
        with _lists_of(1, 1):
            got = case.select(15, arrays, ids, seed=turn)
        rows = [first, *slow.kmeans_plus_plus(dist, first, 14, noise)]
        same_ids(got.ids, ids[rows], "k-means++ with the same noise")
        whole = case.select(30, arrays, ids, seed=turn)
        place = {int(i): row for row, i in enumerate(ids)}
        order = [place[int(i)] for i in whole.ids]
        near = [dist[row, order[: step + 1]].min() for step, row in enumerate(order[1:])]
        close(whole.scores, [(g[first] ** 2).sum(), *near], "squared distances", 1e-6, 1e-9)


def badge_law(case: Case) -> None:
    """Three picks by lists of rings: their joint law by enumeration."""
    x = np.array([[0.0, 0.0], [1.0, 0.0], [1.2, 0.1], [0.0, 1.5], [0.3, 1.5], [-1.0, -1.0]])
    p = np.tile([0.7, 0.3], (6, 1))
    g = slow.badge_gradients(p, x)
    first = int(np.argmax((g**2).sum(1)))
    law = slow.joint_law(slow.sq_distances(g, g), first, 2)
    with _lists_of(3, 4):
        start = 1000 * case.seed
        picks = [case.select(3, {"probs": p, "embedding": x}, seed=start + turn).ids.tolist() for turn in range(DRAWN)]
    same_ids({pick[0] for pick in picks}, [first], "the longest gradient first")
    seen = Counter(tuple(pick[1:]) for pick in picks)
    found = chi_square_p([seen[pair] for pair in law], list(law.values()))
    true(found > ALARM, f"picks do not follow the law of k-means++: chi-square p = {found:.2g}")


def _clusters(x: np.ndarray, ids: np.ndarray, count: int, key: Key, device: str) -> np.ndarray:
    """The cluster of each row as the strategy finds it: which clusters is not what the reference is about."""
    where = torch.from_numpy(ids).to(device)
    everything = shards_of(where, {Features(): torch.from_numpy(x).to(device)})
    with about_the_middle(everything, Features()):
        cluster.kmeans(everything, Features(), count, key)
    return everything.map(lambda shard: shard.state["cluster"].cpu().numpy())[0]


def typiclust(case: Case) -> None:
    """The most typical row of the largest cluster with the fewest labels, for the clusters of k-means."""
    for turn in range(TRIES):
        rng = case.rng("typiclust", turn)
        x, ids = rng.normal(size=(70, 3)), rng.permutation(400)[:70]
        behind, names = rng.normal(size=(turn, 3)), np.arange(1000, 1000 + turn)
        k, near = int(rng.integers(2, 12)), int(rng.integers(2, 21))
        strategy = case.having({"neighbours": near})
        labelled = {"embedding": behind, "ids": names} if turn else None
        got = case.select(k, {"embedding": x}, ids, labelled, seed=turn, strategy=strategy)
        key = Key(turn).fold("clusters")
        number = _clusters(np.vstack([x, behind]), np.concatenate([ids, names]), turn + k, key, case.device)
        expected = slow_clusters.typiclust(x, ids, number[:70], number[70:].tolist(), k, near)
        same_ids(got.ids, expected, "the most typical rows of the clusters found")


def probcover(case: Case) -> None:
    """Picks on the explicit graph of balls, also with rows exactly on the edge of one."""
    for turn in range(TRIES):
        rng = case.rng("probcover", turn)
        x = rng.normal(size=(60, 2))
        if turn % 3 == 0:
            x = np.round(2 * x)
        ids = rng.permutation(300)[:60] - 100
        behind = rng.normal(size=(4 * (turn % 2), 2))
        delta, k = float(rng.choice([0.25, 0.5, 1.0, 2.0])), int(rng.integers(1, 61))
        expected = slow_clusters.probcover(x, ids, behind, delta, k)
        labelled = {"embedding": behind} if len(behind) else None
        got = case.select(k, {"embedding": x}, ids, labelled, seed=turn, strategy=case.having({"delta": delta}))
        same_ids(got.ids[: len(expected)], [row for row, _ in expected], f"delta = {delta}")
        counts = [count for _, count in expected] + [0] * (k - len(expected))
        close(got.scores, counts, "rows newly covered", 0.0)
