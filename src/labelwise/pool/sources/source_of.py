"""The source that reads a value: an array, a tensor, texts or a torch Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.arguments import is_sparse
from labelwise.pool.source import Source
from labelwise.pool.sources.arrays import ArraySource, TensorSource, TextSource
from labelwise.pool.sources.collated import RowSource, with_collate
from labelwise.pool.sources.dataset import DatasetSource
from labelwise.pool.sources.images import SUFFIXES
from labelwise.pool.sources.sparse import SparseSource


def source_of(source: Any) -> Source:
    """The source that reads a value, which is not a Hugging Face dataset."""
    if isinstance(source, Tensor):
        return TensorSource(source)
    if isinstance(source, np.ma.MaskedArray) and np.ma.is_masked(source):
        raise ArgumentError("the array has masked entries; fill them, or leave those rows out, and pass a plain array.")
    if isinstance(source, np.ndarray):
        return TextSource(source.tolist()) if source.dtype.kind in "UO" and source.ndim == 1 else ArraySource(source)
    if isinstance(source, list | tuple):
        return _of_list(source)
    if isinstance(source, str | Path):
        raise ArgumentError(
            f"for files use Pool.images(folder) or Pool.table(path), for one text a list, [text]; "
            f"{str(source)!r:.60} is a path or a text."
        )
    if is_sparse(source):
        return SparseSource(source)
    if isinstance(source, Mapping) or not hasattr(source, "__getitem__"):
        raise ArgumentError(
            "a pool is made of an array, a tensor, a sparse matrix, a list of texts, a frame or Series (pandas, "
            "polars, Arrow), a map-style torch Dataset or a Hugging Face Dataset (one split), not of "
            f"{type(source).__name__}."
        )
    return DatasetSource(source)


def collated(source: Source, collate: Any, tokenizer: Any) -> Source:
    """The source with a function that makes batches; only of texts and of items of a Dataset."""
    if not callable(getattr(source, "rows", None)):
        raise ArgumentError(
            "collate= and tokenizer= are for texts and for datasets; rows of an array or a tensor are a batch already."
        )
    return with_collate(cast(RowSource, source), collate, tokenizer)


def _of_list(source: Sequence[Any]) -> Source:
    """The source of a list: of texts, or of rows of numbers, which are arrays, tensors or lists of one shape."""
    first = source[0] if len(source) else ""
    if isinstance(first, Path) or (
        isinstance(first, str) and first.lower().endswith(SUFFIXES) and Path(first).is_file()
    ):
        raise ArgumentError(
            f"a list given as a pool holds texts or rows of numbers; entry 0 is the path {str(first)!r:.60}. For files "
            "use Pool.images(paths) or Pool.table(paths)."
        )
    if type(first).__module__.partition(".")[0] == "PIL":
        raise ArgumentError(
            "a list given as a pool holds texts or rows of numbers; entry 0 is an image. For files use "
            "Pool.images(paths), for images in memory an array or tensor (N, 3, H, W)."
        )
    if isinstance(first, Tensor) and all(isinstance(row, Tensor) and row.shape == first.shape for row in source):
        return TensorSource(torch.stack(list(source)))
    if isinstance(first, np.ndarray | Tensor | list | tuple):
        try:
            return ArraySource(np.array(source))
        except ValueError as error:  # of different lengths
            raise ArgumentError(
                f"a list of rows holds numbers, and as many in each row, which these do not: {str(error).rstrip('.')}."
            ) from error
    return TextSource(source)
