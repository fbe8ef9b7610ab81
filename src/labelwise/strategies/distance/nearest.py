"""Picks by the squared distance to the nearest centre: farthest first (k-center) and k-means++ (BADGE).

Centres are the labelled rows and the picks so far. Every row keeps near_N, its squared distance to the nearest centre,
and the plain algorithm sweeps the pool after every pick to update it. Here most picks cost no sweep: they are made
inside a short list of candidates, and one matrix product then updates near_N for all of them. The picks of farthest
first are those of the plain algorithm; the picks of k-means++ have its law.

Farthest first: near_N only falls. The list holds the M rows with the largest values, and the smallest of these bounds
all other rows. While the farthest row of the list is above the bound, it is the farthest row of the pool.

k-means++: let every row arrive at the times of a Poisson process of rate near_N. The first arrival is a row drawn with
probability proportional to near_N. Once a row is picked the rates fall; an arrival that is kept with probability (rate
now) / (rate it was drawn with) is an arrival of the process with the new rates (thinning), and what happens after it
does not depend on what happened before. So the M rows that arrive first, under the rates known when the list is made,
give several picks, exactly in law: take their arrivals in order of time, keep each with that probability, let a row
whose arrival is not kept arrive again at its present rate, and stop at the time of the M-th first arrival, before which
no other row arrives. Arrival times are hashed from (key, list number, row id), so they do not depend on the order or
the place of the rows.

Two backends make the picks of a list. "torch" asks all shards for the list and picks on the host; it computes the lines
of the table of distances that belong to picks, and some more with them as one product, so that a list may be long where
no chance is drawn from it. "triton" is for rows
on one CUDA device, and asks the host once for each list, never for a pick. What there is to do for 50,000 rows of 512
numbers and 3,000 picks on an H200 (4.3 TB/s, about 40 TFLOP/s in float32):

    one read of the rows for each pick      3,000 x 24 us                             72 ms, launches not counted
    products over blocks of picks           2 x 50,000 x 512 x 3,000 operations       4 ms
    the tables of 8 lists of 2,048 rows     8 x 2 x 2,048^2 x 512                     1 ms
    a pick inside a list                    a line of 8 KB, two sums over the list    2 us, so 6 ms for all

Lists save time there too, as long as nothing is brought to the host to be picked from: a table is 16 MB, which takes
longer to copy than to compute, and a pick on the host, or one that waits for it, takes 20 us and more. So a list is
chosen, sorted and gathered by operations of fixed size, its picks are one kernel, and the host waits for one number,
how many rows were picked, by which it sets up the product that updates near_N. Lists that chance is drawn from are as
long as on the CPU, so that it falls the same way: the same key gives the same picks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.backends import Backend, accelerator_refusal, choose, is_accelerator
from labelwise.selection.progress import tick
from labelwise.selection.reuse import RowCache, current_cache, row_hashes
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Size
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import Column, Rows, checked_norm, sq_dist, sq_near
from labelwise.signals.spec import Signal
from labelwise.strategies.distance.centering import centred
from labelwise.strategies.distance.kernels import torch as torch_kernels

WIDE = 8  # a product with fewer columns runs on one thread; repeating the few costs less
LISTED_SHARE, LISTED_PER_PICK = 8, 64  # the most candidates on the host: one in 8 rows, 64 for each pick
LAST_LOT = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Tuning:
    """Sizes that change time and memory, never the picks of farthest first, and never the law of k-means++.

    Args:
        first_list: candidates in the first list.
        longest_list: candidates in the longest list.
        host_list_bytes: of the rows in the longest list that farthest first makes on the host, where a table costs
            what its picks cost.
        centres: rows that one matrix product adds as centres.
    """

    first_list: int = 64
    longest_list: int = 2048
    host_list_bytes: int = 8 << 20
    centres: int = 1024

    def memory(self, size: Size, k: int, is_sampled: bool = True) -> int:
        """Bytes of k such picks: a few numbers for each row, and the longest list with its table of distances."""
        longest = min(size.rows, self.longest_list, 12 * k + self.first_list)
        longest = longest if is_sampled else max(longest, self.host_list(size.rows, size.row, k))
        table = (
            min(longest * longest, torch_kernels.TABLE_NUMBERS) + 4 * torch_kernels.TOGETHER * longest
        ) * size.number
        return (76 + 2 * size.number) * size.rows + table + 5 * longest * size.row + 128 * k

    def host_list(self, rows: int, row_bytes: int, k: int) -> int:
        """Candidates in a list that farthest first makes on the host for k picks."""
        return min(rows // LISTED_SHARE, self.host_list_bytes // row_bytes, LISTED_PER_PICK * k + self.first_list)

    def next_length(self, length: int, picked: int, left: int) -> int:
        """How many candidates the next list should hold.

        A list costs its length squared, a sweep costs the rows of the pool for each pick since the last one: while a
        fair share of a list is picked, go for one that holds all the picks still to be made; make it shorter when
        little of it is picked.
        """
        share = picked / length
        enough = min(int(1.2 * left / share) + self.first_list, self.longest_list)
        length = enough if share > 0.2 else length * 2 if share > 0.1 else length // 2 if share < 0.03 else length
        return max(self.first_list, min(length, enough))


class NearestDistances:
    """The squared distance of each row to the nearest centre, kept where the row is; infinite before the first centre.

    Use it as a context manager: the state of the rows is removed at the end.

    Args:
        pool: the rows.
        signal: the column whose distances count.
        tuning: sizes of the lists.
        backends: they pick from the lists, the fastest first; None for BACKENDS.
    """

    def __init__(
        self,
        pool: Shards,
        signal: Signal,
        tuning: Tuning | None = None,
        backends: tuple[ListBackend, ...] | None = None,
    ):
        self.pool, self.signal = pool, signal
        self.tuning = Tuning() if tuning is None else tuning
        self.backends = BACKENDS if backends is None else backends

    def __enter__(self) -> NearestDistances:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.map(_end)

    def begin(self) -> None:
        """Compute and check the lengths of all rows, which the first call of `add` does in its own sweep otherwise."""
        self.pool.map(functools.partial(_begin, self.signal))

    def add(self, centres: Rows, are_picks: bool = True) -> None:
        """Lower every row's distance to that of its nearest centre; centres that are picks are never picked again."""
        for start in range(0, len(centres), self.tuning.centres):
            part = centres.take(slice(start, start + self.tuning.centres))
            self.pool.map(functools.partial(_add_centres, self.signal, part, are_picks))

    def add_labelled(self, labelled: Shards) -> None:
        """Lower every row's distance to that of the nearest labelled row.

        Distances that an earlier round computed from the same values are reused, see `selection/reuse.py`.
        """
        blocks = labelled.map(lambda shard: shard.rows(slice(None)))
        is_cached = current_cache() is not None
        centres = dict(item for rows in blocks for item in _hashes(rows, self.signal).items()) if is_cached else {}
        self.pool.map(functools.partial(_recall, self.signal, centres))
        for rows in blocks:
            self.add(rows, are_picks=False)
        self.pool.map(functools.partial(_remember, self.signal, centres))

    def longest_row(self) -> Best:
        """The row with the largest squared length, and that length."""
        self.begin()
        best = self.pool.best(lambda shard: shard.state["norm"], 1, self.pool.tie_tolerance())
        return Best(best.ids, best.values.double())

    def farthest_first(self, k: int) -> Best:
        """k rows, each the farthest from all centres when it is picked, with that squared distance.

        When only copies of centres are left, they follow by lot.
        """
        tolerance = self.pool.tie_tolerance()
        backend = choose(self.backends, self.pool)
        return self._pick_by_lists(
            k,
            lambda length, left, number: backend.pick_farthest(self, length, left, tolerance),
            lambda left, number: self.pool.best(_near, left),
        )

    def draw(self, k: int, key: Key) -> Best:
        """k rows, each drawn with probability proportional to its squared distance, with that squared distance.

        When only copies of centres are left, the draw is uniform over them.
        """
        backend = choose(self.backends, self.pool)

        def copies(left: int, number: int) -> Best:
            lottery = self.pool.best(functools.partial(_lottery, key.fold("list", number)), left)
            return Best(lottery.ids, torch.zeros_like(lottery.values))

        return self._pick_by_lists(
            k, lambda length, left, number: backend.draw(self, length, left, key.fold("list", number)), copies
        )

    def _pick_by_lists(
        self, k: int, pick: Callable[[int, int, int], Best], pick_copies: Callable[[int, int], Best]
    ) -> Best:
        """k picks: those of one list after another, then copies of centres.

        Args:
            pick: from (candidates in the list, picks left, list number) to its picks, added as centres unless they are
                the last; none where only copies are left.
            pick_copies: from (picks left, list number) to that many picks.
        """
        parts: list[Best] = []
        length, left, number = self.tuning.first_list, k, 0
        while left:
            part = pick(length, left, number)
            if not len(part.ids):
                parts.append(pick_copies(left, number))
                break
            parts.append(part)
            left -= len(part.ids)
            tick(k - left, k)
            length = self.tuning.next_length(length, len(part.ids), left)
            number += 1
        return _joined(parts)


class ListBackend(Backend, Protocol):
    """Makes the picks of one list of candidates, and adds them as centres if others are to follow."""

    def pick_farthest(self, distances: NearestDistances, length: int, k: int, tolerance: float) -> Best:
        """Up to k picks, farthest first, from a list of `length` rows; none where only copies of centres are left."""

    def draw(self, distances: NearestDistances, length: int, k: int, key: Key) -> Best:
        """Up to k picks drawn from the `length` rows that arrive first; none where no row arrives."""


class TorchBackend:
    """Rows in any number of shards, anywhere: a list is brought to the host, which picks from it."""

    name = "torch"

    def supports(self, pool: Shards) -> str | None:
        return None

    def pick_farthest(self, distances: NearestDistances, length: int, k: int, tolerance: float) -> Best:
        pool = distances.pool
        length = max(length, distances.tuning.host_list(pool.n, max(pool.map(_row_bytes)), k))
        first = pool.best(_near, 1, tolerance)
        if first.values[0] == 0:
            return _none()
        listed = pool.best(_near, length)
        others = (listed.ids != first.ids) & (listed.values > -torch.inf)
        ids, near_M = torch.cat([first.ids, listed.ids[others]]), torch.cat([first.values, listed.values[others]])
        bound, by_lot = near_M.amin(), pool.ties.lots(ids).argsort()
        ids, near_M, start = ids[by_lot], near_M[by_lot], (by_lot == 0).to(torch.uint8).argmax()
        table = self._table(distances, ids)
        picks = torch_kernels.pick_farthest(table, near_M, start, bound, tolerance, k)
        return self._added(distances, ids, *picks, k)

    def draw(self, distances: NearestDistances, length: int, k: int, key: Key) -> Best:
        listed = distances.pool.best(functools.partial(_first_arrival, key), length)
        ids = listed.ids[listed.values > -torch.inf]
        if not len(ids):
            return _none()
        time_M = -listed.values[: len(ids)]
        near_M = key.exponential(ids) / time_M  # back from times to rates
        table = self._table(distances, ids)
        chance = torch_kernels.ArrivalChance(key, ids)
        picks = torch_kernels.draw_by_arrival(table, time_M, near_M, chance, time_M[-1], k)
        return self._added(distances, ids, *picks, k)

    def _added(self, distances: NearestDistances, ids: Tensor, places: Tensor, values: Tensor, k: int) -> Best:
        if len(places) < k:
            distances.add(distances.pool.take(ids[places]))
        return Best(ids[places], values)

    def _table(self, distances: NearestDistances, ids: Tensor) -> torch_kernels.LazyTable:
        return torch_kernels.LazyTable(distances.pool.take(ids)[distances.signal])


class TritonBackend:
    """Rows in one shard on a CUDA device: a list stays there, and a kernel picks from it."""

    name = "triton"

    def supports(self, pool: Shards) -> str | None:
        return accelerator_refusal(pool, triton=True)

    def kernels(self) -> ModuleType:
        """The module with `pick_farthest` and `draw_by_arrival`."""
        from labelwise.strategies.distance.kernels import triton  # which needs Triton

        return triton

    def pick_farthest(self, distances: NearestDistances, length: int, k: int, tolerance: float) -> Best:
        parts = distances.signal, distances.tuning
        (picks,) = distances.pool.map(functools.partial(self._pick_farthest, *parts, length, k, tolerance))
        return picks

    def draw(self, distances: NearestDistances, length: int, k: int, key: Key) -> Best:
        parts = distances.signal, distances.tuning
        (picks,) = distances.pool.map(functools.partial(self._draw, *parts, length, k, key))
        return picks

    def _pick_farthest(
        self, signal: Signal, tuning: Tuning, length: int, k: int, tolerance: float, shard: Shard
    ) -> Best:
        near_N = shard.state["near"]
        top = near_N.max()
        first = torch.where(near_N >= top - tolerance * top.abs(), shard.lots, LAST_LOT).argmin()
        values_M, at_M = near_N.topk(min(length, len(near_N)))
        bound = values_M[-1].clone() if len(at_M) < len(near_N) else torch.full_like(top, -torch.inf)
        # Where more rows are tied than the list holds, the first of them may be outside: it gets the last place.
        at_M[-1] = torch.where((at_M == first).any(), at_M[-1], first)
        at_M = at_M[shard.lots[at_M].argsort()]
        start = (at_M == first).to(torch.uint8).argmax()
        listed = shard.rows(at_M)[signal]
        picks = self.kernels().pick_farthest(sq_dist(listed, listed), near_N[at_M], start, bound, tolerance, k)
        return self._added(signal, tuning, at_M, picks, k, shard)

    def _draw(self, signal: Signal, tuning: Tuning, length: int, k: int, key: Key, shard: Shard) -> Best:
        near_N = shard.state["near"].double()
        soonest_M, at_M = _first_arrival(key, shard).topk(min(length, len(near_N)))
        end = soonest_M.masked_fill(soonest_M == -torch.inf, torch.inf).amin().neg()  # of the rows that arrive at all
        listed = shard.rows(at_M)[signal]
        chance = torch_kernels.ArrivalChance(key, shard.ids[at_M])
        picks = self.kernels().draw_by_arrival(sq_dist(listed, listed), -soonest_M, near_N[at_M], chance, end, k)
        return self._added(signal, tuning, at_M, picks, k, shard)

    def _added(
        self, signal: Signal, tuning: Tuning, at_M: Tensor, picks: tuple[Tensor, Tensor], k: int, shard: Shard
    ) -> Best:
        places, values = picks
        at_J = at_M[places.to(at_M.device)]
        best = Best(shard.ids[at_J].cpu(), values.cpu())
        if not len(values) or best.values[0] == 0:
            return _none()
        if len(values) < k:
            for part in at_J.split(tuning.centres):
                near_N = _lower_to(shard.rows(part)[signal], signal, shard)
            near_N.index_fill_(0, at_J, -torch.inf)
        return best


BACKENDS: tuple[ListBackend, ...] = (TritonBackend(), TorchBackend())


class NearestGreedy(Strategy):
    """A strategy whose gain is the squared distance to the nearest labelled or picked row, in the column `signal`.

    It takes the row with the highest gain or, if `sampled`, draws one with probability proportional to its gain. Derive
    a strategy from it by naming `needs` and `signal`; labelled rows count if `needs.labelled` is not empty.

    >>> import numpy as np
    >>> import labelwise as lw
    >>> from labelwise.signals.spec import Needs, Probs
    >>> class UnlikePredictions(NearestGreedy):
    ...     needs = Needs(pool=(Probs(),))
    ...     signal = Probs()
    >>> lw.select(UnlikePredictions(), k=2, probs=np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])).ids.tolist()
    [0, 2]
    """

    signal: ClassVar[Signal]
    sampled: ClassVar[bool] = False
    tuning: ClassVar[Tuning] = Tuning()
    backends: ClassVar[tuple[ListBackend, ...]] = BACKENDS

    def memory(self, size: Size) -> int:
        return self.tuning.memory(size, size.k, self.sampled)

    def first_pick(self, distances: NearestDistances, key: Key) -> Best:
        """The first pick where no labelled row counts, with its score: a row drawn uniformly, since all are tied."""
        return Best(distances.pool.best(lambda shard: key.uniform(shard.ids), 1).ids, torch.zeros(1))

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        centres = labelled if self.needs.labelled else Shards([])
        near = NearestDistances(pool, self.signal, self.tuning, self.backends)
        with centred(pool.join(centres), self.signal), near as distances:
            parts: list[Best] = []
            if centres.n:
                distances.add_labelled(centres)
            else:
                parts.append(self.first_pick(distances, key))
                if k > 1:
                    distances.add(pool.take(parts[0].ids))
                else:
                    distances.begin()  # values are checked all the same
            left = k - len(parts)
            if left:
                parts.append(distances.draw(left, key) if self.sampled else distances.farthest_first(left))
        best = _joined(parts)
        return equal_weights(best.ids, best.values)


def _none() -> Best:
    return Best(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64))


def _joined(parts: list[Best]) -> Best:
    return Best(*(torch.cat(column) for column in zip(*parts)))


def _begin(signal: Signal, shard: Shard) -> None:
    if "near" not in shard.state:
        shard.state["norm"] = shard.each(lambda rows: checked_norm(rows, signal))
        shard.state["near"] = torch.full_like(shard.state["norm"], torch.inf)


def _end(shard: Shard) -> None:
    for name in ("norm", "near", "hash", "counted"):
        shard.state.pop(name, None)


def _hashes(rows: Rows, signal: Signal) -> dict[int, int]:
    """The hash of the values of each row, by id."""
    column = rows[signal]
    return dict(zip(rows.ids.tolist(), row_hashes(column).tolist())) if isinstance(column, Tensor) else {}


def _cache_of(signal: Signal, centres: dict[int, int], shard: Shard) -> tuple[RowCache, tuple[object, ...]] | None:
    """The cache, and the name of this shard's distances in it; None where there is none to use."""
    cache = current_cache()
    if cache is None or is_accelerator(shard.device) or not centres:
        return None
    shift = shard.shift.get(signal)
    return cache, (type(signal), repr(signal), shard.dtype, None if shift is None else tuple(shift.tolist()))


def _recall(signal: Signal, centres: dict[int, int], shard: Shard) -> None:
    """Continue from the distances of an earlier round, if there are any."""
    found = _cache_of(signal, centres, shard)
    if found is None:
        return
    shard.state["hash"] = shard.each(lambda rows: row_hashes(rows.tensor(signal)), 4 * _row_bytes(shard))
    known = found[0].recall(found[1], shard.ids, shard.state["hash"], centres)
    if known is not None:
        shard.state.update(known[0])
        shard.state["counted"] = torch.tensor(sorted(known[1]), dtype=torch.int64)


def _remember(signal: Signal, centres: dict[int, int], shard: Shard) -> None:
    """Store the distances for the next round."""
    found = _cache_of(signal, centres, shard)
    if found is not None and "hash" in shard.state:
        columns = {name: shard.state[name] for name in ("norm", "near")}
        found[0].store(found[1], shard.ids, shard.state["hash"], columns, centres)


def _add_centres(signal: Signal, centres: Rows, are_picks: bool, shard: Shard) -> None:
    if not are_picks and "counted" in shard.state:
        centres = centres.take((~torch.isin(centres.ids, shard.state["counted"])).nonzero()[:, 0])
        if not len(centres):
            return
    centres = centres.to(shard.device)
    if len(centres) < WIDE:
        centres = centres.take(torch.arange(WIDE, device=shard.device) % len(centres))
    near_N = _lower_to(centres[signal], signal, shard)
    if are_picks:
        near_N[shard.find(centres.ids)[1]] = -torch.inf


def _lower_to(centres: Column, signal: Signal, shard: Shard) -> Tensor:
    """Lower the distance of each row to that to the nearest of these centres. Returns all distances, which it changes.

    The first time it computes the lengths of the rows in the same sweep.
    """
    state, is_first = shard.state, "near" not in shard.state
    if is_first:
        near_N = torch.full((len(shard),), torch.inf, dtype=shard.dtype, device=shard.device)
        state["norm"], state["near"] = torch.empty_like(near_N), near_N
    norm_N, near_N = state["norm"], state["near"]
    for where, rows in shard.blocks(scratch=2 * len(centres)):
        if is_first:
            norm_N[where] = checked_norm(rows, signal)
        torch.minimum(near_N[where], sq_near(rows[signal], norm_N[where], centres), out=near_N[where])
    return near_N


def _row_bytes(shard: Shard) -> int:
    return shard.dtype.itemsize * sum(column[:1].numel() for column in shard.columns.values())


def _near(shard: Shard) -> Tensor:
    return shard.state["near"]


def _first_arrival(key: Key, shard: Shard) -> Tensor:
    """Minus the time of each row's first arrival; -inf for rows that never arrive."""
    near_N = shard.state["near"].double()
    return (-key.exponential(shard.ids) / near_N).masked_fill_(near_N <= 0, -torch.inf)


def _lottery(key: Key, shard: Shard) -> Tensor:
    """An equal chance for every row that is not picked."""
    return key.uniform(shard.ids).masked_fill_(shard.state["near"] == -torch.inf, -torch.inf)
