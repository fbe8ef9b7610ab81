"""Leverage: rows drawn in proportion to their leverage scores, with the weights that undo it.

Drineas, Mahoney and Muthukrishnan, SIAM J. Matrix Anal. Appl. 2008; as active learning, Chen and Price, COLT 2019,
whose yardstick it is. With v the functions of `basis` whitened on the pool (whiten.py),

    p_i = |v_i|^2 / sum_j |v_j|^2,    drawn with replacement,    u_i = (times drawn) / (m n p_i)  after m draws

Draws go on until the next one would bring row k + 1; `Selection.weights` are k u_i, about 1 on average. Cost: N P^2 +
N P d for whitening and scores, then no sweep of the features.
Departs from the paper: the budget counts distinct rows, not draws; rows taken at random fill the batch as in `bss`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.selection.memory import Size
from labelwise.selection.progress import tick
from labelwise.selection.strategy import Growth
from labelwise.shards import Shards
from labelwise.strategies.leverage.barrier import good_output
from labelwise.strategies.leverage.basis_strategy import OnBasis
from labelwise.strategies.leverage.weighted_batch import Drawn, batch_of
from labelwise.strategies.leverage.weighted_sampling import Rings, expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened

WINDOW = 1 << 14  # rings drawn at once
TAKEN = 4096  # rows of the design formed at once


@register
@dataclass(frozen=True)
class Leverage(OnBasis):
    """Leverage-score sampling with importance weights; for `basis`, `rank` and `tol` see `OnBasis`."""

    name = "leverage"
    picks = "leverage-score sampling, with weights"
    reason = "Drawn because few other items carry the same information."
    cost = "N P^2"
    growth = Growth(D=2)
    paper = "Drineas et al. 2008; Chen & Price, COLT 2019"
    weighted = True
    known_law = True

    def taken(self, size: Size, functions: int, rank: int) -> int:
        return min(TAKEN, size.k)

    def choose(self, pool: Shards, labelled: Shards, basis: Whitened, k: int, key: Key) -> Selection:
        rings, drawn = Rings(pool, LEVERAGE, key), Drawn(k)
        by_leverage(pool, basis, rings, drawn, expected_draws(pool, LEVERAGE, k, Drawn.most(k)))
        batch = batch_of(pool, drawn, k / drawn.draws, key.fold("fill"), basis.notes())
        return with_design(pool, basis, batch)


def by_leverage(pool: Shards, basis: Whitened, rings: Rings, drawn: Drawn, expected: float) -> None:
    """Draw by leverage until the next draw would bring row k + 1; a draw weighs 1 / (n p_i)."""
    while not drawn.full and drawn.draws < Drawn.most(drawn.k):
        left = max(expected - drawn.draws, 0.05 * expected)
        window = rings.window(min(WINDOW, 1.1 * left + 16))
        if not len(window.ids):
            continue
        ids, place_J = window.ids.unique(return_inverse=True)
        ratio_U = leverage_of(pool, ids) * (pool.n / rings.total)
        for row, ratio in zip(window.ids.tolist(), ratio_U[place_J].tolist()):
            if drawn.draws >= Drawn.most(drawn.k) or not drawn.offer(row, 1 / ratio, ratio):
                break
        tick(len(drawn.weight), drawn.k)


def leverage_of(pool: Shards, ids: torch.Tensor) -> torch.Tensor:
    """|v|^2 of the rows `ids`, which are sorted, as the shards hold it."""
    found = torch.zeros(len(ids), dtype=torch.float64)
    for here, values in pool.map(lambda shard: _here(shard, ids)):
        found[here] = values
    return found


def _here(shard: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mine = torch.isin(shard.ids, ids.to(shard.device)).nonzero()[:, 0]
    return torch.searchsorted(ids, shard.ids[mine].cpu()), shard.state[LEVERAGE][mine].cpu()


def with_design(pool: Shards, basis: Whitened, batch: Selection) -> Selection:
    """The batch with the eigenvalues of its weighted design, sum_i u_i v_i v_i^T, among its notes."""
    design_DD = torch.zeros(basis.rank, basis.rank, dtype=torch.float64)
    ids, weight_k = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights) / len(batch)
    for part in torch.arange(len(ids)).split(TAKEN):
        v_MD = basis.of(pool.take(ids[part])).cpu()
        design_DD.addmm_(v_MD.T, v_MD * weight_k[part, None])
    lam_D = torch.linalg.eigvalsh(design_DD)
    low, high = float(lam_D[0]), float(lam_D[-1])
    notes = {**batch.notes, "eigenvalues": [low, high], "good": good_output(low, high)}
    return Selection(batch.ids, batch.weights, batch.scores, notes)
