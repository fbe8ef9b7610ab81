"""Frank-Wolfe over rows in shards: steps are guessed on a short list of rows and checked on all rows together.

Each row n has a vector L_n (`state["vector"]`) and a length sigma_n (`state["sigma"]`). With L the sum of the vectors,
sigma that of the lengths, L_w = sum_n w_n L_n and the gap r = L - L_w, a step is

    f = argmax_n <L_n, r> / sigma_n      gamma = <a - L_w, r> / |a - L_w|^2 with a = (sigma / sigma_f) L_f
    r <- (1 - gamma) r + gamma (L - a)

One product of all rows with r for each step is what it costs, and memory is read once for one product as for several.
So the next steps are first guessed among the rows of highest score. Then one product of all rows with r and with L - a
of each guess gives the scores of every row at every one of those steps: r at step t is a sum of r at the first one and
of these. The guess holds up to the first step at which a row outside the list is higher. A score that was
put together has lost digits where it is small beside its parts; guessing ends where that would exceed `slack`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.choose.progress import tick
from labelwise.shards import Best, Shard, Shards

HALT = 1e-12  # a step shorter than this share of the way leads nowhere
TINY = 1e-100  # a factor this small is multiplied out
AHEAD = 16  # steps guessed at most: more columns of a product cost more than a read of the rows
LEAST, SHARE, LARGEST = 64, 32, 2048  # the short list: one row of SHARE, within these
BLOCK = 512  # rows multiplied at a time


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

    def weights(self) -> dict[int, float]:
        """Positive weights, in the order in which the rows were first taken."""
        return {row: self.scale * w for row, w in self._weight.items()}

    def length(self, beyond_J: Tensor, gap_J: Tensor) -> float:
        """gamma of a step that would leave `beyond_J` if it were whole."""
        way_J = gap_J - beyond_J
        square = float(way_J @ way_J)
        return min(1.0, float(way_J @ gap_J) / square) if square > 0 else 0.0

    def beyond(self, row_J: Tensor, row_sigma: float) -> Tensor:
        """L - a: the gap that a whole step towards a row would leave."""
        return self.target_J - self.sigma / row_sigma * row_J

    def step(self, row: int, value: float, row_J: Tensor, row_sigma: float) -> bool:
        """Take a step towards a row of this score; False where it leads nowhere."""
        beyond_J = self.beyond(row_J, row_sigma)
        gamma = self.length(beyond_J, self.gap_J)
        if gamma <= HALT:
            self.stopped = "no step helps any more"
            return False
        self.scale *= 1 - gamma
        if self.scale < TINY:  # at a full step the rows before count nothing any more
            self._weight = self.weights() if self.scale else {}
            self.scale = 1.0
        self._weight[row] = self._weight.get(row, 0.0) + gamma * self.sigma / row_sigma / self.scale
        self.score.setdefault(row, value)
        self.gap_J = (1 - gamma) * self.gap_J + gamma * beyond_J
        self.sequence.append(row)
        return True


def frank_wolfe(pool: Shards, k: int, most: int, slack: float) -> Path:
    """Steps until k rows have a positive weight, `most` steps are done, or none helps; ties to the smaller id.

    Scores within `slack` of the highest, relative to it, are tied. The rows' state holds "vector" and "sigma".
    """
    total = pool.sum(_sums)
    path = Path(total[:-1], float(total[-1]))
    size = min(pool.n, LARGEST, max(LEAST, pool.n // SHARE))
    precision = max(pool.map(lambda shard: torch.finfo(shard.state["vector"].dtype).eps / 2))
    ahead, listed = 0, None
    try:
        while path.distinct < k and len(path.sequence) < most and not path.stopped:
            guess = _Guess(path, precision, slack)
            if ahead and listed is not None:
                guess.look(_rows(pool, listed), min(ahead, most - len(path.sequence) - 1))
            held, scored = _check(pool, path, guess, k, slack)
            ahead = min(AHEAD, 2 * ahead + 1) if held == len(guess.ids) else held + 1
            listed = pool.best(scored, size).ids
            tick(path.distinct, k)
    finally:
        pool.map(_end)
    if path.distinct >= k:
        path.stopped = "k rows taken"
    return path


def _check(pool: Shards, path: Path, guess: _Guess, k: int, slack: float) -> tuple[int, functools.partial[Tensor]]:
    """Walk along a guess while it holds and one step further; how long it held, and the scores before that step."""
    pool.map(functools.partial(_products, guess.table()))
    held = 0
    while True:
        scored = functools.partial(_scores, guess.parts[held])
        best = pool.best(scored, 1, slack)
        row, value = int(best.ids[0]), float(best.values[0])
        right = held < len(guess.ids) and row == guess.ids[held]
        vector_J, sigma = guess.rows[held] if right else _row(pool, best)
        if not path.step(row, value, vector_J, sigma) or not right or path.distinct >= k:
            return held, scored
        held += 1


class _Listed(NamedTuple):
    """The short list: rows, in order of their ids."""

    ids: Tensor
    vector_TJ: Tensor
    sigma_T: Tensor


class _Guess:
    """Steps that come next if no row outside the list is taken.

    `parts[t]` are the shares of the first gap and of L - a of each guess in the gap at step t.
    """

    def __init__(self, path: Path, precision: float, slack: float):
        self.path, self.precision, self.slack = path, precision, slack
        self.ids: list[int] = []
        self.rows: list[tuple[Tensor, float]] = []
        self.beyond: list[Tensor] = []
        self.parts: list[Tensor] = [torch.ones(1, dtype=torch.float64)]

    def look(self, listed: _Listed, steps: int) -> None:
        """Guess so many steps, fewer where they lead nowhere or scores would lose digits."""
        gap_J = self.path.gap_J
        for _ in range(steps):
            near = listed.vector_TJ @ gap_J.to(listed.vector_TJ)
            score_T = near.double().cpu() / listed.sigma_T
            top = float(score_T.max())
            at = int((score_T >= top - self.slack * abs(top)).to(torch.uint8).argmax())
            row_J, sigma = listed.vector_TJ[at].double().cpu(), float(listed.sigma_T[at])
            beyond_J = self.path.beyond(row_J, sigma)
            gamma = self.path.length(beyond_J, gap_J)
            share = torch.cat([(1 - gamma) * self.parts[-1], torch.tensor([gamma], dtype=torch.float64)])
            lengths = torch.stack([*self.beyond, beyond_J]).norm(dim=1)
            if gamma <= HALT or self.precision * float(share[1:] @ lengths) > self.slack * abs(top):
                return
            gap_J = (1 - gamma) * gap_J + gamma * beyond_J
            self.beyond.append(beyond_J)
            self.ids.append(int(listed.ids[at]))
            self.rows.append((row_J, sigma))
            self.parts.append(share)

    def table(self) -> Tensor:
        """What all rows are to be multiplied with (1 + steps, J)."""
        return torch.stack([self.path.gap_J, *self.beyond])


def _sums(shard: Shard) -> Tensor:
    """The sum of the vectors and, last, of their lengths, in float64."""
    parts = shard.state["vector"].split(4096)
    total_J = torch.stack([part.sum(0, dtype=torch.float64) for part in parts]).sum(0)
    return torch.cat([total_J, shard.state["sigma"].sum()[None]]).cpu()


def _products(table_BJ: Tensor, shard: Shard) -> None:
    shard.state.pop("products", None)  # before the new ones are there: they are the largest thing kept
    shard.state["products"] = _multiplied(table_BJ, shard)


def _multiplied(table_BJ: Tensor, shard: Shard) -> Tensor:
    """Products (B, n) of every row, in blocks that stay in the cache; quicker with the many rows on the right."""
    vector_NJ = shard.state["vector"]
    table_BJ = table_BJ.to(vector_NJ)
    if len(table_BJ) == 1:
        return (vector_NJ @ table_BJ[0])[None]
    if vector_NJ.device.type != "cpu":
        return table_BJ @ vector_NJ.T
    out_BN = vector_NJ.new_empty(len(table_BJ), len(vector_NJ))
    for start in range(0, len(vector_NJ), BLOCK):
        out_BN[:, start : start + BLOCK] = table_BJ @ vector_NJ[start : start + BLOCK].T
    return out_BN


def _scores(share: Tensor, shard: Shard) -> Tensor:
    """<L_n, r> / sigma_n with r the sum of these shares."""
    products_BN, sigma_N = shard.state["products"], shard.state["sigma"]
    return (share.to(products_BN) @ products_BN[: len(share)]).double() / sigma_N


def _rows(pool: Shards, ids: Tensor) -> _Listed:
    """Rows by their ids, smaller ids first."""
    parts = pool.map(functools.partial(_here, ids))
    found = torch.cat([ids_T for ids_T, _, _ in parts])
    order = found.argsort()
    vector_TJ = torch.cat([vector.to(parts[0][1].device) for _, vector, _ in parts])
    return _Listed(found[order], vector_TJ[order.to(vector_TJ.device)], torch.cat([s for _, _, s in parts])[order])


def _row(pool: Shards, best: Best) -> tuple[Tensor, float]:
    """Vector and length of one row, in float64."""
    found = _rows(pool, best.ids)
    return found.vector_TJ[0].double().cpu(), float(found.sigma_T[0])


def _here(ids: Tensor, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    _, at = shard.find(ids)
    return shard.ids[at].cpu(), shard.state["vector"][at], shard.state["sigma"][at].cpu()


def _end(shard: Shard) -> None:
    shard.state.pop("products", None)
