"""BatchBALD: the batch whose labels together have the most information about the weights of the model.

Kirsch, van Amersfoort and Gal, "BatchBALD: efficient and diverse batch acquisition for deep Bayesian active learning",
NeurIPS 2019, algorithm 1. Rows are selected one at a time; with y_S the labels of the rows selected, under K draws of
the weights,

    gain(x) = H[y_S, y_x] - H[y_S] - mean_k H[p_k(x)]

Joint entropies are exact while the C^t configurations of t labels are at most `configurations`; then that many are
sampled, the same number from every draw. Gains only fall as the batch grows, so a gain of an earlier step is an upper
bound, and few rows are evaluated again for each pick. All in float64. Cost: N K C, and M K C for each row evaluated;
how many rows those are grows with C by no power that is known, up to all of them for each pick.

A batch cannot have more information than which of the K draws is the right one, log K nats. Once a row adds less than
0.001, or 0.98 log K is reached, gains are noise of the estimate: the rest of the batch is filled by BALD, and the notes
say so.
Departs from the paper: that stop; in pools of more than 100,000 rows only the 10 k rows of highest BALD are candidates;
configurations are extended by a label at each pick and not sampled again. `strict=True` turns the first two off.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from labelwise.io.arguments import check_fields, check_flag, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.backends import is_accelerator
from labelwise.selection.progress import tick
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Best, Shard, Shards
from labelwise.shards.devices import to_device
from labelwise.signals.spec import LogProbs, Needs
from labelwise.strategies.bayesian.joint_entropy import TABLE_NUMBERS, Joint, mutual_information, probabilities

DRAWS = LogProbs()
TIED = 1e-10  # nats; gains are sums of a few thousand float64 terms of size 1 at most
MIN_GAIN, SATURATED = 1e-3, 0.98  # a gain, and a share of log K, that end the greedy part


@dataclass(frozen=True)
class Tuning:
    """Sizes that change time and memory; of the picks, `large_pool` alone decides which rows are candidates.

    Args:
        large_pool: rows from which on only those of highest BALD are candidates.
        first, most: rows whose coarse gain is computed together: few at first, more while the bounds are loose.
        together: rows whose gain is computed together.
        groups: configurations of a coarse joint.
    """

    large_pool: int = 100_000
    first: int = 16
    most: int = 1024
    together: int = 8
    groups: int = 256


@register
@dataclass(frozen=True)
class BatchBald(Strategy):
    """Selects the rows whose labels together have the most information about the draws of the model.

    Args:
        configurations: the maximum of joint labellings.
        prefilter: candidates for each pick, by BALD; None: 10 in pools of more than 100,000 rows, 0: all rows.
        strict: whether all rows are candidates and the selection is greedy to the last pick.

    Raises:
        ArgumentError: a parameter is out of range.
    """

    configurations: int = 10_000
    prefilter: int | None = None
    strict: bool = False

    name = "batchbald"
    picks = "most information about the weights for the batch as a whole"
    reason = "Versions of the model disagree on this one, in another way than on the rest of this batch."
    needs = Needs(pool=(DRAWS,))
    cost = "N K C + rows evaluated x M K C"
    growth = Growth(C=math.inf, k=2)  # rows evaluated again
    paper = "Kirsch et al., NeurIPS 2019"
    tuning: ClassVar[Tuning] = Tuning()

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "configurations", least=1)
        check_fields(self, check_whole, "prefilter", least=0)
        check_fields(self, check_flag, "strict")

    def memory(self, size: Size) -> int:
        draws, classes = size.shape(LogProbs)
        copied = 0 if self.strict else min(self._per_pick(size.rows) * size.k, size.rows)
        evaluated = 6 * 8 * min(self.tuning.most, size.rows) * draws * classes
        joint = 8 * 8 * self.configurations * draws + 6 * 8 * max(TABLE_NUMBERS, self.configurations * classes)
        return 112 * size.rows + 5 * copied * size.row + evaluated + joint + 64 * size.k

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        rows = self._candidates(pool, k)
        try:
            rows.map(_begin)
            found = self._greedy(rows, k, key)
        finally:
            rows.map(_clear)
        ids, scores = found.ids, found.gains
        notes = {**found.notes, "rows": rows.n, "filled_by_bald": k - len(ids)}
        if len(ids) < k:
            rest = pool.best(_bald, k)  # at most len(ids) of these k rows are selected already
            selected = set(ids)
            fill = [(i, v) for i, v in zip(rest.ids.tolist(), rest.values.tolist()) if i not in selected]
            fill = fill[: k - len(ids)]
            ids, scores = [*ids, *(i for i, _ in fill)], [*scores, *(v for _, v in fill)]
        return equal_weights(ids, scores, notes)

    def _per_pick(self, rows: int) -> int:
        """Candidates for each pick; 0 is all rows."""
        if self.prefilter is not None:
            return self.prefilter
        return 10 if rows > self.tuning.large_pool else 0

    def _candidates(self, pool: Shards, k: int) -> Shards:
        """The rows that the greedy part selects from."""
        count = self._per_pick(pool.n) * k
        if self.strict or not count or count >= pool.n:
            return pool
        rows = pool.take(pool.best(_bald, count).ids)
        return Shards([Shard(rows.ids, rows.columns)]).with_ties(pool.ties)

    def _greedy(self, pool: Shards, k: int, key: Key) -> _Greedy:
        draws = max(pool.map(lambda shard: shard.columns[DRAWS].shape[1]))
        joint: Joint | None = None
        ids: list[int] = []
        gains: list[float] = []
        exact, evaluated, stopped = 0, 0, "k rows taken"
        while len(ids) < k:
            best, count = _next(pool, joint, self.tuning)
            gain, value, evaluated = float(best.values[0]), math.fsum(gains), evaluated + count
            if not self.strict and (gain < MIN_GAIN or value > SATURATED * math.log(draws)):
                stopped = "information saturated: " + (
                    f"a further row adds less than {MIN_GAIN} nats"
                    if gain < MIN_GAIN
                    else f"above {SATURATED} of log K"
                )
                break
            exact += joint is None or joint.is_exact
            ids.append(int(best.ids[0]))
            gains.append(gain)
            tick(len(ids), k)
            if len(ids) < k:
                pick_KC = probabilities(pool.take(best.ids).tensor(DRAWS))[0]
                joint = Joint.empty(draws, pick_KC.device) if joint is None else joint
                joint = joint.with_row(pick_KC, self.configurations, key.fold("pick", len(ids)))
        notes = {
            "information": math.fsum(gains),
            "ceiling": math.log(draws),
            "greedy": len(ids),
            "exact": exact,
            "evaluated": evaluated,
            "stopped": stopped,
        }
        return _Greedy(ids, gains, notes)


class _Greedy(NamedTuple):
    """The greedy part of a batch."""

    ids: list[int]
    gains: list[float]
    notes: dict[str, Any]


def _next(pool: Shards, joint: Joint | None, tuning: Tuning) -> tuple[Best, int]:
    """The row of highest gain, ties by lot, and how many rows were evaluated.

    A row cannot be the next pick, and is not evaluated, where its gain of an earlier step or its gain by a coarse joint
    is below the best gain of this step.
    """
    if joint is None:  # the gain of the first pick is BALD, which every row has already
        top = float(pool.best(_gain, 1).values[0])
        first = torch.cat(pool.map(functools.partial(_smallest_lot, top - TIED)))
        return _select(pool, _by_lot(pool, first)[:1], top), 0
    ids, gains = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    coarse, evaluated, top = joint.coarse(tuning.groups), 0, -math.inf
    # On an accelerator the host waits for each answer, and a few hundred rows take as long as one.
    is_away = is_accelerator(joint.q_M.device)
    size, together = (tuning.most, tuning.most) if is_away else (tuning.first, tuning.together)
    while True:
        bound = pool.best(_gain, min(size, pool.n))
        candidates = bound.ids[bound.values > top - TIED]  # none where every row is selected or evaluated
        if not len(candidates):
            break
        p_nKC = probabilities(pool.take(candidates).tensor(DRAWS))
        gain_n = coarse.gain(p_nKC).cpu()
        for part in gain_n.argsort(descending=True).split(together):
            part = part[gain_n[part] > top - TIED] if coarse is not joint else part
            if not len(part):
                break
            if coarse is not joint:
                gain_n[part] = joint.gain(p_nKC[to_device(part, p_nKC.device)]).cpu()
            top, evaluated = max(top, float(gain_n[part].max())), evaluated + len(part)
        ids, gains = torch.cat([ids, candidates]), torch.cat([gains, gain_n])
        evaluated_gain = torch.full((len(candidates),), -torch.inf, dtype=torch.float64)
        pool.map(functools.partial(_write, candidates, evaluated_gain))
        size = min(2 * size, tuning.most)
    pool.map(functools.partial(_write, ids, gains))
    return _select(pool, _by_lot(pool, ids[gains >= top - TIED])[:1], top), evaluated


def _by_lot(pool: Shards, ids: Tensor) -> Tensor:
    return ids[pool.ties.lots(ids).argsort()] if len(ids) > 1 else ids


def _select(pool: Shards, pick: Tensor, gain: float) -> Best:
    """The pick with its gain; it is no candidate any more."""
    value = torch.tensor([gain], dtype=torch.float64)
    pool.map(functools.partial(_write, pick, torch.full_like(value, -torch.inf)))
    return Best(pick, value)


def _begin(shard: Shard) -> None:
    width = shard.columns[DRAWS][:1].numel()
    shard.state["gain"] = shard.each(
        lambda rows: mutual_information(probabilities(rows.tensor(DRAWS)).log_()), 4 * width
    )


def _clear(shard: Shard) -> None:
    shard.state.pop("gain", None)


def _gain(shard: Shard) -> Tensor:
    """The gain (n,) of each row when it was last evaluated, -inf where the row is no candidate."""
    return shard.state["gain"]


def _smallest_lot(floor: float, shard: Shard) -> Tensor:
    """The id of the row of smallest lot whose gain is at least `floor`, if there is one."""
    tied = (shard.state["gain"] >= floor).nonzero()[:, 0]
    return shard.ids[tied[shard.lots[tied].argsort()[:1]]].cpu()


def _write(ids: Tensor, gains: Tensor, shard: Shard) -> None:
    """Write the gains of those of the rows `ids` that are in this shard."""
    mine, positions = shard.find(ids)
    shard.state["gain"].index_copy_(0, positions, to_device(gains[mine], shard.device))


def _bald(shard: Shard) -> Tensor:
    return shard.each(lambda rows: mutual_information(rows.tensor(DRAWS)))
