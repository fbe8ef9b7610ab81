"""Frank-Wolfe over rows in shards: most steps touch a sketch of every row, and few rows in full.

Each row n has a vector L_n (`state["vector"]`) and a length sigma_n (`state["sigma"]`). With L the sum of the vectors,
sigma that of the lengths, L_w = sum_n w_n L_n and the gap r = L - L_w, a step is

    f = argmax_n <L_n, r> / sigma_n      gamma = <a - L_w, r> / |a - L_w|^2 with a = (sigma / sigma_f) L_f
    r <- (1 - gamma) r + gamma (L - a)

A product of all rows with r for each step is what it costs as it is written. Here a row n keeps its score s_n at an
earlier gap r', its coordinates c_n in a basis B (orthonormal, of directions in which rows differ most), and the length
e_n of what of L_n / sigma_n is not in the basis. At a gap r that is the sum of x r', of B y and of a rest,

    | <L_n, r> / sigma_n - x s_n - <c_n, y> | <= e_n |rest|

So rows that may be the highest are known from c_n. A step is guessed, the highest in full of the rows that are highest
by this estimate, and rows that the bound does not rule out are noted. After some steps, when noting more costs more
than it saves, the noted rows are multiplied with the gaps of all those steps at once: a guess holds up to the first
step at which another row is higher. Rows within rounding of the highest are scored by themselves in float64, where
copies of a row are tied to the last bit. So what is taken depends neither on the basis nor on how far was guessed.

Rows in one shard on an accelerator are multiplied with r for each step all the same, see frank_wolfe_cuda.py.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.progress import tick
from labelwise.shards import Shards
from labelwise.strategies.bayesian.frank_wolfe_rows import (
    HALT,
    Near,
    Row,
    Scored,
    Step,
    ahead,
    forget,
    fronts,
    keep_scores,
    keep_sketch,
    sums,
    turned,
    with_vector,
)
from labelwise.strategies.bayesian.kernels.torch import Start, leg, suits

TINY = 1e-100  # a factor this small is multiplied out
FAR, AHEAD = 8, 64  # steps guessed at first, and at most
WIDTH, SHARE = 128, 16  # numbers of a sketch, at most so many and one for SHARE of a row: it is read at every step
SAMPLE = 2048  # rows from which the basis is found
GATHER, COLUMN = 2.5, 0.09  # what a noted row costs, and each product with it, in reads of a row in order

R = TypeVar("R", Row, Scored)


@dataclass
class Path:
    """Where Frank-Wolfe is, and how it came there. Weights are kept divided by `scale`."""

    target_J: Tensor
    sigma: float
    gap_J: Tensor = field(init=False)  # L - L_w
    sequence: list[int] = field(default_factory=list)  # the row of every step
    score: dict[int, float] = field(default_factory=dict)  # of each row when it was first taken
    scale: float = 1.0
    stopped: str = ""  # why; nothing where the most steps were done
    _weight: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gap_J = self.target_J.clone()

    @property
    def distinct(self) -> int:
        """How many rows have a positive weight."""
        return len(self._weight)

    def goes_on(self, k: int, most: int) -> bool:
        """Whether less than k rows have a positive weight, less than `most` steps are done, and the last one helped."""
        return self.distinct < k and len(self.sequence) < most and not self.stopped

    def weights(self) -> dict[int, float]:
        """Positive weights, in the order in which the rows were first taken."""
        return {row: self.scale * w for row, w in self._weight.items()}

    def length(self, beyond_J: Tensor, gap_J: Tensor) -> float:
        """gamma of a step that would leave `beyond_J` if it were whole."""
        way_J = gap_J - beyond_J
        square = float(way_J @ way_J)
        return min(1.0, float(way_J @ gap_J) / square) if square > 0 else 0.0

    def beyond(self, row: Row) -> Tensor:
        """L - a: the gap that a whole step towards a row would leave."""
        return self.target_J - self.sigma / row.sigma * row.vector_J

    def step(self, row: Row) -> bool:
        """Take a step towards a row; False where it leads nowhere."""
        beyond_J = self.beyond(row)
        gamma = self.length(beyond_J, self.gap_J)
        if not self.note(Step(row.id, row.score, row.sigma, gamma)):
            return False
        self.gap_J = (1 - gamma) * self.gap_J + gamma * beyond_J
        return True

    def note(self, step: Step) -> bool:
        """Count a step in, all but the gap behind it; False where it leads nowhere."""
        if step.gamma <= HALT:
            self.stopped = "no step helps any more"
            return False
        self.scale *= 1 - step.gamma
        if self.scale < TINY:  # at a full step the rows before count nothing any more
            self._weight = self.weights() if self.scale else {}
            self.scale = 1.0
        self._weight[step.id] = self._weight.get(step.id, 0.0) + step.gamma * self.sigma / step.sigma / self.scale
        self.score.setdefault(step.id, step.score)
        self.sequence.append(step.id)
        return True


def frank_wolfe(pool: Shards, k: int, most: int, slack: float) -> Path:
    """Steps until k rows have a positive weight, `most` steps are done, or none helps; ties to the smaller id.

    Scores within `slack` of the highest, relative to it, are tied. The rows' state holds "vector" and "sigma".
    """
    total = pool.sum(sums)
    path = Path(total[:-1], float(total[-1]))
    if suits(pool):
        _by_legs(pool, path, k, most, slack)
    else:
        try:
            _by_guesses(pool, path, k, most, slack)
        finally:
            pool.map(forget)
    if path.distinct >= k:
        path.stopped = "k rows taken"
    return path


def _by_legs(pool: Shards, path: Path, k: int, most: int, slack: float) -> None:
    """Steps that are made where the rows are, many at a time."""
    while path.goes_on(k, most):
        start = Start(path.target_J, path.sigma, path.gap_J, [*path.weights()], k, most - len(path.sequence))
        (made,) = pool.map(functools.partial(leg, start, slack))
        for step in made.steps:
            path.note(step)
        path.gap_J = made.gap_J
        tick(path.distinct, k)


def _by_guesses(pool: Shards, path: Path, k: int, most: int, slack: float) -> None:
    """Steps that are guessed by sketches, and checked some at a time."""
    basis_WJ, far = _sketched(pool, k, len(path.target_J)), FAR
    while path.goes_on(k, most):
        pool.map(functools.partial(keep_scores, path.gap_J))
        guess = _guessed(pool, path, basis_WJ, slack, far, most - len(path.sequence))
        held = _walk(pool, path, guess, k, slack)
        far = held + 1 if held < len(guess.rows) else min(AHEAD, max(far, 2 * held))
        tick(path.distinct, k)


class _Guess(NamedTuple):
    """Steps that come next, and the gap before each of them if those before it are right."""

    rows: list[Row]
    gaps: list[Tensor]


def _guessed(pool: Shards, path: Path, basis_WJ: Tensor, slack: float, far: int, most: int) -> _Guess:
    """Guess steps for as long as it makes the average step cheaper; rows that may be higher are noted where they are.

    `far` is how many steps are likely to be right, for pools in which the bound rules nothing out after a few.
    """
    guess, gap_J, least = _Guess([], []), path.gap_J, math.inf
    width = len(basis_WJ) / len(gap_J)
    first = _Gap(basis_WJ, gap_J)
    while len(guess.rows) < min(AHEAD, most):
        found = pool.map(functools.partial(ahead, first.near(_Gap(basis_WJ, gap_J)), slack))
        row = _highest([row for row, _ in found], slack)
        guess.rows.append(row)
        guess.gaps.append(gap_J)
        beyond_J = path.beyond(row)
        gamma = path.length(beyond_J, gap_J)
        gap_J = (1 - gamma) * gap_J + gamma * beyond_J
        steps, noted = len(guess.rows), sum(count for _, count in found) / pool.n
        cost = width + (1 + noted * (GATHER + COLUMN * steps)) / steps
        at_worst = width + (1 + GATHER + COLUMN * far) / far
        if gamma <= HALT or (cost > least and least <= at_worst) or (steps >= far and cost > 0.8 * at_worst):
            break
        least = min(least, cost)
    return guess


def _walk(pool: Shards, path: Path, guess: _Guess, k: int, slack: float) -> int:
    """Walk along a guess while it holds, and one step further where it does not; how many steps held."""
    shards = pool.map(functools.partial(fronts, torch.stack(guess.gaps), slack))
    for held, row in enumerate(guess.rows):
        best = _highest([one for front in shards for one in front[held]], slack)
        right = best.id == row.id
        if not path.step(row._replace(score=best.score) if right else _filled(pool, best)) or not right:
            return held
        if path.distinct >= k:
            break
    return len(guess.rows)


def _highest(rows: list[R], slack: float) -> R:
    """The row of highest score, ties to the smaller id."""
    top = max(row.score for row in rows)
    return min((row for row in rows if row.score >= top - slack * abs(top)), key=lambda row: row.id)


class _Gap:
    """A gap, its coordinates in the basis, and what is not in the basis."""

    def __init__(self, basis_WJ: Tensor, gap_J: Tensor):
        self.gap_J, self.inside_W = gap_J, basis_WJ @ gap_J
        self.outside_J = gap_J - self.inside_W @ basis_WJ
        self.length = float(gap_J.norm())

    def near(self, now: _Gap) -> Near:
        """A later gap by what is known of this one, with the share of it that leaves the smallest rest."""
        square = float(self.outside_J @ self.outside_J)
        share = float(now.outside_J @ self.outside_J) / square if square > 0 else 0.0
        rest = 0.0 if now.gap_J is self.gap_J else float((now.outside_J - share * self.outside_J).norm())
        along_W = now.inside_W - share * self.inside_W
        return Near(now.gap_J, share, along_W, rest, now.length + float(along_W.norm()) + abs(share) * self.length)


def _sketched(pool: Shards, k: int, long: int) -> Tensor:
    """Keep sketches of the rows; the basis (W, J), of few directions where they would not be used often."""
    width = min(WIDTH, long // SHARE, k // 4)
    start = torch.randn(long, width, generator=Key(0).fold("sketch").generator(), dtype=torch.float64)
    basis_JW = torch.linalg.qr(start).Q
    for _ in range(2 if width else 0):  # power iterations on a sample: any basis does, a better one rules out more
        basis_JW = torch.linalg.qr(pool.sum(functools.partial(turned, basis_JW, max(1, pool.n // SAMPLE)))).Q
    pool.map(functools.partial(keep_sketch, basis_JW))
    return basis_JW.T.contiguous()


def _filled(pool: Shards, row: Scored) -> Row:
    """A row with its vector."""
    return next(found for found in pool.map(functools.partial(with_vector, row)) if found is not None)
