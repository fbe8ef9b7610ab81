"""k-center (core-set): each pick is the row farthest from all rows labelled or picked so far, in embedding space.

Sener and Savarese, "Active learning for convolutional neural networks: a core-set approach", ICLR 2018, algorithm 1
(the greedy one, within a factor 2 of the best cover radius).

    near_i = min over labelled and picked c of |h_i - h_c|^2,        pick = argmax near_i, ties by lot

Cost N (L + k) D as matrix products over blocks of picks; see nearest.py for how most picks avoid a sweep.
Departs from the paper: with nothing labelled yet the first pick is drawn at random, since all rows are tied.
"""

from __future__ import annotations

from labelwise.registry import register
from labelwise.selection.strategy import Growth
from labelwise.signals.spec import Embedding, Needs
from labelwise.strategies.distance.nearest import NearestGreedy

EMBEDDING = Embedding()


@register
class KCenter(NearestGreedy):
    """Farthest-first traversal of the embeddings, started from the labelled rows."""

    name = "kcenter"
    also = ("coreset", "core-set", "k-center", "k-center-greedy")
    picks = "farthest from everything labelled or picked"
    reason = "Unlike anything that has a label so far."
    needs = Needs(pool=(EMBEDDING,), labelled=(EMBEDDING,))
    signal = EMBEDDING
    cost = "N (L + k) D"
    growth = Growth(D=1)
    paper = "Sener & Savarese, ICLR 2018"
