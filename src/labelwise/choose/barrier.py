"""The two barriers of randomised BSS: a sum of weighted squares v v^T that is kept between l I and u I, always.

Batson, Spielman and Srivastava, SIAM J. Comput. 2012; randomised by Lee and Sun, SIAM J. Comput. 2018; the constants
are those of Chen and Price, "Active regression via linear-sample sparsification", COLT 2019:

    B = 0,  u = 2 d/gamma,  l = -2 d/gamma,  mid = 2 d (1 - gamma^2)/gamma^2
    E = (u I - B)^-1 + (B - l I)^-1,  Phi = tr E,  du = gamma/(Phi (1 - gamma)),  dl = gamma/(Phi (1 + gamma))
    a row drawn with probability (1/n) v^T E v / Phi has s = gamma/(v^T E v):  B += s v v^T,  u += du,  l += dl

s v^T E v = gamma < 1 keeps B below u, and l moves by less than 1/Phi, so l I < B < u I whatever is drawn. The natural
end is before the barriers would be 8 d/gamma apart. beta_j = gamma/(Phi_j mid) then sums to at most 1.

E may be kept for several draws: the sum of so many steps stays safe while draws times gamma is at most 1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.errors import NumericsError

GOOD = (0.75, 1.25)
EXACT = 48  # up to this rank all eigenvalues are found at every look; above it a bound of the largest of E is enough
KEPT = 0.9  # the share of the distance to a barrier that the bound counts on until it has to be found anew


@dataclass(frozen=True)
class Look:
    """E at one moment: what draws are made with until the next look."""

    phi: float
    up: float  # du
    down: float  # dl
    top: float  # at least the largest eigenvalue of E
    above_DD: Tensor  # the inverse of the Cholesky factor of u I - B
    below_DD: Tensor  # that of B - l I

    def form(self, v_JD: Tensor) -> Tensor:
        """v^T E v of each row (J,)."""
        return (v_JD @ self.above_DD.T).square_().sum(1) + (v_JD @ self.below_DD.T).square_().sum(1)


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
        self.draws = self.looks = 0
        self.natural: int | None = None  # draws at the natural end, once it is passed
        # Ends of the spectrum when last found, and how far from the barriers they were then; at first not found.
        self._ends = (0.0, 0.0)
        self._gap, self._floor = 0.0, math.inf

    @property
    def mid(self) -> float:
        """What `total` comes to at the natural end."""
        return 2 * self.d * (1 - self.gamma**2) / self.gamma**2

    @property
    def draws_per_look(self) -> int:
        """So many draws may be made with one decomposition."""
        return max(1, math.floor(1 / (2 * self.gamma)))

    def look(self) -> Look:
        """Decompose B; an eigenvalue beyond a barrier is an error."""
        self.looks += 1
        eye_DD = torch.eye(self.d, dtype=torch.float64)
        above_DD = self._root(self.upper * eye_DD - self.matrix)
        below_DD = self._root(self.matrix - self.lower * eye_DD)
        if above_DD is None or below_DD is None:
            raise self._beyond()
        above_DD = torch.linalg.solve_triangular(above_DD, eye_DD, upper=False)
        below_DD = torch.linalg.solve_triangular(below_DD, eye_DD, upper=False)
        phi = float(above_DD.square().sum() + below_DD.square().sum())
        step = self.gamma / phi
        return Look(phi, step / (1 - self.gamma), step / (1 + self.gamma), self._top(eye_DD), above_DD, below_DD)

    def _top(self, eye_DD: Tensor) -> float:
        """At least the largest eigenvalue of E, which is found at an end of the spectrum of B.

        The last lowest eigenvalue of B is below the present one, since B only grows. That nothing is above a guess of
        the highest is certain when a Cholesky factor exists, at a fraction of the cost of finding it.
        """
        low, high = self._ends
        guess = self.upper - KEPT * self._gap
        if self.d <= EXACT or low - self.lower < KEPT * self._floor or self._root(guess * eye_DD - self.matrix) is None:
            lam_D = torch.linalg.eigvalsh(self.matrix)
            low, high = float(lam_D[0]), float(lam_D[-1])
            self._ends = (low, high)
            self._gap, self._floor = self.upper - high, low - self.lower
        else:
            high = guess
        return max(1 / (self.upper - end) + 1 / (end - self.lower) for end in (low, high))

    def _root(self, matrix_DD: Tensor) -> Tensor | None:
        """The Cholesky factor; None where there is none."""
        root_DD, info = torch.linalg.cholesky_ex(matrix_DD)
        return None if int(info) else root_DD

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
        self.upper += len(v_JD) * look.up
        self.lower += len(v_JD) * look.down
        self.total += len(v_JD) * self.gamma / look.phi
        self.draws += len(v_JD)
        return s_J

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
