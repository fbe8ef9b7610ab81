"""Arrays in mapped files: another process opens them by name, so their numbers need not travel."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Mapped:
    """An array in a file, from byte `offset` on: what travels is its name, not its numbers."""

    path: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def rows(self, where: slice) -> Mapped:
        """Rows start..stop of it."""
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
    """Where in a file, that another process can open by name, an array lies; None where it lies in none."""
    whole = array
    while isinstance(whole, np.ndarray) and not isinstance(whole.base, mmap.mmap):
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.filename is None or not Path(str(whole.filename)).is_file():
        return None
    # What was written to an array that is copied on writing is not in the file.
    if whole.mode == "c" or any(step < 0 for step in array.strides) or not array.size:
        return None
    offset = int(whole.offset) + array.ctypes.data - whole.ctypes.data
    path = str(Path(str(whole.filename)).resolve())
    return Mapped(path, array.dtype.str, offset, tuple(array.shape), tuple(array.strides))


def file_of(array: Any, column: Tensor) -> Mapped | None:
    """Where in a file the column lies that was made of an array; a copy of it, in another form, lies in none."""
    found = in_file(array)
    same = found is not None and column.device.type == "cpu" and column.data_ptr() == array.ctypes.data
    return found if same else None
