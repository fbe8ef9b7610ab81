"""The design of BAIT: M, its inverse and F, on the CPU or next to the rows on one accelerator.

Notation as in fisher.py. Adding or removing a row changes the inverse by low rank; from time to time M is written out
and inverted again. Where all rows are in one shard on an accelerator, the three tables are in the state of that shard
and only a few numbers travel; `with_tables` joins the two.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from labelwise.errors import NumericsError
from labelwise.io.values import storable
from labelwise.selection.backends import is_accelerator
from labelwise.strategies.bait.fisher import Factors, Update, concatenate

TABLES = ("M", "F", "inverse")
FLUSH_BLOCK = 64  # rows whose factors are added to M at once
POWER_STEPS, POWER_VECTORS = 12, 4
# Condition number of M above which picks differ from those with sixty digits (tests/strategies/bait/test_bait.py).
MAX_CONDITION = 1e9
SLACK = 1.02  # the first bound that is tried, relative to the eigenvalue that the power method finds


@storable
class Design:
    """M, its inverse and F: the state of the whole batch, small enough for every shard.

    Args:
        labelled_GG: the information of the labelled rows in M (C D, C D).
        lambda_: the diagonal that is added to M.
        target_GG: F (C D, C D).
        scale: the weight of a row of the batch in M.
    """

    def __init__(self, labelled_GG: Tensor, lambda_: float, target_GG: Tensor, scale: float):
        eye_GG = torch.eye(len(labelled_GG), dtype=torch.float64, device=labelled_GG.device)
        self.scale = scale
        self.tables = {"M": lambda_ * eye_GG + labelled_GG, "F": target_GG, "inverse": eye_GG / lambda_}
        self._pending: list[tuple[int, Factors]] = []  # rows added and removed that M does not have yet
        self.age = 0  # rows added and removed since M was last inverted
        # The inverse while it is a multiple of the unit matrix.
        self.unit_multiple = None if bool(labelled_GG.any()) else 1 / lambda_
        if self.unit_multiple is None:
            self.refresh()

    @property
    def inverse_GG(self) -> Tensor:
        return self.tables["inverse"]

    @property
    def target_GG(self) -> Tensor:
        return self.tables["F"]

    def without_tables(self) -> Design:
        """The part that travels: the design without its tables."""
        light = copy.copy(self)
        light.tables, light._pending = {}, []
        return light

    def with_tables(self, state: dict[str, Tensor]) -> Design:
        """The design with its tables, from the state of a shard unless it has them."""
        if self.tables:
            return self
        whole = self.without_tables()
        whole.tables = state
        return whole

    def flush(self) -> Tensor:
        """Write the pending rows into M. Returns M."""
        for sign in sorted({which for which, _ in self._pending}):
            rows = concatenate([factors for which, factors in self._pending if which == sign])
            for start in range(0, len(rows.h_ND), FLUSH_BLOCK):
                u_UG = rows.part(slice(start, start + FLUSH_BLOCK)).explicit().flatten(0, 1)
                self.tables["M"].addmm_(u_UG.T, u_UG, alpha=-sign * self.scale)
        self._pending = []
        return self.tables["M"]

    def refresh(self) -> None:
        """Invert M from its definition: updates of updates lose digits."""
        self.unit_multiple, self.age = None, 0
        factor_GG, failed = torch.linalg.cholesky_ex(self.flush())
        _check_definite(not int(failed))
        self.tables["inverse"] = torch.cholesky_inverse(factor_GG)

    def sandwich(self) -> Tensor:
        """M^-1 F M^-1."""
        if self.unit_multiple is not None:
            return self.unit_multiple**2 * self.target_GG
        return self.inverse_GG @ self.target_GG @ self.inverse_GG

    def trace(self) -> float:
        """tr(M^-1 F), the objective.

        Raises:
            NumericsError: M is so badly conditioned that gains are rounding.
        """
        trace, condition = torch.stack(self._trace_and_condition()).tolist()
        _check_condition(condition)
        return float(trace)

    def _trace_and_condition(self) -> tuple[Tensor, Tensor]:
        """tr(M^-1 F), and the condition number of M in the 1-norm."""
        sums = [matrix.abs().sum(0).amax() for matrix in (self.flush(), self.inverse_GG)]
        return (self.inverse_GG * self.target_GG).sum(), sums[0] * sums[1]

    def eigenvalue_bound(self) -> float:
        """An upper bound of the eigenvalues of M^-1 F, now and after more rows are added.

        The power method estimates the largest; a Cholesky factor of s M - F proves that none is above s.
        """
        m_GG, f_GG = self.flush(), self.target_GG
        generator = torch.Generator().manual_seed(0)
        v_GF = torch.randn(len(m_GG), POWER_VECTORS, generator=generator, dtype=torch.float64)
        v_GF = v_GF.to(m_GG.device, non_blocking=True)
        for _ in range(POWER_STEPS):
            v_GF = self.inverse_GG @ (f_GG @ torch.linalg.qr(v_GF).Q)
        basis_GF = torch.linalg.qr(v_GF).Q
        small_2FF = torch.stack([basis_GF.T @ m_GG @ basis_GF, basis_GF.T @ f_GG @ basis_GF])
        found = torch.cat([small_2FF.flatten(), torch.stack(self._trace_and_condition())]).cpu()
        small_2FF, (trace, condition) = found[:-2].view(small_2FF.shape), found[-2:].tolist()
        _check_condition(condition)
        likely = float(torch.linalg.eigvals(torch.linalg.solve(small_2FF[0], small_2FF[1])).real.max())
        bound, factor = float(max(likely, trace / len(m_GG)) * SLACK), SLACK
        while bound < trace:  # the sum of all eigenvalues, none of which is below 0
            if not int(torch.linalg.cholesky_ex(bound * m_GG - f_GG).info):
                return bound
            bound, factor = bound * factor, factor * factor
        return float(trace)

    def compute_pq(self, factors: Factors, inverse_GG: Tensor, sandwich_GG: Tensor) -> tuple[Tensor, Tensor]:
        """P and Q of these rows from their definition, given M^-1 and `sandwich()` on the device of the rows."""
        if self.unit_multiple is not None:
            factor_NrC = factors.over_classes()
            length_N = self.scale * self.unit_multiple * factors.h_ND.square().sum(1)
            p_Nrr = factor_NrC @ factor_NrC.transpose(1, 2) * length_N[:, None, None]
        else:
            p_Nrr = self.scale * factors.quadratic(inverse_GG)
        return p_Nrr, self.scale * factors.quadratic(sandwich_GG)

    def move(self, row: Factors, sign: int) -> Update:
        """Add one row (sign -1: M^-1 falls) or remove it (+1).

        Raises:
            NumericsError: M is not positive definite in float64.
        """
        row = row.to(self.inverse_GG.device)
        z_Gr, w_Gr, is_definite = self.low_rank_change(row, sign)
        _check_definite(bool(is_definite))
        self.record(row, sign)
        return self.apply(z_Gr, w_Gr, row.classes, sign)

    def low_rank_change(self, row: Factors, sign: int) -> tuple[Tensor, Tensor, Tensor]:
        """Z and W of a row that is added or removed, and whether M stays positive definite."""
        u_rG = self.scale**0.5 * row.explicit()[0]
        # Symmetric tables from the right: a table by a few columns takes 5 to 40 times as long on a CPU.
        half_Gr = (u_rG @ self.inverse_GG).T
        eye_rr = torch.eye(len(u_rG), dtype=torch.float64, device=u_rG.device)
        z_rG, is_definite = solve_cholesky(eye_rr - sign * (u_rG @ half_Gr), half_Gr.T)
        z_Gr, onto_rG = z_rG.T, z_rG @ self.target_GG
        w_rG = onto_rG @ self.inverse_GG + (sign / 2) * (onto_rG @ z_Gr) @ z_rG
        return z_Gr, w_rG.T, is_definite

    def apply(self, z_Gr: Tensor, w_Gr: Tensor, classes: int, sign: int) -> Update:
        """Change the inverse by Z Z^T. Returns the update of P and Q."""
        self.inverse_GG.addmm_(z_Gr, z_Gr.T, alpha=sign)
        # The rows that are updated have the weight of a row of the batch too.
        return Update(self.scale**0.5 * z_Gr, self.scale**0.5 * w_Gr, classes, sign)

    def record(self, rows: Factors, sign: int) -> None:
        """Remember for `flush` that these rows were added or removed."""
        self.unit_multiple = None
        self.age += len(rows.h_ND)
        self._pending.append((sign, rows))


def solve_cholesky(a_Nrr: Tensor, b_Nrm: Tensor) -> tuple[Tensor, Tensor]:
    """L^-1 B with A = L L^T, and whether A has such a factor (N,); N may be any number of axes.

    On an accelerator by elimination, column after column: the factorisations of libraries check their result on the
    host, which then waits. A needs no pivots where it is positive definite.
    """
    if not is_accelerator(a_Nrr.device):
        factor_Nrr, failed_N = torch.linalg.cholesky_ex(a_Nrr)
        return torch.linalg.solve_triangular(factor_Nrr, b_Nrm, upper=False), failed_N == 0
    rank = a_Nrr.shape[-1]
    both = torch.cat([a_Nrr, b_Nrm], -1)
    for j in range(rank - 1):
        share = both[..., j + 1 :, j, None] / both[..., j, None, j, None]
        both[..., j + 1 :, j + 1 :].addcmul_(share, both[..., j, None, j + 1 :], value=-1)
    pivot_Nr = both[..., :rank].diagonal(dim1=-2, dim2=-1)
    return both[..., rank:] / pivot_Nr.sqrt()[..., None], (pivot_Nr > 0).all(-1)


def _check_condition(condition: float) -> None:
    if not condition < MAX_CONDITION:
        raise NumericsError(
            f"Bait: the information matrix has a condition number of {condition:.0e}, which leaves gains no digits in "
            "float64; pass a larger lambda_ or scale embeddings."
        )


def _check_definite(is_definite: bool) -> None:
    if not is_definite:
        raise NumericsError(
            "Bait: the information matrix cannot be inverted in float64; pass a larger lambda_ or scale embeddings."
        )
