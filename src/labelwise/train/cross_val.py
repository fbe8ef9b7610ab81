"""Cross-validation inside the labelled rows: outputs for each row of a model that was not trained on it.

The temperature of LabelProbs, and parameters of training, are chosen by them, so that no row has to be held out of the
final fit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.train.torch.data import assign_folds

FOLDS = 5


def out_of_fold_outputs(
    ids: Tensor, groups: Tensor, key: Key, predict: Callable[[Tensor, Tensor], Tensor | None]
) -> tuple[Tensor, Tensor] | None:
    """Outputs for the labelled rows by models that were not trained on them.

    Args:
        ids: (n,) the labelled rows.
        groups: (n,) their classes, which are spread evenly over the folds; zeros in regression.
        key: decides the folds.
        predict: a function of (training positions, test positions) that trains on the former and returns outputs
            (m, ...) for the latter, or None if it cannot.

    Returns:
        Outputs (n', ...) and positions (n',) of the rows that have one; None if there are none.
    """
    fold_n = assign_folds(ids, groups, FOLDS, key.fold("folds"))
    outputs, positions = [], []
    for fold in range(FOLDS):
        train = (fold_n != fold).nonzero()[:, 0]
        # A class that is in no other fold gets no probability from any model: it says nothing about T.
        test = ((fold_n == fold) & torch.isin(groups, groups[train])).nonzero()[:, 0]
        predicted = predict(train, test) if len(test) else None
        if predicted is not None:
            outputs.append(predicted)
            positions.append(test)
    return (torch.cat(outputs), torch.cat(positions)) if outputs else None


def out_of_fold_logits(
    ids: Tensor, labels: Tensor, key: Key, predict: Callable[[Tensor, Tensor], Tensor | None]
) -> tuple[Tensor, Tensor] | None:
    """`out_of_fold_outputs` of a classifier, with the labels (n',) of the rows in place of their positions."""
    found = out_of_fold_outputs(ids, labels, key, predict)
    return None if found is None else (found[0], labels[found[1]])


def best_candidate(outputs_nGC: Tensor, labels_n: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> int:
    """The best of G candidates by their outputs: the highest accuracy, then the lowest mean loss.

    In regression, where C is 1 and labels are floats, the lowest mean loss.

    >>> z = torch.tensor([[[2.0, 0.0], [3.0, 0.0]], [[0.0, 2.0], [0.0, 3.0]]])
    >>> best_candidate(z, torch.tensor([0, 1]), torch.nn.functional.cross_entropy)
    1
    """
    candidates = range(outputs_nGC.shape[1])
    losses = [float(loss(outputs_nGC[:, g], labels_n).mean()) for g in candidates]
    if labels_n.is_floating_point():
        return min(candidates, key=lambda g: losses[g])
    right = [int((outputs_nGC[:, g].argmax(1) == labels_n).sum()) for g in candidates]
    return max(candidates, key=lambda g: (right[g], -losses[g]))
