"""Top-k of the values of many rows, ties by lot: the answer of one shard to `Shards.best`.

Of tied rows the smallest lot wins, a hash of (key, row id); see `Key.lots`. The smallest id would do as well for equal
picks on every machine, but ids often follow the classes: tree models and nearest neighbours give many equal scores, and
a pool sorted by class would then be labelled class by class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Lots = Callable[[Tensor], Tensor]  # the lots of the rows at some positions, or of the rows with some ids

EXTRA = 64  # rows read beyond k, so that those tied with the last are known


def lowest_tie(top: Tensor, slack: float) -> Tensor:
    """The smallest value that counts as equal to `top`."""
    return top - slack * top.abs()


def order_by_value(lots: Tensor, values: Tensor) -> Tensor:
    """Positions in the order of their values, highest first, ties by lot."""
    by_lot = lots.argsort()
    return by_lot[values[by_lot].argsort(descending=True, stable=True)]


def front(lots: Lots, values_N: Tensor, slack: float) -> Tensor:
    """Positions of the rows that are tied with the best of this shard and may have the smallest lot of all shards.

    Another shard may have a higher value, so which rows are tied is not known yet. Whatever the lowest tied value is,
    the smallest lot above it has a value higher than those of all smaller lots.

    Args:
        lots: of the rows at given positions of `values_N`.
        values_N: the value of each row.
        slack: as for `Shards.best`.
    """
    tied = (values_N >= lowest_tie(values_N.max(), slack)).nonzero()[:, 0]
    if len(tied) == 1:
        return tied
    tied = tied[lots(tied).argsort()]
    largest = values_N[tied].cummax(0).values
    return torch.cat([tied[:1], tied[1:][largest[1:] > largest[:-1]]])


def top_rows(ids: Tensor, lots: Lots, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    """Ids and values of the rows that may be among the best k of all shards.

    Args:
        ids: (N,) of the rows of one shard.
        lots: of rows with given ids.
        values_N: the value of each row.
        k: the number of rows.
        slack: as for `Shards.best`.
    """
    found = _from_topk(ids, lots, values_N, k, slack) if values_N.device.type != "cpu" else None
    return _from_all(ids, lots, values_N, k, slack) if found is None else found


def _from_topk(ids: Tensor, lots: Lots, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor] | None:
    """`top_rows` by one read of a device: top-k and EXTRA more. None where more rows are tied at the edge."""
    count = min(k + EXTRA, len(values_N))
    top = values_N.topk(count)
    # One copy for both: values go as the bits of a float64, which holds every number that they may be.
    some, bits = torch.stack([ids[top.indices], top.values.double().view(torch.int64)]).cpu()
    values = bits.view(torch.float64).clone().to(values_N.dtype)  # torch sends no two kinds of one memory elsewhere
    edge = lowest_tie(values[0], slack) if slack else values[min(k, count) - 1]
    if count < len(values_N) and not bool(values[-1] < edge):
        return None
    return _from_all(some, lots, values, k, slack)


def _from_all(ids: Tensor, lots: Lots, values_N: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    if slack:
        positions = front(lambda some: lots(ids[some]), values_N, slack)
        return ids[positions], values_N[positions]
    if k >= len(values_N):
        return ids, values_N
    # topk leaves open which of the rows tied at the edge it takes: keep the ones above the edge, then by lot.
    edge = values_N.topk(k, sorted=False).values.min()
    above = (values_N > edge).nonzero()[:, 0]
    tied = (values_N == edge).nonzero()[:, 0]
    if len(tied) > k - len(above):
        tied = tied[lots(ids[tied]).argsort()[: k - len(above)]]
    keep = torch.cat([above, tied])
    return ids[keep], values_N[keep]
