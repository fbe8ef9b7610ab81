"""Rows of numpy arrays (memory-mapped ones stay mapped), of torch tensors, and texts in a list."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, RowError
from labelwise.io.text import shortened
from labelwise.pool.source import content

LARGE = 2**30  # bytes; larger files are sampled for the fingerprint


class ArraySource:
    """Rows are the first axis of a numpy array. A read copies only its rows, so a mapped file stays mapped."""

    kind = "array"

    def __init__(self, array: np.ndarray, names: Sequence[str] | None = None, large: int = LARGE):
        _check(array.ndim, array.shape, "numpy array")
        if array.dtype.kind not in "biuf":
            raise ArgumentError(f"a pool of arrays holds numbers; this array holds {array.dtype}.")
        if array.dtype.itemsize > 8:
            raise ArgumentError(f"torch has no {array.dtype}; convert it with array.astype('float64').")
        self.array = array
        self.names = names
        self.whole = array.nbytes <= large or not _is_mapped(array)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "array": in_file(self.array) or self.array}

    def __setstate__(self, state: dict[str, Any]) -> None:
        array = state["array"]
        self.__dict__.update(state, array=array.array() if isinstance(array, Mapped) else array)

    def __len__(self) -> int:
        return len(self.array)

    def inputs(self, positions: np.ndarray) -> Tensor:
        # Picking rows by an index array copies them: torch gets memory it may write to, whatever the source allows.
        rows = np.asarray(self.array[positions])
        return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("="), copy=False))

    def name(self, position: int) -> str | None:
        return None if self.names is None else self.names[position]

    def sample(self, positions: np.ndarray) -> bytes:
        return content(np.asarray(self.array[positions]))

    def part(self, positions: np.ndarray) -> tuple[ArraySource, np.ndarray | None]:
        if in_file(self.array) is not None:
            return ArraySource(self.array), positions
        return ArraySource(self.array[positions]), None


class TensorSource:
    """Rows are the first axis of a torch tensor; they stay on its device."""

    kind = "array"  # as ArraySource: the same numbers in a tensor are the same pool
    whole = True

    def __init__(self, tensor: Tensor):
        _check(tensor.ndim, tuple(tensor.shape), "tensor")
        if tensor.layout != torch.strided:
            raise ArgumentError(f"a pool of tensors holds dense ones, not {tensor.layout}; use tensor.to_dense().")
        self.tensor = tensor.detach()

    def __len__(self) -> int:
        return len(self.tensor)

    def inputs(self, positions: np.ndarray) -> Tensor:
        return self.tensor[torch.from_numpy(positions).to(self.tensor.device)]

    def name(self, position: int) -> str | None:
        return None

    def sample(self, positions: np.ndarray) -> bytes:
        return content(as_array(self.inputs(positions)))

    def part(self, positions: np.ndarray) -> tuple[TensorSource, None]:
        return TensorSource(self.inputs(positions).cpu()), None  # there may be no accelerator where it goes


class TextSource:
    """Rows are texts; a batch of inputs is a list of them."""

    kind = "texts"
    whole = True

    def __init__(self, texts: Sequence[str], column: str | None = None, library: str = ""):
        """Rows of texts.

        Args:
            texts: the texts.
            column: the column of a frame they came from.
            library: the library of that frame.
        """
        self.column, self.library = column, library
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ArgumentError(
                    f"a list given as a pool holds texts; entry {position} is {text!r:.60} ({type(text).__name__}). "
                    "Give numbers as a numpy array or a torch tensor."
                )
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def inputs(self, positions: np.ndarray) -> list[str]:
        return [self.texts[position] for position in positions.tolist()]

    rows = as_texts = inputs

    def name(self, position: int) -> str | None:
        return shortened(self.texts[position])

    def sample(self, positions: np.ndarray) -> bytes:
        return content(self.inputs(positions))

    def part(self, positions: np.ndarray) -> tuple[TextSource, None]:
        return TextSource(self.inputs(positions)), None


@dataclass(frozen=True)
class Mapped:
    """An array in a file, from byte `offset` on. Another process gets the name of the file and not the numbers."""

    path: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def rows(self, where: slice) -> Mapped:
        """The rows of a slice."""
        offset, shape = self.offset + where.start * self.strides[0], (where.stop - where.start, *self.shape[1:])
        return replace(self, offset=offset, shape=shape)

    def array(self, mode: Literal["r", "c"] = "r") -> np.ndarray:
        """The array, mapped."""
        span = np.dtype(self.dtype).itemsize + sum((n - 1) * step for n, step in zip(self.shape, self.strides))
        data = np.memmap(self.path, np.uint8, mode, self.offset, (span,))
        return np.ndarray(self.shape, self.dtype, data, 0, self.strides)

    def open(self) -> Tensor:
        """The array as a tensor, mapped."""
        return torch.from_numpy(self.array("c"))  # "c": torch wants writable memory


def in_file(array: Any) -> Mapped | None:
    """The place of an array in a file that another process can open; None if it is in none."""
    whole = array
    while isinstance(whole, np.ndarray) and not isinstance(whole.base, mmap.mmap):
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.filename is None or not Path(str(whole.filename)).is_file():
        return None
    # A copy-on-write array may have values that are not in the file.
    if whole.mode == "c" or any(step < 0 for step in array.strides) or not array.size:
        return None
    offset = int(whole.offset) + array.ctypes.data - whole.ctypes.data
    path = str(Path(str(whole.filename)).resolve())
    return Mapped(path, array.dtype.str, offset, tuple(array.shape), tuple(array.strides))


def file_of(array: Any, column: Tensor) -> Mapped | None:
    """The place in a file of a column that was made of an array; None if the column is a copy."""
    found = in_file(array)
    same = found is not None and column.device.type == "cpu" and column.data_ptr() == array.ctypes.data
    return found if same else None


def as_array(rows: Tensor) -> np.ndarray:
    """A tensor on any device as a numpy array."""
    # numpy has no bfloat16; its bytes in float32 are as telling.
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).cpu().numpy()


def features_of(features: Any, n: int) -> Tensor | None:
    """The features of a pool of n rows, as a tensor over the same memory."""
    if features is None:
        return None
    with warnings.catch_warnings():
        # A file mapped for reading gives a read-only array; torch warns of writing to it, which nobody here does.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        tensor = torch.as_tensor(features).detach()
    if tensor.ndim != 2 or len(tensor) != n:
        raise RowError(f"features: an array of shape ({n}, D) was expected, {tuple(tensor.shape)} was found.")
    return tensor


def _is_mapped(array: np.ndarray) -> bool:
    """Whether the array, or one it is a view of, is a mapped file."""
    inside: object = array
    while isinstance(inside, np.ndarray) and not isinstance(inside, np.memmap):
        inside = inside.base
    return isinstance(inside, np.memmap)


def _check(ndim: int, shape: Sequence[int], what: str) -> None:
    if ndim == 0:
        raise ArgumentError(f"a pool needs a {what} whose first axis is the rows; this one has no axis.")
