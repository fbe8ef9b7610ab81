"""Whether kernels can be compiled here. Where they cannot, the same picks are made by PyTorch's own operations."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch


@functools.cache
def available() -> bool:
    """Whether Triton is installed and, where there is a GPU, compiles for it: that needs a C compiler, say."""
    if importlib.util.find_spec("triton") is None:
        return False
    if not torch.cuda.is_available():
        return True  # nothing to compile for; its interpreter runs on the CPU
    try:
        from labelwise.selection.probe_kernels import one

        out = torch.zeros(1, device="cuda")
        one[(1,)](out)
        return float(out) == 1
    except Exception as error:  # of many kinds: no compiler, a driver that does not fit, a folder that is not writable
        what = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(
            f"Triton is installed but cannot compile a kernel here ({what[0]}): selections on the GPU take PyTorch's "
            "own operations: the same picks, more slowly. A C compiler such as gcc is what is missing most often.",
            stacklevel=2,
        )
        return False
