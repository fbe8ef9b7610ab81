"""The two barriers of randomised BSS: a sum of weighted squares v v^T that is kept between l I and u I, always.

Batson, Spielman and Srivastava, SIAM J. Comput. 2012; randomised by Lee and Sun, SIAM J. Comput. 2018; the constants
are those of Chen and Price, "Active regression via linear-sample sparsification", COLT 2019:

    B = 0,  u = 2 d/gamma,  l = -2 d/gamma,  mid = 2 d (1 - gamma^2)/gamma^2
    E = (u I - B)^-1 + (B - l I)^-1,  Phi = tr E,  du = gamma/(Phi (1 - gamma)),  dl = gamma/(Phi (1 + gamma))
    a row drawn with probability (1/n) v^T E v / Phi has s = gamma/(v^T E v):  B += s v v^T,  u += du,  l += dl

s v^T E v = gamma < 1 keeps B below u, and l moves by less than 1/Phi, so l I < B < u I whatever is drawn. The natural
end is before the barriers would be 8 d/gamma apart. beta_j = gamma/(Phi_j mid) then sums to at most 1.

E may be kept for several draws: the sum of so many steps stays safe while draws times gamma is at most 1/2.

The barriers move with every draw, so no inverse can be carried from one look to the next. What can is the
decomposition: with B = Q (Lam + W^T W) Q^T, the r rows of W being those added since Lam and Q were found,

    (u I - B)^-1 = Q (D + D W^T (I - W D W^T)^-1 W D) Q^T,   D = (u I - Lam)^-1   diagonal, whatever u is

(Woodbury), and likewise at the lower barrier: r^2 d for a look instead of d^3, and the same numbers but for rounding.
I - W D W^T has a Cholesky factor exactly where B < u I, so that every look is a proof that the barrier holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import NumericsError

GOOD = (0.75, 1.25)
EXACT = 48  # up to this rank B is decomposed at every look; above it when W has too many rows
ROWS_PER_RANK = 1 / 3  # rows of W, for each dimension, at which decomposing anew is cheaper than going on
KEPT = 0.9  # the share of the distance to a barrier that a bound counts on until it has to be found anew


@dataclass(frozen=True)
class Look:
    """E at one moment: what draws are made with until the next look."""

    phi: float
    up: float  # du
    down: float  # dl
    top: float  # at least the largest eigenvalue of E
    turn_DD: Tensor  # Q
    both_D: Tensor  # the diagonal of E in that basis, without what W adds
    above_RD: Tensor  # L^-1 W D with L L^T = I - W D W^T, at the upper barrier
    below_RD: Tensor  # the same with L L^T = I + W D W^T, at the lower one

    def form(self, v_JD: Tensor) -> Tensor:
        """v^T E v of each row (J,)."""
        z_JD = v_JD @ self.turn_DD
        form_J = z_JD.square() @ self.both_D
        if len(self.above_RD):
            form_J += (z_JD @ self.above_RD.T).square_().sum(1)
            form_J -= (z_JD @ self.below_RD.T).square_().sum(1)
        return form_J


class Barrier:
    """B with its barriers, in float64 on the CPU."""

    def __init__(self, d: int, gamma: float, start_DD: Tensor | None = None, total: float = 0.0):
        """B before the first draw and what its weights add up to; barriers begin where its potential is gamma."""
        self.d, self.gamma = d, gamma
        self.matrix = torch.zeros(d, d, dtype=torch.float64) if start_DD is None else start_DD.clone()
        self.upper, self.lower = 2 * d / gamma, -2 * d / gamma
        if start_DD is not None:
            lam_D = torch.linalg.eigvalsh(start_DD)
            self.upper = _level(lam_D, gamma / 2)
            self.lower = -_level(-lam_D, gamma / 2)
        self.total = total  # the sum of gamma/Phi over draws: what the weights add up to
        self.draws = self.looks = self.decompositions = 0
        self.natural: int | None = None  # draws at the natural end, once it is passed
        self._lam_D: Tensor | None = None  # Lam and Q; None before the first look
        self._turn_DD = torch.eye(d, dtype=torch.float64)
        self._room = 0 if d <= EXACT else int(ROWS_PER_RANK * d)
        self._w_RD = torch.zeros(self._room, d, dtype=torch.float64)
        self._rows = 0  # of W
        self._gap = self._floor = 0.0  # how far the ends of the spectrum were from the barriers when last found

    @property
    def mid(self) -> float:
        """What `total` comes to at the natural end."""
        return 2 * self.d * (1 - self.gamma**2) / self.gamma**2

    @property
    def draws_per_look(self) -> int:
        """So many draws may be made with one decomposition."""
        return max(1, math.floor(1 / (2 * self.gamma)))

    def look(self) -> Look:
        """E as it is now; an eigenvalue of B beyond a barrier is an error."""
        self.looks += 1
        look = self._updated() if 0 < self._rows <= self._room else None
        return self._decomposed() if look is None else look

    def _decomposed(self) -> Look:
        """A look by decomposing B, if it was added to since that was last done."""
        if self._rows or self._lam_D is None:
            self.decompositions += 1
            self._lam_D, self._turn_DD = torch.linalg.eigh(self.matrix)
            self._rows = 0
        low, high = float(self._lam_D[0]), float(self._lam_D[-1])
        self._gap, self._floor = self.upper - high, low - self.lower
        if not (self._gap > 0 and self._floor > 0):
            raise self._beyond()
        both_D = 1 / (self.upper - self._lam_D) + 1 / (self._lam_D - self.lower)
        none_RD = self._w_RD[:0]
        return self._look(float(both_D.sum()), max(float(both_D[0]), float(both_D[-1])), both_D, none_RD, none_RD)

    def _updated(self) -> Look | None:
        """A look by the last decomposition and W; None where B has to be decomposed anew."""
        assert self._lam_D is not None
        low = float(self._lam_D[0])  # B only grows: its lowest eigenvalue is not below this
        if low - self.lower < KEPT * self._floor or float(self._lam_D[-1]) >= self.upper:
            return None
        high = self._highest()
        above_D, below_D = 1 / (self.upper - self._lam_D), 1 / (self._lam_D - self.lower)
        above_RD, below_RD = self._correction(above_D, -1.0), self._correction(below_D, 1.0)
        if high is None or above_RD is None or below_RD is None:
            return None
        both_D = above_D + below_D
        phi = float(both_D.sum() + above_RD.square().sum() - below_RD.square().sum())
        # The eigenvalues of E are 1/(u - lam) + 1/(lam - l), which is convex: the largest is at an end.
        top = max(1 / (self.upper - end) + 1 / (end - self.lower) for end in (low, high))
        return self._look(phi, top, both_D, above_RD, below_RD)

    def _highest(self) -> float | None:
        """A number above all eigenvalues of B: certain where I - W D W^T has a factor with it in the place of u."""
        assert self._lam_D is not None
        for gap in (self._gap, KEPT * self._gap):
            guess = self.upper - KEPT * gap
            if float(self._lam_D[-1]) < guess:
                inner_RR, _ = self._inner(1 / (guess - self._lam_D), -1.0)
                if not int(torch.linalg.cholesky_ex(inner_RR).info):
                    self._gap = gap
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

    def _look(self, phi: float, top: float, both_D: Tensor, above_RD: Tensor, below_RD: Tensor) -> Look:
        step = self.gamma / phi
        up, down = step / (1 - self.gamma), step / (1 + self.gamma)
        return Look(phi, up, down, top, self._turn_DD, both_D, above_RD, below_RD)

    def ended(self, look: Look) -> bool:
        """Whether the next draw is beyond the natural end: the paper tests the next barriers."""
        return (self.upper + look.up) - (self.lower + look.down) >= 8 * self.d / self.gamma

    def add(self, look: Look, v_JD: Tensor, form_J: Tensor) -> Tensor:
        """Take in rows drawn with one look, of forms v^T E v; their s (J,)."""
        s_J = self.gamma / form_J
        for number in range(len(v_JD)) if self.natural is None else ():
            apart = (self.upper - self.lower) + (number + 1) * (look.up - look.down)
            if apart >= 8 * self.d / self.gamma:
                self.natural = self.draws + number
                break
        self.matrix.addmm_(v_JD.T, v_JD * s_J[:, None])
        self._remember(look, v_JD, s_J)
        self.upper += len(v_JD) * look.up
        self.lower += len(v_JD) * look.down
        self.total += len(v_JD) * self.gamma / look.phi
        self.draws += len(v_JD)
        return s_J

    def _remember(self, look: Look, v_JD: Tensor, s_J: Tensor) -> None:
        """More rows of W; beyond its room only their number counts, since B will be decomposed anew."""
        upto = self._rows + len(v_JD)
        if upto <= self._room:
            self._w_RD[self._rows : upto] = (v_JD @ look.turn_DD) * s_J.sqrt()[:, None]
        self._rows = upto

    def eigenvalues(self) -> Tensor:
        """Eigenvalues of B (d,), rising; one beyond a barrier is an error."""
        lam_D = torch.linalg.eigvalsh(self.matrix)
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


def good_output(low: float, high: float) -> bool:
    """Definition 5.6: the eigenvalues of the weighted design lie in [3/4, 5/4]."""
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
