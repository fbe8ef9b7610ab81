"""Captured steps: a training step recorded once as a CUDA graph and replayed.

A small network keeps a GPU waiting for Python: launching the kernels of a step takes longer than running them. A graph
launches them all at once. The step is the same one: the first few run as they are, which sets the libraries up, then
the step is recorded, and replayed for every batch of the same size; an epoch has two or three sizes, each with a graph
of its own. A network that cannot be recorded, such as one that looks at a number on the host, runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.shards.graphs import recorded

WARM = 4  # steps of a size that run as they are before one is recorded

Step = Callable[[Tensor], tuple[Tensor, ...]]


class Captured:
    """`step`, a function of row numbers that trains on them and gives tensors back, replayed where it can be.

    `stamp` gives what a recording depends on beside its tensors, such as the learning rate: where that has changed,
    the step is recorded anew.
    """

    def __init__(self, step: Step, device: torch.device, stamp: Callable[[], Any]):
        self._step, self._stamp, self._device = step, stamp, device
        self._side = torch.cuda.Stream(device)
        self._sizes: dict[int, _Recording] = {}
        self._off = False  # set when the step cannot be recorded

    def __call__(self, index_B: Tensor) -> tuple[Tensor, ...]:
        """The step on these rows."""
        if self._off:
            return self._step(index_B)
        own = self._sizes.get(len(index_B))
        if own is None:
            own = self._sizes[len(index_B)] = _Recording(torch.empty_like(index_B))
        stamp = self._stamp()
        own.index_B.copy_(index_B)
        if own.graph is None or stamp != own.stamp:
            if own.warm < WARM:
                own.warm += 1
                return self._aside(lambda: self._step(own.index_B))
            own.stamp, own.graph = stamp, None  # the old one goes before there is a new one
            if not self._record(own):
                self._off = True
                return self._step(index_B)
        assert own.graph is not None
        own.graph.replay()
        return tuple(one.clone() for one in own.answer)  # the next replay writes over them

    def _aside(self, run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run on the stream that will be recorded, after what the current one holds and before what it gets."""
        here = torch.cuda.current_stream(self._device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            found = run()
        here.wait_stream(self._side)
        return found

    def _record(self, own: _Recording) -> bool:
        """Keep the step as a graph. False where it cannot be recorded."""
        torch.cuda.synchronize(self._device)
        try:
            own.graph, own.answer = recorded(lambda: self._step(own.index_B), self._side)
        except RuntimeError:
            return False
        return True


@dataclass
class _Recording:
    """The step for batches of one size."""

    index_B: Tensor  # where a replay reads the rows
    warm: int = 0  # steps that ran as they are
    graph: torch.cuda.CUDAGraph | None = None
    stamp: Any = None
    answer: tuple[Tensor, ...] = ()
