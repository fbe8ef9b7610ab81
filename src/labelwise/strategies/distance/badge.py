"""BADGE: k-means++ seeding on last-layer gradients, so that picks are both uncertain and unlike each other.

Ash, Zhang, Krishnamurthy, Langford and Agarwal, "Deep batch active learning by diverse, uncertain gradient lower
bounds", ICLR 2020, algorithm 1. With y the most probable class of row i,

    g_i = (p_i - e_y) h_i^T,    first pick argmax |g_i|,    then i with probability ~ min over picks c of |g_i - g_c|^2

The gradients are never built: |g_i|^2 = |a_i|^2 |h_i|^2 and g_i . g_j = (a_i . a_j)(h_i . h_j) with a = p - e_y.
Cost N k (C + D) at the most, as matrix products over blocks of picks; see nearest.py.
Departs from the paper: the first pick is the row with the longest gradient, as in the authors' programme, where the
paper draws it uniformly; the bias of the last layer is left out, as there. When all rows left are copies of picked
ones the draw is uniform over them.
"""

from __future__ import annotations

import torch

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import Size
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, tie_tolerance
from labelwise.shards import Shards
from labelwise.signals.spec import HeadGrad, Needs
from labelwise.strategies.distance import nearest

GRADIENT = HeadGrad(label="argmax")


@register
class Badge(Strategy):
    """k-means++ on hallucinated gradients of the last layer."""

    name = "badge"
    picks = "long last-layer gradients, unlike each other"
    reason = "Its label would change the model a lot, in another way than the rest of this batch."
    needs = Needs(pool=(GRADIENT,))
    cost = "N k (C + D)"
    growth = Growth(C=1, D=1)
    paper = "Ash et al., ICLR 2020"

    def memory(self, size: Size) -> int:
        return nearest.memory(size, size.k)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        with nearest.measured(pool, GRADIENT):
            first = nearest.longest(pool, tie_tolerance(pool))
            ids, values = [first.ids], [first.values.double()]
            if k > 1:
                nearest.take_in(pool, GRADIENT, pool.take(first.ids))
                rest = nearest.by_chance(pool, GRADIENT, k - 1, key)
                ids.append(rest.ids)
                values.append(rest.values)
        return equal_weights(torch.cat(ids), torch.cat(values))
