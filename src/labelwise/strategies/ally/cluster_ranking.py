"""Walking down a ranking of rows while each cluster has room: the same picks as a sort of the whole pool, in parts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.shards import Best, Shard, Shards
from labelwise.shards.topk import by_value

Rank = Callable[[Shard], Tensor]


def highest_in_clusters(pool: Shards, rank: Rank, k: int, room: int) -> tuple[Best, int]:
    """k rows by rank, highest first, ties to the smaller id, at most `room` from each cluster in a first walk.

    Clusters are the numbers in `shard.state["cluster"]`. What is still missing then (empty clusters, k no multiple of
    the clusters) is taken in a second walk that ignores the room. The number of rows taken in the second walk comes
    back too.
    """
    parts = pool.map(functools.partial(_candidates, rank, room))
    ids_M, rank_M, cluster_M = (torch.cat([part[i].cpu() for part in parts]) for i in range(3))
    first = _first_in_clusters(ids_M, rank_M, cluster_M, room)
    by_rank = first[by_value(ids_M[first], rank_M[first])][:k]
    ids, values = ids_M[by_rank], rank_M[by_rank]
    left = k - len(ids)
    if left:
        rest = pool.best(functools.partial(_untaken, rank, ids), left)
        ids, values = torch.cat([ids, rest.ids]), torch.cat([values, rest.values])
    return Best(ids, values), left


def _candidates(rank: Rank, room: int, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """The `room` best of each cluster in this shard: ids, ranks, clusters."""
    rank_N, cluster_N = rank(shard), shard.state["cluster"]
    at = _first_in_clusters(shard.ids, rank_N, cluster_N, room)
    return shard.ids[at], rank_N[at], cluster_N[at]


def _first_in_clusters(ids_N: Tensor, rank_N: Tensor, cluster_N: Tensor, room: int) -> Tensor:
    """Places of the `room` best rows of each cluster."""
    order = by_value(ids_N, rank_N)
    order = order[cluster_N[order].argsort(stable=True)]
    sorted_N = cluster_N[order]
    start_N = torch.searchsorted(sorted_N, sorted_N)  # where the cluster of each row begins
    return order[torch.arange(len(order), device=order.device) - start_N < room]


def _untaken(rank: Rank, taken: Tensor, shard: Shard) -> Tensor:
    return rank(shard).masked_fill(torch.isin(shard.ids, taken.to(shard.device)), -torch.inf)
