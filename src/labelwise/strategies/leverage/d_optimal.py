"""Greedy D-optimal design: the rows that most raise log det of the design, one after the other.

    M = I at first;   the next row has the largest q = v^T M^-1 v (det M grows by 1 + q);   M += v v^T

v is whitened on the pool, so that M = I is what one average row of the pool is worth; log det M is monotone and
submodular, and the greedy batch has at least 1 - 1/e of the best one's (Nemhauser, Wolsey and Fisher 1978). q only
falls as M grows, so that a q of an earlier M is a bound: rows with the largest q are kept on a short list and followed
exactly, and the pool is swept anew only once the best of the list is not above all bounds outside of it. A sweep takes
off q what the t picks since the last one took, sum (v . u)^2/(1 + q) with u = M^-1 v of a pick: N P t, or computes it
anew, N P d, when d picks have gone by. Picks are those of a sweep for each pick, and never cost more than one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.selection.strategy import tie_tolerance
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import sq_norm
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened, scratch

LIST_NUMBERS = 1 << 20  # numbers of the rows on the short list: 8 MB
SHORTEST = 64
TIED = 1e-9  # gains this near, relative to their size, are tied: what rounding makes of copies of a row
GAIN = "d_optimal"


@dataclass(frozen=True)
class Design:
    """The rows picked, in order, with the q of each when it was picked."""

    ids: list[int]
    gains: list[float]
    steps: list[Tensor]  # u / sqrt(1 + q) of the picks that the rows' q do not know of yet
    sweeps: int = 0


def d_optimal(pool: Shards, basis: Whitened, k: int) -> Design:
    """k rows by greedy D-optimal design. Every row has |v|^2 as state "leverage": q before the first pick."""
    found, size, slack = Design([], [], []), max(SHORTEST, LIST_NUMBERS // basis.rank), max(tie_tolerance(pool), TIED)
    m_DD = torch.eye(basis.rank, dtype=torch.float64)
    exact = 0  # picks when q was last computed anew
    try:
        pool.map(lambda shard: shard.state.update({GAIN: shard.state[LEVERAGE].clone()}))
        while len(found.ids) < k:
            picked = len(found.ids)
            best = pool.best(lambda shard: shard.state[GAIN], min(size + 1, pool.n))
            guard = float(best.values[-1]) if len(best.ids) > size else -torch.inf
            # Rows beyond the list may tie with its best: then one row is taken from the whole pool.
            if guard >= (1 - 2 * slack) * float(best.values[0]):
                best, guard = pool.best(lambda shard: shard.state[GAIN], 1, slack), -torch.inf
                _from_list(pool, basis, m_DD, best, guard, picked + 1, slack, found)
            else:
                best = Best(best.ids[:size], best.values[:size])
                _from_list(pool, basis, m_DD, best, guard, k, slack, found)
            tick(len(found.ids), k)
            if len(found.ids) < k:
                anew = len(found.ids) - exact >= basis.rank
                exact = len(found.ids) if anew else exact
                step_DT = _root(m_DD).T if anew else torch.stack(found.steps, 1)
                pool.map(functools.partial(_sweep, basis, step_DT, anew, torch.tensor(found.ids[picked:])))
                found = replace(found, steps=[], sweeps=found.sweeps + 1)
    finally:
        pool.map(lambda shard: shard.state.pop(GAIN, None) is None)
    return found


def _from_list(
    pool: Shards, basis: Whitened, m_DD: Tensor, best: Best, guard: float, k: int, slack: float, found: Design
) -> None:
    """Take rows of the list until there are k or the best of them is not surely above `guard`; M is added to."""
    free = torch.isfinite(best.values)  # rows already taken have -inf
    ids_M, order = best.ids[free].sort()  # so that the first of those tied has the smallest id
    v_MD = basis.of(pool.take(ids_M)).cpu()
    q_M = best.values[free].double()[order]
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(m_DD))
    while len(found.ids) < k:
        top = float(q_M.max())
        if not top * (1 - 2 * slack) > guard or top == -torch.inf:
            return
        at = int((q_M >= top * (1 - slack)).to(torch.uint8).argmax())
        q = float(q_M[at])
        u_D = inverse_DD @ v_MD[at]
        inverse_DD.addr_(u_D, u_D, alpha=-1 / (1 + q))
        m_DD.addr_(v_MD[at], v_MD[at])
        q_M -= (v_MD @ u_D).square_() / (1 + q)
        q_M[at] = -torch.inf
        found.ids.append(int(ids_M[at]))
        found.gains.append(q)
        found.steps.append(u_D / math.sqrt(1 + q))


def _root(m_DD: Tensor) -> Tensor:
    """L^-1, L the Cholesky factor of M: v^T M^-1 v = |L^-1 v|^2."""
    eye_DD = torch.eye(len(m_DD), dtype=torch.float64)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(m_DD), eye_DD, upper=False)


def _sweep(basis: Whitened, step_DT: Tensor, anew: bool, taken: Tensor, shard: Shard) -> None:
    """q of every row as M is now: |step^T v|^2 where it is computed anew, less that much where it is not."""
    turned = replace(basis, map_PD=basis.map_PD @ step_DT)
    moved_N = shard.each(lambda rows: sq_norm(turned.of(rows)), scratch(shard, basis.signal))
    gone_N = shard.state[GAIN] == -torch.inf
    gone_N |= torch.isin(shard.ids, taken.to(shard.device))
    gain_N = moved_N if anew else (shard.state[GAIN] - moved_N).clamp_min_(0.0)
    shard.state[GAIN] = gain_N.masked_fill_(gone_N, -torch.inf)
