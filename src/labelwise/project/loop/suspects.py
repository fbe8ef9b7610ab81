"""Suspects: labels that a model trained on the other labels finds unlikely, least likely first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import StoreError
from labelwise.io.files import write_text
from labelwise.project.loop.model import logistic, ridge
from labelwise.rng import Key
from labelwise.train.torch.data import assign_folds

_FOLDS, _FEWEST = 5, 20
_UNLIKELY = 0.5  # a label is suspect below this probability
_FAR = 3.0  # a number is suspect if its residual is larger, in robust standard deviations


@dataclass(frozen=True)
class Suspect:
    """A label that may be wrong. `confidence`, 0 to 1, is how sure the model is that it is wrong."""

    row: int
    label: str
    predicted: str
    confidence: float


def find(rows: Sequence[int], x_ND: Tensor, labels: Sequence[float], classes: Sequence[str], key: Key) -> list[Suspect]:
    """The suspect labels, by cross-validation; none with fewer than 20 labels.

    Args:
        rows: ids of the labelled rows (N,).
        x_ND: their features.
        labels: class numbers, or numbers (N,).
        classes: names of the classes; empty for numbers.
        key: source of chance.
    """
    if len(rows) < _FEWEST:
        return []
    ids, x_ND = torch.tensor(list(rows)), x_ND.double()
    if not classes:
        return _numbers(ids, x_ND, torch.tensor(list(labels), dtype=torch.float64), key)
    label_N = torch.tensor([int(label) for label in labels])
    fold_N = assign_folds(ids, label_N, _FOLDS, key)
    p_NC = torch.zeros(len(ids), len(classes), dtype=torch.float64)
    for fold in range(_FOLDS):
        out = fold_N == fold
        if bool(out.any()) and not bool(out.all()):
            weight, bias = logistic(x_ND[~out], label_N[~out], len(classes))
            p_NC[out] = (x_ND[out] @ weight.T + bias).softmax(1)
    own_N = p_NC.gather(1, label_N[:, None])[:, 0]
    best_N = p_NC.argmax(1)
    # No model can find a class likely if it has no other labelled row.
    known_N = torch.bincount(label_N, minlength=len(classes))[label_N] > 1
    wrong = ((best_N != label_N) & known_N & (own_N < _UNLIKELY)).nonzero()[:, 0]
    order = wrong[(own_N - p_NC.amax(1))[wrong].argsort(stable=True)]
    return [
        Suspect(int(ids[i]), classes[int(label_N[i])], classes[int(best_N[i])], round(1 - float(own_N[i]), 4))
        for i in order
    ]


def _numbers(ids: Tensor, x_ND: Tensor, y_N: Tensor, key: Key) -> list[Suspect]:
    fold_N = assign_folds(ids, torch.zeros_like(ids), _FOLDS, key)
    found_N = torch.zeros_like(y_N)
    for fold in range(_FOLDS):
        out = fold_N == fold
        weight, bias = ridge(x_ND[~out], y_N[~out])
        found_N[out] = x_ND[out] @ weight[0] + bias[0]
    off_N = (y_N - found_N).numpy()
    spread = 1.4826 * float(np.median(np.abs(off_N - np.median(off_N)))) or 1.0
    far_N = np.abs(off_N - np.median(off_N)) / spread
    order = [i for i in np.argsort(-far_N, kind="stable").tolist() if far_N[i] > _FAR]
    # Chebyshev's bound holds for any distribution of the residuals.
    return [
        Suspect(int(ids[i]), f"{float(y_N[i]):g}", f"{float(found_N[i]):.4g}", round(1 - 1 / float(far_N[i]) ** 2, 4))
        for i in order
    ]


def write_suspects(folder: Path, suspects: Sequence[Suspect]) -> None:
    """Write the suspects of a round to its folder."""
    write_text(folder / "suspects.json", json.dumps([asdict(one) for one in suspects], ensure_ascii=False) + "\n")


def read_suspects(project: Path) -> list[Suspect]:
    """The suspects of the last round that has any."""
    for path in sorted(project.glob("rounds/*/suspects.json"), reverse=True):
        try:
            return [Suspect(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path} cannot be read ({error}). Remove it; the next round writes a new one") from error
    return []
