"""The arrays that a user passes, as tensors over the same memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, RowError

SHAPES = {1: "(rows,)", 2: "(rows, columns)", 3: "(rows, draws, classes)"}
COPIED = 1 << 20  # bytes of an array that may be copied under a limit on memory


def as_tensor(name: str, value: Any, axes: int) -> Tensor:
    """A tensor over the user's memory, without a copy, of a real number type and so many axes."""
    tensor = value.detach() if isinstance(value, Tensor) else _from_numpy(name, value)
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name} is a sparse tensor; pass a dense one: {name}.to_dense()")
    if tensor.is_complex():
        raise ArgumentError(f"{name} must hold real numbers, found {tensor.dtype}")
    if tensor.ndim != axes:
        raise RowError(f"{name} must have {axes} axes {SHAPES[axes]}, found shape {tuple(tensor.shape)}")
    return tensor


def _from_numpy(name: str, value: Any) -> Tensor:
    """What NumPy makes of `value`, as a tensor that shares its memory wherever torch can."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentError(f"{name} has masked entries; fill them or leave those rows out, then pass a plain array")
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        value = [one.detach().cpu().numpy() if isinstance(one, Tensor) else one for one in value]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RowError(f"{name} is not an array: {error}") from error
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise ArgumentError(f"{name} must be an array of numbers, found dtype {array.dtype}")
    if _not_for_torch(array):
        if array.dtype == np.uint64 and name == "ids" and array.size and array.max() > np.iinfo(np.int64).max:
            raise RowError(f"ids must fit 64 bits with a sign, found {int(array.max())}")
        array = array.astype(_for_torch(array.dtype, name), order="C")
    with warnings.catch_warnings():
        # A mapped file opened for reading is not writable; nothing here writes to what the user passed.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _for_torch(dtype: np.dtype, name: str) -> np.dtype:
    """The nearest type that torch has."""
    if dtype == np.uint64:
        return np.dtype(np.int64 if name == "ids" else np.float64)
    return np.dtype(np.float64) if dtype == np.longdouble else dtype.newbyteorder("=")


def _not_for_torch(array: np.ndarray) -> str:
    """Why torch cannot take an array where it lies; nothing where it can."""
    if array.dtype.byteorder not in "=|":
        return "its bytes are in the order of another machine"
    if array.dtype in (np.uint64, np.longdouble):
        return f"torch has no {array.dtype}"
    if any(step < 0 or step % array.itemsize for step in array.strides):
        return "its rows or columns are in steps backwards, or of parts of a number"
    return ""


def refuse_copies(arrays: Mapping[str, Any], whose: str) -> None:
    """Raise where an array would have to be copied whole, which a limit on memory cannot count any more."""
    for name, value in arrays.items():
        why = _not_for_torch(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" else ""
        if why and value.nbytes > COPIED:
            raise ArgumentError(
                f"{whose}{name} cannot be used where it lies ({why}): {value.nbytes / 1e6:,.0f} MB would be copied, "
                "which max_memory does not allow for; write it once as float32 or float64 in order and pass that, "
                "or leave max_memory out"
            )
