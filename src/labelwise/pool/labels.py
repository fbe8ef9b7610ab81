"""Labels found in a source: checked once, as one tensor, with class names where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import LabelError, RowError
from labelwise.io.frames import is_missing_value, plain_values


def labels_of(values: Any, classes: Sequence[str] | None, ids: Tensor) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """One label for each row as an int64 or float tensor, and the names of the classes.

    Strings are class names: they are numbered by their place in `classes`, or in sorted order where none are given.

    >>> labels_of(["cat", "ant", "cat"], None, torch.arange(3))
    (tensor([1, 0, 1]), ('ant', 'cat'))
    """
    names = _names(classes)
    if values is None:
        return None, names
    array = _array(values)
    if array.ndim != 1 or len(array) != len(ids):
        raise RowError(
            f"labels: one for each of the {len(ids)} rows of the pool was expected, an array of shape "
            f"{tuple(array.shape)} was found."
        )
    if array.dtype.kind in "UO":
        return _numbered(array.tolist(), names, ids)
    if array.dtype.kind in "iub":
        return _classes_checked(torch.from_numpy(array.astype(np.int64)), names, ids), names
    return _finite(array, names, ids), names


def in_class_order(names: Sequence[str]) -> tuple[str, ...]:
    """The different names, sorted; by number when all of them are whole numbers ("2" before "10")."""
    different = sorted(set(names))
    if all(name.isascii() and name.lstrip("-").isdigit() for name in different):
        return tuple(sorted(different, key=lambda name: (int(name.lstrip("-")) * (-1) ** name.count("-"), name)))
    return tuple(different)


def _names(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise LabelError(f"classes is a sequence of class names, not {classes!r}.")
    names = tuple(classes)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LabelError(f"classes: the name {twice!r} occurs more than once; each class has its own name.")
    return names


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy().copy()
    values = plain_values(values)
    if isinstance(values, list) and any(isinstance(value, str) for value in values):
        values = [None if is_missing_value(value) else value for value in values]  # NaN would become the text "nan"
    array = np.array(values)
    if array.dtype.kind == "U" and not all(isinstance(value, str) for value in values):
        raise LabelError("labels mix numbers and names; give all of them as numbers or all as class names.")
    if array.dtype.kind not in "iubfUO":
        raise LabelError(f"labels are whole numbers, real numbers or class names, not {array.dtype}.")
    return array


def _numbered(values: list[Any], names: tuple[str, ...] | None, ids: Tensor) -> tuple[Tensor, tuple[str, ...] | None]:
    for row, value in zip(ids.tolist(), values):
        if not isinstance(value, str):
            raise LabelError(
                f"row id {row}: a class name was expected as its label, {value!r} was found. Where only some labels "
                "are known, leave the column out and tell them: session.tell(ids, labels)."
            )
    names = names or in_class_order(values)
    number = {name: place for place, name in enumerate(names)}
    for row, value in zip(ids.tolist(), values):
        if value not in number:
            raise LabelError(f"row id {row}: label {value!r} is none of the classes {_short(names)}.")
    return torch.tensor([number[value] for value in values], dtype=torch.int64), names


def _classes_checked(labels: Tensor, names: tuple[str, ...] | None, ids: Tensor) -> Tensor:
    # Without names the numbers may be whole-number regression targets, which may be negative.
    if names is None:
        return labels
    outside = (labels < 0) | (labels >= len(names))
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise LabelError(
            f"row id {int(ids[first])}: label {int(labels[first])} is outside 0..{len(names) - 1}, "
            f"the numbers of the classes {_short(names)}."
        )
    return labels


def _finite(array: np.ndarray, names: tuple[str, ...] | None, ids: Tensor) -> Tensor:
    if names is not None:
        raise LabelError(f"labels are real numbers ({array.dtype}) but classes are named; give whole numbers.")
    bad = ~np.isfinite(array)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise LabelError(
            f"row id {int(ids[first])}: its label is {array[first]}; a finite number was expected. Where only some "
            "labels are known, leave the column out and tell them: session.tell(ids, labels)."
        )
    return torch.from_numpy(array)


def _short(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:10])
    return f"({listed}, ... {len(names)} in all)" if len(names) > 10 else f"({listed})"
