"""The highest of the values of many rows, ties to the smaller id: what one shard says to `Shards.best`."""

from __future__ import annotations

import torch
from torch import Tensor

TIED = 64  # rows beyond the asked ones that are read with them, so that those tied with the last are known


def floor(top: Tensor, slack: float) -> Tensor:
    """The smallest value that counts as equal to `top`."""
    return top - slack * top.abs()


def by_value(ids: Tensor, values: Tensor) -> Tensor:
    """Positions by value, highest first, ties to the smaller id."""
    by_id = ids.argsort(stable=True)
    return by_id[values[by_id].argsort(descending=True, stable=True)]


def front(ids: Tensor, values_N: Tensor, slack: float) -> Tensor:
    """Positions of the rows that are tied with the highest here and may have the smallest id of all shards.

    Another shard may hold a higher value, so which rows are tied is not known yet. Whatever the floor will be, the
    smallest id above it is one whose value is higher than those of all smaller ids.
    """
    tied = (values_N >= floor(values_N.max(), slack)).nonzero()[:, 0]
    tied = tied[ids[tied].argsort()]
    highest = values_N[tied].cummax(0).values
    return torch.cat([tied[:1], tied[1:][highest[1:] > highest[:-1]]])


def highest(ids: Tensor, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    """Ids and values of the rows that may be among the k highest of all shards; `slack` as for `Shards.best`."""
    found = _short_list(ids, values_N, k, slack) if values_N.device.type != "cpu" else None
    return _of_all(ids, values_N, k, slack) if found is None else found


def _short_list(ids: Tensor, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor] | None:
    """`highest` by one read of a device, from the k highest and some more; None where more are tied at the edge."""
    count = min(k + TIED, len(values_N))
    top = values_N.topk(count)
    # In one copy: the bits of a float64, which holds every number that values may be, as a whole number.
    some, bits = torch.stack([ids[top.indices], top.values.double().view(torch.int64)]).cpu()
    values = bits.view(torch.float64).clone().to(values_N.dtype)  # torch sends no two kinds of one memory elsewhere
    edge = floor(values[0], slack) if slack else values[min(k, count) - 1]
    if count < len(values_N) and not bool(values[-1] < edge):
        return None
    return _of_all(some, values, k, slack)


def _of_all(ids: Tensor, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    if slack:
        positions = front(ids, values_N, slack)
        return ids[positions], values_N[positions]
    if k >= len(values_N):
        return ids, values_N
    # topk leaves open which of the rows tied at the edge it takes: keep the ones above the edge, then the smallest ids.
    edge = values_N.topk(k, sorted=False).values.min()
    above = (values_N > edge).nonzero()[:, 0]
    tied = (values_N == edge).nonzero()[:, 0]
    tied = tied[ids[tied].argsort()[: k - len(above)]]
    keep = torch.cat([above, tied])
    return ids[keep], values_N[keep]
