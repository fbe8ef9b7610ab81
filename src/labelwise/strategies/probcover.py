"""ProbCover: rows whose balls of radius delta cover the most rows not covered yet; made for the first labels.

Yehuda, Dekel, Hacohen and Weinshall, "Active learning through a covering lens", NeurIPS 2022, algorithm 1. Row u is
covered when a labelled or picked row lies within delta of it in feature space.

    pick = argmax_i #{u not covered : |x_i - x_u| <= delta}, ties to the smaller id

delta is just short of the radius at which fewer than a share `purity` of the balls hold rows of one cluster only,
clusters found by k-means with `classes` centres (section 4 of the paper). A ball around i is pure exactly while its
radius is below the distance of i to the nearest row of another cluster, so delta is a quantile of those distances;
they are measured for at most 2,048 rows drawn at random.
Cost N^2 D arithmetic as matrix products; no table of N x N is kept. Once every row is covered the rest of the batch
is drawn at random, and the notes say how many that was.
Departs from the paper: none known in the picks; the graph is never stored, counts are lowered as rows are covered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.choose import Selection, Strategy, cluster
from labelwise.choose.centre import about_the_middle
from labelwise.choose.memory import Size
from labelwise.choose.progress import stage, tick
from labelwise.choose.selection import equal_weights
from labelwise.choose.strategy import Growth
from labelwise.errors import ArgumentError
from labelwise.keys import Key
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows, checked_norm, sq_dist
from labelwise.signals.spec import Features, Needs

FEATURES = Features()
PROBES = 2048  # rows whose distance to another cluster is measured
MEASURING, COUNTING = 0.1, 0.6  # of the time, about, when the radius is known and when every ball was counted
COLUMNS = 512  # covered rows taken out of the counts by one matrix product


@dataclass(frozen=True)
class ProbCover(Strategy):
    """Greedy cover of the pool by balls of radius delta.

    Args:
        delta: radius of the balls, or None to find it from `purity` and `classes`.
        purity: share of balls that should hold rows of one cluster only.
        classes: how many classes (clusters) to expect when delta is looked for.
    """

    delta: float | None = None
    purity: float = 0.95
    classes: int = 10

    needs = Needs(pool=(FEATURES,), labelled=(FEATURES,))
    cost = "N^2 D"
    growth = Growth(N=2, D=1)
    paper = "Yehuda et al., NeurIPS 2022"
    cold = True

    def __post_init__(self) -> None:
        if self.delta is not None and not (_number(self.delta) and self.delta > 0):
            raise ArgumentError(f"ProbCover(delta=...) must be a number above 0, found {self.delta!r}")
        if not (_number(self.purity) and 0 < self.purity <= 1):
            raise ArgumentError(f"ProbCover(purity=...) must be above 0 and at most 1, found {self.purity!r}")
        if not isinstance(self.classes, int) or self.classes < 2:
            raise ArgumentError(f"ProbCover(classes=...) must be a whole number of at least 2, found {self.classes!r}")

    def memory(self, size: Size) -> int:
        clusters = 0 if self.delta is not None else cluster.memory(size, self.classes)
        probes = 0 if self.delta is not None else 4 * min(PROBES, size.rows) * size.row
        return 64 * size.rows + clusters + probes + 6 * COLUMNS * size.row

    def work(self, size: Size) -> float:
        return 4.0 * size.rows**2 * size.numbers  # every pair is looked at when counted and when covered

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        try:
            with about_the_middle(pool.join(labelled), FEATURES):
                pool.map(_begin)
                with stage(0.0, MEASURING):
                    delta = self.delta if self.delta is not None else self._pure_radius(pool, key.fold("delta"))
                with stage(MEASURING, COUNTING):
                    _count_balls(pool, labelled, delta)
                with stage(COUNTING, 1.0):
                    ids, scores = _cover_greedily(pool, k, delta)
            notes = {"delta": delta, "covered": pool.sum(_covered) / pool.n, "at_random": k - len(ids)}
            if len(ids) < k:
                rest = pool.best(functools.partial(_lottery, key.fold("rest")), k - len(ids))
                ids.extend(rest.ids.tolist())
                scores.extend([0.0] * len(rest.ids))
        finally:
            pool.map(_end)
        return equal_weights(ids, scores, notes)

    def _pure_radius(self, pool: Shards, key: Key) -> float:
        """The radius at which a share `purity` of the balls is pure."""
        centres = cluster.kmeans(pool, FEATURES, self.classes, key.fold("clusters"))
        probes = pool.best(lambda shard: key.uniform(shard.ids), min(PROBES, pool.n)).ids
        number = dict(pair for pairs in pool.map(functools.partial(_numbers, probes)) for pair in pairs)
        gap = torch.full((len(probes),), torch.inf, dtype=torch.float64)
        for start in range(0, len(probes), COLUMNS):
            part = probes[start : start + COLUMNS]
            rows, own = pool.take(part), torch.tensor([number[i] for i in part.tolist()])
            gaps = pool.map(functools.partial(_other_cluster, rows, own))
            gap[start : start + COLUMNS] = torch.stack(gaps).amin(0)
        gap = gap[torch.isfinite(gap)].sqrt().sort().values
        if len(centres) < 2 or not len(gap) or gap[-1] == 0:
            return torch.finfo(torch.float32).tiny  # copies of one row: any radius covers all of them
        # Midway to the next shorter distance, so that no row lies on the edge of a ball by construction. Distances
        # come in pairs (each row may be the other's nearest), so the next shorter one may be several places down.
        impure = int((1 - self.purity) * len(gap) + 1e-9)  # so many balls may be impure
        edge = float(gap[min(impure, len(gap) - 1)])
        shorter = gap[gap < edge * (1 - 1e-6)]
        below = float(shorter[-1]) if len(shorter) else 0.0
        return max((below + edge) / 2, torch.finfo(torch.float32).tiny)


def _count_balls(pool: Shards, labelled: Shards, delta: float) -> None:
    """Cover what the labelled rows cover; how many of the others each ball holds."""
    for centres in _parts(labelled, _ids(labelled)):
        pool.map(functools.partial(_cover, centres, delta))
    left = torch.cat(pool.map(_not_covered))
    for done, rows in enumerate(_parts(pool, left)):
        tick(done * COLUMNS, len(left))
        pool.map(functools.partial(_count, rows, delta, 1.0))


def _cover_greedily(pool: Shards, k: int, delta: float) -> tuple[list[int], list[float]]:
    """At most k ids, each covering the most rows not covered yet, and how many that were."""
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < k:
        best = pool.best(_degree, 1)
        if best.values[0] <= 0:
            break
        pick = pool.take(best.ids)
        for rows in _parts(pool, torch.cat(pool.map(functools.partial(_cover, pick, delta)))):
            pool.map(functools.partial(_count, rows, delta, -1.0))
        pool.map(functools.partial(_take, best.ids))
        ids.append(int(best.ids[0]))
        scores.append(float(best.values[0]))
        tick(len(ids), k)
    return ids, scores


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _parts(shards: Shards, ids: Tensor) -> Iterator[Rows]:
    """The rows with these ids, some at a time."""
    for start in range(0, len(ids), COLUMNS):
        yield shards.take(ids[start : start + COLUMNS])


def _ids(shards: Shards) -> Tensor:
    found = shards.map(lambda shard: shard.ids.cpu())
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def _begin(shard: Shard) -> None:
    for _, rows in shard.blocks():
        checked_norm(rows, FEATURES)
    shard.state["covered"] = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)
    shard.state["degree"] = torch.zeros(len(shard), device=shard.device)  # counts below 2^24 are exact in float32


def _end(shard: Shard) -> None:
    for name in ("covered", "degree", "cluster"):
        shard.state.pop(name, None)


def _within(rows: Rows, centres: Rows, delta: float) -> Tensor:
    """Which rows (N, M) lie in the balls around the centres."""
    return sq_dist(rows[FEATURES], centres[FEATURES]) <= delta * delta


def _cover(centres: Rows, delta: float, shard: Shard) -> Tensor:
    """Cover the rows in the balls; the ids of those that were not covered before."""
    centres, covered_N = centres.to(shard.device), shard.state["covered"]
    before_N = covered_N.clone()
    for where, rows in shard.blocks(scratch=2 * len(centres)):
        covered_N[where] |= _within(rows, centres, delta).any(1)
    return shard.ids[covered_N & ~before_N].cpu()


def _count(others: Rows, delta: float, sign: float, shard: Shard) -> None:
    """Add to each row's count, or take from it, how many of `others` its ball holds."""
    others, degree_N = others.to(shard.device), shard.state["degree"]
    for where, rows in shard.blocks(scratch=2 * len(others)):
        degree_N[where] += sign * _within(rows, others, delta).sum(1)


def _degree(shard: Shard) -> Tensor:
    return shard.state["degree"]


def _take(ids: Tensor, shard: Shard) -> None:
    shard.state["degree"][torch.isin(shard.ids, ids.to(shard.device))] = -torch.inf


def _covered(shard: Shard) -> int:
    return int(shard.state["covered"].sum())


def _not_covered(shard: Shard) -> Tensor:
    return shard.ids[~shard.state["covered"]].cpu()


def _lottery(key: Key, shard: Shard) -> Tensor:
    """An equal chance for every row that is not taken."""
    return key.uniform(shard.ids).masked_fill_(shard.state["degree"] == -torch.inf, -torch.inf)


def _numbers(ids: Tensor, shard: Shard) -> list[tuple[int, int]]:
    """(id, cluster) of the asked rows that live here."""
    here = torch.isin(shard.ids, ids.to(shard.device))
    return list(zip(shard.ids[here].tolist(), shard.state["cluster"][here].tolist()))


def _other_cluster(probes: Rows, own: Tensor, shard: Shard) -> Tensor:
    """Squared distance (M,) of each probe to the nearest row here that is of another cluster."""
    probes, own = probes.to(shard.device), own.to(shard.device)
    gap_M = torch.full((len(probes),), torch.inf, dtype=torch.float64, device=shard.device)
    for where, rows in shard.blocks(scratch=2 * len(probes)):
        dist_NM = sq_dist(rows[FEATURES], probes[FEATURES])
        dist_NM.masked_fill_(shard.state["cluster"][where][:, None] == own[None, :], torch.inf)
        gap_M = torch.minimum(gap_M, dist_NM.amin(0))
    return gap_M.cpu()
