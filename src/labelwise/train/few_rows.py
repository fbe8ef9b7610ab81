"""Estimators on few labelled rows: inner folds, neighbours and principal components are lowered to the rows there are.

The first fits of active learning have a handful of rows, of some classes one. Estimators that split the rows themselves
(CalibratedClassifierCV, StackingClassifier, GridSearchCV, the nets of skorch ...) refuse them with their usual five
folds, and so does a search for more neighbours, or for more principal components, than there are rows. With enough
rows nothing changes; what changes is noted.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from labelwise.rng import Key

USUAL_FOLDS = 5  # what scikit-learn takes for cv=None
LEAST = 2  # folds


def fit_to_rows(estimator: Any, labels: Tensor, key: Key, notes: dict[str, Any]) -> Tensor:
    """Lower `cv`, `train_split`, `n_neighbors` and a PCA's `n_components`, of all parts, to what the rows allow.

    A class with too few rows to be split, or all rows in regression, are repeated.

    Args:
        estimator: unfitted; its parameters are changed.
        labels: (n,) class numbers, or numbers in regression.
        key: seeds splitters that shuffle without a random_state.
        notes: says afterwards what was changed.

    Returns:
        Positions (m,) of the rows to fit on; all rows in order where none is repeated.
    """
    parameters = estimator.get_params()
    # By the prefix of its name ("", "final_estimator__"): a part is fitted within the folds of all it is a part of.
    names = {name.removesuffix(name.rpartition("__")[2]): name for name in parameters if _folds(parameters, name)}
    folds = {prefix: _folds(parameters, name) or 0 for prefix, name in names.items()}
    least = LEAST ** max((sum(part.startswith(whole) for whole in folds) for part in folds), default=0)
    index = _repeated(labels, least, notes)
    groups = torch.zeros_like(index) if labels.is_floating_point() else labels[index]
    smallest = int(groups.unique(return_counts=True)[1].min())
    changed: dict[str, Any] = {}
    lowered: dict[str, int] = {}
    for prefix in sorted(folds, key=len):
        name, wanted = names[prefix], folds[prefix]
        by_class = getattr(parameters[name], "stratified", True)
        folds[prefix] = min(wanted, max(LEAST, _rows_within(prefix, folds, smallest if by_class else len(index))))
        changed[name] = _splitter(parameters[name], folds[prefix], key.fold(name))
        lowered |= {name: folds[prefix]} if folds[prefix] < wanted else {}
    for name, value in parameters.items():
        part, _, last = name.rpartition("__")
        is_pca = last == "n_components" and hasattr(parameters.get(part), "svd_solver")
        if (last == "n_neighbors" or is_pca) and isinstance(value, int):
            rows = max(1, _rows_within(name.removesuffix(last), folds, len(index)))
            if is_pca and rows > 1 and parameters[part].svd_solver == "arpack":  # finds fewer than there are rows
                rows -= 1
            lowered |= {name: rows} if rows < value else {}
    if lowered:
        notes["lowered"] = lowered
    estimator.set_params(**{**changed, **{name: value for name, value in lowered.items() if name not in changed}})
    return index


def _folds(parameters: dict[str, Any], name: str) -> int | None:
    """The number of folds a parameter stands for; None where it stands for none, or for splits of the user's own."""
    prefix, _, last = name.rpartition("__")
    if last not in ("cv", "train_split"):
        return None
    value = parameters[name]
    if last == "train_split":  # of skorch: one of its folds is set aside
        value = getattr(value, "cv", False)
    if value is None:  # of RidgeCV, leave-one-out in closed form
        return None if f"{prefix}__gcv_mode".removeprefix("__") in parameters else USUAL_FOLDS
    folds = getattr(value, "n_splits", None) if hasattr(value, "shuffle") else value
    return folds if isinstance(folds, int) and not isinstance(folds, bool) else None


def _rows_within(prefix: str, folds: dict[str, int], rows: int) -> int:
    """How many of `rows` are in the smallest training part that reaches the part of an estimator with this prefix."""
    for whole in sorted((one for one in folds if prefix.startswith(one) and one != prefix), key=len):
        rows -= math.ceil(rows / folds[whole])
    return rows


def _splitter(value: Any, folds: int, key: Key) -> Any:
    """The value of a parameter `cv` with this many folds, its chance from `key`."""
    if hasattr(value, "stratified"):
        splitter = copy.copy(value)
        splitter.cv = folds
        return splitter
    if not hasattr(value, "shuffle"):
        return folds if folds != (value or USUAL_FOLDS) else value
    splitter = copy.copy(value)
    splitter.n_splits = folds
    if splitter.shuffle and splitter.random_state is None:
        splitter.random_state = key.small()
    return splitter


def _repeated(labels: Tensor, least: int, notes: dict[str, Any]) -> Tensor:
    """Positions of all rows, with those of a class repeated until it has at least `least`."""
    if labels.is_floating_point():
        times = torch.full((len(labels),), math.ceil(least / len(labels)))
    else:
        _, place, counts = labels.unique(return_inverse=True, return_counts=True)
        times = torch.ceil(least / counts)[place].long()
    if bool((times > 1).any()):
        notes["repeated"] = f"{int((times > 1).sum())} rows, up to {int(times.max())} times: too few to be split"
    return torch.arange(len(labels)).repeat_interleave(times)
