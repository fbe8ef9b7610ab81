"""ProbCover: rows whose balls of radius delta cover the most rows not covered yet; made for the first labels.

Yehuda, Dekel, Hacohen and Weinshall, "Active learning through a covering lens", NeurIPS 2022, algorithm 1. Row u is
covered when a labelled or picked row lies within delta of it in feature space.

    pick = argmax_i #{u not covered : |x_i - x_u| <= delta}, ties to the smaller id

delta is just short of the radius at which fewer than a share `purity` of the balls hold rows of one cluster only,
clusters found by k-means with `classes` centres (section 4 of the paper). A ball around i is pure exactly while its
radius is below the distance of i to the nearest row of another cluster, so delta is a quantile of those distances;
they are measured for at most 2,048 rows drawn at random.
Counts only fall as rows are covered. So several picks are made for each sweep, inside a short list of the highest
counts whose balls are known row by row, while one is ahead of every count outside; then what they covered is taken off.
Cost N^2 E arithmetic as matrix products, over as few directions E of the features as tell most rows apart
(ball_index.py), at worst all D; no table of N x N is kept. Once every row is covered the rest of the batch is drawn
at random, and the notes say how many that was.
Departs from the paper: none known in the picks; the graph is never stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import Size
from labelwise.selection.progress import stage, tick
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import sent
from labelwise.signals.rows import Rows, checked_norm, sq_dist
from labelwise.signals.spec import Features, Needs
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.coverage.greedy_cover import from_list
from labelwise.strategies.coverage.radius_index import COUNTS, Balls, balls_of, some_of
from labelwise.strategies.distance.centering import centred

FEATURES = Features()
PROBES, TOGETHER = 2048, 512  # rows whose distance to another cluster is measured, and how many of them at once
MEASURING, COUNTING = 0.1, 0.9  # of the time, about, when the radius is known and when every ball was counted
COLUMNS = 4096  # balls of one matrix product
LISTED, HELD = 1024, 1 << 18  # rows of the short list, and rows in their balls, together


@register
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
        if not isinstance(self.classes, int) or self.classes < 2:
            raise ArgumentError(f"ProbCover(classes=...) must be a whole number of at least 2, found {self.classes!r}")

    def memory(self, size: Size) -> int:
        clusters = 0 if self.delta is not None else cluster.memory(size, self.classes)
        probes = 0 if self.delta is not None else 4 * min(PROBES, size.rows) * size.row
        held = 96 * max(size.rows, min(HELD, size.rows**2))
        centres = 4 * min(COLUMNS, size.rows) * size.row
        return 64 * size.rows + max(clusters + probes, Balls.memory(size), centres + held)  # one after the other

    def work(self, size: Size) -> float:
        return 2.0 * size.rows**2 * min(size.numbers, COUNTS[-1])  # every pair is looked at once

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        try:
            with centred(pool.join(labelled), FEATURES):
                pool.map(_begin)
                with stage(0.0, MEASURING):
                    delta = self.delta if self.delta is not None else self._pure_radius(pool, key.fold("delta"))
                balls = balls_of(pool, FEATURES, delta, key.fold("directions"))
                with stage(MEASURING, COUNTING):
                    _count_balls(pool, labelled, balls)
                with stage(COUNTING, 1.0):
                    ids, scores = _cover_greedily(pool, k, balls)
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
        for start in range(0, len(probes), TOGETHER):
            part = probes[start : start + TOGETHER]
            rows, own = pool.take(part), torch.tensor([number[i] for i in part.tolist()])
            gaps = pool.map(functools.partial(_other_cluster, rows, own))
            gap[start : start + TOGETHER] = torch.stack(gaps).amin(0)
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


def _count_balls(pool: Shards, labelled: Shards, balls: Balls) -> None:
    """Cover what the labelled rows cover; how many of the others each ball holds."""
    for centres in _parts(labelled, _ids(labelled)):
        pool.map(functools.partial(_cover, balls, centres))
    left = torch.cat(pool.map(_not_covered)).sort().values
    done = 0
    for rows in _parts(pool, left):
        tick(2 * len(left) * done - done**2, len(left) ** 2)
        done += len(rows)
        held = torch.stack(pool.map(functools.partial(_count, balls, rows))).sum(0)
        pool.map(functools.partial(_add, rows.ids.cpu(), held))


def _cover_greedily(pool: Shards, k: int, balls: Balls) -> tuple[list[int], list[float]]:
    """At most k ids, each covering the most rows not covered yet, and how many that were."""
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < k:
        best = pool.best(_degree, some_of(LISTED, pool.n) + 1)
        if best.values[0] <= 0:
            break
        worth = best.values[: some_of(LISTED, pool.n)]
        worth = worth[worth > 0]
        listed = best.ids[: max(1, int((worth.cumsum(0) <= HELD).sum()))]
        guard = (float(best.values[len(listed)]), int(best.ids[len(listed)])) if len(listed) < len(best.ids) else None
        found = pool.map(functools.partial(_held, balls, pool.take(listed)))
        ball, row = (torch.cat([part[i].cpu() for part in found]) for i in (0, 1))
        picks = from_list(listed, ball, row, guard, k - len(ids))
        assert picks.ids, "counts are exact: the first of the list is ahead"
        ids += picks.ids
        scores += picks.scores
        pool.map(functools.partial(_take, torch.tensor(picks.ids), picks.covered))
        tick(len(ids), k)
        for rows in _parts(pool, picks.covered) if len(ids) < k else ():
            pool.map(functools.partial(_take_off, balls, rows))
    return ids, scores


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _parts(shards: Shards, ids: Tensor) -> Iterator[Rows]:
    """The rows with these ids, some at a time."""
    step = some_of(COLUMNS, shards.n)
    for start in range(0, len(ids), step):
        yield shards.take(ids[start : start + step])


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


def _cover(balls: Balls, centres: Rows, shard: Shard) -> None:
    """Cover the rows in the balls around these centres."""
    around = balls.around(centres.to(shard.device))
    for where, rows in shard.blocks(around.scratch):
        shard.state["covered"][where] |= around.held(rows) > 0


def _count(balls: Balls, others: Rows, shard: Shard) -> Tensor:
    """Add to each row's count how many of `others` its ball holds; how many rows after them theirs hold (M,).

    `others` are rows that are not covered, in the order of their ids. Each pair of such rows is looked at once, when
    the first of the two is among `others`.
    """
    around, covered_N = balls.around(others.to(shard.device)), shard.state["covered"]
    first, last = int(others.ids[0]), int(others.ids[-1])
    held_M = torch.zeros(len(others), dtype=torch.int64, device=shard.device)
    for at, rows in shard.some_blocks(((shard.ids >= first) | covered_N).nonzero()[:, 0], around.scratch):
        of_row, of_ball_M = around.counts(rows, (rows.ids > last) & ~covered_N[at])
        shard.state["degree"][at] += of_row
        held_M += of_ball_M
    return held_M.cpu()


def _add(ids: Tensor, more: Tensor, shard: Shard) -> None:
    """Add to the counts of these rows."""
    here, positions = shard.find(ids)
    shard.state["degree"][positions] += sent(more[here], shard.device)


def _held(balls: Balls, centres: Rows, shard: Shard) -> tuple[Tensor, Tensor]:
    """All pairs of a ball around one of these centres and a row in it that is not covered: position, id."""
    around = balls.around(centres.to(shard.device))
    ball, row = [], []
    for where, rows in shard.blocks(around.scratch):
        at, centre = around.pairs(rows)
        free = ~shard.state["covered"][where][at]
        ball.append(centre[free])
        row.append(rows.ids[at[free]])
    return torch.cat(ball), torch.cat(row)


def _take(picks: Tensor, covered: Tensor, shard: Shard) -> None:
    """Keep which rows are taken, and which are covered now."""
    shard.state["degree"][shard.find(picks)[1]] = -torch.inf
    shard.state["covered"][shard.find(covered)[1]] = True


def _take_off(balls: Balls, covered: Rows, shard: Shard) -> None:
    """Take from each row's count how many of the rows that are covered now its ball holds."""
    around = balls.around(covered.to(shard.device))
    for where, rows in shard.blocks(around.scratch):
        shard.state["degree"][where] -= around.held(rows)


def _degree(shard: Shard) -> Tensor:
    return shard.state["degree"]


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
