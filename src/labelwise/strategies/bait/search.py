"""The greedy search of BAIT: rows are added one after the other, then all but k are removed one after the other.

There is one loop for each direction. Backends differ in where the design is, and in the rows that one call moves:

- `Search` ("torch"): rows in any number of shards. The design is in this process, every shard gets each update, and one
  call adds or removes one row.
- `DeviceSearch` ("device"): all rows in one shard on an accelerator. The design is in the state of that shard, and one
  call makes many steps (kernels/torch.py); the host waits for one answer in many picks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from labelwise.selection.backends import accelerator_refusal, choose
from labelwise.selection.progress import tick
from labelwise.shards import Best, Shard, Shards
from labelwise.strategies.bait import backward
from labelwise.strategies.bait.design import TABLES, Design
from labelwise.strategies.bait.fisher import ADD, Factors, Update, concatenate
from labelwise.strategies.bait.kernels import torch as kernels
from labelwise.strategies.bait.kernels.torch import MIN_GAIN_SHARE, NEARLY, SOLVE_BLOCK, TIE, Limits, Problem

T = TypeVar("T")
Make = Callable[[torch.device], Design]

CPU = torch.device("cpu")
SPARE = 2  # steps solve this many times the rows that had to be solved in a step so far


class Search:
    """The pool with its cache of P and Q, and the design.

    Args:
        pool: the rows to select from.
        problem: how rows are read and sampled.
        make_design: makes the design on a device.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, pool: Shards, problem: Problem, make_design: Make):
        self._pool, self._problem = pool, problem
        self.tuning = problem.tuning
        self.removal_period = 1  # rows that one call of `remove` should remove
        self.design = self._place(make_design)

    @staticmethod
    def supports(pool: Shards) -> str | None:
        return None

    def _place(self, make_design: Make) -> Design:
        return make_design(CPU)

    def _at_design(self, fn: Callable[[Design], T]) -> T:
        """fn of the design, where the design is."""
        return fn(self.design)

    def trace(self) -> float:
        """tr(M^-1 F)."""
        return self._at_design(Design.trace)

    def refresh(self) -> None:
        """Invert M from its definition."""
        self._at_design(Design.refresh)

    def compute_cache(self, threshold: float) -> float:
        """Compute P and Q for rows whose upper bound is at least `threshold`. Returns a bound for all other rows."""
        return self._cache(functools.partial(kernels.compute_cache, self._problem, self.design), threshold)

    def extend_cache(self, threshold: float) -> float:
        """Compute P and Q also for other rows with a bound of at least `threshold`. Returns a bound for the rest."""
        return self._cache(functools.partial(kernels.extend_cache, self._problem, self.design), threshold)

    def prune_cache(self, threshold: float) -> float:
        """Remove rows whose upper bound is below `threshold`. Returns a bound for all rows that are not cached."""
        return self._cache(functools.partial(kernels.prune_cache, self._problem), threshold)

    def _cache(self, fn: Callable[..., float], threshold: float) -> float:
        return max(self._pool.map(functools.partial(fn, self._at_design(Design.eigenvalue_bound), threshold)))

    def clear_cache(self) -> None:
        """Free the cache; the design stays."""
        self._pool.map(kernels.clear_cache)

    def best(self) -> Best:
        """The cached row that lowers the trace most."""
        return self._pool.best(kernels.gain, 1, TIE)

    def add(self, ids: Tensor, is_last: bool) -> None:
        """Add a row to the design; P and Q of the others are not needed after the last."""
        row = self._problem.reader.read(self._pool.take(ids))
        update = self._at_design(functools.partial(_add, row))
        if not is_last:
            self._pool.map(functools.partial(kernels.update_cache, self._problem, update, ids))

    def add_many(self, count: int, rest_bound: float, highest_gain: float) -> list[tuple[int, float]]:
        """Add up to `count` rows in one call. Returns their ids and gains, none where every row needs the host.

        Args:
            rest_bound: an upper bound of the gains of rows that are not cached.
            highest_gain: the highest gain since M was last inverted.
        """
        return []

    def by_lot(self, ids: Tensor) -> Tensor:
        """These ids in the order of their lots."""
        return ids[self._pool.ties.lots(ids).argsort()]

    def begin_removal(self, ids: Tensor) -> None:
        """Compute P and Q of these rows, which are in the design; `ids` are in the order of their lots."""
        reader = self._problem.reader
        blocks = [reader.read(self._pool.take(part).to(CPU)) for part in ids.split(SOLVE_BLOCK)]
        self._removal = backward.Removal({}, self.tuning)
        self._removal.begin(concatenate(blocks), self.design)

    def remove(self, count: int) -> None:
        """Remove `count` rows from the design, each the one that raises the trace least."""
        self._removal.remove(count, self.design)

    def remaining(self) -> Tensor:
        """Which of the rows of `begin_removal` remain: positions."""
        return self._removal.remaining

    def close(self) -> None:
        """Free all state of the shards."""
        self._pool.map(_clear)


class DeviceSearch(Search):
    """The search with the design in the state of the only shard, which is on an accelerator."""

    name: ClassVar[str] = "device"

    def __init__(self, pool: Shards, problem: Problem, make_design: Make):
        super().__init__(pool, problem, make_design)
        self.removal_period = self.tuning.prune_period
        self._solved = self.tuning.solved(problem.reader.rank)

    @staticmethod
    def supports(pool: Shards) -> str | None:
        return accelerator_refusal(pool)

    def _place(self, make_design: Make) -> Design:
        (design,) = self._pool.map(functools.partial(_make_in_shard, make_design))
        return design

    def _at_design(self, fn: Callable[[Design], T]) -> T:
        return self._at_shard(functools.partial(_without_shard, fn))

    def _at_shard(self, fn: Callable[[Design, Shard], T]) -> T:
        """fn of the design and the shard that it is in."""
        ((answer, self.design),) = self._pool.map(functools.partial(_with_design, fn, self.design))
        return answer

    def add_many(self, count: int, rest_bound: float, highest_gain: float) -> list[tuple[int, float]]:
        picked: list[tuple[int, float]] = []
        is_crowded = True
        while is_crowded and len(picked) < count:
            limits = Limits(count - len(picked), self._solved, rest_bound, highest_gain)
            ids, values, open_rows = self._at_shard(functools.partial(kernels.add_rows, self._problem, limits))
            picked += zip(ids.tolist(), values.tolist())
            highest_gain, is_crowded = max([highest_gain, *values.tolist()]), open_rows > self._solved
            self._solved = max(self.tuning.solved(self._problem.reader.rank), SPARE * open_rows)
        return picked

    def begin_removal(self, ids: Tensor) -> None:
        self._at_shard(functools.partial(backward.begin, self._problem, ids))

    def remove(self, count: int) -> None:
        self._at_shard(functools.partial(backward.remove, self.tuning, count))

    def remaining(self) -> Tensor:
        (remaining,) = self._pool.map(backward.remaining)
        return remaining


BACKENDS: tuple[type[Search], ...] = (DeviceSearch, Search)


def open_search(pool: Shards, problem: Problem, make_design: Make) -> Search:
    """The search by the first backend that supports the pool."""
    return choose(BACKENDS, pool)(pool, problem, make_design)


def forward(search: Search, count: int) -> list[tuple[int, float]]:
    """Add `count` rows one after the other, each the one that lowers the trace most. Returns ids and gains."""
    period = search.tuning.prune_period
    try:
        rest_bound = search.compute_cache(0.0)
        picked: list[tuple[int, float]] = []
        highest_gain = 0.0
        while len(picked) < count:
            wanted = min(period - len(picked) % period, count - len(picked))
            found = search.add_many(wanted, rest_bound, highest_gain)
            picked += found
            highest_gain = max([highest_gain, *(gain for _, gain in found)])
            if len(found) < wanted:
                best, rest_bound, highest_gain = _best(search, picked, rest_bound, highest_gain)
                picked.append((int(best.ids[0]), float(best.values[0])))
                search.add(best.ids, len(picked) == count)
            tick(len(picked), count)
            if len(picked) % period == 0 and len(picked) < count:
                rest_bound = search.prune_cache(_threshold(search, picked))
        return picked
    finally:
        search.clear_cache()


def _best(
    search: Search, picked: list[tuple[int, float]], rest_bound: float, highest_gain: float
) -> tuple[Best, float, float]:
    """The best row, the bound of rows that are not cached, and the highest gain since M was inverted."""
    best = search.best()
    threshold = _threshold(search, picked)
    while rest_bound >= (gain := float(best.values[0])) * NEARLY or (
        highest_gain and gain < MIN_GAIN_SHARE * highest_gain
    ):
        if gain < MIN_GAIN_SHARE * highest_gain or search.design.age > search.tuning.refresh_period:
            search.refresh()
            rest_bound, highest_gain = search.compute_cache(threshold), 0.0
        else:
            rest_bound = search.extend_cache(threshold)
        best, threshold = search.best(), threshold / 2 if threshold > 1e-9 * rest_bound else 0.0
    return best, rest_bound, max(highest_gain, float(best.values[0]))


def _threshold(search: Search, picked: list[tuple[int, float]]) -> float:
    """The gain of the best row some picks ahead, if gains fall as they did: rows with a higher bound are cached."""
    tuning = search.tuning
    if len(picked) < tuning.prune_period:
        return 0.0
    last, earlier = picked[-1][1], picked[max(0, len(picked) - tuning.lookahead)][1]
    return last * min(last / earlier, tuning.max_gain_decay) if earlier > 0 else 0.0


def backward_search(search: Search, rows: list[int], k: int) -> set[int]:
    """Remove all but k of these rows, each the one that raises the trace least. Returns the ids that remain."""
    ids = search.by_lot(torch.tensor(rows))
    count = len(ids) - k
    if not count:
        return set(rows)
    if search.design.age > search.tuning.refresh_before_removal:
        search.refresh()
    search.begin_removal(ids)
    for start in range(0, count, search.removal_period):
        stop = min(start + search.removal_period, count)
        search.remove(stop - start)
        tick(stop, count)
    return set(ids[search.remaining()].tolist())


def _make_in_shard(make_design: Make, shard: Shard) -> Design:
    """Make the design with its tables in the state of the shard; the rest of it travels."""
    design = make_design(shard.device)
    shard.state.update(design.tables)
    return design.without_tables()


def _with_design(fn: Callable[[Design, Shard], T], design: Design, shard: Shard) -> tuple[T, Design]:
    """fn of the design in this shard. M is written out after it: pending rows do not travel."""
    whole = design.with_tables(shard.state)
    answer = fn(whole, shard)
    whole.flush()
    return answer, whole.without_tables()


def _without_shard(fn: Callable[[Design], T], design: Design, shard: Shard) -> T:
    return fn(design)


def _add(row: Factors, design: Design) -> Update:
    return design.move(row, ADD)


def _clear(shard: Shard) -> None:
    kernels.free_graph(shard)
    backward.clear(shard)
    for name in TABLES:
        shard.state.pop(name, None)
