"""Volume: rows that together span a large volume, drawn so that the weighted fit is unbiased, or D-optimal.

Derezinski, Warmuth and Hsu, "Leveraged volume sampling for linear regression", NeurIPS 2018, in the form of theorem 2
of their "Correcting the bias in least squares regression with volume-rescaled sampling", AISTATS 2019: m draws by
leverage, reweighted in proportion to the determinant of their design, are the same as

    d rows S with probability det(V_S)^2 / det(V^T V)   and then   m - d independent draws by leverage

with v the functions of `basis` whitened on the pool. The d rows are drawn one after the other, each with probability
proportional to the squared length of v outside of the span of those before; by rejection from leverage, d log d
proposals and no sweep. Every draw weighs 1/(m n p_i), p_i the leverage score, repeats are merged, and drawing ends
before row k + 1. `Selection.weights` are k times that, about 1 on average. Cost as `leverage`, and d^3 log d.

With rule="greedy" the rows are a D-optimal design instead, one after the other (d_optimal.py):

    argmax_x v^T M^-1 v,   M += v v^T,   M = I at first

without randomness and without weights: informative where the linear model is right, and not representative of the pool.
Cost: a sweep when the short list of best rows is exhausted, dozens in all, of N P min(d, picks since the last one), and
k d x (its length).
Departs from the paper: the budget counts distinct rows; no draw is reordered, since the weights do not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from labelwise.errors import ArgumentError
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shards
from labelwise.signals.rows import sq_norm
from labelwise.signals.spec import Basis
from labelwise.strategies.leverage.d_optimal import Tuning, d_optimal
from labelwise.strategies.leverage.joint import Past
from labelwise.strategies.leverage.leverage import DESIGN_BLOCK, draw_by_leverage, with_design_notes
from labelwise.strategies.leverage.weighted_batch import BasisStrategy, Draws, merge_draws
from labelwise.strategies.leverage.weighted_sampling import PoissonSampler, expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened

WINDOW = 1 << 12
MIN_REST = 1e-9  # a smaller share of |v|^2 after projection is rounding


@register
@dataclass(frozen=True)
class Volume(BasisStrategy):
    """Leveraged volume sampling with importance weights, or greedy D-optimal design without.

    Args:
        basis, rank, tol: see `BasisStrategy`.
        rule: "sampled" draws rows, "greedy" selects those that most raise the determinant.

    Raises:
        ArgumentError: a parameter is out of range, or the rule is unknown.
    """

    rule: Literal["sampled", "greedy"] = "sampled"

    tuning: ClassVar[Tuning] = Tuning()

    name = "volume"
    picks = "drawn by volume, or greedy D-optimal"
    reason = "Chosen to spread the batch over all directions of the data."
    cost = "N P^2 + d^3 log d"
    growth = Growth(D=2, k=3)  # d is k/12, up to 256
    paper = "Derezinski et al., NeurIPS 2018, AISTATS 2019"
    weighted = True
    known_law = True

    def check_parameters(self, basis: Basis) -> None:
        if self.rule not in ("sampled", "greedy"):
            raise ArgumentError(f'Volume(rule=...) must be "sampled" or "greedy", found {self.rule!r}')
        object.__setattr__(self, "weighted", self.rule == "sampled")
        object.__setattr__(self, "known_law", self.rule == "sampled")

    def rows_together(self, size: Size, functions: int, rank: int) -> int:
        listed = self.tuning.listed(rank) if self.rule == "greedy" else 4 * rank + 16
        return max(listed, min(DESIGN_BLOCK, size.k))

    def max_rank(self, k: int, labelled: int) -> int:
        return min(k, BasisStrategy.max_rank(self, k, labelled))  # the batch has a row for each function

    def choose(self, pool: Shards, past: Past, basis: Whitened, k: int, key: Key) -> Selection:
        if self.rule == "greedy":
            design = d_optimal(pool, basis, k, self.tuning)
            notes = {**basis.notes(), "log_det": sum(map(math.log1p, design.gains)), "sweeps": design.sweeps}
            return with_design_notes(pool, basis, past, equal_weights(design.ids, design.gains, notes))
        draws = Draws(k)
        draw_spanning_rows(pool, basis, PoissonSampler(pool, LEVERAGE, key.fold("volume")), draws)
        expected = expected_draws(pool, LEVERAGE, k, draws.most(k))
        draw_by_leverage(pool, PoissonSampler(pool, LEVERAGE, key), draws, expected)
        notes = {**basis.notes(), "volume_rows": basis.rank}
        batch = merge_draws(pool, draws, k / draws.count, past, key.fold("fill"), notes)
        return with_design_notes(pool, basis, past, batch)


def draw_spanning_rows(pool: Shards, basis: Whitened, sampler: PoissonSampler, draws: Draws) -> None:
    """Draw `rank` rows with probability proportional to the squared volume that they span."""
    q_TD = torch.zeros(0, basis.rank, dtype=torch.float64)
    while len(q_TD) < basis.rank:
        window = sampler.window(min(WINDOW, 4.0 * basis.rank + 16))
        if not len(window.ids):
            continue
        ids, index_J = window.ids.unique(return_inverse=True)
        v_UD = basis.transform(pool.take(ids)).cpu()
        norm_U = sq_norm(v_UD)
        for uniform, row, index in zip(window.uniform.tolist(), window.ids.tolist(), index_J.tolist()):
            v_D = v_UD[index]
            rest_D = v_D - (v_D @ q_TD.T) @ q_TD
            rest_D = rest_D - (rest_D @ q_TD.T) @ q_TD  # twice is enough to be orthogonal to rounding
            rest, norm = float(rest_D @ rest_D), float(norm_U[index])
            if rest <= MIN_REST * norm or uniform * norm >= rest:
                continue
            ratio = norm * pool.n / sampler.total
            draws.add(row, 1 / ratio, ratio)
            q_TD = torch.cat([q_TD, (rest_D / rest_D.norm())[None]])
            if len(q_TD) == basis.rank:
                break
