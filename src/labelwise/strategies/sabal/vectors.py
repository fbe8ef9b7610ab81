"""The vectors g_j of the rows, from gradients or from losses under draws, and products with them.

A vector is stored as two factors: left x right is (p - q) h^T for gradients, and 1 x g for losses under draws, so it is
a matrix (A, B) that is never built.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from labelwise.selection.backends import is_accelerator
from labelwise.shards import Shard
from labelwise.signals.rows import Factored, Rows, checked_norm, sq_norm
from labelwise.signals.spec import Embedding, HeadGrad, LabelProbs, LogProbs, MeanGrad, Probs

TINY = 1e-300
LEAST_LOG_PROB = math.log(1e-12)  # a draw that rules a class out must not decide about the row
ROUNDING = 32  # probabilities this many units in their last place apart are the same, computed in another way
BLOCK, DEVICE_BLOCK = 1 << 20, 1 << 25  # numbers in a block of losses


class Vectors(ABC):
    """What the vector g of a row is, and its sigma."""

    same: ClassVar[str]  # why every vector is zero, where `is_same` is true of all rows

    @property
    @abstractmethod
    def zero(self) -> str:
        """Why every vector is zero, where `is_same` is false of some row."""

    @abstractmethod
    def prepare(self, shard: Shard) -> Tensor:
        """Store sigma and |g| of each row, both (n,) float64. Returns the sum of the g (A, B) in float64."""

    @abstractmethod
    def is_same(self, shard: Shard) -> bool:
        """Whether the values whose differences make up g are equal in every row, up to rounding."""

    @abstractmethod
    def blocks(self, shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Factored]]:
        """The vectors of all rows, block by block, in the precision of the shard."""

    @abstractmethod
    def take(self, shard: Shard, positions: Tensor) -> Factored:
        """The vectors of the rows at these positions."""


@dataclass(frozen=True)
class Gradients(Vectors):
    """g = (p - q) h^T, the gradient by the last layer's weights expected under q, or that at the most probable class;
    sigma from q and |h| alone.
    """

    grad: MeanGrad | HeadGrad

    same = "label_probs equal probs"

    @property
    def zero(self) -> str:
        other = "label_probs differ from probs" if isinstance(self.grad, MeanGrad) else "probs are not certain"
        return f"the embedding is zero wherever {other}"

    def prepare(self, shard: Shard) -> Tensor:
        sigma_N = torch.empty(len(shard), dtype=torch.float64, device=shard.device)
        length_N = torch.empty_like(sigma_N)
        total: Tensor | None = None
        width = shard.columns[Embedding()].shape[1]
        if is_accelerator(shard.device):  # read hundreds of times there, where p and q are twice as many numbers
            shard.state["left"] = torch.empty_like(shard.columns[LabelProbs()], dtype=shard.dtype)
        for where, rows in shard.blocks(scratch=4 * width):
            checked_norm(rows, Embedding())
            exact = self._of(rows)
            if "left" in shard.state:
                shard.state["left"][where] = exact.left
            q_NC, g = rows.tensor(LabelProbs()).double(), wide(exact)
            h_N = sq_norm(g.right).sqrt()
            # |g(y) - E g| = |q - e_y| |h|
            gap_NC = (1 - 2 * q_NC + sq_norm(q_NC)[:, None]).clamp_(min=0).sqrt_()
            sigma_N[where] = (q_NC * gap_NC).sum(1) * h_N
            length_N[where] = sq_norm(g.left).sqrt() * h_N
            here = g.left.T @ g.right
            total = here if total is None else total + here
        shard.state["sigma"], shard.state["length"] = sigma_N, length_N
        assert total is not None, "shards are never empty"
        return total

    def is_same(self, shard: Shard) -> bool:
        if isinstance(self.grad, HeadGrad):
            return False
        near = ROUNDING * torch.finfo(shard.dtype).eps
        pairs = ((rows.tensor(Probs()), rows.tensor(LabelProbs())) for _, rows in shard.blocks())
        return all(bool(((p_NC - q_NC).abs() <= near * torch.maximum(p_NC, q_NC)).all()) for p_NC, q_NC in pairs)

    def blocks(self, shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Factored]]:
        left_NC = shard.state.get("left")
        for where, rows in shard.blocks(scratch):
            yield where, self._of(rows) if left_NC is None else Factored(left_NC[where], rows.tensor(Embedding()))

    def take(self, shard: Shard, positions: Tensor) -> Factored:
        return self._of(shard.rows(positions))

    def _of(self, rows: Rows) -> Factored:
        column = rows[self.grad]
        assert isinstance(column, Factored), "stored as two factors"
        return column


@dataclass(frozen=True)
class Losses(Vectors):
    """g[i] = the loss under draw i less its mean over draws, expected under the mean prediction of the draws."""

    draws: LogProbs

    same = "every draw gives the same loss"
    zero = same

    def prepare(self, shard: Shard) -> Tensor:
        count, classes = shard.columns[self.draws].shape[1:]
        sigma_N = torch.empty(len(shard), dtype=torch.float64, device=shard.device)
        length_N = torch.empty_like(sigma_N)
        mean_NK = torch.empty(len(shard), count, dtype=shard.dtype, device=shard.device)
        total_K = sigma_N.new_zeros(count)
        for where, rows in shard.blocks(scratch=8 * count * classes):
            log_NKC = rows.tensor(self.draws).double()
            q_NC = log_NKC.exp().mean(1)
            log_NKC = log_NKC.clamp(min=LEAST_LOG_PROB)
            loss_NKC = log_NKC[:, :1] - log_NKC  # less the first draw's: exactly zero where all draws are the same
            loss_NKC -= loss_NKC.mean(1, keepdim=True)
            mean_NK[where] = torch.bmm(loss_NKC, q_NC[:, :, None])[:, :, 0].to(shard.dtype)
            g_NK = mean_NK[where].double()  # as it is stored
            loss_NKC -= g_NK[:, :, None]
            sigma_N[where] = (loss_NKC.square_().sum(1).sqrt_() * q_NC).sum(1)
            length_N[where] = sq_norm(g_NK).sqrt()
            total_K += g_NK.sum(0)
        shard.state["sigma"], shard.state["length"], shard.state["mean"] = sigma_N, length_N, mean_NK
        return total_K[None]

    def is_same(self, shard: Shard) -> bool:
        return not bool(shard.state["length"].any())

    def blocks(self, shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Factored]]:
        mean_NK = shard.state["mean"]
        budget = DEVICE_BLOCK if is_accelerator(shard.device) else BLOCK
        step = max(64, budget // (mean_NK.shape[1] + scratch))
        for start in range(0, len(shard), step):
            where = slice(start, min(start + step, len(shard)))
            yield where, _row_of(mean_NK[where])

    def take(self, shard: Shard, positions: Tensor) -> Factored:
        return _row_of(shard.state["mean"][positions])


def wide(x: Factored) -> Factored:
    """The same rows in float64."""
    return Factored(x.left.double(), x.right.double())


def joined(parts: list[Factored]) -> Factored:
    """The rows of all parts."""
    # One block is a view of the stored columns.
    if len(parts) == 1:
        return parts[0]
    return Factored(torch.cat([one.left for one in parts]), torch.cat([one.right for one in parts]))


def forward(x: Factored, r_AB: Tensor) -> Tensor:
    """<x_j, R> for each row (n,), computed in the precision of the rows, returned in that of R."""
    if x.right.dtype == r_AB.dtype:
        return (r_AB @ x.right.T).mul_(x.left.T).sum(0)  # few lines first: quicker on a CPU than few columns
    size: Tensor = torch.linalg.vector_norm(r_AB).clamp(min=TINY)  # at length one nothing underflows
    return forward(x, (r_AB / size).to(x.right.dtype)).to(r_AB.dtype) * size


def adjoint(x: Factored, u_N: Tensor) -> Tensor:
    """sum_j u_j x_j, a matrix (A, B), computed in the precision of the rows, returned in that of u."""
    if x.right.dtype == u_N.dtype:
        return (x.left * u_N[:, None]).T @ x.right
    size: Tensor = torch.linalg.vector_norm(u_N).clamp(min=TINY)
    return adjoint(x, (u_N / size).to(x.right.dtype)).to(u_N.dtype) * size


def _row_of(mean_NK: Tensor) -> Factored:
    return Factored(mean_NK.new_ones(len(mean_NK), 1), mean_NK)
