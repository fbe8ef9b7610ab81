"""Confidence, margin, entropy: the rows whose class probabilities are least certain.

Confidence: Lewis and Gale, SIGIR 1994. Margin: Scheffer, Decomain and Wrobel, IDA 2001. Entropy: Shannon 1948, as
used for queries by Settles, 2009. With p the probabilities of a row, sorted p_(1) >= p_(2) >= ...:

    confidence  -p_(1)          margin  -(p_(1) - p_(2))          entropy  -sum_c p_c log p_c

The k highest scores are picked. Cost: one read of the probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Scored
from labelwise.selection.strategy import Growth
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Needs, Probs


@register
class Confidence(Scored):
    """Rows whose most probable class is least probable."""

    name = "confidence"
    also = ("least-confidence", "least-confident", "uncertainty", "uncertainty-sampling")
    picks = "least probable top class"
    reason = "The model is not sure of its best guess here."
    needs = Needs(pool=(Probs(),))
    cost = "N C"
    growth = Growth(C=1)
    paper = "Lewis & Gale 1994"

    def score(self, rows: Rows, key: Key) -> Tensor:
        return -rows.tensor(Probs()).amax(1)


@register
class Margin(Scored):
    """Rows whose two most probable classes are closest."""

    name = "margin"
    also = ("breaking-ties", "smallest-margin", "margin-sampling")
    picks = "closest top two classes"
    reason = "The model hesitates between its two best guesses here."
    needs = Needs(pool=(Probs(),))
    cost = "N C"
    growth = Growth(C=1)
    paper = "Scheffer et al. 2001"

    def score(self, rows: Rows, key: Key) -> Tensor:
        p_NC = rows.tensor(Probs())
        if p_NC.shape[1] == 1:  # a single class: every row is certain
            return -p_NC[:, 0]
        first_N, second_N = p_NC.topk(2, dim=1).values.unbind(1)
        return second_N - first_N


@register
class Entropy(Scored):
    """Rows whose class probabilities have the highest entropy."""

    name = "entropy"
    also = ("max-entropy", "maximum-entropy", "entropy-sampling")
    picks = "highest entropy of the classes"
    reason = "The model has no clear opinion on this one."
    needs = Needs(pool=(Probs(),))
    cost = "N C"
    growth = Growth(C=1)
    paper = "Settles 2009"

    def score(self, rows: Rows, key: Key) -> Tensor:
        terms_NC: Tensor = torch.special.entr(rows.tensor(Probs()))  # entr(0) = 0
        return terms_NC.sum(1)
