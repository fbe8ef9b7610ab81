"""Frank-Wolfe over rows in shards: one loop over steps, which one of two backends makes.

Each row n has a vector L_n (`state["vector"]`) and a length sigma_n (`state["sigma"]`). With L the sum of the vectors,
sigma that of the lengths, L_w = sum_n w_n L_n and the gap r = L - L_w, a step is

    f = argmax_n <L_n, r> / sigma_n      gamma = <a - L_w, r> / |a - L_w|^2 with a = (sigma / sigma_f) L_f
    r <- (1 - gamma) r + gamma (L - a)

As written, a step costs a product of all rows with r.

**Backend "torch"** reads a sketch of every row for most steps, and few rows in full. A row n has its score s_n at an
earlier gap r', its coordinates c_n in a basis B (orthonormal, of directions in which rows differ most), and the length
e_n of what of L_n / sigma_n is not in the basis. At a gap r that is the sum of x r', of B y and of a rest,

    | <L_n, r> / sigma_n - x s_n - <c_n, y> | <= e_n |rest|

So rows that may be the highest are known from c_n. A step is guessed: the highest in full of the rows that are highest
by this estimate, while rows that the bound does not rule out are marked. After some steps, when marking more costs more
than it saves, the marked rows are multiplied with the gaps of all those steps at once: a guess holds up to the first
step at which another row is higher. Rows within rounding of the highest are scored by themselves in float64, where
copies of a row are tied to the last bit. So the steps depend neither on the basis nor on how far was guessed.

**Backend "device"**, for rows in one shard on an accelerator, multiplies them with r for each step (kernels/torch.py).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.backends import accelerator_refusal, choose
from labelwise.selection.progress import tick
from labelwise.shards import Shards
from labelwise.strategies.bayesian.kernels.torch import (
    MIN_GAMMA,
    Estimate,
    Row,
    Scored,
    Start,
    Step,
    Tuning,
    clear_sketch,
    compute_scores,
    compute_sketch,
    gap_of_step,
    gap_of_whole_step,
    guess_row,
    highest_marked,
    run_steps,
    sample_products,
    step_size,
    sum_vectors,
    with_vector,
)

TINY = 1e-100  # a scale this small is multiplied out
SKETCH_WIDTH, SKETCH_SHARE = 128, 16  # numbers of a sketch: the maximum, and the share of a vector
BASIS_SAMPLE = 2048  # rows from which the basis is found
# Cost of a marked row, and of each product with it, in reads of a row in order.
GATHER_COST, PRODUCT_COST = 2.5, 0.09

R = TypeVar("R", Row, Scored)


@dataclass
class Path:
    """The state of Frank-Wolfe and its steps. Weights are stored divided by `scale`."""

    target_J: Tensor
    sigma: float
    gap_J: Tensor = field(init=False)  # L - L_w
    sequence: list[int] = field(default_factory=list)  # the row of every step
    score: dict[int, float] = field(default_factory=dict)  # of each row at its first step
    scale: float = 1.0
    stopped: str = ""  # why; empty where the maximum of steps was reached
    _weight: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gap_J = self.target_J.clone()

    @property
    def distinct(self) -> int:
        """The number of rows with a positive weight."""
        return len(self._weight)

    def is_running(self, k: int, max_steps: int) -> bool:
        """Whether fewer than k rows have a positive weight, steps are left, and the last one helped."""
        return self.distinct < k and len(self.sequence) < max_steps and not self.stopped

    def weights(self) -> dict[int, float]:
        """Positive weights, in the order in which rows were first selected."""
        return {row: self.scale * w for row, w in self._weight.items()}

    def next_gap(self, row: Row, gap_J: Tensor) -> tuple[Tensor, float]:
        """The gap after a step towards a row, and the size of that step."""
        whole_J = gap_of_whole_step(self.target_J, self.sigma, row.sigma, row.vector_J)
        gamma = step_size(gap_J, whole_J)
        return gap_of_step(gap_J, whole_J, gamma), float(gamma)

    def step(self, row: Row) -> bool:
        """Take a step towards a row. Returns False where it leads nowhere."""
        return self.move(row, *self.next_gap(row, self.gap_J))

    def move(self, row: Row, gap_J: Tensor, gamma: float) -> bool:
        """Take the step towards a row that `next_gap` gives. Returns False where it leads nowhere."""
        if not self.record(Step(row.id, row.score, row.sigma, gamma)):
            return False
        self.gap_J = gap_J
        return True

    def record(self, step: Step) -> bool:
        """Record a step, all but the gap after it. Returns False where it leads nowhere."""
        if step.gamma <= MIN_GAMMA:
            self.stopped = "no step helps any more"
            return False
        self.scale *= 1 - step.gamma
        if self.scale < TINY:  # after a whole step the rows before have no weight
            self._weight = self.weights() if self.scale else {}
            self.scale = 1.0
        self._weight[step.id] = self._weight.get(step.id, 0.0) + step.gamma * self.sigma / step.sigma / self.scale
        self.score.setdefault(step.id, step.score)
        self.sequence.append(step.id)
        return True


def frank_wolfe(pool: Shards, k: int, max_steps: int, slack: float, tuning: Tuning) -> Path:
    """Steps until k rows have a positive weight, `max_steps` are done, or none helps; ties are broken by lot.

    Args:
        pool: rows with "vector" (n, J) and "sigma" (n,) in their state.
        k: rows wanted.
        max_steps: the maximum of steps.
        slack: scores this close to the highest, relative to it, are tied.
        tuning: sizes that change no step.
    """
    total = pool.sum(sum_vectors)
    path = Path(total[:-1], float(total[-1]))
    steps = choose(BACKENDS, pool)(pool, slack, tuning)
    try:
        steps.begin(path, k)
        while path.is_running(k, max_steps):
            steps.advance(path, k, max_steps)
            tick(path.distinct, k)
    finally:
        steps.close()
    if path.distinct >= k:
        path.stopped = "k rows taken"
    return path


class SketchSteps:
    """Steps that are guessed by sketches and checked several at a time."""

    name: ClassVar[str] = "torch"

    def __init__(self, pool: Shards, slack: float, tuning: Tuning):
        self._pool, self._slack, self._tuning = pool, slack, tuning

    @staticmethod
    def supports(pool: Shards) -> str | None:
        return None

    def begin(self, path: Path, k: int) -> None:
        """Compute the sketches; of few directions where they would not be used often."""
        width = min(SKETCH_WIDTH, len(path.target_J) // SKETCH_SHARE, k // 4)
        generator = Key(0).fold("sketch").generator()
        start = torch.randn(len(path.target_J), width, generator=generator, dtype=torch.float64)
        basis_JW = torch.linalg.qr(start).Q
        stride = max(1, self._pool.n // BASIS_SAMPLE)
        for _ in range(2 if width else 0):  # power method on a sample: any basis does, a better one rules out more
            basis_JW = torch.linalg.qr(self._pool.sum(functools.partial(sample_products, basis_JW, stride))).Q
        self._pool.map(functools.partial(compute_sketch, basis_JW))
        self._basis_WJ, self._likely = basis_JW.T.contiguous(), self._tuning.first_guess

    def advance(self, path: Path, k: int, max_steps: int) -> None:
        """Guess steps, and take them as far as they are right."""
        self._pool.map(functools.partial(compute_scores, path.gap_J))
        guess = self._guess(path, max_steps - len(path.sequence))
        right = self._take(path, guess, k)
        self._likely = (
            right + 1 if right < len(guess.rows) else min(self._tuning.lookahead, max(self._likely, 2 * right))
        )

    def close(self) -> None:
        self._pool.map(clear_sketch)

    def _guess(self, path: Path, max_steps: int) -> _Guess:
        """Guess steps for as long as it makes the average step cheaper, and mark the rows that may be higher.

        `self._likely` is how many are likely to be right, for pools where the bound rules nothing out after a few.
        """
        guess, gap_J, least = _Guess([], [], []), path.gap_J, math.inf
        width = len(self._basis_WJ) / len(gap_J)
        first = _Gap(self._basis_WJ, gap_J)
        while len(guess.rows) < min(self._tuning.lookahead, max_steps):
            estimate = first.estimate(_Gap(self._basis_WJ, gap_J))
            found = self._pool.map(functools.partial(guess_row, estimate, self._slack))
            row = _highest([row for row, _ in found], self._slack, self._pool.ties)
            guess.rows.append(row)
            guess.gaps.append(gap_J)
            gap_J, gamma = path.next_gap(row, gap_J)
            guess.moves.append((gap_J, gamma))
            steps, marked = len(guess.rows), sum(count for _, count in found) / self._pool.n
            cost = width + (1 + marked * (GATHER_COST + PRODUCT_COST * steps)) / steps
            worst = width + (1 + GATHER_COST + PRODUCT_COST * self._likely) / self._likely
            if (
                gamma <= MIN_GAMMA
                or (cost > least and least <= worst)
                or (steps >= self._likely and cost > 0.8 * worst)
            ):
                break
            least = min(least, cost)
        return guess

    def _take(self, path: Path, guess: _Guess, k: int) -> int:
        """Take the guessed steps while they are right, and the right one where they are not. Returns how many were."""
        shards = self._pool.map(functools.partial(highest_marked, torch.stack(guess.gaps), self._slack))
        for number, row in enumerate(guess.rows):
            best = _highest([one for found in shards for one in found[number]], self._slack, self._pool.ties)
            if best.id != row.id:
                path.step(self._with_vector(best))
                return number
            if not path.move(row._replace(score=best.score), *guess.moves[number]):
                return number
            if path.distinct >= k:
                break
        return len(guess.rows)

    def _with_vector(self, row: Scored) -> Row:
        return next(found for found in self._pool.map(functools.partial(with_vector, row)) if found is not None)


class DeviceRuns:
    """Steps that the only shard makes on its accelerator, many in one call."""

    name: ClassVar[str] = "device"

    def __init__(self, pool: Shards, slack: float, tuning: Tuning):
        self._pool, self._slack, self._tuning = pool, slack, tuning

    @staticmethod
    def supports(pool: Shards) -> str | None:
        return accelerator_refusal(pool)

    def begin(self, path: Path, k: int) -> None:
        return

    def advance(self, path: Path, k: int, max_steps: int) -> None:
        """Take the steps of one run."""
        steps_left = max_steps - len(path.sequence)
        start = Start(path.target_J, path.sigma, path.gap_J, [*path.weights()], k, steps_left)
        (run,) = self._pool.map(functools.partial(run_steps, start, self._slack, self._tuning))
        for step in run.steps:
            path.record(step)
        path.gap_J = run.gap_J

    def close(self) -> None:
        return


BACKENDS: tuple[type[SketchSteps] | type[DeviceRuns], ...] = (DeviceRuns, SketchSteps)


class _Guess(NamedTuple):
    """Guessed steps, the gap before each of them if those before it are right, and the gap after it with its size."""

    rows: list[Row]
    gaps: list[Tensor]
    moves: list[tuple[Tensor, float]]


def _highest(rows: list[R], slack: float, ties: Key) -> R:
    """The row of highest score, ties by lot."""
    top = max(row.score for row in rows)
    tied = [row for row in rows if row.score >= top - slack * abs(top)]
    return tied[int(ties.lots(torch.tensor([row.id for row in tied])).argmin())] if len(tied) > 1 else tied[0]


class _Gap:
    """A gap, its coordinates in the basis, and what is not in the basis."""

    def __init__(self, basis_WJ: Tensor, gap_J: Tensor):
        self.gap_J, self.inside_W = gap_J, basis_WJ @ gap_J
        self.outside_J = gap_J - self.inside_W @ basis_WJ
        self.length = float(gap_J.norm())

    def estimate(self, now: _Gap) -> Estimate:
        """A later gap by this one, with the share of it that leaves the smallest rest."""
        square = float(self.outside_J @ self.outside_J)
        share = float(now.outside_J @ self.outside_J) / square if square > 0 else 0.0
        rest = 0.0 if now.gap_J is self.gap_J else float((now.outside_J - share * self.outside_J).norm())
        along_W = now.inside_W - share * self.inside_W
        return Estimate(now.gap_J, share, along_W, rest, now.length + float(along_W.norm()) + abs(share) * self.length)
