"""ALLY: the rows with the highest predicted dual variable, one from each cluster of the embeddings.

Elenter, NaderiAlizadeh and Ribeiro, "A Lagrangian duality approach to active learning", NeurIPS 2022, algorithm 2 and
section 5.1. Training under a bound on the loss of every labelled row (train/objectives/primal_dual.py) gives each of
them a dual variable, the price of its bound. A small network on the frozen embeddings (dual_head.py) predicts the
dual of unlabelled rows:

    dual_i ~ f(h_i),    fitted by mean squared error on the labelled rows
    k clusters of h_i by k-means;    rows by falling dual, at most k // clusters from each cluster

Cost: one k-means, N k D for each iteration, and one pass of the small network.
Departs from the paper: a short batch (empty clusters, or k is no multiple of the clusters) is filled with the highest
remaining duals; the head's output is a softplus and its targets are in units of their standard deviation; every row of
the pool is scored, where the authors' programme leaves the last partial batch at 0. The paper allows any measure of
diversity: "perturb" draws rows with probability proportional to their dual (Kirsch et al. 2021), "kmeans++" is BADGE's
rule on dual x embedding, "none" takes the highest duals. With `cap`, a prediction above it counts as 0: such rows are
mislabelled or outliers (section 4.4).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError
from labelwise.io.arguments import check_fields, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.progress import stage
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import DualEmbedding, Duals, Embedding, Needs
from labelwise.strategies.ally.cluster_topk import topk_in_clusters
from labelwise.strategies.ally.dual_head import DualHead, FittedHead
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.distance.centering import centred
from labelwise.strategies.distance.nearest import NearestDistances

EMBEDDING = Embedding()
DUALS = Duals()
DUAL_EMBEDDING = DualEmbedding()
SCORING = 0.1  # approximate share of the time
MIN_DUAL = 1e-300  # "perturb" draws rows of dual 0 last, in random order


@register
@dataclass(frozen=True)
class Ally(Strategy):
    """Selects the highest predicted duals, spread over clusters of the embeddings.

    Args:
        clusters: number of clusters; None is one for each pick, which the paper finds best. At most one for each pick.
        cap: rows with a prediction above it are selected last.
        head: how duals are predicted.
        diversity: "kmeans", "perturb", "kmeans++" or "none".

    Raises:
        ArgumentError: a parameter is out of range.
    """

    clusters: int | None = None
    cap: float | None = None
    head: DualHead = field(default_factory=DualHead)
    diversity: Literal["kmeans", "perturb", "kmeans++", "none"] = "kmeans"

    name = "ally"
    picks = "highest predicted dual in each cluster"
    reason = "The model is expected to find this one hard to get right."
    needs = Needs(pool=(EMBEDDING,), labelled=(EMBEDDING, DUALS), instead=(DUALS,))
    cost = "N k D x iterations"
    growth = Growth(D=1)
    paper = "Elenter et al., NeurIPS 2022"
    objective = "PrimalDual"

    def __post_init__(self) -> None:
        if isinstance(self.head, Mapping):  # as a stored session has it
            object.__setattr__(self, "head", DualHead(**self.head))
        check_fields(self, check_whole, "clusters", least=1)
        if self.cap is not None and not self.cap > 0:
            raise ArgumentError(f"Ally(cap=...) is a number above 0, or None, not {self.cap!r}")
        if self.diversity not in ("kmeans", "perturb", "kmeans++", "none"):
            raise ArgumentError(
                f'Ally(diversity=...) is "kmeans", "perturb", "kmeans++" or "none", not {self.diversity!r}'
            )
        if not isinstance(self.head, DualHead):
            raise ArgumentError(f"Ally(head=...) is a DualHead, not {self.head!r}")

    def memory(self, size: Size) -> int:
        ranking = 96 * size.rows  # for the top-k in clusters
        per_row = 16 + 3 * size.number
        labelled = 64 * size.labelled * size.numbers
        return per_row * size.rows + max(ranking, cluster.memory(size, size.k)) + labelled

    def work(self, size: Size) -> float:
        clusters = min(size.k, self.clusters or size.k) if self.diversity == "kmeans" else 0
        return 2.0 * size.rows * clusters * size.shape(Embedding)[0] * (cluster.ITERATIONS + 1)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        is_given = all(pool.map(_has_duals))
        head = None if is_given else self.fitted(labelled, key)
        notes: dict[str, Any] = {"duals": "given"} if head is None else dict(head.notes)
        try:
            with stage(0.0, SCORING):
                above_cap = sum(pool.map(functools.partial(_score, head, self.cap)))
            if self.cap is not None:
                notes["above_cap"] = above_cap
            with stage(SCORING, 1.0):
                ids = self._select_ids(pool, k, key, notes)
            scores = pool.take(ids).tensor(DUALS)
        finally:
            pool.map(_clear)
        return equal_weights(ids, scores.cpu(), notes)

    def fitted(self, labelled: Shards, key: Key) -> FittedHead:
        """Fit the head that scores a pool.

        Args:
            labelled: labelled rows with embeddings and duals.
            key: the key that `select` gets.

        Raises:
            NeedError: there is no labelled row.
        """
        if not labelled.n:
            raise NeedError(f"Ally needs duals, and there is no labelled row to learn them from: {DUALS.hint}")
        blocks = labelled.map(lambda shard: shard.rows(slice(None)))
        x_LD, dual_L = (torch.cat([block.tensor(signal).cpu() for block in blocks]) for signal in (EMBEDDING, DUALS))
        return self.head.fit(x_LD, dual_L, torch.cat([block.ids.cpu() for block in blocks]), key.fold("head"))

    def _select_ids(self, pool: Shards, k: int, key: Key, notes: dict[str, Any]) -> Tensor:
        """Ids of k rows by the duals in the shards; adds to `notes`."""
        if self.diversity == "kmeans++":
            return _kmeans_plus_plus(pool, k, key.fold("kmeans++"))
        if self.diversity == "perturb":
            return pool.best(functools.partial(_perturbed, key.fold("perturb")), k).ids
        clusters = min(k, k if self.clusters is None else self.clusters)
        if self.diversity == "none" or clusters == 1:
            return pool.best(_dual, k).ids
        with centred(pool, EMBEDDING):
            found = len(cluster.kmeans(pool, EMBEDDING, clusters, key.fold("clusters")))
        best, filled = topk_in_clusters(pool, _dual, k, k // clusters)
        notes["clusters"] = found
        if filled:
            notes["filled"] = filled
        return best.ids


def _kmeans_plus_plus(pool: Shards, k: int, key: Key) -> Tensor:
    """k-means++ on dual x embedding; the longest first, as in BADGE."""
    with NearestDistances(pool, DUAL_EMBEDDING) as distances:
        first = distances.longest_row().ids
        if k == 1:
            return first
        distances.add(pool.take(first))
        return torch.cat([first, distances.draw(k - 1, key).ids])


def _has_duals(shard: Shard) -> bool:
    return DUALS in shard.columns


def _score(head: FittedHead | None, cap: float | None, shard: Shard) -> int:
    """Give every row of the shard its dual, given or predicted. Returns how many are above the cap."""

    def duals(rows: Rows) -> Tensor:
        if head is None:
            return rows.tensor(DUALS)
        # The last bits of a matrix product depend on the block that a row is in.
        return head(rows.tensor(EMBEDDING)).to(torch.float32).to(shard.dtype)

    dual_N = shard.each(duals)
    above_N = dual_N > (torch.inf if cap is None else cap)
    shard.made[DUALS] = dual_N.masked_fill(above_N, 0.0)
    return int(above_N.sum())


def _clear(shard: Shard) -> None:
    shard.state.pop("cluster", None)
    shard.made.pop(DUALS, None)


def _dual(shard: Shard) -> Tensor:
    return shard.made[DUALS]


def _perturbed(key: Key, shard: Shard) -> Tensor:
    """log dual + Gumbel noise: its k highest are k draws without replacement, in proportion to the dual."""
    return shard.made[DUALS].double().clamp_min(MIN_DUAL).log() + key.gumbel(shard.ids)
