"""Greedy: take one row at a time, the one with the highest gain or one drawn with weight exp(gain).

The simple tier for methods of one's own: `init`, `gain` and `update` are a few lines each, and the loop here does the
rest. Each pick costs one pass over all rows, so k picks cost N k times the arithmetic of `gain` and `update`.

A method whose gain is the distance to the nearest labelled or picked row does not need a pass for each pick: derive it
from `strategies.distance.nearest.NearestGreedy`, which makes most picks inside a short list of candidates.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.progress import tick
from labelwise.selection.selection import Selection, equal_weights
from labelwise.selection.strategy import Strategy, raise_not_finite
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows

CHUNK = 64  # picks that an accelerator makes before the host reads them
LARGEST_EXPONENT = 709.0  # of e in float64
LAST_LOT = torch.iinfo(torch.int64).max


class Greedy(Strategy):
    """A strategy that takes one row at a time: the one with the highest gain, or one drawn with weight exp(gain).

    Write `init`, `gain` and `update`. Each row has a state, (n,) or (n, ...), that stays where the row is; the carry
    is one small value that all rows share. The loop excludes rows already taken, breaks ties by lot, draws
    by row id where `sampled` is set, and refuses gains that are not finite.

    Cost: one pass over all rows for each pick; see the module's first lines for the cheaper form of distances.

    >>> import numpy as np
    >>> import labelwise as lw
    >>> from labelwise.signals.rows import sq_dist, sq_norm
    >>> from labelwise.signals.spec import Embedding, Needs
    >>> class FarthestFirst(lw.Greedy):
    ...     needs = Needs(pool=(Embedding(),))
    ...
    ...     def init(self, rows, carry):
    ...         return sq_norm(rows[Embedding()])
    ...
    ...     def gain(self, rows, state, carry):
    ...         return state
    ...
    ...     def update(self, rows, state, carry, pick):
    ...         return torch.minimum(state, sq_dist(rows[Embedding()], pick[Embedding()])[:, 0])
    >>> lw.select(FarthestFirst(), k=2, embedding=np.array([[1.0, 0.0], [3.0, 0.0], [0.0, -2.0]])).ids
    array([1, 2])
    """

    sampled: ClassVar[bool] = False

    def start(self, pool: Shards, labelled: Shards, k: int) -> Any:
        """The carry before the first pick.

        Args:
            pool: the rows to choose from.
            labelled: the rows already labelled.
            k: how many rows will be chosen.

        Returns:
            Anything that `init`, `gain` and `update` need of the batch as a whole; None if nothing.
        """
        return None

    @abstractmethod
    def init(self, rows: Rows, carry: Any) -> Tensor:
        """The state (n, ...) of each row before the first pick.

        Args:
            rows: a block of n rows with the declared signals: `rows[Signal()]`, `rows.tensor(Signal())`.
            carry: what `start` returned.

        Returns:
            A tensor (n, ...) with a row of state for each row.
        """

    @abstractmethod
    def gain(self, rows: Rows, state: Tensor, carry: Any) -> Tensor:
        """What each row (n,) would add to the batch; higher is better.

        Args:
            rows: a block of n rows with the declared signals: `rows[Signal()]`, `rows.tensor(Signal())`.
            state: (n, ...) the state of these rows.
            carry: what `start` or `advance` returned.

        Returns:
            A tensor (n,), finite.
        """

    @abstractmethod
    def update(self, rows: Rows, state: Tensor, carry: Any, pick: Rows) -> Tensor:
        """The state of each row after `pick`, one row, was taken.

        Args:
            rows: a block of n rows with the declared signals: `rows[Signal()]`, `rows.tensor(Signal())`.
            state: (n, ...) the state of these rows.
            carry: what `start` or `advance` returned.
            pick: the row that was taken, as a block of one row.

        Returns:
            A tensor (n, ...), the new state.
        """

    def advance(self, carry: Any, pick: Rows) -> Any:
        """The carry after `pick` was taken.

        Args:
            carry: what `start` or `advance` returned.
            pick: the row that was taken, as a block of one row.

        Returns:
            The new carry.
        """
        return carry

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        ids: list[int] = []
        scores: list[float] = []
        pick_chunk, size = (_pick_on_device, CHUNK) if pool.on_one_device else (_pick_across_shards, 1)
        tolerance = pool.tie_tolerance()
        try:
            carry = self.start(pool, labelled, k)
            pool.map(functools.partial(_begin, self, carry))
            while len(ids) < k:
                keys = [key.fold(step) for step in range(len(ids), min(k, len(ids) + size))]
                chunk = pick_chunk(self, pool, carry, keys, tolerance)
                ids += chunk.ids
                scores += chunk.scores
                carry = chunk.carry
                tick(len(ids), k)
        finally:
            pool.map(_end)
        return equal_weights(ids, scores)


class Chunk(NamedTuple):
    """Some picks: their ids and scores, and the carry after them."""

    ids: list[int]
    scores: list[float]
    carry: Any


def _pick_across_shards(strategy: Greedy, pool: Shards, carry: Any, keys: Sequence[Key], tolerance: float) -> Chunk:
    """The next pick, by a question to all shards. Its score is its gain or, if drawn, the weight it was drawn with."""
    (key,) = keys
    best = pool.best(functools.partial(_free_gains, strategy, carry, key), 1, tolerance)
    ids, score = best.ids, float(best.values[0])
    if strategy.sampled and score == -math.inf:  # all free rows have weight zero, as copies of picks do
        ids, score = pool.best(functools.partial(_lottery, key), 1).ids, 0.0
    elif strategy.sampled:
        score = math.exp(min(score - float(key.gumbel(ids)[0]), LARGEST_EXPONENT))
    pick = pool.take(ids)
    carry = strategy.advance(carry, pick)
    pool.map(functools.partial(_add_pick, strategy, carry, pick))
    return Chunk(ids.tolist(), [score], carry)


def _pick_on_device(strategy: Greedy, pool: Shards, carry: Any, keys: Sequence[Key], tolerance: float) -> Chunk:
    """The same picks, one for each key, from one shard on an accelerator; the host waits for it once."""
    (chunk,) = pool.map(functools.partial(_pick_chunk, strategy, carry, keys, tolerance))
    return chunk


def _pick_chunk(strategy: Greedy, carry: Any, keys: Sequence[Key], tolerance: float, shard: Shard) -> Chunk:
    places, scores, faults = [], [], []
    for key in keys:
        gain_N, is_valid_N = _gains(strategy, carry, shard)
        faults.append(_first_fault(gain_N, is_valid_N))
        place, score = (_draw if strategy.sampled else _argmax)(gain_N, key, tolerance, shard)
        pick = shard.rows(place)
        carry = strategy.advance(carry, pick)
        _add_pick(strategy, carry, pick, shard)
        places.append(place)
        scores.append(score)
    # One copy to the host: numbers of float64 travel as the whole numbers with the same bits.
    bits = torch.cat([torch.cat(scores), torch.stack(faults, 1).flatten()]).view(torch.int64)
    answer = torch.cat([shard.ids[torch.cat(places)], bits]).cpu()
    score_K, place_K, gain_K = answer[len(keys) :].view(torch.float64).view(3, -1)
    for step in (place_K >= 0).nonzero()[:1, 0].tolist():
        raise_not_finite(type(strategy).__name__, shard.ids[int(place_K[step]), None].cpu(), gain_K[step, None])
    return Chunk(answer[: len(keys)].tolist(), score_K.tolist(), carry)


def _first_fault(gain_N: Tensor, is_valid_N: Tensor) -> Tensor:
    """Place and gain (2,) of the first row whose gain is not valid; place -1 where there is none."""
    first = (~is_valid_N).to(torch.uint8).argmax(0, keepdim=True)
    place = torch.where(is_valid_N.index_select(0, first), -1.0, first.double())
    return torch.cat([place, gain_N.index_select(0, first).double()])


def _argmax(gain_N: Tensor, key: Key, tolerance: float, shard: Shard) -> tuple[Tensor, Tensor]:
    """Place (1,) and gain (1,) of the free row with the highest gain, ties by lot."""
    gain_N = gain_N.masked_fill(shard.state["taken"], -torch.inf)
    top = gain_N.max()
    place = torch.where(gain_N >= top - tolerance * top.abs(), shard.lots, LAST_LOT).argmin(0, keepdim=True)
    return place, gain_N.index_select(0, place).double()


def _draw(gain_N: Tensor, key: Key, tolerance: float, shard: Shard) -> tuple[Tensor, Tensor]:
    """Place (1,) of a free row drawn with weight exp(gain), and that weight (1,)."""
    noise_N = key.gumbel(shard.ids)  # float64: the draw must not depend on rounding
    place, value = _argmax(gain_N + noise_N, key, tolerance, shard)
    no_weight = value == -torch.inf  # all free rows have weight zero, as copies of picks do
    weight = (value - noise_N.index_select(0, place)).clamp(max=LARGEST_EXPONENT).exp()
    any_row = _lottery(key, shard).argmax(0, keepdim=True)
    return torch.where(no_weight, any_row, place), torch.where(no_weight, 0.0, weight)


def _begin(strategy: Greedy, carry: Any, shard: Shard) -> None:
    shard.state["row"] = shard.each(lambda rows: strategy.init(rows, carry))
    shard.state["taken"] = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)


def _end(shard: Shard) -> None:
    shard.state.pop("row", None)
    shard.state.pop("taken", None)


def _gains(strategy: Greedy, carry: Any, shard: Shard) -> tuple[Tensor, Tensor]:
    """The gain of each row, and whether the value is valid: gains of taken rows do not count."""
    state, taken_N = shard.state["row"], shard.state["taken"]
    gain_N = torch.empty(len(shard), dtype=shard.dtype, device=shard.device)
    for where, rows in shard.blocks():
        gain_N[where] = strategy.gain(rows, state[where], carry)
    is_valid_N = torch.isfinite(gain_N) | taken_N
    if strategy.sampled:
        is_valid_N |= gain_N == -torch.inf  # a weight of zero
    return gain_N, is_valid_N


def _free_gains(strategy: Greedy, carry: Any, key: Key, shard: Shard) -> Tensor:
    """The gain of each row, with noise where picks are drawn; -inf for rows already taken."""
    gain_N, is_valid_N = _gains(strategy, carry, shard)
    if not bool(is_valid_N.all()):
        raise_not_finite(type(strategy).__name__, shard.ids[~is_valid_N], gain_N[~is_valid_N])
    if strategy.sampled:
        gain_N = gain_N + key.gumbel(shard.ids)  # float64: the draw must not depend on rounding
    return gain_N.masked_fill_(shard.state["taken"], -torch.inf)


def _add_pick(strategy: Greedy, carry: Any, pick: Rows, shard: Shard) -> None:
    """Update the rows of a shard after `pick` was taken."""
    state, pick = shard.state["row"], pick.to(shard.device)
    for where, rows in shard.blocks():
        state[where] = strategy.update(rows, state[where], carry, pick)
    shard.state["taken"] |= shard.ids == pick.ids


def _lottery(key: Key, shard: Shard) -> Tensor:
    """An equal chance for every row that is free."""
    return key.uniform(shard.ids).masked_fill(shard.state["taken"], -torch.inf)
