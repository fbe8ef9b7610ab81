"""BADGE: k-means++ seeding on last-layer gradients, so that picks are both uncertain and unlike each other.

Ash, Zhang, Krishnamurthy, Langford and Agarwal, "Deep batch active learning by diverse, uncertain gradient lower
bounds", ICLR 2020, algorithm 1. With y the most probable class of row i,

    g_i = (p_i - e_y) h_i^T,    first pick argmax |g_i|,    then i with probability ~ min over picks c of |g_i - g_c|^2

The gradients are never built: |g_i|^2 = |a_i|^2 |h_i|^2 and g_i . g_j = (a_i . a_j)(h_i . h_j) with a = p - e_y.
Cost N k (C + D) at the most, as matrix products over blocks of picks; see nearest.py.
Departs from the paper: the first pick is the row with the longest gradient, as in the authors' program, where the
paper draws it uniformly; the bias of the last layer is left out, as in the program. When all rows left are copies of
picks the draw is uniform over them.
"""

from __future__ import annotations

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection.strategy import Growth
from labelwise.shards import Best
from labelwise.signals.spec import HeadGrad, Needs
from labelwise.strategies.distance.nearest import NearestDistances, NearestGreedy

GRADIENT = HeadGrad(label="argmax")


@register
class Badge(NearestGreedy):
    """k-means++ on hallucinated gradients of the last layer."""

    name = "badge"
    picks = "long last-layer gradients, unlike each other"
    reason = "Its label would change the model a lot, in another way than the rest of this batch."
    needs = Needs(pool=(GRADIENT,))
    signal = GRADIENT
    sampled = True
    cost = "N k (C + D)"
    growth = Growth(C=1, D=1)
    paper = "Ash et al., ICLR 2020"

    def first_pick(self, distances: NearestDistances, key: Key) -> Best:
        return distances.longest_row()
