"""What models that were not trained on a labelled row say of it: each row is left out once, in one of five folds.

For the temperature of LabelProbs where no rows can be spared: all of them are trained on in the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.train.torch.inputs import folds

FOLDS = 5


def left_out(
    ids: Tensor, labels: Tensor, key: Key, answer: Callable[[Tensor, Tensor], Tensor | None]
) -> tuple[Tensor, Tensor] | None:
    """Logits (n, C) and labels of the rows that could be left out; None where there are none.

    `answer` trains on the rows at the places it is given first and gives the logits of those given second, or None.
    """
    fold_n = folds(ids, labels, FOLDS, key.fold("folds"))
    logits, truth = [], []
    for fold in range(FOLDS):
        rest = (fold_n != fold).nonzero()[:, 0]
        # A class that is in no other fold is given no chance whatever the model: it says nothing about T.
        out = ((fold_n == fold) & torch.isin(labels, labels[rest])).nonzero()[:, 0]
        said = answer(rest, out) if len(out) else None
        if said is not None:
            logits.append(said)
            truth.append(labels[out])
    return (torch.cat(logits), torch.cat(truth)) if logits else None
