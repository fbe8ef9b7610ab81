"""Rows within a radius of others, exactly, for a fraction of the arithmetic of all distances.

Along a few orthonormal directions two rows are never farther apart than they are. So a product over those alone rules
most pairs out, and the few others are measured one by one in float64, from the difference of the two rows: the result
depends neither on the order of the pair nor on the block. The directions are the principal ones of some rows, and as
many of them as make the whole cheapest, by the share of pairs that they do not rule out. Where no number of them pays,
the product is over all columns, and only pairs at the edge of a ball are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.backends import is_accelerator
from labelwise.selection.strategy import Size
from labelwise.shards import Shards
from labelwise.signals.rows import Rows, sq_norm
from labelwise.signals.spec import Signal

SAMPLE, PAIR_SAMPLE = 4096, 1024  # rows that the directions are found from, and those whose pairs are counted
COUNTS = (16, 32, 48, 64, 96, 128)  # of directions
ITERATIONS = 4  # of the subspace iteration
PAIR_COST = 64  # cost of one column of a pair that is measured alone, in columns of a product
MEASURED_NUMBERS = 1 << 19  # numbers of the pairs that are measured at once


@dataclass(frozen=True)
class RadiusIndex:
    """Finds rows within `radius` of others.

    Args:
        signal: the column of the rows.
        radius: the radius of a ball.
        directions_DE: orthonormal directions (D, E) that rule pairs out; None are all columns.
    """

    signal: Signal
    radius: float
    directions_DE: Tensor | None

    @staticmethod
    def memory(size: Size) -> int:
        """Bytes that `build_index` allocates."""
        sample, most = min(SAMPLE, size.rows), COUNTS[-1]
        directions = 6 * 8 * most * size.numbers  # in float64
        return 4 * sample * (size.row + 8 * most) + 24 * min(PAIR_SAMPLE, size.rows) ** 2 + directions

    def balls(self, centres: Rows) -> Balls:
        """The balls around these rows."""
        return Balls(self, centres.tensor(self.signal))


class Balls:
    """Balls around some rows (M, D).

    One product gives, for every row and ball, the depth of the row along the directions, (radius^2 - distance^2) / 2,
    plus a bound of its rounding: what is below 0 is outside.
    """

    def __init__(self, index: RadiusIndex, centre_MD: Tensor):
        self.index, self.centre_MD = index, centre_MD
        self.signal = index.signal
        self._noise = (16 + 2 * centre_MD.shape[1] ** 0.5) * torch.finfo(centre_MD.dtype).eps
        along_ME = self._project(centre_MD)
        self._slack_M = self._noise * (sq_norm(centre_MD) + index.radius**2)
        edge_M = (index.radius**2 - sq_norm(along_ME)) / 2 + self._slack_M
        self._right = torch.cat([along_ME, torch.ones_like(edge_M)[:, None], edge_M[:, None]], 1).T.contiguous()

    @property
    def scratch(self) -> int:
        """Numbers allocated for each row of a block."""
        return 3 * len(self.centre_MD) + 2 * len(self._right)

    def count_balls(self, rows: Rows) -> Tensor:
        """The number of balls that each row (N,) is in."""
        row, _, is_inside, surely_NM = self._pairs(rows.tensor(self.signal))
        return self._count_by_row(row, is_inside, surely_NM, len(rows))

    def count_both(self, rows: Rows, mask_N: Tensor) -> tuple[Tensor, Tensor]:
        """The number of balls that each row (N,) is in, and of rows of the mask that are in each ball (M,)."""
        row, centre, is_inside, surely_NM = self._pairs(rows.tensor(self.signal))
        by_ball_M = _count(centre, is_inside & mask_N[row], len(self.centre_MD))
        if surely_NM is not None:
            by_ball_M += _masked_rows(surely_NM, mask_N).count_nonzero(0)
        return self._count_by_row(row, is_inside, surely_NM, len(rows)), by_ball_M

    def pairs(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """All pairs of a row and a ball that it is in: positions of the rows, positions of the centres."""
        row, centre, is_inside, surely_NM = self._pairs(rows.tensor(self.signal))
        row, centre = row[is_inside], centre[is_inside]
        if surely_NM is not None:
            sure_row, sure_centre = surely_NM.nonzero(as_tuple=True)
            row, centre = torch.cat([row, sure_row]), torch.cat([centre, sure_centre])
        return row, centre

    @staticmethod
    def _count_by_row(row: Tensor, is_inside: Tensor, surely_NM: Tensor | None, rows: int) -> Tensor:
        count_N = _count(row, is_inside, rows)
        return count_N if surely_NM is None else count_N + surely_NM.count_nonzero(1)

    def _pairs(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Measured pairs (row, centre, whether inside), and pairs that the product alone puts inside (N, M).

        The last is None where the product is not over all columns.
        """
        along_NE = self._project(x_ND)
        slack_N1 = self._noise * sq_norm(x_ND)[:, None]
        own_N1 = slack_N1 - sq_norm(along_NE)[:, None] / 2
        depth_NM = torch.cat([along_NE, own_N1, torch.ones_like(own_N1)], 1) @ self._right
        if self.index.directions_DE is None:
            surely_NM = depth_NM > (2 * slack_N1 + 2 * self._slack_M)
            row, centre = (depth_NM >= 0).logical_xor_(surely_NM).nonzero(as_tuple=True)
        else:
            surely_NM = None
            some = (depth_NM.amax(1) >= 0).nonzero()[:, 0]  # few rows: the others need not be searched
            row, centre = (depth_NM[some] >= 0).nonzero(as_tuple=True)
            row = some[row]
        is_inside = self._measure(x_ND, row, centre)
        if not is_accelerator(x_ND.device):  # few are; an accelerator would wait to know how many
            row, centre, is_inside = row[is_inside], centre[is_inside], is_inside[is_inside]
        return row, centre, is_inside, surely_NM

    def _project(self, x_ND: Tensor) -> Tensor:
        directions_DE = self.index.directions_DE
        return x_ND if directions_DE is None else x_ND @ directions_DE.to(x_ND)

    def _measure(self, x_ND: Tensor, row: Tensor, centre: Tensor) -> Tensor:
        """Whether each of these pairs is within the radius."""
        step = max(1, MEASURED_NUMBERS // x_ND.shape[1])
        is_inside = [
            (x_ND[i].double() - self.centre_MD[j].double()).square_().sum(1) <= self.index.radius**2
            for i, j in zip(row.split(step), centre.split(step))
        ]
        return torch.cat(is_inside)


def _masked_rows(table_NM: Tensor, mask_N: Tensor) -> Tensor:
    """These rows of a table of booleans; the others are absent, or all false on an accelerator, which need not wait."""
    if not is_accelerator(table_NM.device):
        return table_NM if bool(mask_N.all()) else table_NM[mask_N]
    return table_NM & mask_N[:, None]


def _count(position: Tensor, mask: Tensor, length: int) -> Tensor:
    """The number of elements of `mask` at each position below `length`."""
    if not is_accelerator(position.device):
        return torch.bincount(position[mask], minlength=length)
    return position.new_zeros(length).index_add_(0, position, mask.long())  # the host does not wait for it


def block_of(most: int, rows: int) -> int:
    """The number of rows that are sent to all shards at once: at most `most`, and a small part of a small pool."""
    return max(1, min(most, max(16, rows // 8), rows))


def build_index(pool: Shards, signal: Signal, radius: float, key: Key, pair_cost: float = PAIR_COST) -> RadiusIndex:
    """An index with as many directions as make queries of this pool cheapest."""
    ids = pool.best(lambda shard: key.uniform(shard.ids), block_of(SAMPLE, pool.n)).ids
    x_SD = pool.take(ids).tensor(signal)
    width = x_SD.shape[1]
    counts = [count for count in COUNTS if 2 * count < width]
    if not counts or len(x_SD) < 2:
        return RadiusIndex(signal, radius, None)
    directions_DE = _principal_directions(x_SD, max(counts), key)
    along_SE = x_SD[:PAIR_SAMPLE] @ directions_DE
    apart = ~torch.eye(len(along_SE), dtype=torch.bool, device=x_SD.device)
    cost: dict[int, float] = {}
    for count in counts:
        possible = torch.cdist(along_SE[:, :count], along_SE[:, :count])[apart] <= radius
        cost[count] = count + pair_cost * width * float(possible.double().mean())
    best = min(cost, key=lambda count: cost[count])
    return RadiusIndex(signal, radius, directions_DE[:, :best] if cost[best] < width else None)


def _principal_directions(x_SD: Tensor, count: int, key: Key) -> Tensor:
    """Orthonormal directions (D, count) along which the rows vary most, in that order, by subspace iteration."""
    centred_SD = x_SD - x_SD.mean(0)
    start_DE = torch.randn(x_SD.shape[1], count, dtype=torch.float64, generator=key.generator())
    directions_DE: Tensor = torch.linalg.qr(start_DE.to(x_SD.device)).Q
    for _ in range(ITERATIONS):
        # Orthonormal in float64: a direction that is too long would rule out pairs that are close.
        directions_DE = torch.linalg.qr((centred_SD.T @ (centred_SD @ directions_DE.to(x_SD))).double()).Q
    along_SE = (centred_SD @ directions_DE.to(x_SD)).double()
    rotation_EE: Tensor = torch.linalg.eigh(along_SE.T @ along_SE).eigenvectors.flip(1)
    return (directions_DE @ rotation_EE).to(x_SD)
