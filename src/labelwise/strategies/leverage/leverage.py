"""Leverage: rows drawn in proportion to their leverage scores, with the inverse weights.

Drineas, Mahoney and Muthukrishnan, SIAM J. Matrix Anal. Appl. 2008; as active learning, Chen and Price, COLT 2019,
as their baseline. With v the functions of `basis` whitened on the pool (whiten.py),

    p_i = |v_i|^2 / sum_j |v_j|^2,    drawn with replacement,    u_i = (times drawn) / (m n p_i)  after m draws

Draws continue until the next would bring row k + 1; `Selection.weights` are k u_i, about 1 on average. Cost: N P^2 +
N P d for whitening and scores, then no sweep of the features.
Departs from the paper: the budget counts distinct rows, not draws; rows at random fill the batch as in `bss`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.selection.progress import tick
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.strategies.leverage.joint import Past, design_notes, relative
from labelwise.strategies.leverage.weighted_batch import BasisStrategy, Draws, merge_draws
from labelwise.strategies.leverage.weighted_sampling import PoissonSampler, expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened

WINDOW = 1 << 14  # draws of a window, at most
DESIGN_BLOCK = 4096  # rows of the design computed at once


@register
@dataclass(frozen=True)
class Leverage(BasisStrategy):
    """Rows drawn in proportion to their leverage scores, with importance weights.

    Args:
        basis: the functions whose span is to be learnt: the name of a map or a `Basis`. An array given as `basis=` to
            `select` replaces it.
        rank: the maximum of functions; None is a twelfth of all labels, this batch included, and at most 256. Never
            more than a fifth of them.
        tol: eigenvalues below this share of the largest are no direction; None is 1e-10 (1e-6 in float32).

    Raises:
        ArgumentError: a parameter is out of range.
    """

    name = "leverage"
    picks = "leverage-score sampling, with weights"
    reason = "Drawn because few other items carry the same information."
    cost = "N P^2"
    growth = Growth(D=2)
    paper = "Drineas et al. 2008; Chen & Price, COLT 2019"
    weighted = True
    known_law = True

    def rows_together(self, size: Size, functions: int, rank: int) -> int:
        return min(DESIGN_BLOCK, size.k)

    def choose(self, pool: Shards, past: Past, basis: Whitened, k: int, key: Key) -> Selection:
        draws = Draws(k)
        draw_by_leverage(
            pool, PoissonSampler(pool, LEVERAGE, key), draws, expected_draws(pool, LEVERAGE, k, draws.most(k))
        )
        batch = merge_draws(pool, draws, k / draws.count, past, key.fold("fill"), basis.notes())
        return with_design_notes(pool, basis, past, batch)


def draw_by_leverage(pool: Shards, sampler: PoissonSampler, draws: Draws, expected: float) -> None:
    """Draw by leverage until the next draw would add row k + 1; a draw weighs 1 / (n p_i)."""
    while not draws.is_full and draws.count < draws.most(draws.k):
        left = max(expected - draws.count, 0.05 * expected)
        window = sampler.window(min(WINDOW, 1.1 * left + 16))
        if not len(window.ids):
            continue
        ids, index_J = window.ids.unique(return_inverse=True)
        ratio_U = _leverage(pool, ids) * (pool.n / sampler.total)
        for row, ratio in zip(window.ids.tolist(), ratio_U[index_J].tolist()):
            if draws.count >= draws.most(draws.k) or not draws.add(row, 1 / ratio, ratio):
                break
        tick(len(draws.weight), draws.k)


def _leverage(pool: Shards, ids: Tensor) -> Tensor:
    """|v|^2 of the rows `ids`, which are sorted."""
    found = torch.zeros(len(ids), dtype=torch.float64)
    for index, values in pool.map(lambda shard: _leverage_in(shard, ids)):
        found[index] = values
    return found


def _leverage_in(shard: Shard, ids: Tensor) -> tuple[Tensor, Tensor]:
    mine = torch.isin(shard.ids, ids.to(shard.device)).nonzero()[:, 0]
    return torch.searchsorted(ids, shard.ids[mine].cpu()), shard.state[LEVERAGE][mine].cpu()


def with_design_notes(pool: Shards, basis: Whitened, past: Past, batch: Selection) -> Selection:
    """The batch with notes on the eigenvalues of the joint design."""
    k = len(batch)
    design_DD = past.weighted(k).clone()
    ids, weight_k = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights)
    for part in torch.arange(len(ids)).split(DESIGN_BLOCK):
        v_MD = basis.transform(pool.take(ids[part])).cpu()
        design_DD.addmm_(v_MD.T, v_MD * weight_k[part, None])
    low, high = relative(design_DD / (past.rows + k), past)
    notes = {**batch.notes, **design_notes(low, high, past, k)}
    return Selection(batch.ids, batch.weights, batch.scores, notes)
