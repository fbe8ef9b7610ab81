"""TypiClust and ProbCover against tables of all distances."""

from __future__ import annotations

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Features
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.coverage import reference as slow_clusters
from labelwise.strategies.distance.centering import centred
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import by_lot, expect_close, expect_ids

TRIES = 5


def clusters_of(x: np.ndarray, ids: np.ndarray, count: int, key: Key, device: str) -> np.ndarray:
    """The cluster (n,) of each row by k-means, as in the strategies: the references take clusters as given."""
    rows = shards_of(torch.from_numpy(ids).to(device), {Features(): torch.from_numpy(x).to(device)})
    with centred(rows, Features()):
        cluster.kmeans(rows, Features(), count, key)
    return rows.map(lambda shard: shard.state["cluster"].cpu().numpy())[0]


@checks("typiclust")
def typiclust(case: Case) -> None:
    """The most typical row of the largest cluster with the fewest labels, for the clusters of k-means."""
    for turn in range(TRIES):
        rng = case.rng("typiclust", turn)
        x, ids = rng.normal(size=(70, 3)), by_lot(rng.permutation(400)[:70], turn)
        x_labelled, names = rng.normal(size=(turn, 3)), np.arange(1000, 1000 + turn)
        k, near = int(rng.integers(2, 12)), int(rng.integers(2, 21))
        strategy = case.with_parameters({"neighbours": near})
        labelled = {"embedding": x_labelled, "ids": names} if turn else None
        got = case.select(k, {"embedding": x}, ids, labelled, seed=turn, strategy=strategy)
        key = Key(turn).fold("clusters")
        number = clusters_of(np.vstack([x, x_labelled]), np.concatenate([ids, names]), turn + k, key, case.device)
        expected = slow_clusters.typiclust(x, ids, number[:70], number[70:].tolist(), k, near)
        expect_ids(got.ids, expected, "the most typical rows of the clusters found")


@checks("probcover")
def probcover(case: Case) -> None:
    """Picks on the explicit graph of balls, also with rows exactly on the boundary of a ball."""
    for turn in range(TRIES):
        rng = case.rng("probcover", turn)
        x = rng.normal(size=(60, 2))
        if turn % 3 == 0:
            x = np.round(2 * x)
        ids = by_lot(rng.permutation(300)[:60] - 100, turn)
        x_labelled = rng.normal(size=(4 * (turn % 2), 2))
        delta, k = float(rng.choice([0.25, 0.5, 1.0, 2.0])), int(rng.integers(1, 61))
        expected = slow_clusters.probcover(x, ids, x_labelled, delta, k)
        labelled = {"embedding": x_labelled} if len(x_labelled) else None
        got = case.select(
            k, {"embedding": x}, ids, labelled, seed=turn, strategy=case.with_parameters({"delta": delta})
        )
        expect_ids(got.ids[: len(expected)], [row for row, _ in expected], f"delta = {delta}")
        counts = [count for _, count in expected] + [0] * (k - len(expected))
        expect_close(got.scores, counts, "rows newly covered", 0.0)
