"""Rows: ids and one column for each signal, and the algebra on columns that never multiplies factors out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import NeedError
from labelwise.signals.spec import Embedding, HeadGrad, Probs, Signal


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
    return torch.linalg.vector_norm(x, dim=1).square_()  # five times faster than einsum on two cores


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
    return _without_noise(dot(x, y).mul_(-2).add_(sq_norm(y)).add_(norm_N[:, None]), norm_N[:, None])


def sq_near(x: Column, norm_N: Tensor, y: Column) -> Tensor:
    """Squared distance (N,) of each row of x, of squared length `norm_N`, to the nearest row of y."""
    norm_M = sq_norm(y)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        gap_NM = torch.addmm(norm_M, x, y.T, alpha=-2)  # |y|^2 - 2 x.y inside the product: one pass less
    else:
        gap_NM = dot(x, y).mul_(-2).add_(norm_M)
    return _without_noise(gap_NM.amin(1).add_(norm_N), norm_N)


def _without_noise(dist: Tensor, norm: Tensor) -> Tensor:
    """Set what is below the rounding of the sum to 0, so that copies of a row are at distance 0 in any precision.

    Rows at distance 0 have equal lengths, so the length of one says how large the rounding is.
    """
    return dist.masked_fill_(dist <= norm * (16 * torch.finfo(dist.dtype).eps), 0.0)
