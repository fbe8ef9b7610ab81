"""Rows: ids and one column for each signal, and the algebra on columns that never multiplies factors out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import NeedError, NumericsError
from labelwise.signals.basis import basis_features
from labelwise.signals.spec import Basis, DualEmbedding, Duals, Embedding, HeadGrad, LabelProbs, MeanGrad, Probs, Signal


@dataclass(frozen=True)
class Factored:
    """Row i is the outer product left[i] x right[i], a vector of length A B that is never built."""

    left: Tensor  # (N, A)
    right: Tensor  # (N, B)

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, index: Tensor | slice) -> Factored:
        return Factored(self.left[index], self.right[index])


Column = Tensor | Factored
CACHED = 1 << 18  # numbers of a temporary that is read again at once


class Rows:
    """Some rows: `ids` (n,) and, for each declared signal, a column whose first axis is the rows.

    A signal that is computed from stored ones (`HeadGrad` from `Probs` and `Embedding`) is computed when asked for,
    for these rows only, so it costs a block of memory and not a pool of it.
    """

    def __init__(self, ids: Tensor, columns: Mapping[Signal, Tensor]):
        self.ids = ids
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, signal: Signal) -> Column:
        if signal in self.columns:
            return self.columns[signal]
        if isinstance(signal, HeadGrad) and set(signal.stored()) <= set(self.columns):
            return _head_grad(self.columns[Probs()], self.columns[Embedding()])
        if isinstance(signal, MeanGrad) and set(signal.stored()) <= set(self.columns):
            return Factored(self.columns[Probs()] - self.columns[LabelProbs()], self.columns[Embedding()])
        if isinstance(signal, DualEmbedding) and set(signal.stored()) <= set(self.columns):
            return Factored(self.columns[Duals()][:, None], self.columns[Embedding()])
        if isinstance(signal, Basis) and set(signal.stored()) <= set(self.columns):
            return basis_features(signal, self.columns[signal.stored()[0]])
        declared = ", ".join(repr(known) for known in self.columns) or "none"
        raise NeedError(
            f"{signal!r} was asked of rows that do not hold it; they hold: {declared}. "
            "Add it to the `needs` of the strategy."
        )

    def tensor(self, signal: Signal) -> Tensor:
        """The column of a signal that is one tensor."""
        column = self[signal]
        if isinstance(column, Factored):
            raise NeedError(f"{signal!r} is kept as two factors; use sq_norm, dot and sq_dist on rows[...]")
        return column

    def take(self, positions: Tensor | slice) -> Rows:
        """The rows at these positions (positions exist only inside a block)."""
        return Rows(self.ids[positions], {s: c[positions] for s, c in self.columns.items()})

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        return Rows(self.ids.to(device), {s: c.to(device) for s, c in self.columns.items()})


def _head_grad(probs_NC: Tensor, embedding_ND: Tensor) -> Factored:
    """(p - e_argmax) and h: Fact A of the gradient of cross-entropy by the last layer's weights."""
    left_NC = probs_NC.clone()
    top_N1 = probs_NC.argmax(1, keepdim=True)
    left_NC.scatter_add_(1, top_N1, torch.full_like(top_N1, -1, dtype=probs_NC.dtype))
    return Factored(left_NC, embedding_ND)


def sq_norm(x: Column) -> Tensor:
    """Squared Euclidean length of each row (N,)."""
    if isinstance(x, Factored):
        return sq_norm(x.left) * sq_norm(x.right)
    # Exact on whole numbers, unlike the square of a norm; in parts whose squares stay in the cache of a processor.
    if x.device.type != "cpu":
        return (x * x).sum(1)
    return torch.cat([(part * part).sum(1) for part in x.split(max(1, CACHED // max(1, x.shape[1])))])


def checked_norm(rows: Rows, signal: Signal) -> Tensor:
    """`sq_norm`, or NumericsError when squares leave the range of the number type: distances would be a guess."""
    column = rows[signal]
    for x in (column.left, column.right) if isinstance(column, Factored) else (column,):
        norm_N, range_ = sq_norm(x), torch.finfo(x.dtype)
        top = float(norm_N.max())
        # Squares this small have lost bits already; rows of zeros only are small for good reason.
        if not top <= range_.max / 8 or (top < range_.tiny * 2**24 and bool(x.any())):
            row = int(norm_N.nan_to_num(torch.inf, torch.inf).argmax())
            raise NumericsError(
                f"{signal.array} ({signal!r}): squared lengths leave the range of {x.dtype} (the longest row, id "
                f"{int(rows.ids[row])}, has {top:.3g}). Divide the values by a constant, or pass them as float64."
            )
    return sq_norm(column)


def dot(x: Column, y: Column) -> Tensor:
    """Inner product of each row of x with each row of y (N, M)."""
    if isinstance(x, Factored) and isinstance(y, Factored):
        return (x.left @ y.left.T).mul_(x.right @ y.right.T)
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return x @ y.T


def sq_dist(x: Column, y: Column) -> Tensor:
    """Squared Euclidean distance of each row of x to each row of y (N, M), as |x|^2 + |y|^2 - 2 x.y."""
    norm_N = sq_norm(x)
    dist_NM = dot(x, y).mul_(-2).add_(sq_norm(y)).add_(norm_N[:, None])
    return _without_noise(dist_NM, norm_N[:, None], _width(x))


def sq_near(x: Column, norm_N: Tensor, y: Column) -> Tensor:
    """Squared distance (N,) of each row of x, of squared length `norm_N`, to the nearest row of y."""
    norm_M = sq_norm(y)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        gap_NM = torch.addmm(norm_M, x, y.T, alpha=-2)  # |y|^2 - 2 x.y inside the product: one pass less
    else:
        gap_NM = dot(x, y).mul_(-2).add_(norm_M)
    return _without_noise(gap_NM.amin(1).add_(norm_N), norm_N, _width(x))


def _width(x: Column) -> int:
    return max(x.left.shape[1], x.right.shape[1]) if isinstance(x, Factored) else x.shape[1]


def _without_noise(dist: Tensor, norm: Tensor, width: int) -> Tensor:
    """Set what is below the rounding of the sum to 0, so that copies of a row are at distance 0 in any precision.

    Rows at distance 0 have equal lengths, so the length of one says how large the rounding is; the rounding of a sum
    grows as the root of its number of terms.
    """
    noise = (16 + 2 * width**0.5) * torch.finfo(dist.dtype).eps
    return dist.masked_fill_(dist <= norm * noise, 0.0)
