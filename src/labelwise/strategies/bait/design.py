"""The design of BAIT: M, its inverse and F, on the CPU or beside the rows of one accelerator.

With the notation of fisher.py: rows are taken in and let go by changes of low rank, and from time to time M is written
out and inverted anew. Where all rows are in one shard on an accelerator, the three tables are kept in its state and
what travels is the rest, a few numbers; `at` puts the two together again.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from labelwise.errors import NumericsError
from labelwise.strategies.bait.fisher import Parts, Step, together

TABLES = ("M", "F", "inverse")
WRITTEN = 64  # rows whose factors are written into M at once
STEPS, FEW = 12, 4  # of the power method, and its vectors
WORST = (
    1e9  # condition number of M: beyond, picks differ from those with sixty digits (tests/strategies/bait/test_bait.py)
)
ABOVE = 1.02  # what is tried first as a bound, over what the power method found


class Design:
    """M, its inverse and F: what is known of the whole batch, small enough for every shard."""

    def __init__(self, behind_GG: Tensor, lambda_: float, target_GG: Tensor, scale: float):
        """M begins as lambda_ on the diagonal and `behind_GG`; a row of the batch counts `scale` times in it."""
        eye_GG = torch.eye(len(behind_GG), dtype=torch.float64, device=behind_GG.device)
        self.scale = scale
        self.tables = {"M": lambda_ * eye_GG + behind_GG, "F": target_GG, "inverse": eye_GG / lambda_}
        self._moved: list[tuple[int, Parts]] = []  # rows taken in and let go since M was last written out
        self.age = 0  # how many, since M was last inverted
        self.flat = None if bool(behind_GG.any()) else 1 / lambda_  # the inverse, while it is a multiple of the unit
        if self.flat is None:
            self.refresh()

    @property
    def inverse_GG(self) -> Tensor:
        return self.tables["inverse"]

    @property
    def target_GG(self) -> Tensor:
        return self.tables["F"]

    def without(self) -> Design:
        """What travels: the design without its tables, which lie beside rows."""
        light = copy.copy(self)
        light.tables, light._moved = {}, []
        return light

    def at(self, state: dict[str, Tensor]) -> Design:
        """The design with its tables, which are in a shard's state if it came without."""
        if self.tables:
            return self
        whole = self.without()
        whole.tables = state
        return whole

    def write(self) -> Tensor:
        """M itself."""
        for sign in sorted({which for which, _ in self._moved}):
            rows = together([parts for which, parts in self._moved if which == sign])
            for start in range(0, len(rows.h_ND), WRITTEN):
                u_UG = rows.at(slice(start, start + WRITTEN)).explicit().flatten(0, 1)
                self.tables["M"].addmm_(u_UG.T, u_UG, alpha=-sign * self.scale)
        self._moved = []
        return self.tables["M"]

    def refresh(self) -> None:
        """Invert M anew: differences of differences lose digits."""
        self.flat, self.age = None, 0
        factor_GG, failed = torch.linalg.cholesky_ex(self.write())
        _check(not int(failed))
        self.tables["inverse"] = torch.cholesky_inverse(factor_GG)

    def middle(self) -> Tensor:
        """M^-1 F M^-1."""
        if self.flat is not None:
            return self.flat**2 * self.target_GG
        return self.inverse_GG @ self.target_GG @ self.inverse_GG

    def trace(self) -> float:
        """tr(M^-1 F), what is made small."""
        trace, condition = torch.stack(self._trace_and_condition()).tolist()
        _refuse(condition)
        return float(trace)

    def _trace_and_condition(self) -> tuple[Tensor, Tensor]:
        """tr(M^-1 F), and the condition number of M, by its largest sums of columns."""
        sums = [matrix.abs().sum(0).amax() for matrix in (self.write(), self.inverse_GG)]
        return (self.inverse_GG * self.target_GG).sum(), sums[0] * sums[1]

    def largest(self) -> float:
        """A number that no eigenvalue of M^-1 F is above, now and after more rows are taken in.

        The power method finds about the largest; that s M - F has a Cholesky factor proves that none is above s.
        """
        m_GG, f_GG = self.write(), self.target_GG
        start = torch.Generator().manual_seed(0)
        v_GF = torch.randn(len(m_GG), FEW, generator=start, dtype=torch.float64).to(m_GG.device, non_blocking=True)
        for _ in range(STEPS):
            v_GF = self.inverse_GG @ (f_GG @ torch.linalg.qr(v_GF).Q)
        basis_GF = torch.linalg.qr(v_GF).Q
        small_2FF = torch.stack([basis_GF.T @ m_GG @ basis_GF, basis_GF.T @ f_GG @ basis_GF])
        found = torch.cat([small_2FF.flatten(), torch.stack(self._trace_and_condition())]).cpu()
        small_2FF, (trace, condition) = found[:-2].view(small_2FF.shape), found[-2:].tolist()
        _refuse(condition)
        likely = float(torch.linalg.eigvals(torch.linalg.solve(small_2FF[0], small_2FF[1])).real.max())
        bound, more = max(likely, trace / len(m_GG)) * ABOVE, ABOVE
        while bound < trace:  # the sum of all eigenvalues, none of which is below 0
            if not int(torch.linalg.cholesky_ex(bound * m_GG - f_GG).info):
                return bound
            bound, more = bound * more, more * more
        return trace

    def state(self, parts: Parts, inverse_GG: Tensor, middle_GG: Tensor) -> tuple[Tensor, Tensor]:
        """P and Q of these rows, from their definition, given M^-1 and `middle()` on the device of the rows."""
        if self.flat is not None:
            factor_NrC = parts.over_classes()
            length_N = self.scale * self.flat * parts.h_ND.square().sum(1)
            p_Nrr = factor_NrC @ factor_NrC.transpose(1, 2) * length_N[:, None, None]
        else:
            p_Nrr = self.scale * parts.squared(inverse_GG)
        return p_Nrr, self.scale * parts.squared(middle_GG)

    def move(self, row: Parts, sign: int) -> Step:
        """Take one row in (sign -1: M^-1 falls) or let it go (+1)."""
        row = row.to(self.inverse_GG.device)
        z_Gr, w_Gr, fine = self.turned(row, sign)
        _check(bool(fine))
        self.noted(row, sign)
        return self.shifted(z_Gr, w_Gr, row.classes, sign)

    def turned(self, row: Parts, sign: int) -> tuple[Tensor, Tensor, Tensor]:
        """Z and W of a row that is taken in or let go, and whether digits suffice for them."""
        u_rG = self.scale**0.5 * row.explicit()[0]
        half_Gr = self.inverse_GG @ u_rG.T
        eye_rr = torch.eye(len(u_rG), dtype=torch.float64, device=u_rG.device)
        z_rG, fine = whitened(eye_rr - sign * (u_rG @ half_Gr), half_Gr.T)
        z_Gr = z_rG.T
        onto_Gr = self.target_GG @ z_Gr
        return z_Gr, self.inverse_GG @ onto_Gr + (sign / 2) * z_Gr @ (z_Gr.T @ onto_Gr), fine

    def shifted(self, z_Gr: Tensor, w_Gr: Tensor, classes: int, sign: int) -> Step:
        """Change the inverse by these; what they change in rows."""
        self.inverse_GG.addmm_(z_Gr, z_Gr.T, alpha=sign)
        # The rows that the step is for are of the batch too.
        return Step(self.scale**0.5 * z_Gr, self.scale**0.5 * w_Gr, classes, sign)

    def noted(self, rows: Parts, sign: int) -> None:
        """Remember that these rows were taken in or let go."""
        self.flat = None
        self.age += len(rows.h_ND)
        self._moved.append((sign, rows))


def whitened(a_Nrr: Tensor, b_Nrm: Tensor) -> tuple[Tensor, Tensor]:
    """L^-1 B with A = L L^T, and whether A has such a factor (N,); N may be any number of axes.

    On an accelerator by elimination, column after column: libraries look at what they found there, for which the host
    waits. A has no need of pivots where it is positive definite.
    """
    if a_Nrr.device.type == "cpu":
        factor_Nrr, failed_N = torch.linalg.cholesky_ex(a_Nrr)
        return torch.linalg.solve_triangular(factor_Nrr, b_Nrm, upper=False), failed_N == 0
    rank = a_Nrr.shape[-1]
    both = torch.cat([a_Nrr, b_Nrm], -1)
    for j in range(rank - 1):
        share = both[..., j + 1 :, j, None] / both[..., j, None, j, None]
        both[..., j + 1 :, j + 1 :].addcmul_(share, both[..., j, None, j + 1 :], value=-1)
    pivot_Nr = both[..., :rank].diagonal(dim1=-2, dim2=-1)
    return both[..., rank:] / pivot_Nr.sqrt()[..., None], (pivot_Nr > 0).all(-1)


def _refuse(condition: float) -> None:
    """Raise where gains are rounding: picks would be a guess."""
    if not condition < WORST:
        raise NumericsError(
            f"Bait: the information matrix has a condition number of {condition:.0e}, which leaves gains no digits in "
            "float64; pass a larger lambda_ or scale embeddings."
        )


def _check(fine: bool) -> None:
    """Raise, with what can be done, where digits do not suffice."""
    if not fine:
        raise NumericsError(
            "Bait: the information matrix cannot be inverted in float64; pass a larger lambda_ or scale embeddings."
        )
