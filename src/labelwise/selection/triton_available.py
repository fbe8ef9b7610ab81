"""Whether kernels can be compiled here; see backends.py, which is to be used instead."""

from __future__ import annotations

from labelwise.selection.backends import triton_refusal


def available() -> bool:
    """Whether Triton is installed and, where there is a GPU, compiles for it."""
    return triton_refusal() is None
