"""Frank-Wolfe on one accelerator: a step is a fixed row of kernels, and the host looks only once for many steps.

What there is to do, for 50,000 rows of 2,000 draws in float32 on an H200 (4.3 TB/s):

    one read of the rows for each step      400 MB                                        93 us
    one read of sketches of 125 numbers     25 MB, and the rows that are not ruled out    6 us and more
    a wait of the host                      sketches need about 20 for each step          20 us each

so sketches save nothing here: how many rows they leave, the host knows only when it has waited. Instead the gap, which
rows are taken, and the steps since the last look stay on the device, and a step is one product of all rows with the
gap; on CUDA it is captured in a graph and replayed. The product is in the precision of the rows. The NEAR rows that
come first by it are scored by themselves in float64, as on the CPU: copies of a row are tied to the last bit. Where the
last of these is still within rounding of the first, another row may be the highest: the step does nothing and neither
do those behind it, and the host makes that one. So the steps are those of frank_wolfe.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.shards import Shard, Shards
from labelwise.shards.graphs import captured
from labelwise.strategies.bayesian.frank_wolfe_rows import HALT, Step, block, floor, rounding

NEAR = 128  # rows that a step tells apart
CHUNK, LEAST = 64, 8  # steps between two looks of the host: at most, and where few rows are wanted still
LEG = 1024  # steps after which the shard answers: they share a graph, and a journal can go on from there
LAST_ID = torch.iinfo(torch.int64).max


class Start(NamedTuple):
    """Where steps begin, and where they end at the latest: with k rows of positive weight, or after `most`."""

    target_J: Tensor
    sigma: float  # of all rows together
    gap_J: Tensor
    taken: list[int]  # rows of positive weight
    k: int
    most: int


class Leg(NamedTuple):
    """Steps, the last of which may lead nowhere, and the gap behind them."""

    steps: list[Step]
    gap_J: Tensor


def suits(pool: Shards) -> bool:
    """Whether all rows are in one shard on one accelerator."""
    types = pool.map(lambda shard: shard.device.type)
    return len(types) == 1 and types != ["cpu"]


def leg(start: Start, slack: float, shard: Shard) -> Leg:
    """The next steps, for a pool of one shard; nothing of them is kept beside the rows."""
    return _Loop(start, slack, shard).run(min(start.most, LEG))


class _Seen(NamedTuple):
    """What the host saw when it looked last."""

    distinct: int
    alive: bool
    doubt: bool
    gap_J: Tensor


class _Loop:
    """The state of the loop, all of it on the device, and what the host has seen of it."""

    def __init__(self, start: Start, slack: float, shard: Shard):
        self.shard, self.slack, self.k = shard, slack, start.k
        self.vector_NJ, self.sigma_N = shard.state["vector"], shard.state["sigma"]
        self.target_J, self.gap_J = (one.clone().to(shard.device) for one in (start.target_J, start.gap_J))
        self.sigma = self.target_J.new_full((1,), start.sigma)
        self.taken_N = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)
        if start.taken:
            self.taken_N.index_fill_(0, shard.find(torch.tensor(start.taken))[1], True)
        self.distinct = torch.full((1,), len(start.taken), dtype=torch.int64, device=shard.device)
        # Steps since the last look; the place behind them may hold anything.
        self.made, self.id_S = torch.zeros_like(self.distinct), self.distinct.new_zeros(CHUNK)
        self.found_3S = self.target_J.new_zeros(3, CHUNK)
        self.alive = torch.ones(1, dtype=torch.bool, device=shard.device)
        self.doubt = torch.zeros_like(self.alive)
        self.steps: list[Step] = []
        self.seen = _Seen(len(start.taken), True, False, start.gap_J)

    def run(self, most: int) -> Leg:
        state = [self.gap_J, self.taken_N, self.distinct, self.made, self.alive, self.doubt]
        step, pace = captured(self._step, state), CHUNK
        while self.seen.alive and len(self.steps) < most:
            # A step adds one row at most: with as many steps as rows are wanted, few are in vain behind the last.
            wanted, before = max(LEAST, self.k - self.seen.distinct), len(self.steps)
            for _ in range(min(pace, wanted, most - before)):
                step()
            self._look()
            pace = min(CHUNK, 2 * pace)
            if self.seen.doubt:  # those behind it were in vain, and there may be more of its kind
                pace = max(1, len(self.steps) - before)
                self._step_by_all()
                self._look()
        return Leg(self.steps, self.seen.gap_J)

    def _look(self) -> None:
        """All that the host asks for, in one piece: here it waits."""
        tally = [self.made, self.distinct, self.alive.long(), self.doubt.long()]
        numbers = [one.view(torch.int64) for one in (self.found_3S.flatten(), self.gap_J)]
        packed = torch.cat([*tally, self.id_S, *numbers]).cpu()
        self.made.zero_()
        tally_4, id_S, found, gap_J = packed.split([4, len(self.id_S), self.found_3S.numel(), len(self.gap_J)])
        made, distinct, alive, doubt = tally_4.tolist()
        found_S3 = found.view(torch.float64).view(3, -1).T[:made]
        self.steps += [Step(row, *one) for row, one in zip(id_S.tolist(), found_S3.tolist())]
        self.seen = _Seen(distinct, bool(alive), bool(doubt), gap_J.view(torch.float64))

    def _step(self) -> None:
        """One step, if few rows are near the highest."""
        near_N = self._near()
        near_M, place_M = near_N.topk(min(NEAR, len(near_N)))
        if len(near_N) > NEAR:
            self.doubt |= self.alive & (near_M[-1:] >= self._floor(near_M[:1]))
            self.alive &= ~self.doubt
        self._take(place_M, self._exact(place_M))

    def _step_by_all(self) -> None:
        """The step that was in doubt: all rows within rounding of the highest are told apart."""
        self.doubt.fill_(False)
        self.alive.fill_(True)
        near_N = self._near()
        place_M = (near_N >= self._floor(near_N.max())).nonzero()[:, 0]
        self._take(place_M, torch.cat([self._exact(part) for part in place_M.split(block(self.shard))]))

    def _near(self) -> Tensor:
        """The scores of all rows, but for rounding."""
        return torch.mv(self.vector_NJ, self.gap_J.to(self.vector_NJ.dtype)).div_(self.sigma_N)

    def _floor(self, top: Tensor) -> Tensor:
        error = torch.linalg.vector_norm(self.gap_J) * rounding(self.shard)
        return floor(top.double(), self.slack, error)

    def _exact(self, place_M: Tensor) -> Tensor:
        """Scores of some rows, each summed by itself in float64."""
        some_MJ = self.vector_NJ.index_select(0, place_M).double()
        return (some_MJ * self.gap_J).sum(1) / self.sigma_N.index_select(0, place_M)

    def _take(self, place_M: Tensor, score_M: Tensor) -> None:
        """A step towards the highest of these, ties to the smaller id, where `alive`; else nothing that counts changes.

        It is what `Path.step` does, in the same order of operations.
        """
        id_M, top = self.shard.ids.index_select(0, place_M), score_M.max()
        tied_M = score_M >= top - self.slack * top.abs()
        first = torch.where(tied_M, id_M, LAST_ID).argmin(0, keepdim=True)
        place, score = place_M.index_select(0, first), score_M.index_select(0, first)
        vector_J, sigma = self.vector_NJ.index_select(0, place)[0].double(), self.sigma_N.index_select(0, place)
        beyond_J = self.target_J - self.sigma / sigma * vector_J
        gamma = self._length(beyond_J)
        self.id_S.index_copy_(0, self.made, id_M.index_select(0, first))
        self.found_3S.index_copy_(1, self.made, torch.stack([score, sigma, gamma]))
        self.made += self.alive
        self.alive &= gamma > HALT
        self._count(place, self.alive & (gamma == 1))
        gap_J = (1 - gamma) * self.gap_J + gamma * beyond_J
        self.gap_J.copy_(torch.where(self.alive, gap_J, self.gap_J))
        self.alive &= self.distinct < self.k

    def _length(self, beyond_J: Tensor) -> Tensor:
        """gamma, see `Path.length`."""
        way_J = self.gap_J - beyond_J
        square = torch.dot(way_J, way_J)
        return torch.where(square > 0, (torch.dot(way_J, self.gap_J) / square).clamp(max=1.0), 0.0)[None]

    def _count(self, place: Tensor, full: Tensor) -> None:
        """Count a row in; at a full step the rows before count nothing any more."""
        self.taken_N &= ~full
        self.distinct *= ~full
        here = self.taken_N.index_select(0, place)
        self.distinct += self.alive & ~here
        self.taken_N.index_copy_(0, place, here | self.alive)
