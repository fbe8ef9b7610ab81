"""TypiClust: the most typical row of each cluster without a label; made for the first labels.

Hacohen, Dekel and Weinshall, "Active learning on a budget: opposite strategies suit high and low budgets", ICML 2022,
section 3. Rows are clustered by their features into min(L + k, 500) clusters. Clusters are visited from the fewest
labelled rows, then the largest; each visit takes the row of highest typicality,

    typicality_i = 1 / mean distance of i to its 20 nearest neighbours in the cluster

Clusters of fewer than 5 rows come last. Cost N (L + k) D for each k-means iteration, and the sum of squared cluster
sizes times D.
Departs from the paper: in a cluster of more than 8,192 rows typicality is measured against 8,192 of them, drawn at
random, so that no table of N x N is needed; typicality is measured once for a cluster, also when several rows are
selected from it (more than 500 picks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from labelwise.io.arguments import check_fields, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.backends import is_accelerator
from labelwise.selection.progress import stage, tick
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.shards.topk import order_by_value
from labelwise.signals.rows import sq_dist
from labelwise.signals.spec import Features, Needs
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.distance.centering import centred

FEATURES = Features()
SMALL = 5  # clusters below this size come last
CLUSTERING = 0.75  # approximate share of the time


@dataclass(frozen=True)
class Tuning:
    """Sizes that change time and memory; of the picks, `witnesses` alone changes those from large clusters.

    Args:
        witnesses: rows of a cluster that typicality is measured against.
        table: numbers of a block of distances.
        device_table: the same on an accelerator.
        read: rows whose typicality is read together.
    """

    witnesses: int = 8192
    table: int = 1 << 18
    device_table: int = 1 << 23
    read: int = 8192


@register
@dataclass(frozen=True)
class TypiClust(Strategy):
    """Selects one typical row from each of the largest clusters without a label.

    Args:
        neighbours: neighbours that typicality is measured with.
        max_clusters: the maximum of clusters.

    Raises:
        ArgumentError: a parameter is out of range.
    """

    neighbours: int = 20
    max_clusters: int = 500

    tuning: ClassVar[Tuning] = Tuning()

    name = "typiclust"
    picks = "the most typical row of each cluster without a label"
    reason = "Typical of a group of items that has no label yet."
    needs = Needs(pool=(FEATURES,), labelled=(FEATURES,))
    cost = "N (L + k) D x iterations"
    growth = Growth(N=2, D=1)  # squared cluster sizes
    paper = "Hacohen et al., ICML 2022"
    cold = True

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "neighbours", "max_clusters", least=1)

    def memory(self, size: Size) -> int:
        clusters = min(size.labelled + size.k, self.max_clusters)
        witnesses = min(size.rows, self.tuning.witnesses)
        queues = min(size.rows, size.k * min(size.k, clusters)) * 160  # typicality and id of rows, as Python objects
        table = max(self.tuning.device_table if size.accelerator else self.tuning.table, witnesses)
        visit = 96 * size.rows + queues + 4 * witnesses * size.row + 40 * table
        return 32 * size.rows + max(cluster.memory(size.with_labelled, clusters), visit + 16 * size.labelled)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        everything = pool.join(labelled)
        with centred(everything, FEATURES):
            wanted = min(labelled.n + k, self.max_clusters)
            with stage(0.0, CLUSTERING):
                count = len(cluster.kmeans(everything, FEATURES, wanted, key.fold("clusters")))
            try:
                with stage(CLUSTERING, 1.0):
                    picked = self._visit(pool, labelled, count, k, key.fold("witnesses"))
            finally:
                everything.map(lambda shard: shard.state.pop("cluster") is None)
        return equal_weights([row for _, row in picked], [score for score, _ in picked], {"clusters": count})

    def _visit(self, pool: Shards, labelled: Shards, count: int, k: int, key: Key) -> list[tuple[float, int]]:
        """(typicality, id) of k rows: one from each visit to a cluster."""
        members = _members(pool, count)
        sizes = [len(ids) for ids in members]
        labels = [0] * count
        for shard_clusters in labelled.map(lambda shard: shard.state["cluster"].tolist()):
            for number in shard_clusters:
                labels[number] += 1
        visits = _visits(sizes, labels, k)
        queues: dict[int, list[tuple[float, int]]] = {}
        measured: dict[int, tuple[Tensor, Tensor]] = {}
        wanted = [*dict.fromkeys(visits)]
        for done, number in enumerate(wanted, 1):
            ids = members[number].sort().values
            measured[number] = ids, self._mean_distance(pool, ids, key.fold(number))
            # Together, since the host waits for an accelerator each time that it reads.
            if done == len(wanted) or sum(len(ids) for ids, _ in measured.values()) >= self.tuning.read:
                queues |= {one: queue[-k:] for one, queue in _by_typicality(measured, pool.ties).items()}
                measured.clear()
            tick(done, len(wanted))
        return [queues[number].pop() for number in visits]

    def _mean_distance(self, pool: Shards, members: Tensor, key: Key) -> Tensor:
        """The mean distance (N,) of each row of a cluster, by rising id, to its nearest neighbours in it."""
        sample = members[key.uniform(members).argsort()[: self.tuning.witnesses]].sort().values
        witnesses = pool.take(sample)
        near = min(self.neighbours, len(sample) - 1)
        # Allocated first: small arrays between large ones that are freed would fragment the memory.
        mean_N = torch.empty(len(members), dtype=torch.float64, device=witnesses.ids.device)
        table = self.tuning.device_table if is_accelerator(mean_N.device) else self.tuning.table
        step = max(1, table // len(sample))
        for start in range(0, len(members), step):
            rows = pool.take(members[start : start + step])
            dist_NW = sq_dist(rows.tensor(FEATURES), witnesses.tensor(FEATURES))
            dist_NW.masked_fill_(rows.ids[:, None] == witnesses.ids[None, :], torch.inf)  # not its own neighbour
            nearest_NK = dist_NW.topk(near, dim=1, largest=False).values
            mean_N[start : start + step] = nearest_NK.double().sqrt().mean(1)
        return mean_N


def _visits(sizes: list[int], labels: list[int], k: int) -> list[int]:
    """The clusters to visit, in order: fewest labels first, then the largest, small ones last."""
    labels, left, visits = list(labels), list(sizes), []
    for _ in range(k):
        open_clusters = (j for j in range(len(sizes)) if left[j])
        number = min(open_clusters, key=lambda j: (sizes[j] < SMALL, labels[j], -sizes[j], j))
        visits.append(number)
        labels[number] += 1
        left[number] -= 1
    return visits


def _by_typicality(measured: dict[int, tuple[Tensor, Tensor]], ties: Key) -> dict[int, list[tuple[float, int]]]:
    """(typicality, id) of the rows of each cluster, the most typical last, ties by lot."""
    sizes = [len(members) for members, _ in measured.values()]
    read = torch.cat([mean_N for _, mean_N in measured.values()]).cpu().split(sizes)
    queues = {}
    for (number, (members, _)), mean_N in zip(measured.items(), read):
        if len(members) == 1:
            queues[number] = [(0.0, int(members[0]))]  # it has no neighbours
            continue
        typical_N = 1 / mean_N.clamp(min=torch.finfo(torch.float32).tiny)
        order = order_by_value(ties.lots(members), typical_N).flip(0)
        queues[number] = list(zip(typical_N[order].tolist(), members[order].tolist()))
    return queues


def _members(pool: Shards, count: int) -> tuple[Tensor, ...]:
    """The ids of the rows of each cluster."""
    ids_N, cluster_N = (torch.cat(part) for part in zip(*pool.map(_ids_and_clusters)))
    members: tuple[Tensor, ...] = ids_N[cluster_N.argsort()].split(torch.bincount(cluster_N, minlength=count).tolist())
    return members


def _ids_and_clusters(shard: Shard) -> tuple[Tensor, Tensor]:
    return shard.ids.cpu(), shard.state["cluster"].cpu()
