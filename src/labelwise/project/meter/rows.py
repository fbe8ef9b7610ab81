"""What the meter is computed from: test rows with their labels, and the loss of each model on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class History:
    """Test rows M, and the models of the rounds so far R, the newest last.

    A loss is 1 for a wrong class and 0 for the right one, or the squared error.
    """

    rows: np.ndarray  # (M,) ids
    x_MD: Tensor
    label_M: np.ndarray
    classes: tuple[str, ...]  # empty for numbers
    labels_R: list[int]  # labels each model was trained on
    losses_RM: list[np.ndarray]
    seconds: float | None  # median of a label
    free: int  # rows that can still be chosen


def losses_of(
    x_MD: np.ndarray,
    label_M: np.ndarray,
    classes: Sequence[str],
    weight_CD: np.ndarray,
    bias_C: np.ndarray,
    model_classes: Sequence[str],
) -> np.ndarray:
    """The loss (M,) of a linear model; one that did not know a class yet cannot be right about it."""
    if not len(x_MD):
        return np.empty(0)
    out_MC = x_MD.astype(np.float64) @ weight_CD.T.astype(np.float64) + bias_C
    if not classes:
        return (out_MC[:, 0] - label_M) ** 2
    names = np.array([*model_classes, *[""] * (out_MC.shape[1] - len(model_classes))], dtype=object)
    truth = np.array(list(classes), dtype=object)[label_M.astype(int)]
    return (names[out_MC.argmax(1)] != truth).astype(np.float64)
