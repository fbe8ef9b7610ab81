"""Sums of numbers that share a place, to the same bits every time."""

from __future__ import annotations

from torch import Tensor


def add_at(into: Tensor, place_N: Tensor, values: Tensor) -> Tensor:
    """Add each of `values` (N, ...) to its place along the first axis of `into`, in place.

    On an accelerator `index_add_` adds in the order in which threads arrive, and the last bits differ from run to run;
    `index_put_` sorts the places first. On the CPU both go through them in order, and `index_add_` is the quicker one.
    """
    if into.device.type == "cpu":
        return into.index_add_(0, place_N, values)
    return into.index_put_((place_N,), values, accumulate=True)
