"""Checks of what a caller passes about labels: the task, the classes, the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, RowError
from labelwise.io.frames import check_order, index_of, is_series, plain_values
from labelwise.io.text import shortened
from labelwise.pool import Pool
from labelwise.pool.ids import no_ids

MANY_CLASSES = 1000  # up to which any class number is taken where the number of classes is not known


def resolve_classes(classes: int | Sequence[str] | None, pool: Pool) -> int | tuple[str, ...] | None:
    """The number of classes or their names; those of the pool for None."""
    if classes is None:
        return pool.classes
    if isinstance(classes, int | np.integer) and not isinstance(classes, bool):
        if not 1 <= classes < 2**31:
            raise LabelError(f"classes must be at least 1, and below 2**31, found {classes}")
        return int(classes)
    if isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray):
        raise LabelError(f"classes must be a number of classes or a list of their names, found {classes!r}")
    names = tuple(classes)
    for name in names:
        # A list of numbers could mean the labels themselves or their names.
        if not isinstance(name, str):
            raise LabelError(
                f"the names of the classes must be texts, found {name!r}; if labels are numbers 0, 1, 2 ... pass "
                "the number of classes, otherwise turn names and labels into texts"
            )
    names = tuple(str(name) for name in names)
    if len(set(names)) != len(names):
        raise LabelError(f"the names of the classes must differ, found {', '.join(names)}")
    return names


def check_class_numbers(numbers: Sequence[float], rows: int) -> None:
    """Raise LabelError for a class number that makes more classes than a pool with this number of rows can have."""
    largest = max(numbers, default=0)
    if largest >= max(rows, MANY_CLASSES):
        raise LabelError(
            f"label {largest} would mean {largest + 1} classes, numbered from 0, in a pool of {rows} rows; tell the "
            "labels as texts, so that each is the name of a class, or pass classes="
        )


def count_classes(task: str, classes: int | Sequence[str] | None, labels: Tensor) -> int:
    """The number of classes; for None that of the labels so far, at least 2; 0 in regression."""
    if task == "regress":
        return 0
    if classes is None:
        return max(2, int(labels.max()) + 1)
    return classes if isinstance(classes, int) else len(classes)


def resolve_task(task: Any, learner: Any) -> Literal["classify", "regress"]:
    """The task as given, else that of the learner, else "classify"."""
    learner_task = getattr(learner, "task", None)
    if task not in (None, "classify", "regress"):
        raise ArgumentError(f'task is "classify", "regress" or None, not {task!r}')
    if task is not None and learner_task is not None and task != learner_task:
        raise ArgumentError(
            f"task={task!r}, but the learner is made for {learner_task!r}; for numbers pass "
            "TorchLearner(model, loss='mse') or a scikit-learn regressor, for classes a classifier"
        )
    return "regress" if "regress" in (task, learner_task) else "classify"


def check_index(labels: Any, ids: Any, pool: Pool) -> None:
    """Raise LabelError where the index of a Series of labels names other rows than `ids`, or in another order."""
    check_order(labels, ids)
    index = index_of(labels)
    if pool.row_keys is None or index is None or index.tolist() == list(plain_values(ids)):
        return
    if len(index) and pool.row_keys.knows(index):
        raise LabelError(
            f"the index of the labels names other rows of the pool than the ids, such as {index.tolist()[0]!r}. Pass "
            "labels.loc[ids], or labels.to_numpy() if the labels are in the order of the ids"
        )


def check_no_input(labels: Any, pool: Pool) -> None:
    """Raise LabelError where a Series of labels is a column of the frame that rows of the pool are made of."""
    name = getattr(labels, "name", None) if is_series(labels) else None
    if isinstance(name, str) and name in (pool.columns or ()):
        raise LabelError(
            f"the labels are the column {name!r}, which is a part of the rows too: models would read the answer there. "
            f"Make the pool of Pool.frame(frame, label={name!r}), which leaves it out; if these are other labels, "
            "rename the Series"
        )


def check_ids(ids: Any, pool: Pool) -> list[int]:
    """The ids of rows of the pool, by what the user calls them: distinct whole numbers."""
    if pool.row_keys is None:
        try:
            rows = np.asarray(plain_values(ids)).reshape(-1)
        except ValueError:  # lists of different lengths
            raise RowError(f"ids must be whole numbers in one list, found {ids!r:.80}") from None
        if len(rows) and rows.dtype.kind not in "iu":
            raise RowError(f"ids must be whole numbers, found {shortened(str(rows[:3].tolist()))}.{no_ids(ids)}")
    else:
        rows = pool.ids_of(ids).numpy()
    unique, counts = np.unique(rows, return_counts=True)
    if len(unique) != len(rows):
        twice = pool.keys_of(unique[counts > 1][:1]) if pool.row_keys else unique[counts > 1]
        raise RowError(f"id {twice.tolist()[0]!r} is told twice in one call; nothing was recorded")
    if len(rows) and not -(2**63) <= int(rows.min()) <= int(rows.max()) < 2**63:
        raise RowError(f"ids must be whole numbers below 2**63, found {int(rows.max())}")
    return [int(row) for row in rows]
