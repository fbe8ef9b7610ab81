"""Kernels of Frank-Wolfe: the formulas of a step, sketches and scores next to the rows, and steps on an accelerator.

A row has its vector (`state["vector"]`) and the length sigma (`state["sigma"]`).

**Sketches.** For steps that are guessed, a row also has its coordinates in a basis (one column of `state["sketch"]`
(W, n)), the length of the rest of its vector (`state["tail"]`), its score at an earlier gap, and a mark whether it has
to be checked. See frank_wolfe.py.

**Steps on an accelerator.** For 50,000 rows of 2,000 draws in float32 on an H200 (4.3 TB/s):

    one read of the rows for each step      400 MB                                        93 us
    one read of sketches of 125 numbers     25 MB, and the rows that are not ruled out    6 us and more
    a wait of the host                      sketches need about 20 for each step          20 us each

so sketches save nothing there: the host has to wait to know how many rows they leave. Instead the gap, the selected
rows, and the steps since the host last looked stay on the device, and a step is one product of all rows with the gap;
on CUDA it is captured in a graph and replayed. The product is in the precision of the rows. The `candidates` rows of
highest score are scored by themselves in float64, as on the CPU: copies of a row are tied to the last bit. Where the
last of these is within rounding of the first, another row may be the highest: the step does nothing, neither do those
after it, and the host makes that one. So the steps are those of the sketches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from labelwise.selection.backends import is_accelerator
from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.shards.topk import front

MIN_GAMMA = 1e-12  # a shorter step leads nowhere
LISTED = 128  # rows of a shard that are scored in full for a guess
CPU_BLOCK = 256  # rows multiplied at a time, so that they stay in the cache of a CPU
FLOAT64_NUMBERS = 1 << 23  # numbers that an accelerator converts to float64 at a time
LAST_LOT = torch.iinfo(torch.int64).max

F = TypeVar("F", float, Tensor)


@dataclass(frozen=True)
class Tuning:
    """Sizes that change time and memory, and no pick except for `max_steps`.

    Args:
        max_steps: steps for each pick, at most.
        first_guess: steps guessed at first by sketches.
        lookahead: steps guessed, at most.
        candidates: rows that a step on an accelerator scores in float64.
        chunk: steps after which the host looks, at most.
        min_chunk: the same where few rows are still wanted.
        run: steps after which the shard answers: they share a graph, and a checkpoint can resume there.
    """

    max_steps: int = 20
    first_guess: int = 8
    lookahead: int = 64
    candidates: int = 128
    chunk: int = 64
    min_chunk: int = 8
    run: int = 1024


class Row(NamedTuple):
    """A row to step towards, with vector and length in float64."""

    id: int
    score: float
    vector_J: Tensor
    sigma: float


class Scored(NamedTuple):
    """A row by its id alone."""

    id: int
    score: float


class Step(NamedTuple):
    """A step: its row, the score before it, the length of the row, and the step size."""

    id: int
    score: float
    sigma: float
    gamma: float


# ---- the formulas of a step ----------------------------------------------------------------------------------------


def gap_of_whole_step(target_J: Tensor, sigma: F, row_sigma: F, vector_J: Tensor) -> Tensor:
    """L - a with a = (sigma / sigma_f) L_f: the gap after a step of size 1 towards a row."""
    return target_J - sigma / row_sigma * vector_J


def step_size(gap_J: Tensor, whole_J: Tensor) -> Tensor:
    """gamma, from 0 to 1, of the step from this gap towards `gap_of_whole_step`; 0 where the two are equal."""
    way_J = gap_J - whole_J
    square = torch.dot(way_J, way_J)
    return torch.where(square > 0, (torch.dot(way_J, gap_J) / square).clamp(max=1.0), 0.0)


def gap_of_step(gap_J: Tensor, whole_J: Tensor, gamma: Tensor) -> Tensor:
    """The gap after a step of size gamma."""
    return (1 - gamma) * gap_J + gamma * whole_J


def tie_floor(top: F, slack: float, error: F) -> F:
    """Two scores that are each wrong by `error` are not tied when one is below this and the other is `top`."""
    return top - slack * abs(top) - 2 * error


def rounding(shard: Shard) -> float:
    """The rounding error of a score, relative to the length of the gap.

    Errors add up like a random walk; this is several times what was measured.
    """
    vector_NJ = shard.state["vector"]
    return 2 * math.sqrt(vector_NJ.shape[1]) * torch.finfo(vector_NJ.dtype).eps


def block_size(shard: Shard) -> int:
    """Rows that are multiplied at a time."""
    return max(1, FLOAT64_NUMBERS // shard.state["vector"].shape[1]) if is_accelerator(shard.device) else CPU_BLOCK


def sum_vectors(shard: Shard) -> Tensor:
    """The sum of the vectors and, last, of their lengths, in float64."""
    blocks = shard.state["vector"].split(block_size(shard))
    total_J = functools.reduce(torch.add, (block.double().sum(0) for block in blocks))
    return torch.cat([total_J, shard.state["sigma"].sum()[None]]).cpu()


# ---- sketches ------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A gap, as a share of the gap that scores are known for, a part along the basis, and a rest."""

    gap_J: Tensor
    share: float
    along_W: Tensor
    rest: float
    size: float  # of the parts together; rounding is relative to it


def sample_products(basis_JW: Tensor, stride: int, shard: Shard) -> Tensor:
    """The sum over a sample of rows of the row times its coordinates, in float64: a step of the power method."""
    some_TJ = shard.state["vector"][::stride] / shard.state["sigma"][::stride, None].to(shard.state["vector"].dtype)
    return (some_TJ.T @ (some_TJ @ basis_JW.to(some_TJ))).double().cpu()


def compute_sketch(basis_JW: Tensor, shard: Shard) -> None:
    """Compute the coordinates of the rows, one line for each direction, and the length of what is not in the basis."""
    vector_NJ = shard.state["vector"]
    basis_WJ, sigma_N = basis_JW.T.to(vector_NJ), shard.state["sigma"].to(vector_NJ.dtype)
    sketch_WN, tail_N = vector_NJ.new_empty(len(basis_WJ), len(vector_NJ)), vector_NJ.new_empty(len(vector_NJ))
    for start in range(0, len(vector_NJ), block_size(shard)):
        part = slice(start, start + block_size(shard))
        sketch_Wn = (basis_WJ @ vector_NJ[part].T).div_(sigma_N[part])
        square_n = (torch.linalg.vector_norm(vector_NJ[part], dim=1) / sigma_N[part]).square()
        outside_n = (square_n - sketch_Wn.square().sum(0)).clamp_(min=0)
        tail_N[part] = (outside_n + 8 * torch.finfo(vector_NJ.dtype).eps * square_n).sqrt()  # rounded up
        sketch_WN[:, part] = sketch_Wn
    shard.state["sketch"], shard.state["tail"] = sketch_WN, tail_N


def compute_scores(gap_J: Tensor, shard: Shard) -> None:
    """Compute the scores at this gap, and clear the marks."""
    vector_NJ = shard.state["vector"]
    shard.state["score"] = (vector_NJ @ gap_J.to(vector_NJ)).div_(shard.state["sigma"].to(vector_NJ.dtype))
    shard.state["to_check"] = torch.zeros(len(vector_NJ), dtype=torch.bool, device=vector_NJ.device)


def guess_row(estimate: Estimate, slack: float, shard: Shard) -> tuple[Row, int]:
    """Score the rows of highest estimate in full, and mark all rows that may be higher.

    Returns:
        The highest of the scored rows, and how many rows are marked.
    """
    state, sketch_WN = shard.state, shard.state["sketch"]
    near_N = torch.addmv(state["score"], sketch_WN.T, estimate.along_W.to(sketch_WN), beta=estimate.share)
    top_T = near_N.topk(min(LISTED, len(near_N)), sorted=False).indices
    some_TJ = state["vector"].index_select(0, top_T)
    score_T = (some_TJ @ estimate.gap_J.to(some_TJ)).double() / state["sigma"][top_T]
    position = top_T[front(shard.lots[top_T].__getitem__, score_T, slack)[0]]
    top = float(score_T.max())
    bound_N = near_N.add_(state["tail"], alpha=estimate.rest)
    state["to_check"] |= bound_N >= tie_floor(top, slack, rounding(shard) * estimate.size)
    return _row(shard, position, top), int(state["to_check"].sum())


def highest_marked(gap_BJ: Tensor, slack: float, shard: Shard) -> list[list[Scored]]:
    """The marked rows of this shard that may be the highest of all at each of these gaps."""
    vector_NJ, sigma_N = shard.state["vector"], shard.state["sigma"]
    marked_T = shard.state["to_check"].nonzero()[:, 0]
    table_BJ, length_B = gap_BJ.to(vector_NJ), torch.linalg.vector_norm(gap_BJ, dim=1).tolist()
    score_BT = torch.cat([table_BJ @ block_TJ.T for block_TJ in _vector_blocks(marked_T, shard)], 1)
    score_BT /= sigma_N[marked_T].to(vector_NJ.dtype)
    found = []
    for score_T, gap_J, length in zip(score_BT, gap_BJ.to(shard.device), length_B):
        near_T = marked_T[score_T >= tie_floor(float(score_T.max()), slack, rounding(shard) * length)]
        exact_T = torch.cat([(block_TJ.double() * gap_J).sum(1) for block_TJ in _vector_blocks(near_T, shard)])
        exact_T /= sigma_N[near_T]
        first = front(shard.lots[near_T].__getitem__, exact_T, slack)
        found.append([Scored(*one) for one in zip(shard.ids[near_T[first]].tolist(), exact_T[first].tolist())])
    return found


def _vector_blocks(rows_T: Tensor, shard: Shard) -> Iterator[Tensor]:
    """The vectors of these rows, block by block."""
    for part in rows_T.split(block_size(shard)):
        yield shard.state["vector"].index_select(0, part)  # several times faster than indexing with brackets


def with_vector(row: Scored, shard: Shard) -> Row | None:
    """The row with its vector, if it is in this shard."""
    _, position = shard.find(torch.tensor([row.id]))
    return _row(shard, position[0], row.score) if len(position) else None


def _row(shard: Shard, position: Tensor, score: float) -> Row:
    vector_J = shard.state["vector"][position].double().cpu()
    return Row(int(shard.ids[position]), score, vector_J, float(shard.state["sigma"][position]))


def clear_sketch(shard: Shard) -> None:
    """Free all state of the sketches."""
    for name in ("score", "to_check", "sketch", "tail"):
        shard.state.pop(name, None)


# ---- steps on one accelerator --------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Where steps begin, and where they end at the latest: with k rows of positive weight, or after `max_steps`."""

    target_J: Tensor
    sigma: float  # of all rows together
    gap_J: Tensor
    selected: list[int]  # rows of positive weight
    k: int
    max_steps: int


class Run(NamedTuple):
    """Steps, the last of which may lead nowhere, and the gap after them."""

    steps: list[Step]
    gap_J: Tensor


class _Seen(NamedTuple):
    """What the host read last."""

    distinct: int
    is_active: bool
    in_doubt: bool
    gap_J: Tensor


def run_steps(start: Start, slack: float, tuning: Tuning, shard: Shard) -> Run:
    """The next steps, for a pool of one shard; they leave no state in it."""
    return DeviceSteps(start, slack, tuning, shard).run(min(start.max_steps, tuning.run))


class DeviceSteps:
    """The state of the steps, all of it on the device, and what the host has read of it."""

    def __init__(self, start: Start, slack: float, tuning: Tuning, shard: Shard):
        self.shard, self.slack, self.tuning, self.k = shard, slack, tuning, start.k
        self.vector_NJ, self.sigma_N = shard.state["vector"], shard.state["sigma"]
        self.lots_N = shard.lots  # computed now, not while a graph is captured
        self.target_J, self.gap_J = (one.clone().to(shard.device) for one in (start.target_J, start.gap_J))
        self.sigma = self.target_J.new_full((1,), start.sigma)
        self.selected_N = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)
        if start.selected:
            self.selected_N.index_fill_(0, shard.find(torch.tensor(start.selected))[1], True)
        self.distinct = torch.full((1,), len(start.selected), dtype=torch.int64, device=shard.device)
        # Steps since the host last looked; the slot after them may hold anything.
        self.made, self.id_S = torch.zeros_like(self.distinct), self.distinct.new_zeros(tuning.chunk)
        self.found_3S = self.target_J.new_zeros(3, tuning.chunk)
        self.active = torch.ones(1, dtype=torch.bool, device=shard.device)
        self.in_doubt = torch.zeros_like(self.active)
        self.steps: list[Step] = []
        self.seen = _Seen(len(start.selected), True, False, start.gap_J)

    def run(self, max_steps: int) -> Run:
        """At most this many steps."""
        state = [self.gap_J, self.selected_N, self.distinct, self.made, self.active, self.in_doubt]
        step, pace = captured(self._step, state), self.tuning.chunk
        while self.seen.is_active and len(self.steps) < max_steps:
            # A step adds one row at most: with as many steps as rows are wanted, few run for nothing after the last.
            wanted, before = max(self.tuning.min_chunk, self.k - self.seen.distinct), len(self.steps)
            for _ in range(min(pace, wanted, max_steps - before)):
                step()
            self._look()
            pace = min(self.tuning.chunk, 2 * pace)
            if self.seen.in_doubt:  # those after it ran for nothing, and there may be more of its kind
                pace = max(1, len(self.steps) - before)
                self._step_by_all()
                self._look()
        return Run(self.steps, self.seen.gap_J)

    def _look(self) -> None:
        """Read all that the host needs in one copy: here it waits."""
        tally = [self.made, self.distinct, self.active.long(), self.in_doubt.long()]
        numbers = [one.view(torch.int64) for one in (self.found_3S.flatten(), self.gap_J)]
        copied = torch.cat([*tally, self.id_S, *numbers]).cpu()
        self.made.zero_()
        tally_4, id_S, found, gap_J = copied.split([4, len(self.id_S), self.found_3S.numel(), len(self.gap_J)])
        made, distinct, active, in_doubt = tally_4.tolist()
        found_S3 = found.view(torch.float64).view(3, -1).T[:made]
        self.steps += [Step(row, *one) for row, one in zip(id_S.tolist(), found_S3.tolist())]
        self.seen = _Seen(distinct, bool(active), bool(in_doubt), gap_J.view(torch.float64))

    def _step(self) -> None:
        """One step, if few rows are near the highest."""
        near_N = self._scores()
        near_M, position_M = near_N.topk(min(self.tuning.candidates, len(near_N)))
        if len(near_N) > self.tuning.candidates:
            self.in_doubt |= self.active & (near_M[-1:] >= self._floor(near_M[:1]))
            self.active &= ~self.in_doubt
        self._step_towards(position_M, self._exact_scores(position_M))

    def _step_by_all(self) -> None:
        """The step that was in doubt: all rows within rounding of the highest are scored in float64."""
        self.in_doubt.fill_(False)
        self.active.fill_(True)
        near_N = self._scores()
        position_M = (near_N >= self._floor(near_N.max())).nonzero()[:, 0]
        exact = [self._exact_scores(part) for part in position_M.split(block_size(self.shard))]
        self._step_towards(position_M, torch.cat(exact))

    def _scores(self) -> Tensor:
        """The scores of all rows in their own precision."""
        return torch.mv(self.vector_NJ, self.gap_J.to(self.vector_NJ.dtype)).div_(self.sigma_N)

    def _floor(self, top: Tensor) -> Tensor:
        error = torch.linalg.vector_norm(self.gap_J) * rounding(self.shard)
        floor: Tensor = tie_floor(top.double(), self.slack, error)
        return floor

    def _exact_scores(self, position_M: Tensor) -> Tensor:
        """Scores of some rows, each summed by itself in float64."""
        some_MJ = self.vector_NJ.index_select(0, position_M).double()
        return (some_MJ * self.gap_J).sum(1) / self.sigma_N.index_select(0, position_M)

    def _step_towards(self, position_M: Tensor, score_M: Tensor) -> None:
        """A step towards the highest of these, ties by lot, while `active`; else nothing changes.

        It is what `Path.step` does, in the same order of operations.
        """
        top = score_M.max()
        tied_M = score_M >= top - self.slack * top.abs()
        first = torch.where(tied_M, self.lots_N.index_select(0, position_M), LAST_LOT).argmin(0, keepdim=True)
        position, score = position_M.index_select(0, first), score_M.index_select(0, first)
        vector_J, sigma = self.vector_NJ.index_select(0, position)[0].double(), self.sigma_N.index_select(0, position)
        whole_J = gap_of_whole_step(self.target_J, self.sigma, sigma, vector_J)
        gamma = step_size(self.gap_J, whole_J)[None]
        self.id_S.index_copy_(0, self.made, self.shard.ids.index_select(0, position))
        self.found_3S.index_copy_(1, self.made, torch.stack([score, sigma, gamma]))
        self.made += self.active
        self.active &= gamma > MIN_GAMMA
        self._count(position, self.active & (gamma == 1))
        gap_J = gap_of_step(self.gap_J, whole_J, gamma)
        self.gap_J.copy_(torch.where(self.active, gap_J, self.gap_J))
        self.active &= self.distinct < self.k

    def _count(self, position: Tensor, is_whole: Tensor) -> None:
        """Count a row; after a whole step the rows before have no weight."""
        self.selected_N &= ~is_whole
        self.distinct *= ~is_whole
        before = self.selected_N.index_select(0, position)
        self.distinct += self.active & ~before
        self.selected_N.index_copy_(0, position, before | self.active)
