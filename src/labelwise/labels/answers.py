"""Checks of what a caller passes about labels: the task, the classes, the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, RowError
from labelwise.pool import Pool


def resolve_classes(classes: int | Sequence[str] | None, pool: Pool) -> int | tuple[str, ...] | None:
    """The number of classes or their names; those of the pool for None."""
    if classes is None:
        return pool.classes
    if isinstance(classes, int | np.integer) and not isinstance(classes, bool):
        if classes < 1:
            raise LabelError(f"classes must be at least 1, found {classes}")
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


def check_ids(ids: Any) -> list[int]:
    """Ids as a list of distinct whole numbers."""
    rows = np.asarray(ids).reshape(-1)
    if len(rows) and rows.dtype.kind not in "iu":
        raise RowError(f"ids must be whole numbers, found {rows[:3].tolist()}")
    unique, counts = np.unique(rows, return_counts=True)
    if len(unique) != len(rows):
        raise RowError(f"id {int(unique[counts > 1][0])} is told twice in one call; nothing was recorded")
    return [int(row) for row in rows]
