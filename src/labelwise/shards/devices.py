"""Devices and their memory: free bytes, waiting, precision, copies between memories, and the allocator of the CPU."""

from __future__ import annotations

import ctypes
import io
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

CPU = torch.device("cpu")

LIMITED_THRESHOLD, USUAL_THRESHOLD = 1 << 20, 32 << 20  # bytes; the second is the most that glibc comes to by itself
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # names of mallopt


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None where it is not one that selections run on.

    Those are the CUDA devices: sums are in float64, which not every accelerator has. What torch has let go and keeps
    for later is free too.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def wait_for(device: torch.device) -> None:
    """Return when the device has done all it was asked to do: only then does a clock say how long that took."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for it.

    Its numbers are taken when this is called: memory that is not pinned, as all of ours, is copied before the device
    is told. Use it for what comes from the CPU alone, since in the other direction nobody would wait either.
    """
    return values.to(device, non_blocking=values.device == CPU)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Within, kernels are launched on this device: Triton launches on the current one, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def in_full() -> Iterator[None]:
    """Within, products of float32 keep all their bits, though the user's training may do with fewer (TF32, autocast).

    Copies of a row are at distance zero, and rows are told apart, by the rounding of float32.
    """
    asked = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    kinds: list[Any] = [one for one in asked if hasattr(one, "fp32_precision")]  # from torch 2.9 on
    whole, found = _precision(), [one.fp32_precision for one in kinds]
    lowered = whole != "highest" or not set(found) <= {"none", "ieee"}
    try:
        if lowered:
            torch.set_float32_matmul_precision("highest")
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        if lowered:
            torch.set_float32_matmul_precision(whole)
            for one, before in zip(kinds, found):
                one.fp32_precision = before


def _precision() -> str:
    """Of products, by torch's older name for it, which refuses to answer where only the newer ones were used."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def carried(value: T, device: torch.device) -> T:
    """A copy of a value whose tensors, however deep inside, are on `device`: that of its maker may not be there."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    found: T = torch.load(stream, map_location=device, weights_only=False)
    return found


def raw(values: Tensor) -> np.ndarray:
    """The bytes of a tensor in the CPU's memory, without a copy where they lie there one after the other."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def from_raw(data: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], device: str = "cpu") -> Tensor:
    """A tensor over such bytes."""
    with warnings.catch_warnings():
        # Memory that processes share may only be read; nothing writes to a column.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(data).view(dtype).reshape(shape).to(device)


@contextmanager
def returned_memory(is_limited: bool) -> Iterator[None]:
    """Within, if `is_limited`, large tensors go back to the system as soon as they are freed.

    The allocator of glibc learns to keep ever larger pieces for later, and then takes several times what is used.
    """
    if is_limited:
        set_mmap_threshold(LIMITED_THRESHOLD)
    try:
        yield
    finally:
        if is_limited:
            set_mmap_threshold(USUAL_THRESHOLD)


def set_mmap_threshold(size: int) -> None:
    """Return freed pieces of at least `size` bytes to the system at once, where the allocator has such a setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another system, another allocator
        return
    mallopt(_MMAP_THRESHOLD, size)
    mallopt(_TRIM_THRESHOLD, 2 * size)
