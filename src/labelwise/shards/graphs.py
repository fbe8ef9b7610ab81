"""CUDA graphs: a sequence of kernels is recorded once and replayed, so that a device does not wait for Python."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def recorded(step: Callable[[], T], side: torch.cuda.Stream, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record `step` without running it.

    It does not use `torch.cuda.graph`, which collects garbage and empties the caches of the user's process first.
    Garbage collection is off meanwhile: an older graph that is freed then spoils the recording.

    Returns:
        The graph, and what `step` returned.

    Raises:
        RuntimeError: `step` cannot be recorded.
    """
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # others may use the device
            try:
                answer = step()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # an invalid recording has to be ended too
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    return graph, answer


def captured(
    step: Callable[[], None], state: list[Tensor], pool: Any = None, side: torch.cuda.Stream | None = None
) -> Callable[[], None]:
    """`step` as a graph where the device has graphs, else `step` itself.

    Args:
        step: changes `state` and nothing else.
        state: tensors on the device; they have their old values when this returns.
        pool: memory that several graphs share.
        side: stream to record on. Many graphs should share one: libraries allocate memory for each stream.
    """
    device = state[0].device
    if device.type != "cuda":
        return step
    saved = [one.clone() for one in state]
    here, side = torch.cuda.current_stream(device), side or torch.cuda.Stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        step()  # libraries set themselves up outside of the graph
        side.synchronize()
    graph, _ = recorded(step, side, pool)
    here.wait_stream(side)
    for one, before in zip(state, saved):
        one.copy_(before)
    return graph.replay
