"""Predictions of a trained model, read block by block: class numbers, probabilities, or numbers in regression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import NeedError
from labelwise.pool import Pool
from labelwise.pool.ids import as_ids
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
    wanted = pool.ids if ids is None else as_ids(ids)
    some = wanted if len(wanted) else pool.ids[:1]  # no rows: read one for the shape of the columns
    columns: Iterable[Tensor] = (rows.tensor(signal) for rows in read(reader, pool, some, (signal,), batch))
    if classes and isinstance(signal, Probs):
        columns = (p_BC.argmax(1) for p_BC in columns)
    return torch.cat(list(columns))[: len(wanted)].numpy()
