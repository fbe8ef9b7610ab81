"""Fit: what training gives. Learner: what gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from labelwise.errors import LabelError, RowError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.read import Reader
from labelwise.signals.spec import Signal


@dataclass(frozen=True)
class Fit:
    """What is known after training on some labelled rows.

    Attributes:
        reader: gives the signals of any row.
        ids: (n,) the labelled rows.
        published: signals that only training knows, a column about the rows `ids` each.
        notes: how training went, numbers and short texts that go into JSON.
        state: what has to be saved to go on in a new process; None when the same fit on the same labels with the same
            key gives the same again.
    """

    reader: Reader
    ids: Tensor
    published: Mapping[Signal, Tensor] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, Tensor] | None = None


@runtime_checkable
class Learner(Protocol):
    """Something that can be trained on labelled rows."""

    def fit(
        self,
        pool: Pool,
        ids: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        classes: int,
        key: Key,
        previous: Fit | None = None,
    ) -> Fit:
        """Train on the rows `ids` with `labels` 0..classes-1. `previous` is the fit of the round before.

        A learner of numbers has an attribute `task` that is "regress"; it is given the numbers, and classes=0.
        """

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """The fit whose `state` this is; `ids` are the rows it was trained on."""


def checked_targets(ids: Tensor, labels: Tensor) -> Tensor:
    """Labels as float64 numbers; an error names the first row whose label is not finite."""
    _check_count(ids, labels)
    values = labels.to(torch.float64)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise LabelError(f"labels are finite numbers; row id {int(ids[row])} has {float(values[row])}.")
    return values


def _check_count(ids: Tensor, labels: Tensor) -> None:
    if len(ids) == 0:
        raise LabelError("there is no labelled row; label at least one row first.")
    if labels.shape != ids.shape:
        raise RowError(f"one label for each of {len(ids)} rows was expected, shape {tuple(labels.shape)} was found.")


def checked_labels(ids: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Labels as int64 classes; an error names the first row that has none of them."""
    _check_count(ids, labels)
    whole = labels.to(torch.int64)
    bad = (whole != labels) | (whole < 0) | (whole >= classes)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise LabelError(
            f"labels are whole numbers from 0 to {classes - 1}; row id {int(ids[row])} has {labels[row].item()}. "
            "Correct the label, or say how many classes there are."
        )
    return whole
