"""Repeatable: on an accelerator, sums in one order, so that a run that goes on after a kill has the same records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# A workspace of its own for each handle of cuBLAS: read when the first handle is made.
_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Within, cuDNN and cuBLAS take kernels that give the same bits each time; the CPU's do so anyway."""
    if device == "cpu":
        yield
        return
    os.environ.setdefault(*_CUBLAS)
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
