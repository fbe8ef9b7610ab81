"""The picks of `Greedy` where all rows are on one device: many for each look of the host.

A pick is found, taken and told to the rows by operations of the device alone, so that nothing waits for the host, which
reads ids and scores of a whole chunk at once. A gain that is not a number is remembered by its place until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.shards import Shard
from labelwise.signals.rows import Rows

if TYPE_CHECKING:
    from labelwise.selection.strategy import Greedy

CHUNK = 64  # picks between two looks of the host
LARGEST_EXPONENT = 709.0  # of e in float64
LAST = torch.iinfo(torch.int64).max


class Chunk(NamedTuple):
    """Some picks: ids, scores, the carry after them, and the first row whose gain was not finite, with that gain."""

    ids: list[int]
    scores: list[float]
    carry: Any
    wrong: tuple[int, float] | None


def picks(strategy: Greedy, carry: Any, keys: list[Key], slack: float, shard: Shard) -> Chunk:
    """A pick for each key; here the host waits once."""
    places, scores, wrongs = [], [], []
    for key in keys:
        gain_N, wrong = _gains(strategy, carry, shard)
        place, score = (_drawn if strategy.sampled else _highest)(gain_N, key, slack, shard)
        pick = shard.rows(place)
        carry = strategy.advance(carry, pick)
        absorb(strategy, carry, pick, shard)
        places.append(place)
        scores.append(score)
        wrongs.append(wrong)
    ids = shard.ids[torch.cat(places)]
    bits = torch.cat([torch.cat(scores), torch.stack(wrongs, 1).flatten()]).view(torch.int64)
    told = torch.cat([ids, bits]).cpu()
    values = told[len(keys) :].view(torch.float64)
    where, gain = values[len(keys) :].view(2, -1)
    bad = (where >= 0).nonzero()[:1, 0].tolist()
    found = [(int(shard.ids[int(where[one])]), float(gain[one])) for one in bad]
    return Chunk(told[: len(keys)].tolist(), values[: len(keys)].tolist(), carry, found[0] if found else None)


def absorb(strategy: Greedy, carry: Any, pick: Rows, shard: Shard) -> None:
    """Tell the rows of a shard that `pick` was taken."""
    state = shard.state["row"]
    pick = pick.to(shard.device)
    for where, rows in shard.blocks():
        state[where] = strategy.update(rows, state[where], carry, pick)
    shard.state["taken"] |= shard.ids == pick.ids


def _gains(strategy: Greedy, carry: Any, shard: Shard) -> tuple[Tensor, Tensor]:
    """The gain of each row; and place and gain (2,) of the first that is not finite, -1 where all are."""
    gain_N, fine_N = gains(strategy, carry, shard)
    first = (~fine_N).to(torch.uint8).argmax(0, keepdim=True)
    place = torch.where(fine_N.index_select(0, first), -1.0, first.double())
    return gain_N, torch.cat([place, gain_N.index_select(0, first).double()])


def gains(strategy: Greedy, carry: Any, shard: Shard) -> tuple[Tensor, Tensor]:
    """The gain of each row, and whether it is one that a row may have."""
    state, taken = shard.state["row"], shard.state["taken"]
    gain_N = torch.empty(len(shard), dtype=shard.dtype, device=shard.device)
    for where, rows in shard.blocks():
        gain_N[where] = strategy.gain(rows, state[where], carry)
    fine_N = torch.isfinite(gain_N) | taken
    if strategy.sampled:
        fine_N |= gain_N == -torch.inf  # a weight of zero
    return gain_N, fine_N


def _highest(gain_N: Tensor, key: Key, slack: float, shard: Shard) -> tuple[Tensor, Tensor]:
    """Place (1,) and gain (1,) of the free row with the highest gain, ties to the smaller id."""
    gain_N = gain_N.masked_fill(shard.state["taken"], -torch.inf)
    top = gain_N.max()
    place = torch.where(gain_N >= top - slack * top.abs(), shard.ids, LAST).argmin(0, keepdim=True)
    return place, gain_N.index_select(0, place).double()


def _drawn(gain_N: Tensor, key: Key, slack: float, shard: Shard) -> tuple[Tensor, Tensor]:
    """Place (1,) of a free row drawn with weight exp(gain), and that weight (1,)."""
    noise_N = key.gumbel(shard.ids)  # float64: the draw must not depend on rounding
    place, value = _highest(gain_N + noise_N, key, slack, shard)
    none = value == -torch.inf  # every free row has weight zero (copies of what was taken): all are as good
    even = key.uniform(shard.ids).masked_fill(shard.state["taken"], -torch.inf).argmax(0, keepdim=True)
    weight = (value - noise_N.index_select(0, place)).clamp(max=LARGEST_EXPONENT).exp()
    return torch.where(none, even, place), torch.where(none, 0.0, weight)
