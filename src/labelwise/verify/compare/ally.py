"""ALLY: the highest duals of each cluster, for the clusters of k-means."""

from __future__ import annotations

import numpy as np

from labelwise.rng import Key
from labelwise.strategies.ally import reference as slow
from labelwise.verify.case import Case, checks
from labelwise.verify.compare.coverage import clusters_of
from labelwise.verify.problems import by_lot, expect_close, expect_ids


@checks("ally")
def ally(case: Case) -> None:
    """Rows by falling dual with a limit for each cluster of k-means, and by falling dual alone."""
    for turn in range(5):
        rng = case.rng("ally", turn)
        n = 70
        h, dual, ids = rng.normal(size=(n, 4)), rng.integers(0, 9, n) / 4.0, by_lot(rng.permutation(500)[:n], turn)
        k = int(rng.integers(2, 20))
        clusters = int(rng.integers(2, k + 1))
        arrays = {"embedding": h, "duals": dual}
        got = case.select(k, arrays, ids, seed=turn, strategy=case.with_parameters({"clusters": clusters}))
        number = clusters_of(h, ids, clusters, Key(turn).fold("clusters"), case.device)
        expected = slow.topk_in_clusters(dual, number, ids, k, k // clusters)
        expect_ids(got.ids, expected, "rows by falling dual, a few from each cluster")
        row_of = {int(i): row for row, i in enumerate(ids)}
        expect_close(got.scores, dual[[row_of[i] for i in expected]], "duals", 0.0)
        plain = case.select(k, arrays, ids, seed=turn, strategy=case.with_parameters({"diversity": "none"}))
        expect_ids(plain.ids, slow.topk_in_clusters(dual, np.zeros(n), ids, k, k), "the highest duals")
