"""Deterministic scatter-add."""

from __future__ import annotations

from torch import Tensor


def add_at(into: Tensor, index_N: Tensor, values: Tensor) -> Tensor:
    """Add each of `values` (N, ...) to the entry `index_N` of `into`, in place and with the same bits in every run.

    On an accelerator `index_add_` adds in the order in which threads arrive, so the last bits vary; `index_put_` sorts
    the indices first. On the CPU both add in order, and `index_add_` is faster.
    """
    if into.device.type == "cpu":
        return into.index_add_(0, index_N, values)
    return into.index_put_((index_N,), values, accumulate=True)
