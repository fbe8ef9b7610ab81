"""Oracle: a function from ids to labels, which asks a person or, in simulations, looks up known labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, RowError
from labelwise.io.frames import check_order, is_missing_value, plain_values
from labelwise.io.text import shortened
from labelwise.labels.answers import check_no_input
from labelwise.pool import Pool

Oracle = Callable[[np.ndarray], Any]


class KnownLabels:
    """An oracle that looks up labels that are known beforehand, for simulations and benchmarks.

    >>> KnownLabels([5, 7], [1, 0])(np.array([7, 5]))
    array([0, 1])
    """

    def __init__(self, ids: Any, labels: Any):
        self._labels = dict(zip(np.asarray(ids).tolist(), _to_list(labels), strict=True))
        texts = sum(isinstance(label, str) for label in self._labels.values())
        for row, label in self._labels.items():  # numpy would make texts of them: "nan", "1"
            if is_missing_value(label) or isinstance(label, str) != (texts > 0):
                raise LabelError(
                    f"row id {row!r} has the label {label!r}; a {'class name' if texts else 'number'} was expected. "
                    "Leave rows without a label out, or pass a function that takes ids and returns their labels"
                )

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        rows = np.asarray(ids).tolist()
        missing = [row for row in rows if row not in self._labels]
        if missing:
            raise RowError(f"no label is known for row id {missing[0]} ({len(missing)} such rows of {len(ids)} asked)")
        return np.asarray([self._labels[row] for row in rows])


def make_oracle(answers: Any, pool: Pool) -> Oracle:
    """Make an oracle of what a user passes. Rows are named by what the user calls them: `pool.keys_of(ids)`.

    Args:
        answers: a function from ids (k,) to their labels, which is returned as it is; an array or Series with the
            label of each row of the pool, in order; or None for the labels that came with the pool (class folders, a
            label column).
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
    keys = pool.keys_of(pool.ids)
    check_order(answers, keys)
    check_no_input(answers, pool)
    labels = _to_list(answers)
    if len(labels) != len(pool):
        raise LabelError(f"the oracle must hold one label for each of the {len(pool)} rows, found {len(labels)} labels")
    return KnownLabels(keys, labels)


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
                raise LabelError(
                    f"label {label!r} (entry {position}) is none of the classes {', '.join(names)}; correct it, or "
                    "declare the class first (Session.add_classes)"
                )
            numbers.append(names.index(label))
            continue
        if isinstance(label, list):
            raise LabelError(f"one label for each row was expected, in one list; entry {position} is {label!r:.60}")
        if not isinstance(label, int | float) or (isinstance(label, float) and not label.is_integer()):
            is_number = isinstance(label, float) and math.isfinite(label)
            hint = "; to learn numbers take a regressor, or task='regress'" if is_number else ""
            raise LabelError(f"label {label!r} (entry {position}) is not a class number or a class name{hint}")
        if label < 0 or (count is not None and label >= count):
            expected = f"0..{count - 1}" if count is not None else "0, 1, 2 ...; tell names of classes as texts"
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
    """The Python values of an array, a tensor, a Series or a sequence."""
    values = plain_values(values)
    if isinstance(values, Tensor):
        return list(values.detach().cpu().reshape(-1).tolist())
    if isinstance(values, np.ndarray):
        return list(np.atleast_1d(values).tolist())
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | range):
        raise LabelError(
            "labels must be a list or an array, one label for each row in the order of the ids; found "
            f"{shortened(repr(values))}"
        )
    return [value.item() if isinstance(value, np.generic | torch.Tensor) else value for value in values]
