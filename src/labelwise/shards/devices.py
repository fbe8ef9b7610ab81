"""What an accelerator has room for, when it is done, and how values cross from one memory to another."""

from __future__ import annotations

import io
from typing import TypeVar

import torch

T = TypeVar("T")

CPU = torch.device("cpu")


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


def carried(value: T, device: torch.device) -> T:
    """A copy of a value whose tensors, however deep inside, are on `device`: that of its maker may not be there."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    found: T = torch.load(stream, map_location=device, weights_only=False)
    return found
