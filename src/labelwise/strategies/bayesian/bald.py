"""BALD: the rows whose label has the most information about the weights of the model.

Houlsby, Huszar, Ghahramani and Lengyel, "Bayesian active learning for classification and preference learning", 2011,
equation 2. With p_k the class probabilities of a row under draw k of the weights, k = 1..K, and the same draws in both
terms, the score is the mutual information of label and weights

    H[ mean_k p_k ] - mean_k H[ p_k ]

highest first. Cost: one read of the draws.
"""

from __future__ import annotations

from torch import Tensor

from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Scored
from labelwise.selection.strategy import Growth
from labelwise.signals.rows import Rows
from labelwise.signals.spec import LogProbs, Needs
from labelwise.strategies.bayesian.joint_entropy import mutual_information


@register
class Bald(Scored):
    """Selects the rows about whose label the draws of the model disagree most."""

    name = "bald"
    also = ("mutual-information",)
    picks = "most information about the weights"
    reason = "Versions of the model disagree on this one."
    needs = Needs(pool=(LogProbs(),))
    cost = "N K C"
    growth = Growth(C=1)
    paper = "Houlsby et al. 2011"

    def score(self, rows: Rows, key: Key) -> Tensor:
        return mutual_information(rows.tensor(LogProbs()))
