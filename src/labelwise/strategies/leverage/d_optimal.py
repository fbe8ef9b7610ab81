"""Greedy D-optimal design: the rows that most raise log det of the design, one after the other.

    M = I at first;   the next row has the largest q = v^T M^-1 v (det M grows by 1 + q);   M += v v^T

v is whitened on the pool, so that M = I is what one average row of the pool is worth; log det M is monotone and
submodular, and the greedy batch has at least 1 - 1/e of the best one's (Nemhauser, Wolsey and Fisher 1978). q only
falls as M grows, so that a q of an earlier M is an upper bound: the rows with the largest q are on a short list with
exact q, and the pool is swept only once the best of the list is not above all bounds outside of it. A sweep subtracts
from q the terms of the t picks since the last one, sum (v . u)^2/(1 + q) with u = M^-1 v of a pick: N P t, or computes
it from M, N P d, after d picks. Picks are those of a sweep for each pick, and never cost more than that.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import sq_norm
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened, scratch

TIED = 1e-9  # gains this close, relative to their size, are tied: rounding of copies of a row
GAIN = "d_optimal"


@dataclass(frozen=True)
class Tuning:
    """The length of the short list; it changes time and memory.

    Args:
        list_numbers: numbers of the rows on the list: 8 MB.
        min_listed: rows on the list, at least.
    """

    list_numbers: int = 1 << 20
    min_listed: int = 64

    def listed(self, rank: int) -> int:
        """Rows on the list."""
        return max(self.min_listed, self.list_numbers // rank)


@dataclass(frozen=True)
class Design:
    """A greedy design.

    Attributes:
        ids: the rows, in the order they were selected.
        gains: q of each when it was selected.
        steps: u / sqrt(1 + q) of the picks that the q of the rows do not have yet.
        sweeps: sweeps of the pool.
    """

    ids: list[int]
    gains: list[float]
    steps: list[Tensor]
    sweeps: int = 0


def d_optimal(pool: Shards, basis: Whitened, k: int, tuning: Tuning) -> Design:
    """k rows by greedy D-optimal design. Every row has |v|^2 as state "leverage": q before the first pick."""
    found, size, slack = Design([], [], []), tuning.listed(basis.rank), max(pool.tie_tolerance(), TIED)
    m_DD = torch.eye(basis.rank, dtype=torch.float64)
    exact = 0  # picks when q was last computed from M
    try:
        pool.map(lambda shard: shard.state.update({GAIN: shard.state[LEVERAGE].clone()}))
        while len(found.ids) < k:
            picked = len(found.ids)
            best = pool.best(lambda shard: shard.state[GAIN], min(size + 1, pool.n))
            bound = float(best.values[-1]) if len(best.ids) > size else -torch.inf
            # Rows beyond the list may tie with its best: then one row is selected from the whole pool.
            if bound >= (1 - 2 * slack) * float(best.values[0]):
                best, bound = pool.best(lambda shard: shard.state[GAIN], 1, slack), -torch.inf
                _select_from_list(pool, basis, m_DD, best, bound, picked + 1, slack, found)
            else:
                best = Best(best.ids[:size], best.values[:size])
                _select_from_list(pool, basis, m_DD, best, bound, k, slack, found)
            tick(len(found.ids), k)
            if len(found.ids) < k:
                from_m = len(found.ids) - exact >= basis.rank
                exact = len(found.ids) if from_m else exact
                step_DT = _inverse_factor(m_DD).T if from_m else torch.stack(found.steps, 1)
                pool.map(functools.partial(_sweep, basis, step_DT, from_m, torch.tensor(found.ids[picked:])))
                found = replace(found, steps=[], sweeps=found.sweeps + 1)
    finally:
        pool.map(lambda shard: shard.state.pop(GAIN, None) is None)
    return found


def _select_from_list(
    pool: Shards, basis: Whitened, m_DD: Tensor, best: Best, bound: float, k: int, slack: float, found: Design
) -> None:
    """Select rows of the list until there are k or the best of them is not surely above `bound`; M is added to."""
    candidates = torch.isfinite(best.values)  # rows already selected have -inf
    ids_M = best.ids[candidates]
    order = pool.ties.lots(ids_M).argsort()  # so that the first of those tied has the smallest lot
    ids_M = ids_M[order]
    v_MD = basis.transform(pool.take(ids_M)).cpu()
    q_M = best.values[candidates].double()[order]
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(m_DD))
    while len(found.ids) < k:
        top = float(q_M.max())
        if not top * (1 - 2 * slack) > bound or top == -torch.inf:
            return
        row = int((q_M >= top * (1 - slack)).to(torch.uint8).argmax())
        q = float(q_M[row])
        u_D = inverse_DD @ v_MD[row]
        inverse_DD.addr_(u_D, u_D, alpha=-1 / (1 + q))
        m_DD.addr_(v_MD[row], v_MD[row])
        q_M -= (v_MD @ u_D).square_() / (1 + q)
        q_M[row] = -torch.inf
        found.ids.append(int(ids_M[row]))
        found.gains.append(q)
        found.steps.append(u_D / math.sqrt(1 + q))


def _inverse_factor(m_DD: Tensor) -> Tensor:
    """L^-1, L the Cholesky factor of M: v^T M^-1 v = |L^-1 v|^2."""
    eye_DD = torch.eye(len(m_DD), dtype=torch.float64)
    inverse_DD: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(m_DD), eye_DD, upper=False)
    return inverse_DD


def _sweep(basis: Whitened, step_DT: Tensor, from_m: bool, selected: Tensor, shard: Shard) -> None:
    """Compute q of every row for the present M: |step^T v|^2, or what it was less that much."""
    stepped = replace(basis, map_PD=basis.map_PD @ step_DT)
    change_N = shard.each(lambda rows: sq_norm(stepped.transform(rows)), scratch(shard, basis.signal))
    selected_N = shard.state[GAIN] == -torch.inf
    selected_N |= torch.isin(shard.ids, selected.to(shard.device))
    gain_N = change_N if from_m else (shard.state[GAIN] - change_N).clamp_min_(0.0)
    shard.state[GAIN] = gain_N.masked_fill_(selected_N, -torch.inf)
