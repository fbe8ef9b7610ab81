"""Balls: which rows lie within a distance of others, exactly, for a fraction of the arithmetic of all distances.

Along a few orthonormal directions two rows are never farther apart than they are. So a product over those alone rules
most pairs out, and the few that are left are measured one by one in float64, from the difference of the two rows: the
same whichever of them is asked, in any block. The directions are the strongest ones of some rows, and as many of them
as make the whole cheapest, by the share of pairs that they leave over. Where no number of them pays, the product is
over all columns, and only pairs at the edge of a ball are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.memory import Size
from labelwise.shards import Shards
from labelwise.signals.rows import Rows, sq_norm
from labelwise.signals.spec import Signal

SAMPLE, PROBED = 4096, 1024  # rows that the directions are found from, and those whose pairs are looked at
COUNTS = (16, 32, 48, 64, 96, 128)  # of directions
TURNS = 4  # of the iteration that finds them
PAIR = 64  # columns of a product that take as long as one column of a pair that is measured alone
MEASURED = 1 << 19  # numbers of the pairs that are measured at once


@dataclass(frozen=True)
class Balls:
    """Balls of radius `delta` in one column of rows, with the directions (D, E) to look along; None are all columns."""

    signal: Signal
    delta: float
    along_DE: Tensor | None

    @staticmethod
    def memory(size: Size) -> int:
        """Bytes that finding the directions takes."""
        sample, most = min(SAMPLE, size.rows), COUNTS[-1]
        found = 6 * 8 * most * size.numbers  # directions in float64
        return 4 * sample * (size.row + 8 * most) + 24 * min(PROBED, size.rows) ** 2 + found

    def around(self, centres: Rows) -> Around:
        """The balls around these rows."""
        return Around(self, centres.tensor(self.signal))


class Around:
    """Balls around some rows (M, D).

    One product gives, for every row and ball, how deep the row lies in it along the directions, (delta^2 - distance^2)
    / 2, and more than that by as much as rounding may be off: what is below 0 is outside.
    """

    def __init__(self, balls: Balls, centre_MD: Tensor):
        self.balls, self.centre_MD = balls, centre_MD
        self.signal = balls.signal
        self._noise = (16 + 2 * centre_MD.shape[1] ** 0.5) * torch.finfo(centre_MD.dtype).eps
        turned_ME = self._turned(centre_MD)
        self._slack_M = self._noise * (sq_norm(centre_MD) + balls.delta**2)
        edge_M = (balls.delta**2 - sq_norm(turned_ME)) / 2 + self._slack_M
        self._right = torch.cat([turned_ME, torch.ones_like(edge_M)[:, None], edge_M[:, None]], 1).T.contiguous()

    @property
    def scratch(self) -> int:
        """Numbers that each row of a block takes meanwhile."""
        return 3 * len(self.centre_MD) + 2 * len(self._right)

    def held(self, rows: Rows) -> Tensor:
        """In how many of the balls each row (N,) lies."""
        at, _, held, sure_NM = self._inside(rows.tensor(self.signal))
        return self._of_rows(at, held, sure_NM, len(rows))

    def counts(self, rows: Rows, who_N: Tensor) -> tuple[Tensor, Tensor]:
        """In how many of the balls each row (N,) lies, and how many of the rows of `who_N` each ball (M,) holds."""
        at, centre, held, sure_NM = self._inside(rows.tensor(self.signal))
        of_ball_M = _counted(centre, held & who_N[at], len(self.centre_MD))
        if sure_NM is not None:
            of_ball_M += _lines(sure_NM, who_N).count_nonzero(0)
        return self._of_rows(at, held, sure_NM, len(rows)), of_ball_M

    def pairs(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """All pairs of a row and a ball that it lies in: positions of the rows, positions of the centres."""
        at, centre, held, sure_NM = self._inside(rows.tensor(self.signal))
        at, centre = at[held], centre[held]
        if sure_NM is not None:
            sure_at, sure_centre = sure_NM.nonzero(as_tuple=True)
            at, centre = torch.cat([at, sure_at]), torch.cat([centre, sure_centre])
        return at, centre

    @staticmethod
    def _of_rows(at: Tensor, held: Tensor, sure_NM: Tensor | None, rows: int) -> Tensor:
        found_N = _counted(at, held, rows)
        return found_N if sure_NM is None else found_N + sure_NM.count_nonzero(1)

    def _inside(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Pairs that were measured, which of them are inside and, where the product is over all columns, those that
        are surely so by it (N, M).
        """
        turned_NE = self._turned(x_ND)
        slack_N1 = self._noise * sq_norm(x_ND)[:, None]
        here_N1 = slack_N1 - sq_norm(turned_NE)[:, None] / 2
        depth_NM = torch.cat([turned_NE, here_N1, torch.ones_like(here_N1)], 1) @ self._right
        if self.balls.along_DE is None:
            sure_NM = depth_NM > (2 * slack_N1 + 2 * self._slack_M)
            at, centre = (depth_NM >= 0).logical_xor_(sure_NM).nonzero(as_tuple=True)
        else:
            sure_NM = None
            some = (depth_NM.amax(1) >= 0).nonzero()[:, 0]  # few rows: the others need not be looked through
            at, centre = (depth_NM[some] >= 0).nonzero(as_tuple=True)
            at = some[at]
        held = self._measured(x_ND, at, centre)
        if x_ND.device.type == "cpu":  # few are; with a device the host would wait to know how many
            at, centre, held = at[held], centre[held], held[held]
        return at, centre, held, sure_NM

    def _turned(self, x_ND: Tensor) -> Tensor:
        along_DE = self.balls.along_DE
        return x_ND if along_DE is None else x_ND @ along_DE.to(x_ND)

    def _measured(self, x_ND: Tensor, at: Tensor, centre: Tensor) -> Tensor:
        """Which of these pairs are within delta."""
        step = max(1, MEASURED // x_ND.shape[1])
        held = [
            (x_ND[i].double() - self.centre_MD[j].double()).square_().sum(1) <= self.balls.delta**2
            for i, j in zip(at.split(step), centre.split(step))
        ]
        return torch.cat(held)


def _lines(table_NM: Tensor, which_N: Tensor) -> Tensor:
    """These lines of a table of yes and no; the others are gone, or no throughout where the host does not wait."""
    if table_NM.device.type == "cpu":
        return table_NM if bool(which_N.all()) else table_NM[which_N]
    return table_NM & which_N[:, None]


def _counted(place: Tensor, which: Tensor, most: int) -> Tensor:
    """How many of `which` there are at each place below `most`."""
    if place.device.type == "cpu":
        return torch.bincount(place[which], minlength=most)
    return place.new_zeros(most).index_add_(0, place, which.long())  # the host does not wait for it


def some_of(most: int, rows: int) -> int:
    """How many of so many rows are sent around at once: a small part of a small pool too."""
    return max(1, min(most, max(16, rows // 8), rows))


def balls_of(pool: Shards, signal: Signal, delta: float, key: Key) -> Balls:
    """Balls in this pool, with as many directions as make them cheapest."""
    ids = pool.best(lambda shard: key.uniform(shard.ids), some_of(SAMPLE, pool.n)).ids
    x_SD = pool.take(ids).tensor(signal)
    width = x_SD.shape[1]
    counts = [count for count in COUNTS if 2 * count < width]
    if not counts or len(x_SD) < 2:
        return Balls(signal, delta, None)
    along_DE = _strongest(x_SD, max(counts), key)
    turned_SE = x_SD[:PROBED] @ along_DE
    apart = ~torch.eye(len(turned_SE), dtype=torch.bool, device=x_SD.device)
    cost: dict[int, float] = {}
    for count in counts:
        left = torch.cdist(turned_SE[:, :count], turned_SE[:, :count])[apart] <= delta
        cost[count] = count + PAIR * width * float(left.double().mean())
    best = min(cost, key=lambda count: cost[count])
    return Balls(signal, delta, along_DE[:, :best] if cost[best] < width else None)


def _strongest(x_SD: Tensor, count: int, key: Key) -> Tensor:
    """Orthonormal directions (D, count) along which the rows vary most, strongest first, by subspace iteration."""
    middle_SD = x_SD - x_SD.mean(0)
    start_DE = torch.randn(x_SD.shape[1], count, dtype=torch.float64, generator=key.generator())
    along_DE = torch.linalg.qr(start_DE.to(x_SD.device)).Q
    for _ in range(TURNS):
        # Orthonormal in float64: what is longer than it should be would rule pairs out that are near.
        along_DE = torch.linalg.qr((middle_SD.T @ (middle_SD @ along_DE.to(x_SD))).double()).Q
    seen_SE = (middle_SD @ along_DE.to(x_SD)).double()
    turn_EE = torch.linalg.eigh(seen_SE.T @ seen_SE).eigenvectors.flip(1)
    return (along_DE @ turn_EE).to(x_SD)
