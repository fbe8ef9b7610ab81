"""The test slice: rows drawn at random by a known law, never chosen by a strategy and never trained on.

For classes the draws are uniform: a hash of (seed, row id) orders the rows, the first of them are the reserve, and each
round takes the next ones as its test rows. The test rows so far are at any moment a uniform sample of the whole pool.

For numbers, whose errors are large on few rows, half of the draws are uniform and half are those of `bss` on the
features (barrier.py): row x is drawn with probability

    p(x) = (1/n) (1 + r(x))/2,    r = v^T E v / tr E,    and weighs 1/(n p(x)) = 2/(1 + r), at most 2

The draws, with replacement, are made and stored when the project is made; each round takes the next different rows. The
test rows so far, each with the sum of the weights of its draws before that of the next row, are an unbiased sample of
the whole pool. Thinned by their weights they are a uniform one (`mean_curve.py`).
Departs from `bss`: the uniform half bounds the weights, leaves some of the rarest rows to the strategy, and makes that
sample possible; the sum of steps between two E is below 1 in place of 1/2, which the barriers allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.shards.shard import Shards, shards_of
from labelwise.signals.spec import Basis, Embedding
from labelwise.strategies.leverage.barrier import Barrier
from labelwise.strategies.leverage.weighted_sampling import PoissonSampler
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened, whitened

MIN_ROWS, SHARE, MAX_SHARE = 200, 0.15, 0.5  # of the reserve; the two shares are of the pool
MOST_ROWS = 2000  # of a weighted reserve, since it takes rare rows from the strategy
FRAME = 50_000  # rows of the pool, at random, that a weighted reserve is drawn from
FUNCTIONS = MIN_ROWS // 12
FILE = "test-slice.json"


@dataclass(frozen=True)
class Draws:
    """The draws of a weighted reserve: their rows (T,) and weights (T,)."""

    rows: np.ndarray
    weights: np.ndarray

    @property
    def reserve(self) -> np.ndarray:
        """The different rows, in the order of their first draws."""
        return np.array(list(dict.fromkeys(self.rows.tolist())), np.int64)

    def weights_of(self, rows: list[int], used: int) -> tuple[np.ndarray, float]:
        """The weights of `rows` once the first `used` rows of the reserve are, and the factor of `stats.estimate`."""
        weight: dict[int, float] = {}
        wanted, squares = set(rows), 0.0
        for row, one in zip(self.rows.tolist(), self.weights.tolist()):
            if row not in weight and len(weight) == used:
                break
            weight[row] = weight.get(row, 0.0) + one
            squares += one * one * (row in wanted)
        found = np.array([weight[row] for row in rows])
        return found, squares / float(found @ found) if len(found) else 1.0

    def write(self, folder: Path) -> None:
        """Write the draws to the project folder."""
        write_checked(folder / FILE, {"rows": self.rows.tolist(), "weights": self.weights.tolist()})

    @staticmethod
    def read(folder: Path) -> Draws:
        """The draws that `write` wrote. StoreError if they cannot be read."""
        path = folder / FILE
        try:
            found = read_checked(path, "restore it from a backup", early=None)
            draws = Draws(np.array(found["rows"], np.int64), np.array(found["weights"], np.float64))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path}, with the test rows of the project, cannot be read ({error}); restore it"
            ) from error
        if draws.rows.shape != draws.weights.shape or not (draws.weights > 0).all():
            raise StoreError(f"{path}: a weight above 0 for each draw was expected; restore the file from a backup")
        return draws


def draw_by_bss(pool: Pool, seed: int) -> Draws:
    """Draw a weighted reserve from a pool of features.

    >>> found = draw_by_bss(Pool.of(np.arange(40.0)[:, None] ** 3), seed=0)
    >>> len(found.reserve), bool(found.weights.max() <= 2)
    (20, True)
    """
    key = Key(seed).fold("project", "test")
    ids = pool.ids[key.uniform(pool.ids).argsort()][:FRAME].sort().values
    count = min(reserve_size(len(pool)), MOST_ROWS)
    shards = shards_of(ids, {Embedding(): pool.inputs(ids)})
    rows: list[int] = []
    weights: list[float] = []
    with whitened(shards, Basis(), max(1, min(FUNCTIONS, count // 12)), None, key.fold("basis")) as basis:
        d, chance = basis.rank, key.fold("chance").numpy()
        barrier = Barrier(d, math.sqrt(1.57 * d / (count + 1.57 * d)))
        arrivals, different = _by_leverage(shards, basis, key.fold("leverage")), set[int]()
        while True:
            energy = barrier.energy()
            for _ in range(barrier.draws_per_energy):
                if chance.random() < 0.5:
                    row = int(ids[chance.integers(len(ids))])
                    v_D = basis.transform(shards.take(torch.tensor([row])))[0]
                else:
                    row, v_D = next(
                        (row, v_D) for row, bar, v_D in arrivals if bar * energy.top < float(energy.forms(v_D[None]))
                    )
                if row not in different and len(different) == count:
                    return Draws(np.array(rows, np.int64), np.array(weights))
                different.add(row)
                form = energy.forms(v_D[None])
                rows.append(row)
                weights.append(2 / (1 + float(form) / energy.phi))
                barrier.add(energy, v_D[None], (form + energy.phi) / 2)


def _by_leverage(pool: Shards, basis: Whitened, key: Key) -> Iterator[tuple[int, float, Tensor]]:
    """Rows drawn by leverage without end, each with a uniform number times |v|^2, and v."""
    sampler = PoissonSampler(pool, LEVERAGE, key)
    while True:
        window = sampler.window(1024.0)
        if len(window.ids):
            ids, index_J = window.ids.unique(return_inverse=True)
            v_UD = basis.transform(pool.take(ids))
            for row, uniform, index in zip(window.ids.tolist(), window.uniform.tolist(), index_J.tolist()):
                yield row, uniform * float(v_UD[index] @ v_UD[index]), v_UD[index]


def reserve_size(rows: int) -> int:
    """The number of rows reserved of a pool of `rows`."""
    return min(max(MIN_ROWS, round(SHARE * rows)), int(MAX_SHARE * rows))


def reserve(ids: np.ndarray, seed: int, test_share: float) -> np.ndarray:
    """The rows reserved for testing, in the order they are used; empty when `test_share` is 0."""
    if test_share == 0:
        return np.empty(0, np.int64)
    order = Key(seed).fold("project", "test").uniform(torch.from_numpy(ids)).numpy()
    return ids[np.lexsort((ids, order))][: reserve_size(len(ids))]


def slice_size(round: int, k: int, share: float, early: int = 0) -> int:
    """The number of test rows in round `round` (from 1), such that the share holds over all rounds.

    `early` test rows were asked for before the first round; they count.

    >>> [slice_size(round, 10, 0.15) for round in (1, 2, 3, 4)]
    [2, 1, 2, 1]
    >>> [slice_size(round, 10, 0.15, early=4) for round in (1, 2, 3, 4)]
    [0, 0, 1, 1]
    """
    upto = [max(int(share * k * number + 0.5), early) for number in (round - 1, round)]
    return min(upto[1] - upto[0], k - 1)


def interleaved(chosen: list[int], test: list[int], key: Key) -> list[int]:
    """Both lists in one, each in its own order, at random places: the place does not tell which kind a row is."""
    is_test = np.zeros(len(chosen) + len(test), bool)
    is_test[key.numpy().permutation(len(is_test))[: len(test)]] = True
    from_chosen, from_test = iter(chosen), iter(test)
    return [next(from_test if one else from_chosen) for one in is_test.tolist()]
