"""Fisher information of the last layer, row by row, as thin factors; and how much a row would lower tr(M^-1 F).

The information of a row with probabilities p and embedding h is (diag p - p p^T) x h h^T = V^T V, of rank C - 1. The
factor used here needs no decomposition: with b_j = p_0 + .. + p_(j-1),

    v_j = sqrt(p_j b_j / (b_j + p_j)) (e_j - sum over i < j of (p_i / b_j) e_i) x h,    j = 1 .. C - 1

class j against the mean of the classes before it (Tanabe and Sagae 1992 have the Cholesky factor). V Y for a matrix Y
of C x D rows is then h Y, a running sum over classes, and a difference. In regression V = h.

Rows keep P = V M^-1 V^T and Q = V M^-1 F M^-1 V^T, (r, r) each. Taking in a row with factor U, M becomes M + U^T U:

    Z = M^-1 U^T (I + P_U)^(-1/2),   z = V Z,   t = V M^-1 F Z,   S = Z^T F Z
    M^-1 -= Z Z^T,    P -= z z^T,    Q -= z t^T + t z^T - z S z^T

and letting one go the same with the signs of a difference. All of it in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.errors import NumericsError
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Probs

PROBS = Probs()
EMBEDDING = Embedding()
ROUNDING = 1e-13  # of a trace, relative, with room to spare


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
            return Parts(h_ND.new_ones(len(h_ND), 1), h_ND, h_ND.new_ones(len(h_ND), 1), None)
        p_NC = rows.tensor(PROBS).double()
        p_NC = p_NC / p_NC.sum(1, keepdim=True)
        if self.kept is not None:
            apart_NK = p_NC[:, self.kept.to(p_NC.device)]
            p_NC = torch.cat([apart_NK, (1 - apart_NK.sum(1, keepdim=True)).clamp_min(0)], 1)
        elif p_NC.shape[1] == 1:
            p_NC = torch.cat([p_NC, torch.zeros_like(p_NC)], 1)  # a second class that never happens
        before_Nr = p_NC.cumsum(1)[:, :-1]
        after_Nr = p_NC[:, 1:]
        size_Nr = (after_Nr * before_Nr / (after_Nr + before_Nr).clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
        return Parts(p_NC, h_ND, size_Nr, before_Nr)


class Parts(NamedTuple):
    """A block of rows, ready to be multiplied."""

    p_NC: Tensor
    h_ND: Tensor
    size_Nr: Tensor  # the square root in v_j
    before_Nr: Tensor | None  # b_j; None in regression

    def row(self, at: int) -> Parts:
        """One row of the block."""
        here = slice(at, at + 1)
        before = None if self.before_Nr is None else self.before_Nr[here]
        return Parts(self.p_NC[here], self.h_ND[here], self.size_Nr[here], before)

    def onto(self, y_NCm: Tensor) -> Tensor:
        """The factor over the classes times y (N, r, m), where y is h times some matrix already."""
        if self.before_Nr is None:
            return y_NCm
        mean_Nrm = (self.p_NC[:, :, None] * y_NCm).cumsum(1)[:, :-1]
        # Where no class came before, the size is 0 too.
        mean_Nrm /= self.before_Nr.clamp_min(torch.finfo(torch.float64).tiny)[:, :, None]
        return (y_NCm[:, 1:] - mean_Nrm) * self.size_Nr[:, :, None]

    def times(self, matrix_GE: Tensor) -> Tensor:
        """V Y (N, r, m) for Y (C D, m)."""
        n, classes = self.p_NC.shape
        columns = matrix_GE.shape[1]
        by_d = matrix_GE.reshape(classes, -1, columns).transpose(0, 1).reshape(-1, classes * columns)
        return self.onto((self.h_ND @ by_d).reshape(n, classes, columns))

    def squared(self, matrix_GG: Tensor) -> Tensor:
        """V B V^T (N, r, r) for a symmetric B (C D, C D)."""
        n, classes = self.p_NC.shape
        width = self.h_ND.shape[1]
        inner_NCC = self.h_ND.new_empty(n, classes, classes)
        for c in range(classes):
            to = (c + 1) * width  # the rest follows by symmetry
            y_NCD = (self.h_ND @ matrix_GG[c * width : to, :to]).reshape(n, c + 1, width)
            inner_NCC[:, c, : c + 1] = (y_NCD @ self.h_ND[:, :, None])[:, :, 0]
            inner_NCC[:, :c, c] = inner_NCC[:, c, :c]
        left = self.onto(inner_NCC)
        return self.onto(left.transpose(1, 2))

    def over_classes(self) -> Tensor:
        """The part of the factors that is about classes (N, r, C); the other part is h."""
        n, classes = self.p_NC.shape
        return self.onto(torch.eye(classes, dtype=torch.float64, device=self.p_NC.device).expand(n, -1, -1))

    def explicit(self) -> Tensor:
        """The factors themselves (N, r, C D)."""
        return (self.over_classes()[:, :, :, None] * self.h_ND[:, None, None, :]).flatten(2)


@dataclass
class Step:
    """What taking one row in, or letting it go, changes."""

    both_G2r: Tensor  # Z and M^-1 F Z side by side
    half_rr: Tensor  # half of Z^T F Z
    sign: int  # -1 when a row is taken in

    def change(self, parts: Parts, p_Nrr: Tensor, q_Nrr: Tensor) -> None:
        """Bring P and Q of these rows up to date, in place."""
        both = parts.times(self.both_G2r.to(parts.h_ND.device))
        rank = len(self.half_rr)
        z, t = both[:, :, :rank], both[:, :, rank:]
        cross = z @ (t + self.sign * (z @ self.half_rr.to(z.device))).transpose(1, 2)
        p_Nrr.add_(z @ z.transpose(1, 2), alpha=self.sign)
        q_Nrr.add_(cross + cross.transpose(1, 2), alpha=self.sign)


class Design:
    """M, its inverse and F: what is known of the whole batch, small enough for every shard."""

    def __init__(self, behind_GG: Tensor, lambda_: float, target_GG: Tensor, scale: float):
        """M begins as lambda_ on the diagonal and `behind_GG`; a row of the batch counts `scale` times in it."""
        eye_GG = torch.eye(len(behind_GG), dtype=torch.float64)
        self.scale = scale
        self.target_GG = target_GG
        self._start_GG = lambda_ * eye_GG + behind_GG
        self._moved: list[tuple[int, Tensor]] = []  # factors taken in and let go since M was last written out
        self.flat = None if bool(behind_GG.any()) else 1 / lambda_  # the inverse, while it is a multiple of the unit
        self.inverse_GG = eye_GG / lambda_
        if self.flat is None:
            self.refresh()

    def refresh(self) -> None:
        """Invert M anew: differences of differences lose digits."""
        self.flat = None
        for sign, u_rG in self._moved:
            self._start_GG.addmm_(u_rG.T, u_rG, alpha=-sign)
        self._moved = []
        factor, failed = torch.linalg.cholesky_ex(self._start_GG)
        if int(failed):
            raise NumericsError(
                "Bait: the information matrix cannot be inverted in float64; pass a larger lambda_ or scale embeddings."
            )
        self.inverse_GG = torch.cholesky_inverse(factor)

    @property
    def age(self) -> int:
        """Rows taken in and let go since M was last inverted."""
        return len(self._moved)

    def middle(self) -> Tensor:
        """M^-1 F M^-1."""
        if self.flat is not None:
            return self.flat**2 * self.target_GG
        return self.inverse_GG @ self.target_GG @ self.inverse_GG

    def trace(self) -> float:
        """tr(M^-1 F), what is made small."""
        return float((self.inverse_GG * self.target_GG).sum())

    def state(self, parts: Parts, middle_GG: Tensor) -> tuple[Tensor, Tensor]:
        """P and Q of these rows, from their definition; `middle_GG` is `middle()`, on the device of the rows."""
        if self.flat is not None:
            factor_NrC = parts.over_classes()
            length_N = self.scale * self.flat * parts.h_ND.square().sum(1)
            p_Nrr = factor_NrC @ factor_NrC.transpose(1, 2) * length_N[:, None, None]
        else:
            p_Nrr = self.scale * parts.squared(self.inverse_GG.to(parts.h_ND.device))
        return p_Nrr, self.scale * parts.squared(middle_GG)

    def state_of_few(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """P and Q of a few rows, without M^-1 F M^-1."""
        v_NrG = self.scale**0.5 * parts.explicit().cpu()
        x_NrG = v_NrG @ self.inverse_GG
        return x_NrG @ v_NrG.transpose(1, 2), x_NrG @ self.target_GG @ x_NrG.transpose(1, 2)

    def move(self, parts: Parts, sign: int) -> Step:
        """Take one row in (sign -1: M^-1 falls) or let it go (+1)."""
        u_rG = self.scale**0.5 * parts.explicit()[0].cpu()
        half_Gr = self.inverse_GG @ u_rG.T
        gram_rr = torch.eye(len(u_rG), dtype=torch.float64) - sign * (u_rG @ half_Gr)
        z_Gr = torch.linalg.solve_triangular(torch.linalg.cholesky(gram_rr), half_Gr.T, upper=False).T
        onto_Gr = self.target_GG @ z_Gr
        step = Step(torch.cat([z_Gr, self.inverse_GG @ onto_Gr], 1), z_Gr.T @ onto_Gr / 2, sign)
        step.both_G2r *= self.scale**0.5  # the rows it is multiplied with are of the batch too
        self.flat = None
        self.inverse_GG.addmm_(z_Gr, z_Gr.T, alpha=sign)
        self._moved.append((sign, u_rG))
        return step


def change_of_trace(p_Nrr: Tensor, q_Nrr: Tensor, sign: int) -> Tensor:
    """How far tr(M^-1 F) falls when a row is taken in (sign -1), or rises when it is let go (+1): (N,)."""
    eye_rr = torch.eye(p_Nrr.shape[-1], dtype=torch.float64, device=p_Nrr.device)
    return torch.linalg.solve(eye_rr - sign * p_Nrr, q_Nrr).diagonal(dim1=1, dim2=2).sum(1)


def bounds(p_Nrr: Tensor, q_Nrr: Tensor) -> tuple[Tensor, Tensor]:
    """A lower and an upper bound (N,) of `change_of_trace` for a row taken in, without solving.

    1 / (1 + x) is convex: Jensen gives the one, the chord from 0 to |P| the other.
    """
    trace_N = q_Nrr.diagonal(dim1=1, dim2=2).sum(1)
    cross_N = torch.linalg.vecdot(p_Nrr.flatten(1), q_Nrr.flatten(1))
    largest_N = torch.linalg.vector_norm(p_Nrr.flatten(1), dim=1)
    lower_N = trace_N * (trace_N / (trace_N + cross_N)).nan_to_num(0.0)
    return lower_N, trace_N - cross_N / (1 + largest_N) + ROUNDING * trace_N
