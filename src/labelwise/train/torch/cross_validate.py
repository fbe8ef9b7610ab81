"""Choose the number of epochs or the weight decay of a torch model by cross-validation inside the labelled rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.rng import Key
from labelwise.train.cross_val import best_candidate, out_of_fold_outputs
from labelwise.train.torch.data import TrainSet
from labelwise.train.torch.options import CrossValidated, TrainOptions
from labelwise.train.torch.training_loop import read_outputs

WEIGHT_DECAYS = (0.0, 1e-3, 1e-2, 1e-1)
FEWEST_EPOCHS = 10

TrainFold = Callable[[Tensor, TrainOptions], nn.Module]  # trains a new model on the rows at these positions


@dataclass(frozen=True)
class Choice:
    """What cross-validation chose.

    Attributes:
        options: to train with on all labelled rows.
        logits: (n', C) out-of-fold outputs with these options and the labels (n',) of their rows; None without folds.
        notes: what was chosen, and how good it was on rows that were left out.
    """

    options: TrainOptions
    logits: tuple[Tensor, Tensor] | None
    notes: dict[str, Any]


def choose_options(
    parameter: CrossValidated, data: TrainSet, options: TrainOptions, key: Key, train_fold: TrainFold
) -> Choice:
    """Choose the number of epochs or the weight decay: by accuracy, then by loss; in regression by loss.

    Args:
        parameter: what to choose.
        data: all labelled rows.
        options: to train with; `keep` and `patience` have no effect.
        key: decides the folds.
        train_fold: a function of (positions, options) that trains a new model on these rows.
    """
    options = replace(options, keep="last", patience=None)
    quiet = replace(options, look=None)

    def predict_epochs(index: Tensor, test: Tensor) -> Tensor:
        outputs: list[Tensor] = []

        def read_candidate(model: nn.Module, epoch: int) -> None:
            if epoch + 1 in epochs:
                outputs.append(read_outputs(model, data.inputs, test, data.loss, options).cpu())

        train_fold(index, replace(quiet, look=read_candidate))
        outputs.extend([outputs[-1]] * (len(epochs) - len(outputs)))  # if the objective ended training earlier
        return torch.stack(outputs, 1)

    def predict_decays(index: Tensor, test: Tensor) -> Tensor:
        models = (train_fold(index, replace(quiet, weight_decay=decay)) for decay in WEIGHT_DECAYS)
        return torch.stack([read_outputs(model, data.inputs, test, data.loss, options).cpu() for model in models], 1)

    epochs = candidate_epochs(options.epochs)
    is_regression = data.labels.is_floating_point()
    groups = torch.zeros_like(data.labels, dtype=torch.int64) if is_regression else data.labels
    predict = predict_epochs if parameter == "epochs" else predict_decays
    found = out_of_fold_outputs(data.inputs.ids, groups, key, predict)
    if found is None:
        return Choice(options, None, {"cross_validation": "too few labelled rows: nothing was chosen"})
    outputs_nGC, label_n = found[0], data.labels[found[1]]
    best = best_candidate(outputs_nGC, label_n, data.loss.rows)
    output_nC = outputs_nGC[:, best]
    value = epochs[best] if parameter == "epochs" else WEIGHT_DECAYS[best]
    chosen: dict[str, Any] = {parameter: value}
    notes = {**chosen, "rows": len(label_n), "loss": float(data.loss.rows(output_nC, label_n).mean())}
    if not is_regression:
        notes["accuracy"] = float(data.loss.right(output_nC, label_n).double().mean())
    return Choice(replace(options, **chosen), (output_nC, label_n), {"cross_validation": notes})


def candidate_epochs(most: int) -> list[int]:
    """Numbers of epochs to choose from, ascending: up to `most`, by factors of the square root of 2.

    >>> candidate_epochs(40)
    [10, 14, 20, 28, 40]
    """
    count = max(0, math.floor(2 * math.log2(most / FEWEST_EPOCHS) + 1e-9))
    return sorted({round(most / 2 ** (i / 2)) for i in range(count + 1)})
