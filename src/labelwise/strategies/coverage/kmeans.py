"""k-means in shards: k-means++ seeds, then sums over rows. Memory is never rows x clusters."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.progress import stage, tick
from labelwise.selection.strategy import Size
from labelwise.shards import Shard, Shards
from labelwise.signals.exact_sum import add_at
from labelwise.signals.spec import Signal
from labelwise.strategies.distance.nearest import NearestDistances, Tuning

ITERATIONS = 20
SEEDING = 0.1  # approximate share of the time


def memory(size: Size, clusters: int) -> int:
    """Bytes that k-means allocates."""
    clusters = min(clusters, size.rows)
    return Tuning().memory(size, clusters) + 8 * size.rows + 6 * clusters * (8 * size.numbers + 8)


def kmeans(pool: Shards, signal: Signal, clusters: int, key: Key, iterations: int = ITERATIONS) -> Tensor:
    """Cluster the column `signal`; the cluster of each row is then `shard.state["cluster"]` (n,).

    Lloyd, "Least squares quantization in PCM", 1982; seeds by Arthur and Vassilvitskii, SODA 2007.

    Args:
        pool: the rows.
        signal: the column.
        clusters: the maximum of clusters.
        key: for the seeds.
        iterations: the maximum of iterations.

    Returns:
        The centres (K, D) in float64, on the CPU; fewer than `clusters` where there are fewer distinct rows.
    """
    pool.map(lambda shard: shard.state.pop("cluster", None) is None)  # clusters of an earlier run
    with stage(0.0, SEEDING):
        centres_KD = _seeds(pool, signal, min(clusters, pool.n), key)
    with stage(SEEDING, 1.0):
        return _lloyd(pool, signal, centres_KD, iterations)


def _lloyd(pool: Shards, signal: Signal, centres_KD: Tensor, iterations: int) -> Tensor:
    """The centres after `iterations` steps, or after the one that moves no row."""
    for done in range(iterations):
        tick(done, iterations)
        moved = sum(pool.map(functools.partial(_assign, signal, centres_KD)))
        if not moved:
            break
        sums = pool.sum(functools.partial(_sums, signal, len(centres_KD)))
        total_KD, count_K = sums[:, :-1], sums[:, -1:]
        # A cluster without rows keeps its centre.
        centres_KD = torch.where(count_K > 0, total_KD / count_K.clamp(min=1), centres_KD)
    else:
        pool.map(functools.partial(_assign, signal, centres_KD))
    return centres_KD


def _seeds(pool: Shards, signal: Signal, clusters: int, key: Key) -> Tensor:
    with NearestDistances(pool, signal) as distances:
        ids = pool.best(lambda shard: key.fold("first").uniform(shard.ids), 1).ids
        if clusters > 1:
            distances.add(pool.take(ids))
            rest = distances.draw(clusters - 1, key.fold("seeds"))
            ids = torch.cat([ids, rest.ids[rest.values > 0]])  # clusters of copies of a seed would be empty
        else:
            distances.begin()  # which checks the values
    return pool.take(ids).tensor(signal).double().cpu()


def _assign(signal: Signal, centres_KD: Tensor, shard: Shard) -> int:
    """Assign each row to its nearest centre. Returns how many rows moved."""
    centres_KD = centres_KD.to(shard.device, shard.dtype)
    norm_K = (centres_KD * centres_KD).sum(1)
    before = shard.state.get("cluster")
    now_N = torch.empty(len(shard), dtype=torch.int64, device=shard.device)
    for where, rows in shard.blocks(scratch=len(centres_KD)):
        # |c|^2 - 2 x.c orders the centres as the distance does.
        now_N[where] = torch.addmm(norm_K, rows.tensor(signal), centres_KD.T, alpha=-2).argmin(1)
    shard.state["cluster"] = now_N
    return len(shard) if before is None else int((before != now_N).sum())


def _sums(signal: Signal, clusters: int, shard: Shard) -> Tensor:
    """The sum of the rows of each cluster and, in the last column, their number (K, D + 1), in float64."""
    total: Tensor | None = None
    width = shard.rows(slice(0, 1)).tensor(signal).shape[1]
    for where, rows in shard.blocks(scratch=2 * width):
        x_ND = rows.tensor(signal).double()
        if total is None:
            total = x_ND.new_zeros(clusters, x_ND.shape[1] + 1)
        number_N = shard.state["cluster"][where]
        add_at(total[:, :-1], number_N, x_ND)
        add_at(total[:, -1], number_N, torch.ones_like(number_N, dtype=torch.float64))
    assert total is not None, "shards are never empty"
    return total.cpu()
