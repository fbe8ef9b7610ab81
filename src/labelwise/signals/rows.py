"""Rows: ids with one column for each signal, and products and distances of columns that never expand factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError, NumericsError
from labelwise.io.values import storable
from labelwise.signals.basis import basis_features
from labelwise.signals.spec import Basis, DualEmbedding, HeadGrad, MeanGrad, Signal


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
CACHED = 1 << 18  # numbers of a temporary that fits into the cache


@storable
class Rows:
    """Some rows: `ids` (n,) and, for each declared signal, a column whose first axis is the rows.

    A signal with parts (`HeadGrad` of `Probs` and `Embedding`) is computed on access and for these rows only, so it
    takes memory for a block and not for the pool.
    """

    def __init__(self, ids: Tensor, columns: Mapping[Signal, Tensor]):
        self.ids = ids
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, signal: Signal) -> Column:
        if signal in self.columns:
            return self.columns[signal]
        if not isinstance(signal, Signal):
            raise ArgumentError(f"rows are indexed by a signal, such as rows[Embedding()]; found {signal!r}")
        if all(part in self.columns for part in signal.stored()):
            parts = [self.columns[part] for part in signal.stored()]
            if isinstance(signal, HeadGrad):
                return _head_grad(*parts)
            if isinstance(signal, MeanGrad):
                return Factored(parts[0] - parts[1], parts[2])
            if isinstance(signal, DualEmbedding):
                return Factored(parts[0][:, None], parts[1])
            if isinstance(signal, Basis):
                return basis_features(signal, parts[0])
        declared = ", ".join(repr(known) for known in self.columns) or "none"
        raise NeedError(
            f"these rows have no column {signal!r}; they have: {declared}. Add it to the `needs` of the strategy."
        )

    def tensor(self, signal: Signal) -> Tensor:
        """The column of a signal that is one tensor; NeedError for one that is stored as two factors."""
        column = self[signal]
        if isinstance(column, Factored):
            raise NeedError(f"{signal!r} is stored as two factors; use sq_norm, dot and sq_dist on rows[...]")
        return column

    def take(self, positions: Tensor | slice) -> Rows:
        """The rows at these positions of this block."""
        return Rows(self.ids[positions], {s: c[positions] for s, c in self.columns.items()})

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        return Rows(self.ids.to(device), {s: c.to(device) for s, c in self.columns.items()})


def _head_grad(probs_NC: Tensor, embedding_ND: Tensor) -> Factored:
    """The gradient of cross-entropy at the most probable class by the last layer: the factors p - e_argmax and h."""
    left_NC = probs_NC.clone()
    top_N1 = probs_NC.argmax(1, keepdim=True)
    left_NC.scatter_add_(1, top_N1, torch.full_like(top_N1, -1, dtype=probs_NC.dtype))
    return Factored(left_NC, embedding_ND)


def take_rows(x: Column, positions: Tensor) -> Column:
    """The rows of a column at these positions."""
    return Factored(x.left[positions], x.right[positions]) if isinstance(x, Factored) else x[positions]


def sq_norm(x: Column) -> Tensor:
    """Squared Euclidean length of each row (N,)."""
    if isinstance(x, Factored):
        return sq_norm(x.left) * sq_norm(x.right)
    # Exact on whole numbers, unlike the square of a norm; in parts that stay in the cache of a processor.
    if x.device.type != "cpu":
        return (x * x).sum(1)
    return torch.cat([(part * part).sum(1) for part in x.split(max(1, CACHED // max(1, x.shape[1])))])


def checked_norm(rows: Rows, signal: Signal) -> Tensor:
    """`sq_norm`; NumericsError where squares overflow or underflow, so that distances would be wrong."""
    column = rows[signal]
    total_N: Tensor | None = None
    for x in (column.left, column.right) if isinstance(column, Factored) else (column,):
        norm_N, range_ = sq_norm(x), torch.finfo(x.dtype)
        total_N = norm_N if total_N is None else total_N * norm_N
        top = float(norm_N.max())
        # Squares this small have lost bits; columns of zeros are exact.
        if not top <= range_.max / 8 or (top < range_.tiny * 2**24 and bool(x.any())):
            row = int(norm_N.nan_to_num(torch.inf, torch.inf).argmax())
            raise NumericsError(
                f"{signal.array} ({signal!r}): squared lengths are outside the range of {x.dtype} (the longest row, id "
                f"{int(rows.ids[row])}, has {top:.3g}). Divide the values by a constant, or pass them as float64."
            )
    assert total_N is not None, "a column has at least one factor"
    return total_N


def dot(x: Column, y: Column) -> Tensor:
    """Inner product of each row of x with each row of y (N, M)."""
    if isinstance(x, Factored) and isinstance(y, Factored):
        return (x.left @ y.left.T).mul_(x.right @ y.right.T)
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return x @ y.T


def sq_dist(x: Column, y: Column, norm_N: Tensor | None = None, norm_M: Tensor | None = None) -> Tensor:
    """Squared Euclidean distance of each row of x to each row of y (N, M), as |x|^2 + |y|^2 - 2 x.y.

    `norm_N` and `norm_M` are their squared lengths, where they are known.
    """
    norm_N = sq_norm(x) if norm_N is None else norm_N
    dist_NM = dot(x, y).mul_(-2).add_(sq_norm(y) if norm_M is None else norm_M).add_(norm_N[:, None])
    return _without_noise(dist_NM, norm_N[:, None], _width(x))


def sq_near(x: Column, norm_N: Tensor, y: Column) -> Tensor:
    """Squared distance (N,) of each row of x, of squared length `norm_N`, to the nearest row of y."""
    norm_M = sq_norm(y)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        gap_NM = torch.addmm(norm_M, x, y.T, alpha=-2)  # |y|^2 - 2 x.y in one pass
    else:
        gap_NM = dot(x, y).mul_(-2).add_(norm_M)
    return _without_noise(gap_NM.amin(1).add_(norm_N), norm_N, _width(x))


def _width(x: Column) -> int:
    return max(x.left.shape[1], x.right.shape[1]) if isinstance(x, Factored) else x.shape[1]


def _without_noise(dist: Tensor, norm: Tensor, width: int) -> Tensor:
    """Set distances below the rounding error of the sum to 0, so that copies of a row are at distance 0.

    Rows at distance 0 have equal lengths, so the length of one bounds the error; the error of a sum grows with the
    root of its number of terms.
    """
    noise = (16 + 2 * width**0.5) * torch.finfo(dist.dtype).eps
    return dist.masked_fill_(dist <= norm * noise, 0.0)
