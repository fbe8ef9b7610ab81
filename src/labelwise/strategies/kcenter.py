"""k-center (core-set): each pick is the row farthest from all rows labelled or picked so far, in embedding space.

Sener and Savarese, "Active learning for convolutional neural networks: a core-set approach", ICLR 2018, algorithm 1
(the greedy one, within a factor 2 of the best cover radius).

    near_i = min over labelled and picked c of |h_i - h_c|^2,        pick = argmax near_i, ties to the smaller id

Cost N (L + k) D as matrix products over blocks of picks; see select/nearest.py for how most picks avoid a sweep.
Departs from the paper: with nothing labelled yet the first pick is drawn at random, since all rows are tied.
"""

from __future__ import annotations

import torch

from labelwise.keys import Key
from labelwise.select import Selection, Strategy, nearest
from labelwise.select.selection import equal_weights
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Needs


class KCenter(Strategy):
    """Farthest-first traversal of the embeddings, started from the labelled rows."""

    needs = Needs(pool=(Embedding(),), labelled=(Embedding(),))
    cost = "N (L + k) D"
    paper = "Sener & Savarese, ICLR 2018"

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        nearest.begin(pool, Embedding())
        parts: list[Best] = []
        if labelled.n:
            for centres in labelled.map(_rows):
                nearest.take_in(pool, Embedding(), centres, taken=False)
        else:
            first = pool.best(lambda shard: key.uniform(shard.ids), 1)
            nearest.take_in(pool, Embedding(), pool.take(first.ids))
            parts.append(Best(first.ids, torch.zeros(1, dtype=torch.float64)))
            k -= 1
        if k:
            parts.append(nearest.farthest_first(pool, Embedding(), k))
        nearest.end(pool)
        ids, values = (torch.cat([part[i].double() if i else part[i] for part in parts]) for i in (0, 1))
        return equal_weights(ids, values)


def _rows(shard: Shard) -> Rows:
    """All rows of a shard of labelled rows, checked."""
    for _ in shard.blocks():
        pass
    return shard.rows(slice(0, len(shard)))
