"""ProbCover: rows whose balls of radius delta cover the most rows not covered yet; made for the first labels.

Yehuda, Dekel, Hacohen and Weinshall, "Active learning through a covering lens", NeurIPS 2022, algorithm 1. Row u is
covered when a labelled or picked row lies within delta of it in feature space.

    pick = argmax_i #{u not covered : |x_i - x_u| <= delta}, ties by lot

delta is just short of the radius at which less than a share `purity` of the balls contain rows of one cluster only,
clusters found by k-means with `classes` centres (section 4 of the paper). A ball around i is pure exactly while its
radius is below the distance of i to the nearest row of another cluster, so delta is a quantile of those distances;
they are measured for at most 2,048 rows drawn at random.
Counts only fall as rows are covered. So several picks are made for each sweep, within a short list of the highest
counts whose balls are known row by row, while one is ahead of every count outside; then the rows they covered are
subtracted from all counts. Cost N^2 E arithmetic as matrix products, over as few directions E of the features as rule
most pairs out (radius_index.py), at worst all D; no table of N x N is stored. Once every row is covered the rest of the
batch is drawn at random, and the notes say how many rows that is.
Departs from the paper: none known in the picks; the graph is never stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_fields, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.progress import stage, tick
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import to_device
from labelwise.signals.rows import Rows, checked_norm, sq_dist
from labelwise.signals.spec import Features, Needs
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.coverage.greedy_cover import cover_from_list
from labelwise.strategies.coverage.radius_index import COUNTS, PAIR_COST, RadiusIndex, block_of, build_index
from labelwise.strategies.distance.centering import centred

FEATURES = Features()
PROBES_TOGETHER = 512  # rows whose distance to another cluster is measured at once
MEASURING, COUNTING = 0.1, 0.9  # approximate shares of the time until the radius is known and every ball counted


@dataclass(frozen=True)
class Tuning:
    """Sizes that change time and memory; of the picks, `probes` alone changes those for which delta is measured.

    Args:
        probes: rows whose distance to another cluster is measured.
        columns: balls of one matrix product.
        listed: rows on the short list.
        list_pairs: rows in the balls of the short list, together.
        pair_cost: see `build_index`.
    """

    probes: int = 2048
    columns: int = 4096
    listed: int = 1024
    list_pairs: int = 1 << 18
    pair_cost: float = PAIR_COST


@register
@dataclass(frozen=True)
class ProbCover(Strategy):
    """Greedy cover of the pool by balls of radius delta.

    Args:
        delta: radius of the balls, or None to measure it from `purity` and `classes`.
        purity: share of balls that should contain rows of one cluster only.
        classes: number of classes (clusters) to expect when delta is measured.

    Raises:
        ArgumentError: a parameter is out of range.
    """

    delta: float | None = None
    purity: float = 0.95
    classes: int = 10

    tuning: ClassVar[Tuning] = Tuning()
    name = "probcover"
    picks = "rows whose balls cover the most uncovered rows"
    reason = "Has many close neighbours without a label."
    needs = Needs(pool=(FEATURES,), labelled=(FEATURES,))
    cost = "N^2 x directions"
    growth = Growth(N=2, D=1)
    paper = "Yehuda et al., NeurIPS 2022"
    cold = True

    def __post_init__(self) -> None:
        if self.delta is not None and not (_number(self.delta) and 0 < self.delta < 1e150):
            raise ArgumentError(f"ProbCover(delta=...) must be a number above 0 and below 1e150, found {self.delta!r}")
        if not (_number(self.purity) and 0 < self.purity <= 1):
            raise ArgumentError(f"ProbCover(purity=...) must be above 0 and at most 1, found {self.purity!r}")
        check_fields(self, check_whole, "classes", least=2)

    def memory(self, size: Size) -> int:
        clusters = 0 if self.delta is not None else cluster.memory(size, self.classes)
        probes = 0 if self.delta is not None else 4 * min(self.tuning.probes, size.rows) * size.row
        pairs = 96 * max(size.rows, min(self.tuning.list_pairs, size.rows**2))
        centres = 4 * min(self.tuning.columns, size.rows) * size.row
        # One after the other.
        return 64 * size.rows + max(clusters + probes, RadiusIndex.memory(size), centres + pairs)

    def work(self, size: Size) -> float:
        return 2.0 * size.rows**2 * min(size.numbers, COUNTS[-1])  # every pair once

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        try:
            with centred(pool.join(labelled), FEATURES):
                pool.map(_begin)
                with stage(0.0, MEASURING):
                    delta = self.delta if self.delta is not None else self._pure_radius(pool, key.fold("delta"))
                index = build_index(pool, FEATURES, delta, key.fold("directions"), self.tuning.pair_cost)
                with stage(MEASURING, COUNTING):
                    self._count_balls(pool, labelled, index)
                with stage(COUNTING, 1.0):
                    ids, scores = self._cover_greedily(pool, k, index)
            notes = {"delta": delta, "covered": pool.sum(_covered) / pool.n, "at_random": k - len(ids)}
            if len(ids) < k:
                rest = pool.best(functools.partial(_random_others, key.fold("rest")), k - len(ids))
                ids.extend(rest.ids.tolist())
                scores.extend([0.0] * len(rest.ids))
        finally:
            pool.map(_clear)
        return equal_weights(ids, scores, notes)

    def _pure_radius(self, pool: Shards, key: Key) -> float:
        """The radius at which a share `purity` of the balls is pure."""
        centres = cluster.kmeans(pool, FEATURES, self.classes, key.fold("clusters"))
        probes = pool.best(lambda shard: key.uniform(shard.ids), min(self.tuning.probes, pool.n)).ids
        number = dict(pair for pairs in pool.map(functools.partial(_clusters_of, probes)) for pair in pairs)
        gap = torch.full((len(probes),), torch.inf, dtype=torch.float64)
        for start in range(0, len(probes), PROBES_TOGETHER):
            part = probes[start : start + PROBES_TOGETHER]
            rows, clusters = pool.take(part), torch.tensor([number[i] for i in part.tolist()])
            gaps = pool.map(functools.partial(_other_cluster, rows, clusters))
            gap[start : start + PROBES_TOGETHER] = torch.stack(gaps).amin(0)
        gap = gap[torch.isfinite(gap)].sqrt().sort().values
        if len(centres) < 2 or not len(gap) or gap[-1] == 0:
            return torch.finfo(torch.float32).tiny  # copies of one row: any radius covers all of them
        # Midway to the next shorter distance, so that no row is on the edge of a ball by construction. Distances come
        # in pairs (each row may be the other's nearest), so the next shorter one may be several positions before.
        impure = int((1 - self.purity) * len(gap) + 1e-9)  # balls that may be impure
        edge = float(gap[min(impure, len(gap) - 1)])
        shorter = gap[gap < edge * (1 - 1e-6)]
        below = float(shorter[-1]) if len(shorter) else 0.0
        return max((below + edge) / 2, torch.finfo(torch.float32).tiny)

    def _count_balls(self, pool: Shards, labelled: Shards, index: RadiusIndex) -> None:
        """Cover the rows near labelled ones, and count the other rows in each ball."""
        for centres in self._blocks(labelled, _ids(labelled)):
            pool.map(functools.partial(_cover, index, centres))
        left = torch.cat(pool.map(_not_covered)).sort().values
        done = 0
        for rows in self._blocks(pool, left):
            tick(2 * len(left) * done - done**2, len(left) ** 2)
            done += len(rows)
            counts = torch.stack(pool.map(functools.partial(_count, index, rows))).sum(0)
            pool.map(functools.partial(_add_counts, rows.ids.cpu(), counts))

    def _cover_greedily(self, pool: Shards, k: int, index: RadiusIndex) -> tuple[list[int], list[float]]:
        """At most k ids, each covering the most rows that are not covered yet, and how many each covered."""
        size = block_of(self.tuning.listed, pool.n)
        ids: list[int] = []
        scores: list[float] = []
        while len(ids) < k:
            best = pool.best(_degree, size + 1)
            if best.values[0] <= 0:
                break
            counts = best.values[:size]
            counts = counts[counts > 0]
            length = max(1, int((counts.cumsum(0) <= self.tuning.list_pairs).sum()))
            listed = best.ids[:length]
            lots = pool.ties.lots(best.ids)
            next_best = (float(best.values[length]), int(lots[length])) if length < len(best.ids) else None
            found = pool.map(functools.partial(_uncovered_pairs, index, pool.take(listed)))
            ball, row = (torch.cat([part[i].cpu() for part in found]) for i in (0, 1))
            picks = cover_from_list(listed, lots[:length], ball, row, next_best, k - len(ids))
            assert picks.ids, "counts are exact: the first of the list is ahead"
            ids += picks.ids
            scores += picks.scores
            pool.map(functools.partial(_select, torch.tensor(picks.ids), picks.covered))
            tick(len(ids), k)
            for rows in self._blocks(pool, picks.covered) if len(ids) < k else ():
                pool.map(functools.partial(_subtract_counts, index, rows))
        return ids, scores

    def _blocks(self, shards: Shards, ids: Tensor) -> Iterator[Rows]:
        """The rows with these ids, in blocks."""
        step = block_of(self.tuning.columns, shards.n)
        for start in range(0, len(ids), step):
            yield shards.take(ids[start : start + step])


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _ids(shards: Shards) -> Tensor:
    found = shards.map(lambda shard: shard.ids.cpu())
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def _begin(shard: Shard) -> None:
    for _, rows in shard.blocks():
        checked_norm(rows, FEATURES)
    shard.state["covered"] = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)
    shard.state["degree"] = torch.zeros(len(shard), device=shard.device)  # counts below 2^24 are exact in float32


def _clear(shard: Shard) -> None:
    for name in ("covered", "degree", "cluster"):
        shard.state.pop(name, None)


def _cover(index: RadiusIndex, centres: Rows, shard: Shard) -> None:
    """Mark the rows in the balls around these centres as covered."""
    balls = index.balls(centres.to(shard.device))
    for block, rows in shard.blocks(balls.scratch):
        shard.state["covered"][block] |= balls.count_balls(rows) > 0


def _count(index: RadiusIndex, others: Rows, shard: Shard) -> Tensor:
    """Add to the count of each row how many of `others` its ball contains.

    `others` are uncovered rows, in the order of their ids. Each pair of uncovered rows is computed once, when the
    first of the two is among `others`.

    Returns:
        For each of `others` (M,), how many rows of this shard with larger ids its ball contains.
    """
    balls, covered_N = index.balls(others.to(shard.device)), shard.state["covered"]
    first, last = int(others.ids[0]), int(others.ids[-1])
    count_M = torch.zeros(len(others), dtype=torch.int64, device=shard.device)
    for positions, rows in shard.some_blocks(((shard.ids >= first) | covered_N).nonzero()[:, 0], balls.scratch):
        by_row, by_ball_M = balls.count_both(rows, (rows.ids > last) & ~covered_N[positions])
        shard.state["degree"][positions] += by_row
        count_M += by_ball_M
    return count_M.cpu()


def _add_counts(ids: Tensor, counts: Tensor, shard: Shard) -> None:
    """Add to the counts of these rows."""
    mine, positions = shard.find(ids)
    shard.state["degree"][positions] += to_device(counts[mine], shard.device)


def _uncovered_pairs(index: RadiusIndex, centres: Rows, shard: Shard) -> tuple[Tensor, Tensor]:
    """All pairs of a ball around one of these centres and an uncovered row in it: position, id."""
    balls = index.balls(centres.to(shard.device))
    ball, row = [], []
    for block, rows in shard.blocks(balls.scratch):
        positions, centre = balls.pairs(rows)
        uncovered = ~shard.state["covered"][block][positions]
        ball.append(centre[uncovered])
        row.append(rows.ids[positions[uncovered]])
    return torch.cat(ball), torch.cat(row)


def _select(picks: Tensor, covered: Tensor, shard: Shard) -> None:
    """Mark rows as selected, and others as covered."""
    shard.state["degree"][shard.find(picks)[1]] = -torch.inf
    shard.state["covered"][shard.find(covered)[1]] = True


def _subtract_counts(index: RadiusIndex, covered: Rows, shard: Shard) -> None:
    """Subtract from the count of each row how many of these covered rows its ball contains."""
    balls = index.balls(covered.to(shard.device))
    for block, rows in shard.blocks(balls.scratch):
        shard.state["degree"][block] -= balls.count_balls(rows)


def _degree(shard: Shard) -> Tensor:
    return shard.state["degree"]


def _covered(shard: Shard) -> int:
    return int(shard.state["covered"].sum())


def _not_covered(shard: Shard) -> Tensor:
    return shard.ids[~shard.state["covered"]].cpu()


def _random_others(key: Key, shard: Shard) -> Tensor:
    """A uniform number for every row that is not selected."""
    return key.uniform(shard.ids).masked_fill_(shard.state["degree"] == -torch.inf, -torch.inf)


def _clusters_of(ids: Tensor, shard: Shard) -> list[tuple[int, int]]:
    """(id, cluster) of those of these rows that are in this shard."""
    mine = torch.isin(shard.ids, ids.to(shard.device))
    return list(zip(shard.ids[mine].tolist(), shard.state["cluster"][mine].tolist()))


def _other_cluster(probes: Rows, clusters: Tensor, shard: Shard) -> Tensor:
    """Squared distance (M,) of each probe to the nearest row of this shard in another cluster."""
    probes, clusters = probes.to(shard.device), clusters.to(shard.device)
    gap_M = torch.full((len(probes),), torch.inf, dtype=torch.float64, device=shard.device)
    for block, rows in shard.blocks(scratch=2 * len(probes)):
        dist_NM = sq_dist(rows[FEATURES], probes[FEATURES])
        dist_NM.masked_fill_(shard.state["cluster"][block][:, None] == clusters[None, :], torch.inf)
        gap_M = torch.minimum(gap_M, dist_NM.amin(0))
    return gap_M.cpu()
