"""Fisher information of the last layer as one thin factor for each row, and how much a row would lower tr(M^-1 F).

The information of a row with probabilities p and embedding h is (diag p - p p^T) x h h^T = V^T V, of rank C - 1. The
factor used here needs no decomposition: with b_j = p_0 + .. + p_(j-1),

    v_j = sqrt(p_j b_j / (b_j + p_j)) (e_j - sum over i < j of (p_i / b_j) e_i) x h,    j = 1 .. C - 1

class j against the mean of the classes before it (Tanabe and Sagae 1992 have the Cholesky factor): V = A x h with A
(r, C). V Y for a matrix Y of C x D rows is A times h Y. In regression V = h.

Each row has P = V M^-1 V^T and Q = V M^-1 F M^-1 V^T, (r, r) each. Adding a row with factor U, M becomes M + U^T U:

    Z = M^-1 U^T (I + P_U)^(-1/2),   z = V Z,   t = V M^-1 F Z,   S = Z^T F Z
    M^-1 -= Z Z^T,    P -= z z^T,    Q -= z t^T + t z^T - z S z^T = z w^T + w z^T    with w = t - z S / 2

and removing one is the same with the signs of a difference. All in float64. design.py has M, kernels/torch.py the rows.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.io.values import storable
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Probs

PROBS = Probs()
EMBEDDING = Embedding()
ADD, REMOVE = -1, 1  # the sign of the change of M^-1
ROUNDING = 1e-13  # relative error of a trace, rounded up
TINY = torch.finfo(torch.float64).tiny
CPU_CACHE_BYTES = 3_000_000


@dataclass(frozen=True)
class RowReader:
    """Reads rows as factors: classes that stay separate, and the projection of embeddings.

    Args:
        classes: number of classes; 1 in regression.
        width: columns of the embedding, after projection.
        regress: whether the model predicts numbers.
        separate: the classes that stay separate, the others become one; None where all stay separate.
        projection_DE: the projection of embeddings, or None.
    """

    classes: int
    width: int
    regress: bool
    separate: Tensor | None = None
    projection_DE: Tensor | None = None

    @property
    def rank(self) -> int:
        """Rows of a factor."""
        return 1 if self.regress else self.classes - 1

    def embeddings(self, rows: Rows) -> Tensor:
        """The projected embeddings (N, D) of a block of rows, in float64."""
        h_ND = rows.tensor(EMBEDDING).double()
        return h_ND if self.projection_DE is None else h_ND @ self.projection_DE.to(h_ND.device)

    def read(self, rows: Rows) -> Factors:
        """Probabilities and embeddings of a block of rows."""
        h_ND = self.embeddings(rows)
        if self.regress:
            return Factors(None, h_ND)
        p_NC = rows.tensor(PROBS).double()
        p_NC = p_NC / p_NC.sum(1, keepdim=True)
        if self.separate is not None:
            separate_NK = p_NC[:, self.separate.to(p_NC.device)]
            p_NC = torch.cat([separate_NK, (1 - separate_NK.sum(1, keepdim=True)).clamp_min(0)], 1)
        elif p_NC.shape[1] == 1:
            p_NC = torch.cat([p_NC, torch.zeros_like(p_NC)], 1)  # a second class of probability 0
        return Factors(p_NC, h_ND)

    def information(self, shards: Shards) -> Tensor:
        """The sum of V^T V over all rows (C D, C D), on the CPU."""
        size = self.classes * self.width
        if not shards.n:
            return torch.zeros(size, size, dtype=torch.float64)
        total: Tensor = shards.sum(functools.partial(_information, self))
        return total


def _information(reader: RowReader, shard: Shard) -> Tensor:
    width = reader.width
    size = reader.classes * width
    total_GG = torch.zeros(size, size, dtype=torch.float64, device=shard.device)
    for _, rows in shard.blocks(scratch=4 * size):
        p_NC, h_ND = reader.read(rows)
        both_NG = h_ND if p_NC is None else (p_NC[:, :, None] * h_ND[:, None, :]).flatten(1)
        for c in range(reader.classes):
            part, stop = slice(c * width, (c + 1) * width), (c + 1) * width
            total_GG[part, part] += both_NG[:, part].T @ h_ND
            if p_NC is not None:
                total_GG[part, :stop] -= both_NG[:, part].T @ both_NG[:, :stop]
    diagonal_GG: Tensor = torch.block_diag(*[torch.ones(width, width, dtype=torch.float64)] * reader.classes)
    total_GG = total_GG.cpu()
    return total_GG + total_GG.T * (1 - diagonal_GG)


class Factors(NamedTuple):
    """The factors V of a block of rows, not multiplied out: probabilities and embeddings."""

    p_NC: Tensor | None  # None in regression
    h_ND: Tensor

    @property
    def classes(self) -> int:
        return 1 if self.p_NC is None else self.p_NC.shape[1]

    @property
    def rank(self) -> int:
        return max(1, self.classes - 1)

    def part(self, index: slice | Tensor) -> Factors:
        """Some rows of the block."""
        return Factors(None if self.p_NC is None else self.p_NC[index], self.h_ND[index])

    def over_classes(self) -> Tensor:
        """A (N, r, C), the part of the factors that is about classes; the other part is h."""
        if self.p_NC is None:
            return self.h_ND.new_ones(len(self.h_ND), 1, 1)
        before_Nr = self.p_NC.cumsum(1)[:, :-1]
        after_Nr = self.p_NC[:, 1:]
        size_Nr = (after_Nr * before_Nr / (after_Nr + before_Nr).clamp_min(TINY)).sqrt()
        share_Nr = size_Nr / before_Nr.clamp_min(TINY)  # where no class came before, the size is 0 too
        a_NrC = (-share_Nr[:, :, None] * self.p_NC[:, None, :]).tril_()
        a_NrC.diagonal(1, 1, 2).copy_(size_Nr)
        return a_NrC

    def quadratic(self, matrix_GG: Tensor) -> Tensor:
        """V B V^T (N, r, r) for a symmetric B (C D, C D)."""
        n, width = self.h_ND.shape
        inner_NCC = self.h_ND.new_empty(n, self.classes, self.classes)
        for c in range(self.classes):
            stop = (c + 1) * width  # the rest follows by symmetry
            y_NCD = (self.h_ND @ matrix_GG[c * width : stop, :stop]).reshape(n, c + 1, width)
            inner_NCC[:, c, : c + 1] = (y_NCD @ self.h_ND[:, :, None])[:, :, 0]
            inner_NCC[:, :c, c] = inner_NCC[:, c, :c]
        a_NrC = self.over_classes()
        return a_NrC @ inner_NCC @ a_NrC.transpose(1, 2)

    def to(self, device: torch.device) -> Factors:
        """The same rows on `device`."""
        return Factors(None if self.p_NC is None else self.p_NC.to(device), self.h_ND.to(device))

    def explicit(self) -> Tensor:
        """The factors themselves (N, r, C D)."""
        return (self.over_classes()[:, :, :, None] * self.h_ND[:, None, None, :]).flatten(2)


def concatenate(blocks: Sequence[Factors]) -> Factors:
    """The rows of several blocks as one block."""
    probs = [factors.p_NC for factors in blocks if factors.p_NC is not None]
    return Factors(torch.cat(probs) if probs else None, torch.cat([factors.h_ND for factors in blocks]))


def rows_in_cache(classes: int) -> int:
    """Rows for which `Update.apply` works inside the cache of a CPU core."""
    rank = max(1, classes - 1)
    return max(32, CPU_CACHE_BYTES // (16 * rank * (classes + 2 * rank)))


@storable
class Update:
    """The change of P and Q of other rows when one row is added (sign -1) or removed (+1)."""

    def __init__(self, z_Gr: Tensor, w_Gr: Tensor, classes: int, sign: int):
        self.rank, self.classes, self.sign = z_Gr.shape[1], classes, sign
        # By columns of the embedding: one product of h with all of it is z and w of every class.
        both_G2r = torch.cat([z_Gr, w_Gr], 1).reshape(classes, -1, 2 * self.rank)
        self.both_DC2r = both_G2r.transpose(0, 1).reshape(-1, classes * 2 * self.rank)

    def to(self, device: torch.device) -> Update:
        """The same update for rows on `device`."""
        copied = copy.copy(self)
        copied.both_DC2r = self.both_DC2r.to(device)
        return copied

    def apply(self, factors: Factors, p_Nrr: Tensor, q_Nrr: Tensor) -> None:
        """Update P and Q of these rows in place."""
        y_NC2r = (factors.h_ND @ self.both_DC2r).reshape(-1, self.classes, 2 * self.rank)
        both_Nr2r = y_NC2r if factors.p_NC is None else factors.over_classes() @ y_NC2r
        z, w = both_Nr2r[:, :, : self.rank], both_Nr2r[:, :, self.rank :]
        p_Nrr.baddbmm_(z, z.transpose(1, 2), alpha=self.sign)
        cross = z @ w.transpose(1, 2)
        q_Nrr.add_(cross, alpha=self.sign).add_(cross.transpose(1, 2), alpha=self.sign)


def trace_change(p_Nrr: Tensor, q_Nrr: Tensor, sign: int) -> Tensor:
    """How far tr(M^-1 F) falls when a row is added (sign -1), or rises when it is removed (+1): (N,)."""
    eye_rr = torch.eye(p_Nrr.shape[-1], dtype=torch.float64, device=p_Nrr.device)
    solved_Nrr: Tensor = torch.linalg.solve(eye_rr - sign * p_Nrr, q_Nrr)
    return solved_Nrr.diagonal(dim1=1, dim2=2).sum(1)


def traces(p_Nrr: Tensor, q_Nrr: Tensor) -> Tensor:
    """tr P and tr Q (N, 2)."""
    return torch.stack([one.diagonal(dim1=1, dim2=2).sum(1) for one in (p_Nrr, q_Nrr)], 1)


def gain_bounds(p_Nrr: Tensor, q_Nrr: Tensor) -> tuple[Tensor, Tensor]:
    """A lower and an upper bound (N,) of `trace_change` for a row that is added, without solving.

    1 / (1 + x) is convex: Jensen gives the lower one, the chord from 0 to |P| the upper one.
    """
    trace_N = q_Nrr.diagonal(dim1=1, dim2=2).sum(1)
    cross_N = torch.linalg.vecdot(p_Nrr.flatten(1), q_Nrr.flatten(1))
    largest_N = torch.linalg.vector_norm(p_Nrr.flatten(1), dim=1)
    lower_N = trace_N * (trace_N / (trace_N + cross_N)).nan_to_num(0.0)
    return lower_N, trace_N - cross_N / (1 + largest_N) + ROUNDING * trace_N


def rise_bound(p_Nrr: Tensor, q_Nrr: Tensor) -> Tensor:
    """A lower bound (N,) of `trace_change` for a row that is removed: 1 / (1 - x) is convex, and at least 1."""
    trace_N = q_Nrr.diagonal(dim1=1, dim2=2).sum(1)
    rest_N = trace_N - torch.linalg.vecdot(p_Nrr.flatten(1), q_Nrr.flatten(1))
    return torch.where(rest_N > 0, trace_N.square() / rest_N, trace_N)


def future_gain_bounds(p_Nrr: Tensor, q_Nrr: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Two upper bounds (N,) of the gain of a row, now and after any other rows are added.

    Let l >= every eigenvalue of M^-1 F, and M' >= M after more rows. Then Q' <= l' P' and P' <= P, so that

        gain' = tr (I + P')^-1 Q' <= l' tr (I + P')^-1 P' <= l' tr (I + P)^-1 P         the first number, without l'

    And with B = F^(1/2) M^(-1/2), y = M^(-1/2) V^T and K = M^(1/2) M'^-1 M^(1/2), where |B|^2 <= l and 0 <= K <= I:
    K = (I + R) / 2 with |R| <= 1, so that the second bounds it as well:

        gain' <= tr Q' = |B K y|^2 <= (|B y| + |B| |y|)^2 / 4 = (sqrt(tr Q) + sqrt(l tr P))^2 / 4
    """
    rank = p_Nrr.shape[-1]
    eye_rr = torch.eye(rank, dtype=torch.float64, device=p_Nrr.device)
    factor_Nrr, failed_N = torch.linalg.cholesky_ex(eye_rr + p_Nrr)
    left_N = torch.cholesky_inverse(factor_Nrr).diagonal(dim1=1, dim2=2).sum(1)
    p_N, q_N = traces(p_Nrr, q_Nrr).clamp_min(0).unbind(1)
    # rank - tr (I + P)^-1 has lost digits where P is small; tr P is above it everywhere.
    first_N = torch.where(failed_N == 0, torch.minimum(rank - left_N + ROUNDING * rank, p_N), p_N)
    return first_N, (q_N.sqrt() + (largest * p_N).sqrt()).square() / 4
