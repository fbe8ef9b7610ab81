"""Top-k of the values of many rows, ties to the smaller id: the answer of one shard to `Shards.best`."""

from __future__ import annotations

import torch
from torch import Tensor

EXTRA = 64  # rows read beyond k, so that those tied with the last are known


def lowest_tie(top: Tensor, slack: float) -> Tensor:
    """The smallest value that counts as equal to `top`."""
    return top - slack * top.abs()


def order_by_value(ids: Tensor, values: Tensor) -> Tensor:
    """Positions in the order of their values, highest first, ties to the smaller id."""
    by_id = ids.argsort(stable=True)
    return by_id[values[by_id].argsort(descending=True, stable=True)]


def front(ids: Tensor, values_N: Tensor, slack: float) -> Tensor:
    """Positions of the rows that are tied with the best of this shard and may have the smallest id of all shards.

    Another shard may have a higher value, so which rows are tied is not known yet. Whatever the lowest tied value is,
    the smallest id above it has a value higher than those of all smaller ids.
    """
    tied = (values_N >= lowest_tie(values_N.max(), slack)).nonzero()[:, 0]
    tied = tied[ids[tied].argsort()]
    largest = values_N[tied].cummax(0).values
    return torch.cat([tied[:1], tied[1:][largest[1:] > largest[:-1]]])


def top_rows(ids: Tensor, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    """Ids and values of the rows that may be among the best k of all shards; `slack` as for `Shards.best`."""
    found = _from_topk(ids, values_N, k, slack) if values_N.device.type != "cpu" else None
    return _from_all(ids, values_N, k, slack) if found is None else found


def _from_topk(ids: Tensor, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor] | None:
    """`top_rows` by one read of a device: top-k and EXTRA more. None where more rows are tied at the edge."""
    count = min(k + EXTRA, len(values_N))
    top = values_N.topk(count)
    # One copy for both: values go as the bits of a float64, which holds every number that they may be.
    some, bits = torch.stack([ids[top.indices], top.values.double().view(torch.int64)]).cpu()
    values = bits.view(torch.float64).clone().to(values_N.dtype)  # torch sends no two kinds of one memory elsewhere
    edge = lowest_tie(values[0], slack) if slack else values[min(k, count) - 1]
    if count < len(values_N) and not bool(values[-1] < edge):
        return None
    return _from_all(some, values, k, slack)


def _from_all(ids: Tensor, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
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
