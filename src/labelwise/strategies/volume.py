"""Volume: rows that span a large volume together, then rows by leverage; the weighted fit is unbiased.

Derezinski, Warmuth and Hsu, "Leveraged volume sampling for linear regression", NeurIPS 2018, in the form of theorem 2
of their "Correcting the bias in least squares regression with volume-rescaled sampling", AISTATS 2019: m draws by
leverage, reweighted in proportion to the determinant of their design, are the same as

    d rows S with probability det(V_S)^2 / det(V^T V)   and then   m - d independent draws by leverage

with v the functions of `basis` whitened on the pool. The d rows are drawn one after the other, each with probability
proportional to the squared length of v outside of the span of those before; by rejection from leverage, d log d
proposals and no sweep. Every draw weighs 1/(m n p_i), p_i the leverage score, repeats are merged, and drawing ends
before row k + 1. `Selection.weights` are k times that, about 1 on average. Cost as `leverage`, and d^3 log d.
Departs from the paper: the budget counts distinct rows; no draw is reordered, since the weights do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from labelwise.choose import Selection, Strategy
from labelwise.choose.drawn import Drawn, as_basis, batch_of, census, check_rank, rank_cap
from labelwise.choose.rings import Rings, expected_draws
from labelwise.choose.whiten import LEVERAGE, Whitened, whitened
from labelwise.keys import Key
from labelwise.shards import Shards
from labelwise.signals.rows import sq_norm
from labelwise.signals.spec import Basis, Needs
from labelwise.strategies.leverage import by_leverage, with_design

WINDOW = 1 << 12
NOTHING = 1e-9  # what is left of |v|^2 after projection when the rest is rounding


@dataclass(frozen=True)
class Volume(Strategy):
    """Leveraged volume sampling with importance weights.

    Args:
        basis: the functions whose span is to be learnt: the name of a map or a `Basis`. An array given as `basis=` to
            `select` takes its place.
        rank: how many functions to keep at most; None is k/12 and at most 256. Never more than k/5.
        tol: eigenvalues below this share of the largest are no direction; None is 1e-10 (1e-6 in float32).
    """

    basis: str | Basis | Mapping[str, Any] = field(default_factory=Basis)
    rank: int | None = None
    tol: float | None = None

    needs = Needs(pool=(Basis(),))
    cost = "N P^2 + d^3 log d"
    paper = "Derezinski et al., NeurIPS 2018, AISTATS 2019"
    weighted = True

    def __post_init__(self) -> None:
        basis = as_basis("Volume", self.basis)
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "needs", Needs((basis,)))
        object.__setattr__(self, "cold", basis.map != "last_layer")
        check_rank("Volume", self.rank, self.tol)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        assert isinstance(self.basis, Basis)
        k = int(k)  # a small NumPy integer would overflow in the counts below
        with whitened(pool, self.basis, rank_cap(self.rank, k), self.tol, key) as basis:
            if k == pool.n:
                return census(pool, basis, key, basis.notes())
            drawn = Drawn(k)
            spread(pool, basis, Rings(pool, LEVERAGE, key.fold("volume")), drawn)
            expected = expected_draws(pool, LEVERAGE, k, Drawn.most(k))
            by_leverage(pool, basis, Rings(pool, LEVERAGE, key), drawn, expected)
            notes = {**basis.notes(), "volume_rows": basis.rank}
            batch = batch_of(pool, drawn, k / drawn.draws, key.fold("fill"), notes)
            return with_design(pool, basis, batch)


def spread(pool: Shards, basis: Whitened, rings: Rings, drawn: Drawn) -> None:
    """Draw `rank` rows with probability proportional to the squared volume they span."""
    q_TD = torch.zeros(0, basis.rank, dtype=torch.float64)
    while len(q_TD) < basis.rank:
        window = rings.window(min(WINDOW, 4.0 * basis.rank + 16))
        if not len(window.ids):
            continue
        ids, place_J = window.ids.unique(return_inverse=True)
        v_UD = basis.of(pool.take(ids)).cpu()
        norm_U = sq_norm(v_UD)
        for keep, row, at in zip(window.keep.tolist(), window.ids.tolist(), place_J.tolist()):
            v_D = v_UD[at]
            left_D = v_D - (v_D @ q_TD.T) @ q_TD
            left_D = left_D - (left_D @ q_TD.T) @ q_TD  # twice is enough for orthogonal to rounding
            left, norm = float(left_D @ left_D), float(norm_U[at])
            if left <= NOTHING * norm or keep * norm >= left:
                continue
            ratio = norm * pool.n / rings.total
            drawn.offer(row, 1 / ratio, ratio)
            q_TD = torch.cat([q_TD, (left_D / left_D.norm())[None]])
            if len(q_TD) == basis.rank:
                break
