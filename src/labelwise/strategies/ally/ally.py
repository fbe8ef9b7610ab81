"""ALLY: the rows whose loss would be hardest to bound, one from each cluster of the pool's embeddings.

Elenter, NaderiAlizadeh and Ribeiro, "A Lagrangian duality approach to active learning", NeurIPS 2022, algorithm 2 and
section 5.1. Training under a bound on the loss of every labelled row (train/objectives/primal_dual.py) gives each of
them a dual variable, the price of its bound. A small network on the frozen embeddings (dual_head.py) predicts the
dual of the rows without a label:

    dual_i ~ f(h_i),    fitted by mean squared error on the labelled rows
    clusters of h_i by k-means, k of them;    walk by falling dual, k // clusters from each cluster

Cost: one k-means, N k D for each iteration, and one pass of the small network.
Departs from the paper: a batch that comes out short (empty clusters, k no multiple of the clusters) is filled by the
highest duals left; the head's output is a softplus and its targets are in units of their standard deviation; every
row of the pool is scored, where the authors' programme leaves the last partial batch at 0. Any measure of diversity
fits, the paper says: "perturb" draws rows with a chance in proportion to their dual (Kirsch et al. 2021), "kmeans++"
is BADGE's rule on dual x embedding, "none" takes the highest duals. With `cap`, rows predicted above it count as 0:
they are the mislabelled and the outliers (section 4.4).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import Size
from labelwise.selection.progress import stage
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, tie
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import DualEmbedding, Duals, Embedding, Needs
from labelwise.strategies.ally.cluster_ranking import highest_in_clusters
from labelwise.strategies.ally.dual_head import DualHead, FittedHead
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.distance import nearest
from labelwise.strategies.distance.centering import about_the_middle

EMBEDDING = Embedding()
DUALS = Duals()
PULLED = DualEmbedding()
SCORING = 0.1  # of the time, about
LEAST = 1e-300  # a chance in proportion to a dual of 0: after all others, and still in a random order


@dataclass(frozen=True)
class Ally(Strategy):
    """The highest predicted duals, spread over clusters of the embeddings.

    Attributes:
        clusters: how many; as many as picks if None, which the paper finds best. More than picks is as many as picks.
        cap: rows predicted above it are taken last.
        head: how duals are predicted.
        diversity: "kmeans", "perturb", "kmeans++" or "none".
    """

    clusters: int | None = None
    cap: float | None = None
    head: DualHead = field(default_factory=DualHead)
    diversity: Literal["kmeans", "perturb", "kmeans++", "none"] = "kmeans"

    needs = Needs(pool=(EMBEDDING,), labelled=(EMBEDDING, DUALS), instead=(DUALS,))
    cost = "N k D x iterations"
    growth = Growth(D=1)
    paper = "Elenter et al., NeurIPS 2022"

    def __post_init__(self) -> None:
        if isinstance(self.head, Mapping):  # as a stored session has it
            object.__setattr__(self, "head", DualHead(**self.head))
        whole = isinstance(self.clusters, int) and not isinstance(self.clusters, bool) and self.clusters >= 1
        if self.clusters is not None and not whole:
            raise ArgumentError(f"Ally(clusters=...) is a whole number of at least 1, or None, not {self.clusters!r}")
        if self.cap is not None and not self.cap > 0:
            raise ArgumentError(f"Ally(cap=...) is a number above 0, or None, not {self.cap!r}")
        if self.diversity not in ("kmeans", "perturb", "kmeans++", "none"):
            raise ArgumentError(
                f'Ally(diversity=...) is "kmeans", "perturb", "kmeans++" or "none", not {self.diversity!r}'
            )
        if not isinstance(self.head, DualHead):
            raise ArgumentError(f"Ally(head=...) is a DualHead, not {self.head!r}")

    def memory(self, size: Size) -> int:
        order = 96 * size.rows  # to walk down the ranking within clusters
        kept = (16 + 3 * size.number) * size.rows
        return kept + max(order, cluster.memory(size, size.k)) + 64 * size.labelled * size.numbers

    def work(self, size: Size) -> float:
        clusters = min(size.k, self.clusters or size.k) if self.diversity == "kmeans" else 0
        return 2.0 * size.rows * clusters * size.shape(Embedding)[0] * (cluster.ITERATIONS + 1)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        given = all(pool.map(_has_duals))
        head = None if given else self._fitted(labelled, key.fold("head"))
        notes: dict[str, Any] = {"duals": "given"} if head is None else dict(head.notes)
        try:
            with stage(0.0, SCORING):
                above = sum(pool.map(functools.partial(_score, head, self.cap)))
            if self.cap is not None:
                notes["above_cap"] = above
            with stage(SCORING, 1.0):
                ids = self._chosen(pool, k, head is not None and head.constant, key, notes)
            scores = pool.take(ids).tensor(DUALS)
        finally:
            pool.map(_end)
        return equal_weights(ids, scores.cpu(), notes)

    def fitted(self, labelled: Shards, key: Key) -> FittedHead:
        """The head this strategy would score a pool by; `key` as given to `select`."""
        return self._fitted(labelled, key.fold("head"))

    def _fitted(self, labelled: Shards, key: Key) -> FittedHead:
        if not labelled.n:
            raise NeedError(f"Ally needs duals, and there is no labelled row to learn them from: {DUALS.how}")
        parts = labelled.map(lambda shard: shard.rows(slice(None)))
        x_LD, dual_L = (torch.cat([part.tensor(signal).cpu() for part in parts]) for signal in (EMBEDDING, DUALS))
        return self.head.fit(x_LD, dual_L, torch.cat([part.ids.cpu() for part in parts]), key)

    def _chosen(self, pool: Shards, k: int, constant: bool, key: Key, notes: dict[str, Any]) -> Tensor:
        """Ids of k rows by the duals that the shards now hold."""
        if self.diversity == "kmeans++":
            return _spread(pool, k, key.fold("kmeans++"))
        if self.diversity == "perturb":
            return pool.best(functools.partial(_perturbed, key.fold("perturb")), k).ids
        rank = functools.partial(_by_chance, key.fold("tie")) if constant else _dual
        clusters = min(k, k if self.clusters is None else self.clusters)
        if self.diversity == "none" or clusters == 1:
            return pool.best(rank, k).ids
        with about_the_middle(pool, EMBEDDING):
            found = len(cluster.kmeans(pool, EMBEDDING, clusters, key.fold("clusters")))
        best, filled = highest_in_clusters(pool, rank, k, k // clusters)
        notes["clusters"] = found
        if filled:
            notes["filled"] = filled  # rows taken without regard to clusters, so that the batch is full
        return best.ids


def _spread(pool: Shards, k: int, key: Key) -> Tensor:
    """k-means++ on dual x embedding; the longest first, as in BADGE."""
    with nearest.measured(pool, PULLED):
        first = nearest.longest(pool, tie(pool)).ids
        if k == 1:
            return first
        nearest.take_in(pool, PULLED, pool.take(first))
        return torch.cat([first, nearest.by_chance(pool, PULLED, k - 1, key).ids])


def _has_duals(shard: Shard) -> bool:
    return DUALS in shard.columns


def _score(head: FittedHead | None, cap: float | None, shard: Shard) -> int:
    """Give every row of the shard the dual it is chosen by; how many were above the cap."""

    def duals(rows: Rows) -> Tensor:
        if head is None:
            return rows.tensor(DUALS)
        # Rounded: what a matrix product gives a row depends in its last bits on the block it is in.
        return head(rows.tensor(EMBEDDING)).to(torch.float32).to(shard.dtype)

    dual_N = shard.each(duals)
    above_N = dual_N > (torch.inf if cap is None else cap)
    shard.made[DUALS] = dual_N.masked_fill(above_N, 0.0)
    return int(above_N.sum())


def _end(shard: Shard) -> None:
    shard.state.pop("cluster", None)
    shard.made.pop(DUALS, None)


def _dual(shard: Shard) -> Tensor:
    return shard.made[DUALS]


def _by_chance(key: Key, shard: Shard) -> Tensor:
    return key.uniform(shard.ids)


def _perturbed(key: Key, shard: Shard) -> Tensor:
    """The highest k of log dual + Gumbel noise are k draws without replacement, in proportion to the dual."""
    return shard.made[DUALS].double().clamp_min(LEAST).log() + key.gumbel(shard.ids)
