"""What Frank-Wolfe does where the rows are: sketches, scores at a gap, and the rows that may be the highest.

Beside its vector and sigma a row keeps, while steps are made, its line in the sketch (one column of (W, n)), the length
of its tail outside of the basis, its score at an earlier gap, and whether it is noted. See frank_wolfe.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from labelwise.shards import Shard

HALT = 1e-12  # a step shorter than this share of the way leads nowhere
LISTED = 128  # rows of a shard that are scored in full for a guess
BLOCK = 256  # rows multiplied at a time: on a CPU they stay in the cache
WIDENED = 1 << 23  # numbers that an accelerator makes float64 of at a time

F = TypeVar("F", float, Tensor)


class Row(NamedTuple):
    """A row to step towards, vector and length in float64."""

    id: int
    score: float
    vector_J: Tensor
    sigma: float


class Scored(NamedTuple):
    """A row by its id alone."""

    id: int
    score: float


class Step(NamedTuple):
    """A step that was made: its row, the row's score before it and length, and the share of the way that was gone."""

    id: int
    score: float
    sigma: float
    gamma: float


class Near(NamedTuple):
    """A gap: its share of the one that scores are kept of, what else of it is in the basis, and what is in neither."""

    gap_J: Tensor
    share: float
    along_W: Tensor
    rest: float
    size: float  # of the parts together: rounding is a share of it


def turned(basis_JW: Tensor, stride: int, shard: Shard) -> Tensor:
    """The sum over some rows of the row times its coordinates, in float64."""
    some_TJ = shard.state["vector"][::stride] / shard.state["sigma"][::stride, None].to(shard.state["vector"].dtype)
    return (some_TJ.T @ (some_TJ @ basis_JW.to(some_TJ))).double().cpu()


def keep_sketch(basis_JW: Tensor, shard: Shard) -> None:
    """Keep the coordinates of the rows, one line for each direction, and the length of what is not in the basis."""
    vector_NJ = shard.state["vector"]
    basis_WJ, sigma_N = basis_JW.T.to(vector_NJ), shard.state["sigma"].to(vector_NJ.dtype)
    sketch_WN, tail_N = vector_NJ.new_empty(len(basis_WJ), len(vector_NJ)), vector_NJ.new_empty(len(vector_NJ))
    for start in range(0, len(vector_NJ), block(shard)):
        part = slice(start, start + block(shard))
        sketch_Wn = (basis_WJ @ vector_NJ[part].T).div_(sigma_N[part])
        square_n = (torch.linalg.vector_norm(vector_NJ[part], dim=1) / sigma_N[part]).square()
        outside_n = (square_n - sketch_Wn.square().sum(0)).clamp_(min=0)
        tail_N[part] = (outside_n + 8 * torch.finfo(vector_NJ.dtype).eps * square_n).sqrt()  # rounded up
        sketch_WN[:, part] = sketch_Wn
    shard.state["sketch"], shard.state["tail"] = sketch_WN, tail_N


def sums(shard: Shard) -> Tensor:
    """The sum of the vectors and, last, of their lengths, in float64."""
    total_J = functools.reduce(torch.add, (part.double().sum(0) for part in shard.state["vector"].split(block(shard))))
    return torch.cat([total_J, shard.state["sigma"].sum()[None]]).cpu()


def keep_scores(gap_J: Tensor, shard: Shard) -> None:
    """Keep the scores at this gap; no row is noted yet."""
    vector_NJ = shard.state["vector"]
    shard.state["score"] = (vector_NJ @ gap_J.to(vector_NJ)).div_(shard.state["sigma"].to(vector_NJ.dtype))
    shard.state["noted"] = torch.zeros(len(vector_NJ), dtype=torch.bool, device=vector_NJ.device)


def ahead(near: Near, slack: float, shard: Shard) -> tuple[Row, int]:
    """The highest in full of the rows that are high by their sketch; rows that may be higher are noted, and counted."""
    state, sketch_WN = shard.state, shard.state["sketch"]
    near_N = torch.addmv(state["score"], sketch_WN.T, near.along_W.to(sketch_WN), beta=near.share)
    places = near_N.topk(min(LISTED, len(near_N)), sorted=False).indices
    some_TJ = state["vector"].index_select(0, places)
    score_T = (some_TJ @ near.gap_J.to(some_TJ)).double() / state["sigma"][places]
    at = places[_front(shard.ids[places], score_T, slack)[0]]
    top = float(score_T.max())
    state["noted"] |= near_N.add_(state["tail"], alpha=near.rest) >= floor(top, slack, rounding(shard) * near.size)
    return _row_at(shard, at, top), int(state["noted"].sum())


def fronts(gap_BJ: Tensor, slack: float, shard: Shard) -> list[list[Scored]]:
    """The noted rows of this shard that may be the highest of all at each of these gaps."""
    vector_NJ, sigma_N = shard.state["vector"], shard.state["sigma"]
    places = shard.state["noted"].nonzero()[:, 0]
    table_BJ, length_B = gap_BJ.to(vector_NJ), torch.linalg.vector_norm(gap_BJ, dim=1).tolist()
    score_BT = torch.cat([table_BJ @ part_TJ.T for part_TJ in _gathered(places, shard)], 1)
    score_BT /= sigma_N[places].to(vector_NJ.dtype)
    found = []
    for score_T, gap_J, length in zip(score_BT, gap_BJ.to(shard.device), length_B):
        here = places[score_T >= floor(float(score_T.max()), slack, rounding(shard) * length)]
        exact_T = torch.cat([(part_TJ.double() * gap_J).sum(1) for part_TJ in _gathered(here, shard)])
        exact_T /= sigma_N[here]
        front = _front(shard.ids[here], exact_T, slack)
        found.append([Scored(*one) for one in zip(shard.ids[here[front]].tolist(), exact_T[front].tolist())])
    return found


def _gathered(places: Tensor, shard: Shard) -> Iterator[Tensor]:
    """The vectors of these rows, block by block."""
    for part in places.split(block(shard)):
        yield shard.state["vector"].index_select(0, part)  # several times quicker than by an index in brackets


def _front(id_T: Tensor, score_T: Tensor, slack: float) -> Tensor:
    """Places of rows tied with the highest, smaller ids first, each higher than those before it.

    Another shard may hold a higher one, so which of them are tied with that is not known here.
    """
    top = score_T.max()
    tied = (score_T >= top - slack * top.abs()).nonzero()[:, 0]
    tied = tied[id_T[tied].argsort()]
    highest = score_T[tied].cummax(0).values
    return torch.cat([tied[:1], tied[1:][highest[1:] > highest[:-1]]])


def floor(top: F, slack: float, error: F) -> F:
    """A score below this, each of the two wrong by so much, is not tied with the highest."""
    return top - slack * abs(top) - 2 * error


def rounding(shard: Shard) -> float:
    """What rounding does to a product with a row over its length, as a share of the other one's length.

    Errors add up like a walk at random; several times that is more than was seen.
    """
    vector_NJ = shard.state["vector"]
    return 2 * math.sqrt(vector_NJ.shape[1]) * torch.finfo(vector_NJ.dtype).eps


def block(shard: Shard) -> int:
    """How many rows are multiplied at a time."""
    return BLOCK if shard.device.type == "cpu" else max(1, WIDENED // shard.state["vector"].shape[1])


def _row_at(shard: Shard, place: Tensor, score: float) -> Row:
    vector_J = shard.state["vector"][place].double().cpu()
    return Row(int(shard.ids[place]), score, vector_J, float(shard.state["sigma"][place]))


def with_vector(row: Scored, shard: Shard) -> Row | None:
    _, at = shard.find(torch.tensor([row.id]))
    return _row_at(shard, at[0], row.score) if len(at) else None


def forget(shard: Shard) -> None:
    for name in ("score", "noted", "sketch", "tail"):
        shard.state.pop(name, None)
