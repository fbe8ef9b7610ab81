"""Read rows with their mean subtracted: distances do not depend on the origin, but their rounding does.

|x|^2 + |y|^2 - 2 x.y loses the distance of two rows when both are much farther from the origin than from each other
(a year, a temperature in kelvin, one large constant feature of an encoder). The mean of such rows is subtracted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Signal

FAR = 0.9  # subtract the mean when it makes up this share of the mean squared length


@contextmanager
def centred(rows: Shards, signal: Signal) -> Iterator[None]:
    """Within, all of `rows` are read with the mean of the column `signal` subtracted, if that helps.

    A signal that is computed from other columns is left as it is.
    """
    if signal.stored() != (signal,):
        yield
        return
    total = rows.sum(functools.partial(_sums, signal))
    mean_D, square = total[:-1] / rows.n, float(total[-1]) / rows.n
    if float(mean_D @ mean_D) > FAR * square > 0:
        rows.map(functools.partial(_shift, signal, _rounded(mean_D)))
    try:
        yield
    finally:
        rows.map(functools.partial(_unshift, signal))


def _sums(signal: Signal, shard: Shard) -> Tensor:
    """The sum of the rows and, last, of their squared lengths (D + 1,), in float64."""
    total: Tensor | None = None
    for _, rows in shard.blocks():
        x_ND = rows.tensor(signal)
        here = torch.cat([x_ND.sum(0), torch.linalg.vector_norm(x_ND).square()[None]]).double()
        total = here if total is None else total + here
    assert total is not None, "shards are never empty"
    return total.cpu()


def _rounded(mean_D: Tensor) -> Tensor:
    """The mean rounded to 8 bits, which is the same whatever the blocks and shards it was summed in."""
    fraction, power = torch.frexp(mean_D)
    return torch.ldexp((fraction * 256).round() / 256, power)


def _shift(signal: Signal, mean_D: Tensor, shard: Shard) -> None:
    shard.shift[signal] = mean_D.to(shard.device, shard.dtype)


def _unshift(signal: Signal, shard: Shard) -> None:
    shard.shift.pop(signal, None)
