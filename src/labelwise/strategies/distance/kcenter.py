"""k-center (core-set): each pick is the row farthest from all rows labelled or picked so far, in embedding space.

Sener and Savarese, "Active learning for convolutional neural networks: a core-set approach", ICLR 2018, algorithm 1
(the greedy one, within a factor 2 of the best cover radius).

    near_i = min over labelled and picked c of |h_i - h_c|^2,        pick = argmax near_i, ties to the smaller id

Cost N (L + k) D as matrix products over blocks of picks; see nearest.py for how most picks avoid a sweep.
Departs from the paper: with nothing labelled yet the first pick is drawn at random, since all rows are tied.
"""

from __future__ import annotations

import torch

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import Size
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth
from labelwise.shards import Shards
from labelwise.signals.spec import Embedding, Needs
from labelwise.strategies.distance import nearest
from labelwise.strategies.distance.centering import about_the_middle

EMBEDDING = Embedding()


@register
class KCenter(Strategy):
    """Farthest-first traversal of the embeddings, started from the labelled rows."""

    name = "kcenter"
    picks = "farthest from everything labelled or picked"
    reason = "Unlike anything that has a label so far."
    needs = Needs(pool=(EMBEDDING,), labelled=(EMBEDDING,))
    cost = "N (L + k) D"
    growth = Growth(D=1)
    paper = "Sener & Savarese, ICLR 2018"

    def memory(self, size: Size) -> int:
        return nearest.memory(size, size.k)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        with about_the_middle(pool.join(labelled), EMBEDDING), nearest.measured(pool, EMBEDDING):
            if labelled.n:
                for centres in labelled.map(lambda shard: shard.rows(slice(None))):
                    nearest.take_in(pool, EMBEDDING, centres, taken=False)
                best = nearest.farthest_first(pool, EMBEDDING, k)
                return equal_weights(best.ids, best.values)
            first = pool.best(lambda shard: key.uniform(shard.ids), 1)
            if k == 1:
                return equal_weights(first.ids, torch.zeros(1))
            nearest.take_in(pool, EMBEDDING, pool.take(first.ids))
            best = nearest.farthest_first(pool, EMBEDDING, k - 1)
        return equal_weights(torch.cat([first.ids, best.ids]), torch.cat([torch.zeros(1), best.values]))
