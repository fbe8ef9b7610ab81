"""Tables of mixed columns as numbers: numeric ones standardised and categories one-hot, both learnt on train alone."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.errors import SourceError, extra
from labelwise.pool.pool import Pool


def read_columns(path: Path) -> dict[str, list[Any]]:
    """All columns of a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "bench") from None
    try:
        return pq.read_table(path).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not a Parquet file that can be read ({error}).") from error


def read_csv_columns(path: Path) -> dict[str, np.ndarray]:
    """All columns of a CSV file of numbers."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        header = next(csv.reader(stream))
    table = Pool.table(path, columns=header, dtype=torch.float64)
    return dict(zip(header, table.inputs(table.ids).numpy().T))


def encode(columns: Mapping[str, Any], categories: Sequence[str], train: np.ndarray) -> np.ndarray:
    """Rows (n, D) float32. Numeric columns have mean 0 and deviation 1 on `train`; one that is constant there is 0.

    A category that `train` does not hold is all zeros. Columns of texts are categories whether named or not.

    >>> encode({"age": [10, 30, 50], "job": ["a", "b", "c"]}, ["job"], np.array([0, 1]))
    array([[-1.,  1.,  0.],
           [ 1.,  0.,  1.],
           [ 3.,  0.,  0.]], dtype=float32)
    """
    made = []
    for name, values in columns.items():
        if name in categories or isinstance(values[0], str):
            made.append(_one_hot(np.array(values), train))
        else:
            made.append(_standardised(np.array(values, np.float64), train))
    return np.concatenate(made, axis=1)


def _one_hot(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    known = np.unique(values[train])
    return (values[:, None] == known[None, :]).astype(np.float32)


def _standardised(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    spread = values[train].std()
    # A spread of rounding size is that of a constant column.
    if spread <= 1e-12 * max(1.0, float(np.abs(values[train]).max())):
        return np.zeros((len(values), 1), np.float32)
    return ((values - values[train].mean()) / spread)[:, None].astype(np.float32)
