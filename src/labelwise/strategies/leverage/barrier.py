"""The two barriers of randomised BSS, which certify a sum of weighted squares v v^T: l I < B < u I after every draw.

Batson, Spielman and Srivastava, SIAM J. Comput. 2012; randomised by Lee and Sun, SIAM J. Comput. 2018; the constants
are those of Chen and Price, "Active regression via linear-sample sparsification", COLT 2019:

    B = 0,  u = 2 d/gamma,  l = -2 d/gamma,  mid = 2 d (1 - gamma^2)/gamma^2
    E = (u I - B)^-1 + (B - l I)^-1,  Phi = tr E,  du = gamma/(Phi (1 - gamma)),  dl = gamma/(Phi (1 + gamma))
    a row drawn with probability (1/n) v^T E v / Phi has s = gamma/(v^T E v):  B += s v v^T,  u += du,  l += dl

s v^T E v = gamma < 1 keeps B below u, and l moves by less than 1/Phi, so l I < B < u I whatever is drawn. The natural
end is before the barriers would be 8 d/gamma apart. beta_j = gamma/(Phi_j mid) then sums to at most 1.

E may be used for several draws: the sum of their steps is safe while draws times gamma is at most 1/2.

The barriers move with every draw, so an inverse cannot be reused. The decomposition can: with B = Q (Lam + W^T W) Q^T,
the r rows of W being those added since Lam and Q were computed,

    (u I - B)^-1 = Q (D + D W^T (I - W D W^T)^-1 W D) Q^T,   D = (u I - Lam)^-1   diagonal, whatever u is

(Woodbury), and likewise at the lower barrier: r^2 d for E instead of d^3, and the same numbers up to rounding.
I - W D W^T has a Cholesky factor exactly where B < u I, so computing E proves that the barrier holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import NumericsError

GOOD = (0.75, 1.25)


@dataclass(frozen=True)
class Tuning:
    """When B is decomposed; it changes time and the last digits.

    Args:
        exact_rank: up to this rank B is decomposed for every E; above it where W has too many rows.
        rows_per_rank: rows of W, for each dimension, at which a decomposition is cheaper than a longer W.
        gap_share: the share of the distance to a barrier that a bound relies on until it is computed again.
    """

    exact_rank: int = 48
    rows_per_rank: float = 1 / 3
    gap_share: float = 0.9


DEFAULT = Tuning()


@dataclass(frozen=True)
class Energy:
    """E at one moment, for the draws until the next.

    Attributes:
        phi: tr E.
        up: du, by which the upper barrier moves.
        down: dl, by which the lower barrier moves.
        top: an upper bound of the largest eigenvalue of E.
        rotation_DD: Q.
        diagonal_D: the diagonal of E in the basis Q, without W.
        above_RD: L^-1 W D with L L^T = I - W D W^T, at the upper barrier.
        below_RD: the same with L L^T = I + W D W^T, at the lower one.
    """

    phi: float
    up: float
    down: float
    top: float
    rotation_DD: Tensor
    diagonal_D: Tensor
    above_RD: Tensor
    below_RD: Tensor

    def forms(self, v_JD: Tensor) -> Tensor:
        """v^T E v of each row (J,)."""
        z_JD = v_JD @ self.rotation_DD
        form_J = z_JD.square() @ self.diagonal_D
        if len(self.above_RD):
            form_J += (z_JD @ self.above_RD.T).square_().sum(1)
            form_J -= (z_JD @ self.below_RD.T).square_().sum(1)
        return form_J


class Barrier:
    """B with its barriers, in float64 on the CPU.

    Args:
        d: the rank.
        gamma: how fine the design is.
        start_DD: B before the first draw; the barriers begin where its potential is gamma.
        tuning: when B is decomposed.
    """

    def __init__(self, d: int, gamma: float, start_DD: Tensor | None = None, tuning: Tuning = DEFAULT):
        self.d, self.gamma, self.tuning = d, gamma, tuning
        self.matrix = torch.zeros(d, d, dtype=torch.float64) if start_DD is None else start_DD.clone()
        self.upper, self.lower = 2 * d / gamma, -2 * d / gamma
        if start_DD is not None:
            lam_D = torch.linalg.eigvalsh(start_DD)
            self.upper = _level(lam_D, gamma / 2)
            self.lower = -_level(-lam_D, gamma / 2)
        self.total = 0.0  # the sum of gamma/Phi over draws, and so of the weights
        self.draws = self.evaluations = self.decompositions = 0
        self.natural: int | None = None  # draws at the natural end, once it is passed
        self._lam_D: Tensor | None = None  # Lam and Q; None before the first decomposition
        self._rotation_DD = torch.eye(d, dtype=torch.float64)
        self._max_rows = 0 if d <= tuning.exact_rank else int(tuning.rows_per_rank * d)  # of W
        self._w_RD = torch.zeros(self._max_rows, d, dtype=torch.float64)
        self._rows = 0  # of W
        self._upper_gap = self._lower_gap = 0.0  # distances of the spectrum to the barriers when last computed

    @property
    def mid(self) -> float:
        """`total` at the natural end."""
        return 2 * self.d * (1 - self.gamma**2) / self.gamma**2

    @property
    def draws_per_energy(self) -> int:
        """Draws that may be made with one E."""
        return max(1, math.floor(1 / (2 * self.gamma)))

    def energy(self) -> Energy:
        """E of the present B.

        Raises:
            NumericsError: an eigenvalue of B is beyond a barrier.
        """
        self.evaluations += 1
        energy = self._updated() if 0 < self._rows <= self._max_rows else None
        return self._decomposed() if energy is None else energy

    def _decomposed(self) -> Energy:
        """E by a decomposition of B."""
        if self._rows or self._lam_D is None:
            self.decompositions += 1
            self._lam_D, self._rotation_DD = torch.linalg.eigh(self.matrix)
            self._rows = 0
        low, high = float(self._lam_D[0]), float(self._lam_D[-1])
        self._upper_gap, self._lower_gap = self.upper - high, low - self.lower
        if not (self._upper_gap > 0 and self._lower_gap > 0):
            raise self._beyond()
        diagonal_D = 1 / (self.upper - self._lam_D) + 1 / (self._lam_D - self.lower)
        none_RD = self._w_RD[:0]
        return self._energy(
            float(diagonal_D.sum()), max(float(diagonal_D[0]), float(diagonal_D[-1])), diagonal_D, none_RD, none_RD
        )

    def _updated(self) -> Energy | None:
        """E by the last decomposition and W; None where B has to be decomposed."""
        assert self._lam_D is not None
        low = float(self._lam_D[0])  # B only grows: its lowest eigenvalue is not below this
        if low - self.lower < self.tuning.gap_share * self._lower_gap or float(self._lam_D[-1]) >= self.upper:
            return None
        high = self._highest()
        above_D, below_D = 1 / (self.upper - self._lam_D), 1 / (self._lam_D - self.lower)
        above_RD, below_RD = self._correction(above_D, -1.0), self._correction(below_D, 1.0)
        if high is None or above_RD is None or below_RD is None:
            return None
        diagonal_D = above_D + below_D
        phi = float(diagonal_D.sum() + above_RD.square().sum() - below_RD.square().sum())
        # The eigenvalues of E are 1/(u - lam) + 1/(lam - l), which is convex: the largest is at an end.
        top = max(1 / (self.upper - end) + 1 / (end - self.lower) for end in (low, high))
        return self._energy(phi, top, diagonal_D, above_RD, below_RD)

    def _highest(self) -> float | None:
        """A number above all eigenvalues of B, proved by a factor of I - W D W^T with it in place of u."""
        assert self._lam_D is not None
        share = self.tuning.gap_share
        for gap in (self._upper_gap, share * self._upper_gap):
            guess = self.upper - share * gap
            if float(self._lam_D[-1]) < guess:
                inner_RR, _ = self._inner(1 / (guess - self._lam_D), -1.0)
                if not int(torch.linalg.cholesky_ex(inner_RR).info):
                    self._upper_gap = gap
                    return guess
        return None

    def _inner(self, diagonal_D: Tensor, sign: float) -> tuple[Tensor, Tensor]:
        """I + sign W D W^T and W D."""
        w_RD = self._w_RD[: self._rows]
        scaled_RD = w_RD * diagonal_D
        return torch.eye(self._rows, dtype=torch.float64).addmm_(scaled_RD, w_RD.T, alpha=sign), scaled_RD

    def _correction(self, diagonal_D: Tensor, sign: float) -> Tensor | None:
        """L^-1 W D (r, d), L the Cholesky factor of I + sign W D W^T; None where there is none."""
        inner_RR, scaled_RD = self._inner(diagonal_D, sign)
        root_RR, info = torch.linalg.cholesky_ex(inner_RR)
        return None if int(info) else torch.linalg.solve_triangular(root_RR, scaled_RD, upper=False)

    def _energy(self, phi: float, top: float, diagonal_D: Tensor, above_RD: Tensor, below_RD: Tensor) -> Energy:
        step = self.gamma / phi
        up, down = step / (1 - self.gamma), step / (1 + self.gamma)
        return Energy(phi, up, down, top, self._rotation_DD, diagonal_D, above_RD, below_RD)

    def is_ended(self, energy: Energy) -> bool:
        """Whether the next draw is beyond the natural end: the paper tests the next barriers."""
        return (self.upper + energy.up) - (self.lower + energy.down) >= 8 * self.d / self.gamma

    def add(self, energy: Energy, v_JD: Tensor, form_J: Tensor) -> Tensor:
        """Add rows drawn with one E.

        Args:
            energy: the E they were drawn with.
            v_JD: the rows (J, d).
            form_J: their forms v^T E v (J,).

        Returns:
            Their s (J,).
        """
        s_J = self.gamma / form_J
        for number in range(len(v_JD)) if self.natural is None else ():
            apart = (self.upper - self.lower) + (number + 1) * (energy.up - energy.down)
            if apart >= 8 * self.d / self.gamma:
                self.natural = self.draws + number
                break
        self.matrix.addmm_(v_JD.T, v_JD * s_J[:, None])
        self._append(energy, v_JD, s_J)
        self.upper += len(v_JD) * energy.up
        self.lower += len(v_JD) * energy.down
        self.total += len(v_JD) * self.gamma / energy.phi
        self.draws += len(v_JD)
        return s_J

    def _append(self, energy: Energy, v_JD: Tensor, s_J: Tensor) -> None:
        """Append rows to W; beyond its size only their number counts, since B will be decomposed."""
        stop = self._rows + len(v_JD)
        if stop <= self._max_rows:
            self._w_RD[self._rows : stop] = (v_JD @ energy.rotation_DD) * s_J.sqrt()[:, None]
        self._rows = stop

    def eigenvalues(self) -> Tensor:
        """Eigenvalues of B (d,), rising.

        Raises:
            NumericsError: one is beyond a barrier.
        """
        lam_D: Tensor = torch.linalg.eigvalsh(self.matrix)
        if not self.lower < float(lam_D[0]) <= float(lam_D[-1]) < self.upper:
            raise self._beyond()
        return lam_D

    def _beyond(self) -> NumericsError:
        lam_D = torch.linalg.eigvalsh(self.matrix)
        return NumericsError(
            f"eigenvalues {float(lam_D[0]):.6g} to {float(lam_D[-1]):.6g} of the weighted design were expected between "
            f"the barriers {self.lower:.6g} and {self.upper:.6g} after {self.draws} draws. Exact arithmetic cannot "
            "leave them; scale the features, or pass them as float64."
        )


def is_good_output(low: float, high: float) -> bool:
    """Whether the eigenvalues of the weighted design are in [3/4, 5/4] (definition 5.6)."""
    return low >= GOOD[0] and high <= GOOD[1]


def _level(lam_D: Tensor, potential: float) -> float:
    """The u above all `lam_D` with sum 1/(u - lam) = potential, by bisection."""
    top = float(lam_D[lam_D.argmax()])
    low, high = top, top + len(lam_D) / potential
    for _ in range(200):
        middle = (low + high) / 2
        if middle <= low or middle >= high:
            break
        low, high = (middle, high) if float((1 / (middle - lam_D)).sum()) > potential else (low, middle)
    return high
