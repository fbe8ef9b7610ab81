"""Top-k rows with a quota for each cluster: the picks of a sort of the whole pool, computed in shards."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.shards import Best, Shard, Shards
from labelwise.shards.topk import order_by_value

Score = Callable[[Shard], Tensor]


def topk_in_clusters(pool: Shards, score: Score, k: int, per_cluster: int) -> tuple[Best, int]:
    """The k rows of highest score, at most `per_cluster` from each cluster, ties by lot.

    Where that gives fewer than k rows (empty clusters, or k is no multiple of the clusters), the highest of the other
    rows fill the batch whatever their cluster.

    Args:
        pool: rows whose cluster is `shard.state["cluster"]` (n,).
        score: the scores (n,) of a shard.
        k: rows to select.
        per_cluster: the quota of a cluster.

    Returns:
        The rows, and how many of them filled the batch without regard to the quota.
    """
    parts = pool.map(functools.partial(_candidates, score, per_cluster))
    ids_M, score_M, cluster_M = (torch.cat([part[i].cpu() for part in parts]) for i in range(3))
    lots_M = pool.ties.lots(ids_M)
    first = _first_in_clusters(lots_M, score_M, cluster_M, per_cluster)
    by_score = first[order_by_value(lots_M[first], score_M[first])][:k]
    ids, values = ids_M[by_score], score_M[by_score]
    missing = k - len(ids)
    if missing:
        rest = pool.best(functools.partial(_not_selected, score, ids), missing)
        ids, values = torch.cat([ids, rest.ids]), torch.cat([values, rest.values])
    return Best(ids, values), missing


def _candidates(score: Score, per_cluster: int, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, scores and clusters of the `per_cluster` best rows of each cluster in this shard."""
    score_N, cluster_N = score(shard), shard.state["cluster"]
    first = _first_in_clusters(shard.lots, score_N, cluster_N, per_cluster)
    return shard.ids[first], score_N[first], cluster_N[first]


def _first_in_clusters(lots_N: Tensor, score_N: Tensor, cluster_N: Tensor, per_cluster: int) -> Tensor:
    """Positions of the `per_cluster` best rows of each cluster."""
    order = order_by_value(lots_N, score_N)
    order = order[cluster_N[order].argsort(stable=True)]
    sorted_N = cluster_N[order]
    start_N = torch.searchsorted(sorted_N, sorted_N)  # where the cluster of each row begins
    return order[torch.arange(len(order), device=order.device) - start_N < per_cluster]


def _not_selected(score: Score, selected: Tensor, shard: Shard) -> Tensor:
    return score(shard).masked_fill(torch.isin(shard.ids, selected.to(shard.device)), -torch.inf)
