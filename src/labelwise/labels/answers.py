"""Answers: what a caller says about labels, checked: whether they are classes or numbers, which classes, which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, RowError
from labelwise.pool import Pool


def classes_of(classes: int | Sequence[str] | None, pool: Pool) -> int | tuple[str, ...] | None:
    """How many classes there are, or their names; from the pool where nothing was said."""
    if classes is None:
        return pool.classes
    if isinstance(classes, int | np.integer) and not isinstance(classes, bool):
        if classes < 1:
            raise LabelError(f"classes must be at least 1, found {classes}")
        return int(classes)
    if isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray):
        raise LabelError(f"classes must be how many there are, or a list of their names; found {classes!r}")
    names = tuple(classes)
    for name in names:
        # A list of numbers could mean the labels themselves or their names: it is not guessed at.
        if not isinstance(name, str):
            raise LabelError(
                f"the names of the classes must be texts, found {name!r}; where labels are numbers 0, 1, 2 ... pass "
                "how many classes there are, otherwise turn names and labels into texts"
            )
    names = tuple(str(name) for name in names)
    if len(set(names)) != len(names):
        raise LabelError(f"the names of the classes must differ, found {', '.join(names)}")
    return names


def count_of(task: str, classes: int | Sequence[str] | None, labels: Tensor) -> int:
    """How many classes there are, those seen so far where nothing was said; 0 in regression."""
    if task == "regress":
        return 0
    if classes is None:
        return max(2, int(labels.max()) + 1)
    return classes if isinstance(classes, int) else len(classes)


def task_of(task: Any, learner: Any) -> Literal["classify", "regress"]:
    """What is learnt: what was said, else what the learner is made for."""
    own = getattr(learner, "task", None)
    if task not in (None, "classify", "regress"):
        raise ArgumentError(f'task is "classify", "regress" or None, not {task!r}')
    if task is not None and own is not None and task != own:
        raise ArgumentError(
            f"task={task!r}, but the learner is made for {own!r}; for numbers pass TorchLearner(model, loss='mse') or "
            "a scikit-learn regressor, for classes a classifier"
        )
    return "regress" if "regress" in (task, own) else "classify"


def ids_of(ids: Any) -> list[int]:
    """Distinct whole numbers."""
    rows = np.asarray(ids).reshape(-1)
    if len(rows) and rows.dtype.kind not in "iu":
        raise RowError(f"ids must be whole numbers, found {rows[:3].tolist()}")
    unique, counts = np.unique(rows, return_counts=True)
    if len(unique) != len(rows):
        raise RowError(f"id {int(unique[counts > 1][0])} is told twice in one call; nothing was recorded")
    return [int(row) for row in rows]
