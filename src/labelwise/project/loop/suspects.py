"""Suspects: labels that are probably wrong, given what models trained on the other labels say about their rows.

A label is right, or with chance r one of the other classes, each alike. With the out-of-fold probabilities p of a row
at temperature T, its label y has the likelihood

    (1 - r) p_y + r (1 - p_y) / (C - 1)

T and r are those that make all labels most likely. The label is then wrong with chance r (1 - p_y) / (C - 1) over that
sum, and is a suspect above one half. A model that is unsure has a high temperature and explains an unlikely label
without any noise, so a weak model suspects little; where r > 0 explains the labels hardly better than r = 0, none is.
Labels of a class with fewer than five labelled rows are left out of this: no model knows such a class, and right labels
of it look wrong.

A number is a suspect if it is far from what the other numbers predict, in robust standard deviations of the residuals.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.project.loop.model import logistic, ridge
from labelwise.rng import Key
from labelwise.train.torch.data import assign_folds

_FOLDS, _FEWEST, _KNOWN = 10, 20, 5  # folds; labels below which none is a suspect, in all and of a class
_STRENGTH = 10.0  # of these models (model.py): less than elsewhere, since some of their labels are wrong
_LIKELY = 0.5  # a label is suspect if it is wrong with more than this chance
_GAIN = 2.0  # of the log-likelihood, below which noise explains nothing: one clean project in forty exceeds it
_TEMPERATURES = torch.logspace(-1.6, 1.3, 40, dtype=torch.float64)
_NOISE = torch.cat([torch.zeros(1), torch.logspace(-2.3, -0.4, 20)]).double()  # chances that a label is wrong
_FAR = 4.0  # a number is suspect if its residual is larger, in robust standard deviations


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
    out_NC = out_of_fold(ids, x_ND, label_N, len(classes), key)
    known_N = torch.bincount(label_N, minlength=len(classes))[label_N] >= _KNOWN
    best_N, wrong_N = out_NC.argmax(1), torch.zeros(len(ids), dtype=torch.float64)
    wrong_N[known_N] = _wrong(out_NC[known_N], label_N[known_N])
    suspected = ((best_N != label_N) & known_N & (wrong_N > _LIKELY)).nonzero()[:, 0]
    order = suspected[(-wrong_N[suspected]).argsort(stable=True)]
    return [
        Suspect(int(ids[i]), classes[int(label_N[i])], classes[int(best_N[i])], round(float(wrong_N[i]), 4))
        for i in order
    ]


def out_of_fold(ids: Tensor, x_ND: Tensor, label_N: Tensor, classes: int, key: Key) -> Tensor:
    """Outputs (N, C) for each row by a model of the other folds."""
    fold_N = assign_folds(ids, label_N, _FOLDS, key)
    out_NC = torch.zeros(len(ids), classes, dtype=torch.float64)
    for fold in range(_FOLDS):
        out = fold_N == fold
        if bool(out.any()) and not bool(out.all()):
            weight, bias = logistic(x_ND[~out], label_N[~out], classes, strength=_STRENGTH)
            out_NC[out] = x_ND[out] @ weight.T + bias
    return out_NC


def _wrong(out_NC: Tensor, label_N: Tensor) -> Tensor:
    """The chance (N,) that each label is wrong, from out-of-fold outputs."""
    chance_N = torch.zeros(len(label_N), dtype=torch.float64)
    if not len(label_N):
        return chance_N
    others = max(out_NC.shape[1] - 1, 1)
    fits = torch.empty(len(_TEMPERATURES), len(_NOISE), dtype=torch.float64)
    for t, temperature in enumerate(_TEMPERATURES):
        own_N = (out_NC / temperature).softmax(1).gather(1, label_N[:, None])
        fits[t] = ((1 - _NOISE) * own_N + _NOISE * (1 - own_N) / others).clamp_min(1e-12).log().sum(0)
    best_t, best_r = divmod(int(fits.argmax()), len(_NOISE))
    if float(fits.max() - fits[:, 0].max()) < _GAIN:
        return chance_N
    noise = float(_NOISE[best_r])
    own_N = (out_NC / _TEMPERATURES[best_t]).softmax(1).gather(1, label_N[:, None])[:, 0]
    other_N = noise * (1 - own_N) / others
    return other_N / ((1 - noise) * own_N + other_N)


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
    write_checked(folder / "suspects.json", {"suspects": [asdict(one) for one in suspects]})


def read_suspects(project: Path) -> list[Suspect]:
    """The suspects of the last round that has any."""
    for path in sorted(project.glob("rounds/*/suspects.json"), reverse=True):
        return read_file(path)
    return []


def read_file(path: Path) -> list[Suspect]:
    """The suspects that `write_suspects` wrote."""
    remedy = "remove it; the next round writes a new one"
    try:
        if path.read_bytes()[:1] == b"[":  # of an early version
            return [Suspect(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
        return [Suspect(**one) for one in read_checked(path, remedy)["suspects"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
