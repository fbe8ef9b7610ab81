"""The joint design of all labels so far and a new batch, measured on the whole pool.

M rows have been labelled in earlier rounds and N are free, n = M + N; v is whitened on the free rows. With G the second
moment of the pool, v_i the joint weights of the labelled rows (`Ledger.joint_weights`) as they will be once k more rows
are labelled, and w the weights of the batch,

    G = (N I + sum_L v v^T)/n,    D = (sum_L a_i v v^T + sum_batch w_i v v^T)/(M + k),    a = 1 + (v - 1)(N - k)/N

D is near G if the labelled rows represent the pool. Where D = G before the batch, draws that represent the free rows
keep it so. `bss` begins at what the labelled rows lack of G, so that it draws more in those directions:

    B0 = mid clip(sum_L a_i v v^T/(M + k) - G + I),   eigenvalues clipped to [0, 1]

Without the clip B = mid I would mean D = G. But whatever B0 is, draws add sum(gamma/Phi) I on average: the batch stands
for the free rows, which neither replace what long labelled rows lack (eigenvalues below 0) nor take away what they have
too much of (above 1). Such directions only move the barriers away from all others, or attract draws that cannot help.
Since D = (sum_L a_i v v^T + (B - B0) k/sum(gamma/Phi))/(M + k) for any B0, barriers of B are barriers of D, and what
was clipped is in D in full. All eigenvalues are relative to G.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Weight
from labelwise.strategies.leverage.barrier import Barrier, is_good_output
from labelwise.strategies.leverage.whiten import Whitened

LONG = 1e5  # the largest part of v that counts for a labelled row


@dataclass(frozen=True)
class Past:
    """The rows labelled in earlier rounds, in the whitened functions of the free rows.

    Attributes:
        rows: M.
        free: N.
        plain_DD: the sum of v v^T.
        weighted_DD: the same with joint weights.
        total, squares: the sums of the joint weights and of their squares.
    """

    rows: int
    free: int
    plain_DD: Tensor
    weighted_DD: Tensor
    total: float
    squares: float

    @staticmethod
    def of(labelled: Shards, basis: Whitened, free: int) -> Past:
        """Read the labelled rows; there may be none."""
        d = basis.rank
        if not labelled.n:
            zero_DD = torch.zeros(d, d, dtype=torch.float64)
            return Past(0, free, zero_DD, zero_DD, 0.0, 0.0)
        sums = labelled.sum(functools.partial(_sums, basis))
        plain_DD, weighted_DD = sums[:-2].view(2, d, d)
        return Past(labelled.n, free, plain_DD, weighted_DD, float(sums[-2]), float(sums[-1]))

    def keeps(self, k: int) -> float:
        """(N - k)/N: how much of (weight - 1) is left of the labelled rows once k more are labelled."""
        return (self.free - k) / self.free

    def weighted(self, k: int) -> Tensor:
        """sum_L a v v^T (d, d)."""
        share = self.keeps(k)
        return (1 - share) * self.plain_DD + share * self.weighted_DD

    def moment(self) -> Tensor:
        """G (d, d)."""
        eye_DD = torch.eye(len(self.plain_DD), dtype=torch.float64)
        return (self.free * eye_DD + self.plain_DD) / (self.free + self.rows)

    def start(self, k: int) -> Tensor:
        """B0/mid (d, d)."""
        eye_DD = torch.eye(len(self.plain_DD), dtype=torch.float64)
        lam_D, q_DD = torch.linalg.eigh(self.weighted(k) / (self.rows + k) - self.moment() + eye_DD)
        start_DD: Tensor = (q_DD * lam_D.clamp(0.0, 1.0)) @ q_DD.T
        return start_DD

    def effective_sample_size(self, k: int, total: float, squares: float) -> float:
        """(sum of weights)^2 / sum of squares over labelled rows and a batch of k with these sums."""
        share, m = self.keeps(k), self.rows
        old = m + share * (self.total - m)
        old_squares = m + 2 * share * (self.total - m) + share * share * (self.squares - 2 * self.total + m)
        return (old + total) ** 2 / (old_squares + squares)


def relative(matrix_DD: Tensor, past: Past) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a matrix relative to G."""
    root_DD = torch.linalg.cholesky(past.moment())
    half_DD = torch.linalg.solve_triangular(root_DD, matrix_DD, upper=False)
    lam_D = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root_DD, half_DD.T, upper=False))
    return float(lam_D[0]), float(lam_D[-1])


def design_notes(low: float, high: float, past: Past, k: int) -> dict[str, Any]:
    """Notes on the eigenvalues of the joint design."""
    return {
        "labels": past.rows + k,
        "eigenvalues": [low, high],
        "good": is_good_output(low, high),
        "design_condition": high / low if low > 0 else None,
    }


def certificate(barrier: Barrier, start_DD: Tensor, past: Past, k: int) -> dict[str, Any]:
    """Notes: the eigenvalues of the joint design, and the barriers that they are certain to lie between.

    Args:
        barrier: after the draws.
        start_DD: its B before them.
        past: the labelled rows.
        k: rows of the batch.

    Raises:
        NumericsError: an eigenvalue of B is beyond a barrier.
    """
    barrier.eigenvalues()
    scale = k / (past.rows + k) / barrier.total
    eye_DD = torch.eye(barrier.d, dtype=torch.float64)
    rest_DD = past.weighted(k) / (past.rows + k) - scale * start_DD
    notes = design_notes(*relative(rest_DD + scale * barrier.matrix, past), past, k)
    low, _ = relative(rest_DD + scale * barrier.lower * eye_DD, past)
    _, high = relative(rest_DD + scale * barrier.upper * eye_DD, past)
    return {**notes, "barriers": [low, high]}


def _sums(basis: Whitened, shard: Shard) -> Tensor:
    """sum v v^T without and with joint weights, and the sums of the weights and of their squares."""
    total = torch.zeros(2, basis.rank, basis.rank, dtype=torch.float64, device=shard.device)
    weights = torch.zeros(2, dtype=torch.float64, device=shard.device)
    for _, rows in shard.blocks(scratch=4 * basis.rank):
        v_ND, weight_N = basis.transform(rows), rows.tensor(Weight()).double()
        # A labelled row far beyond all free ones has its direction; its full length would drown the others in rounding.
        v_ND = v_ND.nan_to_num(posinf=LONG, neginf=-LONG).clamp(-LONG, LONG)
        total[0].addmm_(v_ND.T, v_ND)
        total[1].addmm_(v_ND.T, v_ND * weight_N[:, None])
        weights += torch.stack([weight_N.sum(), weight_N.square().sum()])
    return torch.cat([total.flatten(), weights]).cpu()
