"""The smallest kernel, which shows whether Triton can compile here; see backends.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def one(out):  # type: ignore[no-untyped-def]
    """Write 1."""
    tl.store(out, 1.0)
