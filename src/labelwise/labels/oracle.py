"""Oracle: a function from ids to labels, which asks a person or, in simulations, looks up known labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, RowError
from labelwise.pool import Pool

Oracle = Callable[[np.ndarray], Any]


class KnownLabels:
    """An oracle that looks up labels that are known beforehand, for simulations and benchmarks.

    >>> KnownLabels([5, 7], [1, 0])(np.array([7, 5]))
    array([0, 1])
    """

    def __init__(self, ids: Any, labels: Any):
        self._labels = {int(row): label for row, label in zip(np.asarray(ids), _to_list(labels), strict=True)}

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        missing = [int(row) for row in ids if int(row) not in self._labels]
        if missing:
            raise RowError(f"no label is known for row id {missing[0]} ({len(missing)} such rows of {len(ids)} asked)")
        return np.asarray([self._labels[int(row)] for row in ids])


def make_oracle(answers: Any, pool: Pool) -> Oracle:
    """Make an oracle of what a user passes.

    Args:
        answers: a function from ids (k,) to their labels, which is returned as it is; an array with the label of each
            row of the pool, in order; or None for the labels that came with the pool (class folders, a label column).
        pool: the rows.

    Returns:
        The oracle.

    Raises:
        ArgumentError: None was passed, and the pool came without labels.
        LabelError: there is not one label for each row.
    """
    if callable(answers):
        return answers
    if answers is None:
        if pool.labels is None:
            raise ArgumentError(
                "no oracle was given and the pool came without labels; pass an array with one label for each row, "
                "or a function that takes ids and returns their labels"
            )
        answers = pool.labels
    labels = _to_list(answers)
    if len(labels) != len(pool):
        raise LabelError(f"the oracle must hold one label for each of the {len(pool)} rows, found {len(labels)} labels")
    return KnownLabels(pool.ids, labels)


def to_class_numbers(labels: Any, classes: Sequence[str] | int | None) -> list[int]:
    """Labels as class numbers: names are looked up in `classes`, numbers are checked against the number of classes."""
    names = None if classes is None or isinstance(classes, int) else list(classes)
    count = classes if isinstance(classes, int) else len(names) if names is not None else None
    numbers = []
    for position, label in enumerate(_to_list(labels)):
        if isinstance(label, str):
            if names is None:
                raise LabelError(
                    f"label {label!r} is a name, but the names of the classes are not known; pass classes="
                )
            if label not in names:
                raise LabelError(f"label {label!r} (entry {position}) is none of the classes {', '.join(names)}")
            numbers.append(names.index(label))
            continue
        if not isinstance(label, int | float) or not float(label).is_integer():
            raise LabelError(f"label {label!r} (entry {position}) is not a class number or a class name")
        if label < 0 or (count is not None and label >= count):
            expected = f"0..{count - 1}" if count is not None else "0, 1, 2 ..."
            raise LabelError(f"label {label} (entry {position}) is outside the classes {expected}")
        numbers.append(int(label))
    return numbers


def to_numbers(labels: Any) -> list[float]:
    """Labels of a regression pool as finite numbers."""
    values = []
    for position, label in enumerate(_to_list(labels)):
        if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
            raise LabelError(f"label {label!r} (entry {position}) is not a finite number, which regression needs")
        values.append(float(label))
    return values


def _to_list(values: Any) -> list[Any]:
    """The Python values of an array, a tensor or a sequence."""
    if isinstance(values, Tensor):
        return list(values.detach().cpu().reshape(-1).tolist())
    if isinstance(values, np.ndarray):
        return list(np.atleast_1d(values).tolist())
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | range):
        raise LabelError(
            f"labels must be a list or an array, one label for each row in the order of the ids; found {values!r}"[:300]
        )
    return [value.item() if isinstance(value, np.generic | torch.Tensor) else value for value in values]
