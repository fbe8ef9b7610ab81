"""CapturedStep: a training step that is recorded once as a CUDA graph and replayed.

A small network keeps a GPU waiting for Python: launching the kernels of a step takes longer than running them. A graph
launches them all at once. The step stays the same one: the first few run as they are, which sets libraries up, then
one is recorded, and replayed for every batch of the same size; an epoch has two or three sizes, each with its own
graph. A network that cannot be recorded, such as one that reads a number on the host, runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.shards.graphs import recorded

WARM_UP = 4  # steps of a size that run as they are before one is recorded

StepFunction = Callable[[Tensor], tuple[Tensor, ...]]


def rates(optimiser: torch.optim.Optimizer) -> tuple[float, ...]:
    """What a recorded step of an optimiser holds as plain numbers."""
    return tuple(group["lr"] for group in optimiser.param_groups if not isinstance(group["lr"], Tensor))


class CapturedStep:
    """Replays `step`, a function of row positions that trains on them and returns tensors.

    `version` returns what a recording depends on besides its tensors, such as the learning rate: when it changes, the
    step is recorded again.
    """

    def __init__(self, step: StepFunction, device: torch.device, version: Callable[[], Any]):
        self._step, self._version, self._device = step, version, device
        self._stream = torch.cuda.Stream(device)
        self._recordings: dict[int, _Recording] = {}
        self._is_off = False  # set when the step cannot be recorded

    def __call__(self, index_B: Tensor) -> tuple[Tensor, ...]:
        """Run the step on these rows."""
        if self._is_off:
            return self._step(index_B)
        recording = self._recordings.get(len(index_B))
        if recording is None:
            recording = self._recordings[len(index_B)] = _Recording(torch.empty_like(index_B))
        version = self._version()
        recording.index_B.copy_(index_B)
        if recording.graph is None or version != recording.version:
            if recording.steps < WARM_UP:
                recording.steps += 1
                return self._run_on_stream(lambda: self._step(recording.index_B))
            recording.version, recording.graph = version, None  # free the old graph before a new one is made
            if not self._record(recording):
                self._is_off = True
                return self._step(index_B)
        assert recording.graph is not None
        recording.graph.replay()
        return tuple(output.clone() for output in recording.outputs)  # the next replay writes over them

    def _run_on_stream(self, run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run on the stream that will be recorded, in order with the work of the current one."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = run()
        current.wait_stream(self._stream)
        return outputs

    def _record(self, recording: _Recording) -> bool:
        """Record the step as a graph; return False if that is not possible."""
        torch.cuda.synchronize(self._device)
        try:
            recording.graph, recording.outputs = recorded(lambda: self._step(recording.index_B), self._stream)
        except RuntimeError:
            return False
        return True


@dataclass
class _Recording:
    """The step for batches of one size."""

    index_B: Tensor  # where a replay reads the rows
    steps: int = 0  # that ran as they are
    graph: torch.cuda.CUDAGraph | None = None
    version: Any = None
    outputs: tuple[Tensor, ...] = ()
