"""ALLY: the highest duals of each cluster, for the clusters of k-means."""

from __future__ import annotations

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Embedding
from labelwise.strategies.ally import reference as slow
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.distance.centering import centred
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import expect_close, expect_ids


@checks("ally")
def ally(case: Case) -> None:
    """Falling duals, so many from each cluster, for the clusters of k-means; and duals alone."""
    for turn in range(5):
        rng = case.rng("ally", turn)
        n = 70
        h, dual, ids = rng.normal(size=(n, 4)), rng.integers(0, 9, n) / 4.0, rng.permutation(500)[:n]
        k = int(rng.integers(2, 20))
        clusters = int(rng.integers(2, k + 1))
        arrays = {"embedding": h, "duals": dual}
        got = case.select(k, arrays, ids, seed=turn, strategy=case.with_parameters({"clusters": clusters}))
        pool = shards_of(torch.from_numpy(ids), {Embedding(): torch.from_numpy(h)})
        with centred(pool, Embedding()):
            cluster.kmeans(pool, Embedding(), clusters, Key(turn).fold("clusters"))
        number = pool.map(lambda shard: shard.state["cluster"].numpy())[0]
        expected = slow.topk_in_clusters(dual, number, ids, k, k // clusters)
        expect_ids(got.ids, expected, "the walk by falling dual")
        row_of = {int(i): row for row, i in enumerate(ids)}
        expect_close(got.scores, dual[[row_of[i] for i in expected]], "duals", 0.0)
        plain = case.select(k, arrays, ids, strategy=case.with_parameters({"diversity": "none"}))
        expect_ids(plain.ids, slow.topk_in_clusters(dual, np.zeros(n), ids, k, k), "the highest duals")
