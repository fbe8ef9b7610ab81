"""The two forms of a sparse approximation: what a row's vector is, from gradients or from losses under draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from labelwise.shards import Shard
from labelwise.signals.rows import Factored, Rows, checked_norm, sq_norm
from labelwise.signals.spec import Embedding, HeadGrad, LabelProbs, LogProbs, MeanGrad, Probs

LEAST = math.log(1e-12)  # a draw that rules a class out does not rule the row
ROUNDED = 32  # probabilities this many units in their last place apart are the same ones, computed in another way
BLOCK, DEVICE_BLOCK = 1 << 20, 1 << 25  # numbers of a block of losses


class Form(ABC):
    """What a row's vector g is, and its sigma."""

    still: ClassVar[str]  # said where `is_still` is true of all rows

    @property
    @abstractmethod
    def zero(self) -> str:
        """Said where every vector is zero for another reason."""

    @abstractmethod
    def begin(self, shard: Shard) -> Tensor:
        """Keep sigma and |g| of each row, both (n,) float64; the sum of the g (A, B) in float64."""

    @abstractmethod
    def is_still(self, shard: Shard) -> bool:
        """Whether what makes a vector is zero in every row, but for rounding."""

    @abstractmethod
    def blocks(self, shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Factored]]:
        """The vectors of all rows, block by block, in the precision of the shard."""

    @abstractmethod
    def at(self, shard: Shard, positions: Tensor) -> Factored:
        """The vectors of the rows at these positions."""


@dataclass(frozen=True)
class Gradients(Form):
    """g = (p - q) h^T, the gradient by the last layer's weights expected under q, or that at the most probable class;
    sigma from q and |h| alone.
    """

    grad: MeanGrad | HeadGrad

    still = "label_probs equal probs"

    @property
    def zero(self) -> str:
        other = "label_probs differ from probs" if isinstance(self.grad, MeanGrad) else "probs are not certain"
        return f"the embedding is zero wherever {other}"

    def begin(self, shard: Shard) -> Tensor:
        sigma_N = torch.empty(len(shard), dtype=torch.float64, device=shard.device)
        length_N = torch.empty_like(sigma_N)
        total: Tensor | None = None
        width = shard.columns[Embedding()].shape[1]
        if shard.device.type == "cuda":  # read hundreds of times there, where p and q are twice as many numbers
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

    def is_still(self, shard: Shard) -> bool:
        if isinstance(self.grad, HeadGrad):
            return False
        near = ROUNDED * torch.finfo(shard.dtype).eps
        pairs = ((rows.tensor(Probs()), rows.tensor(LabelProbs())) for _, rows in shard.blocks())
        return all(bool(((p_NC - q_NC).abs() <= near * torch.maximum(p_NC, q_NC)).all()) for p_NC, q_NC in pairs)

    def blocks(self, shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Factored]]:
        left_NC = shard.state.get("left")
        for where, rows in shard.blocks(scratch):
            yield where, self._of(rows) if left_NC is None else Factored(left_NC[where], rows.tensor(Embedding()))

    def at(self, shard: Shard, positions: Tensor) -> Factored:
        return self._of(shard.rows(positions))

    def _of(self, rows: Rows) -> Factored:
        column = rows[self.grad]
        assert isinstance(column, Factored), "kept as two factors"
        return column


@dataclass(frozen=True)
class Losses(Form):
    """g[i] = the loss under draw i less its mean over draws, expected under the mean prediction of the draws."""

    draws: LogProbs

    still = "every draw gives the same loss"
    zero = still

    def begin(self, shard: Shard) -> Tensor:
        count, classes = shard.columns[self.draws].shape[1:]
        sigma_N = torch.empty(len(shard), dtype=torch.float64, device=shard.device)
        length_N = torch.empty_like(sigma_N)
        mean_NK = torch.empty(len(shard), count, dtype=shard.dtype, device=shard.device)
        total_K = sigma_N.new_zeros(count)
        for where, rows in shard.blocks(scratch=8 * count * classes):
            log_NKC = rows.tensor(self.draws).double()
            q_NC = log_NKC.exp().mean(1)
            log_NKC = log_NKC.clamp(min=LEAST)
            loss_NKC = log_NKC[:, :1] - log_NKC  # beside the first draw's: exactly zero where all draws are the same
            loss_NKC -= loss_NKC.mean(1, keepdim=True)
            mean_NK[where] = torch.bmm(loss_NKC, q_NC[:, :, None])[:, :, 0].to(shard.dtype)
            g_NK = mean_NK[where].double()  # as it is kept
            loss_NKC -= g_NK[:, :, None]
            sigma_N[where] = (loss_NKC.square_().sum(1).sqrt_() * q_NC).sum(1)
            length_N[where] = sq_norm(g_NK).sqrt()
            total_K += g_NK.sum(0)
        shard.state["sigma"], shard.state["length"], shard.state["mean"] = sigma_N, length_N, mean_NK
        return total_K[None]

    def is_still(self, shard: Shard) -> bool:
        return not bool(shard.state["length"].any())

    def blocks(self, shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Factored]]:
        mean_NK = shard.state["mean"]
        budget = BLOCK if shard.device.type == "cpu" else DEVICE_BLOCK
        step = max(64, budget // (mean_NK.shape[1] + scratch))
        for start in range(0, len(shard), step):
            where = slice(start, min(start + step, len(shard)))
            yield where, _row_of(mean_NK[where])

    def at(self, shard: Shard, positions: Tensor) -> Factored:
        return _row_of(shard.state["mean"][positions])


def wide(x: Factored) -> Factored:
    """The same rows in float64."""
    return Factored(x.left.double(), x.right.double())


def _row_of(mean_NK: Tensor) -> Factored:
    return Factored(mean_NK.new_ones(len(mean_NK), 1), mean_NK)
