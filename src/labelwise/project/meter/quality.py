"""Quality: what the models of all rounds say about the test rows: learning curve, confusion matrix, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from labelwise.project.label_sets import value_of
from labelwise.project.loop.set_model import hot, outputs_of, set_losses
from labelwise.project.loop.snapshot import Snapshot
from labelwise.project.loop.stored_model import Model
from labelwise.project.meter.meter import Span, losses_of, score_of
from labelwise.stats.estimate import pool_mean


@dataclass(frozen=True)
class Wrong:
    """A test row that the newest model predicts wrongly, or far off. `size`: how sure it is, or how far off."""

    row: int
    true: str
    predicted: str
    size: float


@dataclass(frozen=True)
class ClassAccuracy:
    """How much of the test rows of a class is right; `share` is None without one."""

    name: str
    rows: int
    right: int
    share: Span | None


@dataclass(frozen=True)
class Quality:
    """The models of all rounds on the test rows that have a label now.

    Attributes:
        rows: test rows.
        curve: (labels, score) of each model, the newest last.
        labels: labels of the newest model.
        classes: names; empty for numbers.
        confusion_CC: how many test rows of a class (row) the newest model predicts as another (column).
        by_class: the accuracy of each class.
        pairs: (true, predicted, row) of numbers.
        wrong: the errors of the newest model, the surest or largest first.
    """

    rows: int
    curve: tuple[tuple[int, Span], ...]
    labels: int
    classes: tuple[str, ...]
    confusion_CC: tuple[tuple[int, ...], ...]
    by_class: tuple[ClassAccuracy, ...]
    pairs: tuple[tuple[float, float, int], ...]
    wrong: tuple[Wrong, ...]


def quality_of(
    models: Mapping[int, Model],
    snapshot: Snapshot,
    x_MD: np.ndarray,
    weight_M: np.ndarray | None = None,
    factor: float = 1.0,
    *,
    sets: bool = False,
) -> Quality:
    """What these models say of the test rows of a snapshot.

    Args:
        models: by the number of labels they were trained on; at least one.
        snapshot: has at least one test row with a label.
        x_MD: features of its test rows.
        weight_M: weights of the test rows; None for uniform ones.
        factor: of estimates with these weights.
        sets: whether labels are sets of classes.
    """
    rows = list(snapshot.test)
    if sets:
        return _of_sets(rows, x_MD, models, snapshot)
    label_M = np.array(list(snapshot.test.values()))
    curve = []
    for labels in sorted(models):
        model = models[labels]
        loss_M = losses_of(x_MD, label_M, snapshot.classes, model.weight_CD, model.bias_C, model.classes)
        curve.append((labels, score_of(loss_M, "accuracy" if snapshot.classes else "rmse", weight_M, factor)))
    newest = models[max(models)]
    out_MC = x_MD.astype(np.float64) @ newest.weight_CD.T + newest.bias_C
    if not snapshot.classes:
        return _of_numbers(rows, curve, newest.labels, label_M, out_MC[:, 0])
    return _of_classes(rows, curve, newest, label_M.astype(int), out_MC, snapshot.classes)


def _of_sets(rows: list[int], x_MD: np.ndarray, models: Mapping[int, Model], snapshot: Snapshot) -> Quality:
    """For sets of classes: `by_class` is how many of the items of a class are predicted to have it."""
    values = snapshot.values(snapshot.test)
    hot_MC = hot(values, snapshot.classes)
    curve = []
    for labels in sorted(models):
        named_MC = outputs_of(models[labels], x_MD, snapshot.classes) > 0
        curve.append((labels, score_of(set_losses(named_MC, hot_MC), "overlap")))
    loss_M = set_losses(named_MC, hot_MC)
    by_class = []
    for c, name in enumerate(snapshot.classes):
        right_M = named_MC[hot_MC[:, c] > 0, c].astype(float)
        found = pool_mean(right_M, np.ones(len(right_M)), share=True) if len(right_M) else None
        share = None if found is None else Span(found.value, found.low, found.high)
        by_class.append(ClassAccuracy(name, len(right_M), int(right_M.sum()), share))
    names = np.array(snapshot.classes, object)
    wrong = [
        Wrong(rows[m], values[m], value_of(names[named_MC[m]].tolist(), snapshot.classes), float(loss_M[m]))
        for m in np.argsort(-loss_M, kind="stable").tolist()
        if loss_M[m]
    ]
    return Quality(len(rows), tuple(curve), max(models), snapshot.classes, (), tuple(by_class), (), tuple(wrong))


def _of_numbers(
    rows: list[int], curve: list[tuple[int, Span]], labels: int, label_M: np.ndarray, out_M: np.ndarray
) -> Quality:
    pairs = tuple(zip(label_M.tolist(), out_M.tolist(), rows))
    order = np.argsort(-np.abs(out_M - label_M), kind="stable").tolist()
    wrong = tuple(
        Wrong(rows[m], f"{label_M[m]:.4g}", f"{out_M[m]:.4g}", abs(float(out_M[m] - label_M[m]))) for m in order
    )
    return Quality(len(rows), tuple(curve), labels, (), (), (), pairs, wrong)


def _of_classes(
    rows: list[int],
    curve: list[tuple[int, Span]],
    model: Model,
    label_M: np.ndarray,
    out_MC: np.ndarray,
    classes: tuple[str, ...],
) -> Quality:
    columns = [c for c, name in enumerate(model.classes) if name in classes]  # the last column may have no class
    known, place = out_MC[:, columns], np.array([classes.index(model.classes[c]) for c in columns])
    predicted_M = place[known.argmax(1)]
    count_CC = np.zeros((len(classes), len(classes)), int)
    np.add.at(count_CC, (label_M, predicted_M), 1)
    by_class = []
    for c, name in enumerate(classes):
        right_M = (predicted_M[label_M == c] == c).astype(float)
        found = pool_mean(right_M, np.ones(len(right_M)), share=True) if len(right_M) else None
        share = None if found is None else Span(found.value, found.low, found.high)
        by_class.append(ClassAccuracy(name, len(right_M), int(right_M.sum()), share))
    weight_MC = np.exp(known - known.max(1, keepdims=True))
    sure_M = weight_MC.max(1) / weight_MC.sum(1)
    wrong = [
        Wrong(rows[m], classes[label_M[m]], classes[predicted_M[m]], float(sure_M[m]))
        for m in np.argsort(-sure_M, kind="stable").tolist()
        if predicted_M[m] != label_M[m]
    ]
    counts = tuple(tuple(row) for row in count_CC.tolist())
    return Quality(len(rows), tuple(curve), model.labels, classes, counts, tuple(by_class), (), tuple(wrong))
