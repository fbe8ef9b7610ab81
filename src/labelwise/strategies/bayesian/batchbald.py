"""BatchBALD: the batch whose labels, taken together, say most about the weights of the model.

Kirsch, van Amersfoort and Gal, "BatchBALD: efficient and diverse batch acquisition for deep Bayesian active learning",
NeurIPS 2019, algorithm 1. Rows are taken one at a time; with y_S the labels of the rows taken, under K draws of the
weights,

    gain(x) = H[y_S, y_x] - H[y_S] - mean_k H[p_k(x)]

Joint entropies are exact while the C^t configurations of t labels are at most `configurations`; then so many are
sampled, the same number from every draw. Gains only fall as the batch grows, so a gain of an earlier step is a bound,
and few rows are looked at again for each pick. All in float64. Cost: N K C, and for each row looked at M K C;
how many rows those are grows with C by no power that is known, up to all of them for each pick.

A batch cannot tell more than which of the K draws is the right one, log K nats. Once a row adds less than 0.001, or
0.98 log K is reached, gains are noise of the estimate: the rest of the batch is filled by BALD, and the notes say so.
Departs from the paper: that stop; in pools of more than 100,000 rows only the 10 k rows of highest BALD are looked at;
configurations are extended by a label at each pick and not drawn anew. `strict=True` turns the first two off.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import Size
from labelwise.selection.parameters import flag, whole
from labelwise.selection.progress import tick
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth
from labelwise.shards import Best, Shard, Shards
from labelwise.shards.devices import sent
from labelwise.signals.spec import LogProbs, Needs
from labelwise.strategies.bayesian.joint_entropy import PART, Joint, information, probabilities

DRAWS = LogProbs()
LARGE = 100_000  # rows from which on only those of highest BALD are looked at
TIED = 1e-10  # nats; gains are sums of a few thousand float64 terms of size 1 at most
SMALL, FULL = 1e-3, 0.98  # a gain, and a share of log K, that end the greedy part
FIRST, MOST = 16, 1024  # rows whose rough gain is looked at together: few at first, more when the bounds are loose
TOGETHER = 8  # rows whose gain is


@register
@dataclass(frozen=True)
class BatchBald(Strategy):
    """Rows whose labels together tell most about the draws of the model.

    `configurations` is how many joint labellings are kept; `prefilter` keeps so many times k rows by BALD (None: 10 in
    pools of more than 100,000 rows, 0: never); `strict` keeps all rows and stays greedy to the last pick.
    """

    configurations: int = 10_000
    prefilter: int | None = None
    strict: bool = False

    name = "batchbald"
    picks = "most information about the weights for the batch as a whole"
    reason = "Versions of the model disagree on this one, in another way than on the rest of this batch."
    needs = Needs(pool=(DRAWS,))
    cost = "N K C + rows looked at x M K C"
    growth = Growth(C=math.inf, k=2)  # rows looked at again
    paper = "Kirsch et al., NeurIPS 2019"

    def __post_init__(self) -> None:
        object.__setattr__(self, "configurations", whole("BatchBald", "configurations", self.configurations, 1))
        if self.prefilter is not None:
            object.__setattr__(self, "prefilter", whole("BatchBald", "prefilter", self.prefilter, 0))
        object.__setattr__(self, "strict", flag("BatchBald", "strict", self.strict))

    def memory(self, size: Size) -> int:
        draws, classes = size.shape(LogProbs)
        times = (10 if size.rows > LARGE else 0) if self.prefilter is None else self.prefilter
        few = 0 if self.strict else min(times * size.k, size.rows)  # rows that are copied to be looked at
        looked = 6 * 8 * min(MOST, size.rows) * draws * classes
        joint = 8 * 8 * self.configurations * draws + 6 * 8 * max(PART, self.configurations * classes)
        return 112 * size.rows + 5 * few * size.row + looked + joint + 64 * size.k

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        rows = self._looked_at(pool, k)
        try:
            rows.map(_begin)
            found = self._greedy(rows, k, key)
        finally:
            rows.map(_end)
        ids, scores = found.ids, found.gains
        notes = {**found.notes, "rows": rows.n, "filled_by_bald": k - len(ids)}
        if len(ids) < k:
            rest = pool.best(_bald, k)  # of k rows at most len(ids) are taken already
            taken = set(ids)
            more = [(i, v) for i, v in zip(rest.ids.tolist(), rest.values.tolist()) if i not in taken][: k - len(ids)]
            ids, scores = [*ids, *(i for i, _ in more)], [*scores, *(v for _, v in more)]
        return equal_weights(ids, scores, notes)

    def _looked_at(self, pool: Shards, k: int) -> Shards:
        """The rows the greedy part chooses from."""
        times = (10 if pool.n > LARGE else 0) if self.prefilter is None else self.prefilter
        if self.strict or not times or times * k >= pool.n:
            return pool
        rows = pool.take(pool.best(_bald, times * k).ids)
        return Shards([Shard(rows.ids, rows.columns)])

    def _greedy(self, pool: Shards, k: int, key: Key) -> _Found:
        draws = max(pool.map(lambda shard: shard.columns[DRAWS].shape[1]))
        joint: Joint | None = None
        ids: list[int] = []
        gains: list[float] = []
        exact, evaluated, stopped = 0, 0, "k rows taken"
        while len(ids) < k:
            best, looked = _next(pool, joint)
            gain, value, evaluated = float(best.values[0]), math.fsum(gains), evaluated + looked
            if not self.strict and (gain < SMALL or value > FULL * math.log(draws)):
                stopped = "information saturated: " + (
                    f"a further row adds less than {SMALL} nats" if gain < SMALL else f"above {FULL} of log K"
                )
                break
            exact += joint is None or joint.exact
            ids.append(int(best.ids[0]))
            gains.append(gain)
            tick(len(ids), k)
            if len(ids) < k:
                pick_KC = probabilities(pool.take(best.ids).tensor(DRAWS))[0]
                joint = Joint.empty(draws, pick_KC.device) if joint is None else joint
                joint = joint.take(pick_KC, self.configurations, key.fold("pick", len(ids)))
        notes = {
            "information": math.fsum(gains),
            "ceiling": math.log(draws),
            "greedy": len(ids),
            "exact": exact,
            "evaluated": evaluated,
            "stopped": stopped,
        }
        return _Found(ids, gains, notes)


class _Found(NamedTuple):
    """The greedy part of a batch."""

    ids: list[int]
    gains: list[float]
    notes: dict[str, Any]


def _next(pool: Shards, joint: Joint | None) -> tuple[Best, int]:
    """The row of highest gain, ties to the smaller id, and how many rows were looked at for it.

    A row whose gain of an earlier step is below the best of this step cannot be the next pick, so it is left alone; nor
    can one whose gain by a rough joint is.
    """
    if joint is None:  # the gain of the first pick is BALD, which every row has got already
        top = float(pool.best(_gain, 1).values[0])
        first = [ids for ids in pool.map(functools.partial(_at_least, top - TIED)) if len(ids)]
        return _taken(pool, torch.cat(first).min()[None], top), 0
    ids, gains = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    rough, looked, top = joint.rough(), 0, -math.inf
    # On a device the host waits for each answer, and a few hundred rows take as long as one.
    size, together = (FIRST, TOGETHER) if joint.q_M.device.type == "cpu" else (MOST, MOST)
    while True:
        bound = pool.best(_gain, min(size, pool.n))
        asked = bound.ids[bound.values > top - TIED]  # none where every row is taken or looked at
        if not len(asked):
            break
        p_nKC = probabilities(pool.take(asked).tensor(DRAWS))
        gain_n = rough.gain(p_nKC).cpu()
        for part in gain_n.argsort(descending=True).split(together):
            part = part[gain_n[part] > top - TIED] if rough is not joint else part
            if not len(part):
                break
            if rough is not joint:
                gain_n[part] = joint.gain(p_nKC[sent(part, p_nKC.device)]).cpu()
            top, looked = max(top, float(gain_n[part].max())), looked + len(part)
        ids, gains = torch.cat([ids, asked]), torch.cat([gains, gain_n])
        pool.map(functools.partial(_write, asked, torch.full((len(asked),), -torch.inf, dtype=torch.float64)))
        size = min(2 * size, MOST)
    pool.map(functools.partial(_write, ids, gains))
    return _taken(pool, ids[gains >= top - TIED].min()[None], top), looked


def _taken(pool: Shards, pick: Tensor, gain: float) -> Best:
    """The pick with its gain, after it was taken out of the running."""
    value = torch.tensor([gain], dtype=torch.float64)
    pool.map(functools.partial(_write, pick, torch.full_like(value, -torch.inf)))
    return Best(pick, value)


def _begin(shard: Shard) -> None:
    width = shard.columns[DRAWS][:1].numel()
    shard.state["gain"] = shard.each(lambda rows: information(probabilities(rows.tensor(DRAWS)).log_()), 4 * width)


def _end(shard: Shard) -> None:
    shard.state.pop("gain", None)


def _gain(shard: Shard) -> Tensor:
    """What each row added when it was last looked at, -inf where it may not be taken."""
    return shard.state["gain"]


def _at_least(floor: float, shard: Shard) -> Tensor:
    """The smallest id of the rows whose gain is at least `floor`, if there is one."""
    return shard.ids[shard.state["gain"] >= floor].sort().values[:1].cpu()


def _write(ids: Tensor, gains: Tensor, shard: Shard) -> None:
    """Note the gains of those of the rows `ids` that live here."""
    here, positions = shard.find(ids)
    shard.state["gain"].index_copy_(0, positions, sent(gains[here], shard.device))


def _bald(shard: Shard) -> Tensor:
    return shard.each(lambda rows: information(rows.tensor(DRAWS)))
