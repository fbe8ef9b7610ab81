"""Predictions of a trained model, read block by block: class numbers, probabilities, or numbers in regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import NeedError
from labelwise.pool import Pool
from labelwise.pool.ids import as_ids
from labelwise.signals.check import check_finite
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs


def predict(reader: Reader, pool: Pool, ids: Any = None, batch: int = 256) -> np.ndarray:
    """Class numbers (n,) of the rows `ids` of a pool, or of all its rows; numbers in regression.

    The class is the most probable one, and of equally probable ones the first.
    """
    if reader.gives(Prediction()):
        return _read(reader, pool, ids, Prediction(), batch)
    return _read(reader, pool, ids, Probs(), batch)


def predict_proba(reader: Reader, pool: Pool, ids: Any = None, batch: int = 256) -> np.ndarray:
    """Class probabilities (n, C) of the rows `ids` of a pool, or of all its rows; NeedError in regression."""
    if reader.gives(Prediction()):
        raise NeedError("a regression model has no class probabilities; use predict, which gives its numbers")
    return _read(reader, pool, ids, Probs(), batch, classes=False)


def _read(
    reader: Reader, pool: Pool, ids: Any, signal: Prediction | Probs, batch: int, classes: bool = True
) -> np.ndarray:
    """One column of these rows; for Probs, their most probable class unless `classes` is false."""
    wanted = pool.ids if ids is None else as_ids(ids) if isinstance(ids, Tensor) else pool.ids_of(ids)
    some = wanted if len(wanted) else pool.ids[:1]  # no rows: read one for the shape of the columns
    found, start = torch.empty(0), 0
    for rows in read(reader, pool, some, (signal,), batch):
        column = rows.tensor(signal)
        check_finite(signal, rows.ids, column.reshape(len(column), -1))  # the largest of NaNs is class 0
        if classes and isinstance(signal, Probs):
            column = column.argmax(1)
        if not start:
            found = column.new_empty(len(some), *column.shape[1:])
        found[start : start + len(rows)] = column
        start += len(rows)
    return found[: len(wanted)].numpy()
