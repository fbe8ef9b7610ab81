"""Captured steps: a training step recorded once as a CUDA graph and replayed.

A small network keeps a GPU waiting for Python: launching the kernels of a step takes longer than running them. A graph
launches them all at once. The step is the same one: the first few run as they are, which sets the libraries up, then
the step is recorded, and replayed for every batch of the same size. Batches of another size run as they are, and so do
all of a network that cannot be recorded, such as one that looks at a number on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM = 4  # steps that run as they are before one is recorded

Step = Callable[[Tensor], tuple[Tensor, ...]]


class Captured:
    """`step`, a function of row numbers that trains on them and gives tensors back, replayed where it can be.

    `stamp` gives what the recording depends on beside its tensors, such as the learning rate: where that has changed,
    the step is recorded anew.
    """

    def __init__(self, step: Step, size: int, device: torch.device, stamp: Callable[[], Any]):
        self._step, self._stamp, self._device = step, stamp, device
        self._index_B = torch.zeros(size, dtype=torch.int64, device=device)
        self._side = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded: Any = None
        self._answer: tuple[Tensor, ...] = ()
        self._warm = 0
        self._off = False  # set when the step cannot be recorded

    def __call__(self, index_B: Tensor) -> tuple[Tensor, ...]:
        """The step on these rows."""
        if self._off or len(index_B) != len(self._index_B):
            return self._step(index_B)
        stamp = self._stamp()
        if self._graph is not None and stamp != self._recorded:
            self._graph = None
        self._index_B.copy_(index_B)
        if self._graph is None:
            if self._warm < WARM:
                self._warm += 1
                return self._aside(lambda: self._step(self._index_B))
            self._recorded = stamp
            self._graph = self._record()
            if self._graph is None:
                self._off = True
                return self._step(index_B)
        self._graph.replay()
        return tuple(one.clone() for one in self._answer)  # the next replay writes over them

    def _aside(self, run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run on the stream that will be recorded, after what the current one holds and before what it gets."""
        here = torch.cuda.current_stream(self._device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            found = run()
        here.wait_stream(self._side)
        return found

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; recording runs nothing. None where it cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._side):
            graph.capture_begin()
            try:
                self._answer = self._step(self._index_B)
                graph.capture_end()
            except RuntimeError:
                with contextlib.suppress(RuntimeError):  # an invalid capture has to be ended too
                    graph.capture_end()
                return None
        return graph
