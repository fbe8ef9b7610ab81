"""Random: rows drawn uniformly without replacement. The baseline of every other strategy."""

from __future__ import annotations

from torch import Tensor

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Scored
from labelwise.selection.strategy import Growth
from labelwise.signals.rows import Rows


@register
class Random(Scored):
    """The k rows with the highest hash of (seed, id): every set of k rows is equally likely."""

    name = "random"
    also = ("uniform", "passive")
    picks = "uniformly; what the others are measured against"
    reason = "Drawn at random."
    cost = "N"
    growth = Growth()
    paper = "the baseline"
    cold = True
    known_law = True

    def score(self, rows: Rows, key: Key) -> Tensor:
        return key.uniform(rows.ids)
