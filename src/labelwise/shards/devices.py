"""Devices and their memory: free bytes, waiting, precision, copies between memories, and the allocator of the CPU."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

CPU = torch.device("cpu")

LIMITED_THRESHOLD, USUAL_THRESHOLD = 1 << 20, 32 << 20  # bytes; the second is the most that glibc comes to by itself
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # names of mallopt


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device, torch's cache among them; None where selections do not run on it.

    They run on CUDA devices: sums are in float64, which not every accelerator has.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def wait_for(device: torch.device) -> None:
    """Wait until the device has done its work, so that a clock measures it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device without waiting for the device.

    The values are those at the time of the call: memory that is not pinned is copied before this returns. Only for
    tensors of the CPU: in the other direction the copy would not be waited for either.
    """
    return values.to(device, non_blocking=values.device == CPU)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which kernels run on this device: Triton uses the current one, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def full_precision() -> Iterator[None]:
    """A context without TF32 and autocast, which the user's training may have switched on.

    Distances rely on float32 rounding: copies of a row are at distance zero, other rows are not.
    """
    backends = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    kinds: list[Any] = [one for one in backends if hasattr(one, "fp32_precision")]  # from torch 2.9 on
    global_setting, settings = _precision(), [one.fp32_precision for one in kinds]
    is_lowered = global_setting != "highest" or not set(settings) <= {"none", "ieee"}
    try:
        if is_lowered:
            torch.set_float32_matmul_precision("highest")
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        if is_lowered:
            torch.set_float32_matmul_precision(global_setting)
            for one, before in zip(kinds, settings):
                one.fp32_precision = before


def _precision() -> str:
    """The precision of products by torch's older setting, which raises where only the newer ones were used."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def copied_to(value: T, device: torch.device) -> T:
    """A copy of a value with all its tensors, however deep, on `device`."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    found: T = torch.load(stream, map_location=device, weights_only=False)
    return found


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
