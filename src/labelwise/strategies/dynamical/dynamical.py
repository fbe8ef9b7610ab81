"""dynamicAL: the rows that would speed up training most, by the gradients of their losses by all parameters.

Wang, Huang, Margenot, Tong and He, "Deep active learning by leveraging training dynamics", NeurIPS 2022, algorithm 1.
With g_u the gradient of row u's loss at its most probable label and g_S the sum of the gradients of the labelled rows,
the training dynamics of S are G(S) = |g_S|^2 (eq. 8), and a row changes them by

    Delta(u|S) = |g_u|^2 + gamma g_u . g_S,        gamma = 2;        pick the k highest

gamma = 0 uses the lengths alone, gamma = inf the inner products alone. With `diverse`, rows are picked one at a time by
their part in the change of the whole batch, Delta(Q + u|S) - Delta(Q|S) = Delta(u|S) + 2 g_u . g_Q (eq. 13), where
inner products between rows of the pool are those of their sketches.
Cost: one read of two numbers for each row, and three more for the notes; `diverse` reads the sketches of all rows for
each pick, N k W. The numbers take one forward and one backward pass for each row, see
signals/gradients/read_gradients.py.
Departs from the paper: eq. 15 as printed has |g_u|^2 inside a sum over S; the derivation (and the authors' programme)
have it once. As in the paper, the recipe trains each round from the last
round's weights.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Greedy, Selection, Strategy
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size, raise_not_finite
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import GradNorm, GradSketch, LossJvp, Needs

NORM, DOT, SKETCH = GradNorm(label="argmax"), LossJvp(along="training gradient"), GradSketch()


@register
@dataclass(frozen=True)
class Dynamical(Strategy):
    """Rows that change the training dynamics most: a long gradient, along that of the labelled rows.

    Args:
        gamma: weight of the inner product with the gradient of the labelled rows; 2 is derived, 0 uses the lengths
            alone, `math.inf` the inner products alone.
        diverse: pick rows one at a time by their part in the change of the whole batch.

    Raises:
        ArgumentError: gamma is below 0, or infinite together with `diverse`.
    """

    gamma: float = 2.0
    diverse: bool = False

    name = "dynamical"
    picks = "rows that most raise the speed of training, over all parameters"
    reason = "Its label would speed up the training most."
    needs = Needs(pool=(NORM, DOT))
    cost = "N; diverse: N k W"
    growth = Growth()
    paper = "Wang et al., NeurIPS 2022"
    restart = False

    def __post_init__(self) -> None:
        gamma = self.gamma
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not gamma >= 0:
            raise ArgumentError(f"Dynamical(gamma=...) must be a number of at least 0 or math.inf, found {gamma!r}")
        if self.diverse and math.isinf(gamma):
            raise ArgumentError(
                "Dynamical(gamma=inf, diverse=True): an infinite gamma leaves no weight for the terms between picks; "
                "choose a finite gamma, such as the derived 2.0"
            )
        # Only what gamma uses: lengths alone need no labelled rows.
        signals = (*(() if math.isinf(gamma) else (NORM,)), *(() if gamma == 0 else (DOT,)))
        object.__setattr__(self, "needs", Needs(pool=(*signals, SKETCH) if self.diverse else signals))

    def memory(self, size: Size) -> int:
        return 64 * size.rows + 64 * size.k

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        if self.diverse:
            picks = _Diverse(self.gamma).select(pool, labelled, k, key)
        else:
            best = pool.best(lambda shard: shard.each(functools.partial(_finite_delta, self.gamma)), k)
            picks = equal_weights(best.ids, best.values)
        return Selection(picks.ids, picks.weights, picks.scores, self._notes(pool, picks))

    def _notes(self, pool: Shards, picks: Selection) -> dict[str, Any]:
        """The means of both terms, and the share of picks that the lengths alone would have picked too."""
        notes: dict[str, Any] = {}
        for signal, name in ((NORM, "mean_grad_sqnorm"), (DOT, "mean_grad_dot")):
            if signal in self.needs.pool:
                total = pool.sum(functools.partial(_total, signal))
                notes[name] = float(total) / pool.n
        if len(self.needs.pool) > 1:
            longest = pool.best(lambda shard: shard.each(functools.partial(_finite_delta, 0.0)), len(picks)).ids
            notes["share_also_longest"] = len(set(longest.tolist()) & set(picks.ids.tolist())) / len(picks)
        return notes


class _Diverse(Greedy):
    """One row at a time, by its part in the change of the whole batch."""

    def __init__(self, gamma: float):
        self.gamma = gamma

    def init(self, rows: Rows, carry: Any) -> Tensor:
        return _finite_delta(self.gamma, rows)

    def gain(self, rows: Rows, state: Tensor, carry: Any) -> Tensor:
        return state

    def update(self, rows: Rows, state: Tensor, carry: Any, pick: Rows) -> Tensor:
        return state + 2 * (rows.tensor(SKETCH) @ pick.tensor(SKETCH)[0])


def _finite_delta(gamma: float, rows: Rows) -> Tensor:
    delta_N = _delta(gamma, rows)
    if not bool(torch.isfinite(delta_N).all()):
        raise_not_finite("Dynamical", rows.ids, delta_N)
    return delta_N


def _delta(gamma: float, rows: Rows) -> Tensor:
    """Delta(u|S) of each row, in float64."""
    if math.isinf(gamma):
        return rows.tensor(DOT).double()
    norm_N = rows.tensor(NORM).double()
    return norm_N if gamma == 0 else norm_N + gamma * rows.tensor(DOT).double()


def _total(signal: GradNorm | LossJvp, shard: Shard) -> Tensor:
    return shard.each(lambda rows: rows.tensor(signal).double()).sum().cpu()
