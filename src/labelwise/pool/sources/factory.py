"""Which source reads a value that a pool is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.pool.source import Source
from labelwise.pool.sources.arrays import ArraySource, TensorSource, TextSource
from labelwise.pool.sources.dataset import DatasetSource


def source_of(source: Any) -> Source:
    """The source for a value that is not a Hugging Face dataset."""
    if isinstance(source, Tensor):
        return TensorSource(source)
    if isinstance(source, np.ndarray):
        return TextSource(source.tolist()) if source.dtype.kind in "UO" and source.ndim == 1 else ArraySource(source)
    if isinstance(source, list | tuple):
        return TextSource(source)
    if isinstance(source, str | Path):
        raise ArgumentError(
            f"for files use Pool.images(folder) or Pool.table(path); {str(source)!r} is a path or text."
        )
    if type(source).__module__.startswith("scipy.sparse"):
        raise ArgumentError(
            f"a pool of numbers holds dense ones, not a sparse {type(source).__name__}. Make it dense with "
            "Pool.of(matrix.toarray()), or give what it was computed from, such as the texts, and features=, an (N, D) "
            "array of fewer columns (scikit-learn's TruncatedSVD)."
        )
    frame = isinstance(source, Mapping) or hasattr(source, "iloc")
    if frame or not hasattr(source, "__getitem__"):
        raise ArgumentError(
            "a pool is made of a numpy array, a torch tensor, a list of texts, a map-style torch Dataset or a Hugging "
            f"Face Dataset (one split), not of {type(source).__name__}. Numbers of a data frame: frame.to_numpy()."
        )
    return DatasetSource(source)
