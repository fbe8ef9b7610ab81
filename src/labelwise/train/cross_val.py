"""Cross-validation inside the labelled rows: logits of each row by a model that was not trained on it.

The temperature of LabelProbs is fitted on them where no rows are held out, so that the final model is trained on all
labelled rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.train.torch.data import assign_folds

FOLDS = 5


def out_of_fold_logits(
    ids: Tensor, labels: Tensor, key: Key, predict: Callable[[Tensor, Tensor], Tensor | None]
) -> tuple[Tensor, Tensor] | None:
    """Logits of the labelled rows by models that were not trained on them.

    Args:
        ids: (n,) the labelled rows.
        labels: (n,) their classes.
        key: decides the folds.
        predict: a function of (training positions, test positions) that trains on the former and returns logits
            (m, C) of the latter, or None if it cannot.

    Returns:
        Logits (n', C) and labels (n',) of the rows that have a prediction; None if there are none.
    """
    fold_n = assign_folds(ids, labels, FOLDS, key.fold("folds"))
    logits, truth = [], []
    for fold in range(FOLDS):
        train = (fold_n != fold).nonzero()[:, 0]
        # A class that is in no other fold gets no probability from any model: it says nothing about T.
        test = ((fold_n == fold) & torch.isin(labels, labels[train])).nonzero()[:, 0]
        predicted = predict(train, test) if len(test) else None
        if predicted is not None:
            logits.append(predicted)
            truth.append(labels[test])
    return (torch.cat(logits), torch.cat(truth)) if logits else None
