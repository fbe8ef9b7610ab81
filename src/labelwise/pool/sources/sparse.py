"""Rows of a sparse matrix of scipy: sparse for estimators of scikit-learn, dense by the batch for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.encode_texts import directions
from labelwise.pool.source import content

WIDEST = 1000  # columns up to which strategies without a model get the rows themselves


class SparseSource:
    """Rows of a sparse matrix. Inputs are dense (n, D); `rows` gives them as they are stored, by row."""

    kind = "sparse"
    whole = True

    def __init__(self, matrix: Any):
        if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
            raise ArgumentError(
                f"a sparse pool is a matrix (N, D) of numbers; found shape {matrix.shape} of {matrix.dtype}."
            )
        by_row = matrix.tocsr()
        if not by_row.has_canonical_format or not by_row.data.all():  # one spelling, for the fingerprint
            by_row = by_row.copy()
            by_row.sum_duplicates()
            by_row.eliminate_zeros()
        self.matrix = by_row

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def is_wide(self) -> bool:
        """Whether strategies without a model get fewer columns."""
        return bool(self.matrix.shape[1] > WIDEST)

    def rows(self, positions: np.ndarray) -> Any:
        """The rows at these positions, sparse."""
        return self.matrix[positions]

    def inputs(self, positions: np.ndarray) -> Tensor:
        return torch.from_numpy(self.rows(positions).toarray())

    def name(self, position: int) -> str | None:
        return None

    def sample(self, positions: np.ndarray) -> bytes:
        rows = self.rows(positions)
        parts = (np.diff(rows.indptr).astype(np.int64), rows.indices.astype(np.int64), rows.data)
        return b"".join(map(content, parts)) + b"%d" % rows.shape[1]

    def joined(self, positions: np.ndarray, other: SparseSource, others: np.ndarray) -> SparseSource:
        """These rows, then those of the other source at `others`."""
        from scipy.sparse import vstack

        if self.matrix.shape[1] != other.matrix.shape[1]:
            raise ArgumentError(
                f"new rows are like those of the pool, which have {self.matrix.shape[1]} columns; found "
                f"{other.matrix.shape[1]}"
            )
        return SparseSource(vstack([self.rows(positions), other.rows(others)], dtype=self.matrix.dtype))

    def part(self, positions: np.ndarray) -> tuple[SparseSource, None]:
        return SparseSource(self.rows(positions)), None


@dataclass(frozen=True)
class SparseEncoder:
    """Projects rows of a sparse matrix on the directions (D, W) in which rows differ most."""

    to_DW: np.ndarray

    def encode(self, rows: Any) -> np.ndarray:
        """Features (n, W) float32 of sparse rows."""
        return np.asarray(rows @ self.to_DW, np.float32)


def fit_sparse(rows: Any) -> SparseEncoder:
    """Learn the directions from rows of a matrix."""
    return SparseEncoder(directions(rows.astype(np.float32)))
