"""Fisher information of the last layer, row by row, as thin factors; and how much a row would lower tr(M^-1 F).

The information of a row with probabilities p and embedding h is (diag p - p p^T) x h h^T = V^T V, of rank C - 1. The
factor used here needs no decomposition: with b_j = p_0 + .. + p_(j-1),

    v_j = sqrt(p_j b_j / (b_j + p_j)) (e_j - sum over i < j of (p_i / b_j) e_i) x h,    j = 1 .. C - 1

class j against the mean of the classes before it (Tanabe and Sagae 1992 have the Cholesky factor): V = A x h with A
(r, C). V Y for a matrix Y of C x D rows is A times h Y. In regression V = h.

Rows keep P = V M^-1 V^T and Q = V M^-1 F M^-1 V^T, (r, r) each. Taking in a row with factor U, M becomes M + U^T U:

    Z = M^-1 U^T (I + P_U)^(-1/2),   z = V Z,   t = V M^-1 F Z,   S = Z^T F Z
    M^-1 -= Z Z^T,    P -= z z^T,    Q -= z t^T + t z^T - z S z^T = z w^T + w z^T    with w = t - z S / 2

and letting one go the same with the signs of a difference. All of it in float64; fisher_design.py has M, fisher_rows.py
the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Probs

PROBS = Probs()
EMBEDDING = Embedding()
ROUNDING = 1e-13  # of a trace, relative, with room to spare
TINY = torch.finfo(torch.float64).tiny
CACHE = 3_000_000  # bytes that stay near a core


@dataclass(frozen=True)
class Form:
    """How rows are read: classes or numbers, which classes are kept apart, and what embeddings are projected by."""

    classes: int  # 1 in regression
    width: int
    regress: bool
    kept: Tensor | None = None  # class numbers that stay apart, where the rest is one class
    projection_DE: Tensor | None = None

    @property
    def rank(self) -> int:
        """Rows of a factor."""
        return 1 if self.regress else self.classes - 1

    def columns(self, rows: Rows) -> Tensor:
        """The embeddings of a block of rows, projected."""
        h_ND = rows.tensor(EMBEDDING).double()
        return h_ND if self.projection_DE is None else h_ND @ self.projection_DE.to(h_ND.device)

    def read(self, rows: Rows) -> Parts:
        """Probabilities and embeddings of a block of rows."""
        h_ND = self.columns(rows)
        if self.regress:
            return Parts(None, h_ND)
        p_NC = rows.tensor(PROBS).double()
        p_NC = p_NC / p_NC.sum(1, keepdim=True)
        if self.kept is not None:
            apart_NK = p_NC[:, self.kept.to(p_NC.device)]
            p_NC = torch.cat([apart_NK, (1 - apart_NK.sum(1, keepdim=True)).clamp_min(0)], 1)
        elif p_NC.shape[1] == 1:
            p_NC = torch.cat([p_NC, torch.zeros_like(p_NC)], 1)  # a second class that never happens
        return Parts(p_NC, h_ND)


class Parts(NamedTuple):
    """A block of rows, ready to be multiplied."""

    p_NC: Tensor | None  # None in regression
    h_ND: Tensor

    @property
    def classes(self) -> int:
        return 1 if self.p_NC is None else self.p_NC.shape[1]

    @property
    def rank(self) -> int:
        return max(1, self.classes - 1)

    def at(self, where: slice | Tensor) -> Parts:
        """Some rows of the block."""
        return Parts(None if self.p_NC is None else self.p_NC[where], self.h_ND[where])

    def over_classes(self) -> Tensor:
        """The part of the factors that is about classes (N, r, C); the other part is h."""
        if self.p_NC is None:
            return self.h_ND.new_ones(len(self.h_ND), 1, 1)
        before_Nr = self.p_NC.cumsum(1)[:, :-1]
        after_Nr = self.p_NC[:, 1:]
        size_Nr = (after_Nr * before_Nr / (after_Nr + before_Nr).clamp_min(TINY)).sqrt()
        share_Nr = size_Nr / before_Nr.clamp_min(TINY)  # where no class came before, the size is 0 too
        a_NrC = (-share_Nr[:, :, None] * self.p_NC[:, None, :]).tril_()
        a_NrC.diagonal(1, 1, 2).copy_(size_Nr)
        return a_NrC

    def squared(self, matrix_GG: Tensor) -> Tensor:
        """V B V^T (N, r, r) for a symmetric B (C D, C D)."""
        n, width = self.h_ND.shape
        inner_NCC = self.h_ND.new_empty(n, self.classes, self.classes)
        for c in range(self.classes):
            to = (c + 1) * width  # the rest follows by symmetry
            y_NCD = (self.h_ND @ matrix_GG[c * width : to, :to]).reshape(n, c + 1, width)
            inner_NCC[:, c, : c + 1] = (y_NCD @ self.h_ND[:, :, None])[:, :, 0]
            inner_NCC[:, :c, c] = inner_NCC[:, c, :c]
        a_NrC = self.over_classes()
        return a_NrC @ inner_NCC @ a_NrC.transpose(1, 2)

    def to(self, device: torch.device) -> Parts:
        """The same rows on `device`."""
        return Parts(None if self.p_NC is None else self.p_NC.to(device), self.h_ND.to(device))

    def explicit(self) -> Tensor:
        """The factors themselves (N, r, C D)."""
        return (self.over_classes()[:, :, :, None] * self.h_ND[:, None, None, :]).flatten(2)


def together(blocks: Sequence[Parts]) -> Parts:
    """The rows of several blocks as one."""
    probs = [parts.p_NC for parts in blocks if parts.p_NC is not None]
    return Parts(torch.cat(probs) if probs else None, torch.cat([parts.h_ND for parts in blocks]))


def in_cache(classes: int) -> int:
    """Rows that a step changes at once so that what it needs stays in the cache of a core."""
    rank = max(1, classes - 1)
    return max(32, CACHE // (16 * rank * (classes + 2 * rank)))


class Step:
    """What taking one row in (sign -1), or letting it go (1), changes."""

    def __init__(self, z_Gr: Tensor, w_Gr: Tensor, classes: int, sign: int):
        self.rank, self.classes, self.sign = z_Gr.shape[1], classes, sign
        # By columns of the embedding: one product of h with all of it is z and w of every class.
        both_G2r = torch.cat([z_Gr, w_Gr], 1).reshape(classes, -1, 2 * self.rank)
        self.both_DC2r = both_G2r.transpose(0, 1).reshape(-1, classes * 2 * self.rank)

    def to(self, device: torch.device) -> Step:
        """The same step for rows on `device`."""
        there = copy.copy(self)
        there.both_DC2r = self.both_DC2r.to(device)
        return there

    def change(self, parts: Parts, p_Nrr: Tensor, q_Nrr: Tensor) -> None:
        """Bring P and Q of these rows up to date, in place."""
        y_NC2r = (parts.h_ND @ self.both_DC2r).reshape(-1, self.classes, 2 * self.rank)
        both_Nr2r = y_NC2r if parts.p_NC is None else parts.over_classes() @ y_NC2r
        z, w = both_Nr2r[:, :, : self.rank], both_Nr2r[:, :, self.rank :]
        p_Nrr.baddbmm_(z, z.transpose(1, 2), alpha=self.sign)
        cross = z @ w.transpose(1, 2)
        q_Nrr.add_(cross, alpha=self.sign).add_(cross.transpose(1, 2), alpha=self.sign)


def change_of_trace(p_Nrr: Tensor, q_Nrr: Tensor, sign: int) -> Tensor:
    """How far tr(M^-1 F) falls when a row is taken in (sign -1), or rises when it is let go (+1): (N,)."""
    eye_rr = torch.eye(p_Nrr.shape[-1], dtype=torch.float64, device=p_Nrr.device)
    return torch.linalg.solve(eye_rr - sign * p_Nrr, q_Nrr).diagonal(dim1=1, dim2=2).sum(1)


def traces(p_Nrr: Tensor, q_Nrr: Tensor) -> Tensor:
    """tr P and tr Q (N, 2)."""
    return torch.stack([one.diagonal(dim1=1, dim2=2).sum(1) for one in (p_Nrr, q_Nrr)], 1)


def bounds(p_Nrr: Tensor, q_Nrr: Tensor) -> tuple[Tensor, Tensor]:
    """A lower and an upper bound (N,) of `change_of_trace` for a row taken in, without solving.

    1 / (1 + x) is convex: Jensen gives the one, the chord from 0 to |P| the other.
    """
    trace_N = q_Nrr.diagonal(dim1=1, dim2=2).sum(1)
    cross_N = torch.linalg.vecdot(p_Nrr.flatten(1), q_Nrr.flatten(1))
    largest_N = torch.linalg.vector_norm(p_Nrr.flatten(1), dim=1)
    lower_N = trace_N * (trace_N / (trace_N + cross_N)).nan_to_num(0.0)
    return lower_N, trace_N - cross_N / (1 + largest_N) + ROUNDING * trace_N


def least_rise(p_Nrr: Tensor, q_Nrr: Tensor) -> Tensor:
    """A lower bound (N,) of `change_of_trace` for a row that is let go: 1 / (1 - x) is convex, and at least 1."""
    trace_N = q_Nrr.diagonal(dim1=1, dim2=2).sum(1)
    rest_N = trace_N - torch.linalg.vecdot(p_Nrr.flatten(1), q_Nrr.flatten(1))
    return torch.where(rest_N > 0, trace_N.square() / rest_N, trace_N)


def ever(p_Nrr: Tensor, q_Nrr: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """What bounds the gain of a row from now on, whatever is taken in: (N,) twice.

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
