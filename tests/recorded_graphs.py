"""CUDA graphs for tests on machines without CUDA: a step is recorded once, and replayed on the same tensors.

What `labelwise.shards.graphs.captured` would record is recorded as the operations of torch with the tensors that they
had. A replay runs these again and writes their answers into the memory of the first. So what a graph cannot see shows:
numbers of the host that differ from replay to replay, tensors that are replaced instead of written to, answers that are
read without a replay, and what makes the host wait, which a recording refuses. Use it inside `second_device()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from labelwise.strategies.bait.kernels import torch as bait
from labelwise.strategies.bayesian.kernels import torch as bayesian
from labelwise.strategies.sabal import iht
from labelwise.strategies.sabal.kernels import torch as sabal
from second_device import Away, Second

# What ends a recording: numbers that the host reads or sends, and answers of a shape that only the device knows.
REFUSED = {"item", "_local_scalar_dense", "is_nonzero", "equal", "lift_fresh"}
REFUSED |= {"nonzero", "masked_select", "_unique2", "bincount", "_linalg_solve_ex", "linalg_eig"}

Operation = tuple[Any, Any, dict[str, Any], Any]


class _Recording(TorchDispatchMode):
    """Notes operations while it runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name not in REFUSED, f"a graph cannot record {name}"
        if name in ("index", "index_put", "index_put_"):
            assert all(one.dtype != torch.bool for one in _tensors(args[1])), "a graph cannot record a mask as an index"
        answer = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, answer))
        return answer


@dataclass
class Graphs:
    """Graphs that were recorded.

    Attributes:
        recorded: how many.
        replayed: how often all of them were replayed.
        launched: names of the Triton kernels that were launched.
    """

    mode: Second
    recorded: int = 0
    replayed: int = 0
    launched: set[str] = field(default_factory=set)
    _recording: _Recording | None = None

    def captured(self, step: Callable[[], None], state: list[Tensor], *memory: Any) -> Callable[[], None]:
        """In place of `graphs.captured`."""
        before = [one.clone() for one in state]
        step()
        recording, waits = _Recording(), self.mode.waits.total()
        self._recording = recording
        with recording:
            step()
        self._recording = None
        assert self.mode.waits.total() == waits, "the host waited while a graph was recorded"
        for one, values in zip(state, before):
            one.copy_(values)
        for made in _made(recording.operations):  # a recording runs nothing: there is no answer yet
            made.fill_(torch.nan if made.is_floating_point() else 0)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            with torch._C.DisableTorchFunction():
                _replay(recording.operations)

        return replay

    def launch(self, name: str, kernel: Any, arguments: tuple[Any, ...]) -> None:
        """Run an interpreted kernel of Triton; `kernel` has its grid."""
        for place, one in enumerate(arguments):
            assert not isinstance(one, float), f"argument {place} of {name} is a float, which Triton makes float32"
            if isinstance(one, Tensor):
                assert isinstance(one, Away), f"argument {place} of {name} is on the CPU"
                assert one.is_contiguous(), f"argument {place} of {name} is not contiguous"
        with torch._C.DisableTorchFunction():
            plain = [one.as_subclass(Tensor) if isinstance(one, Away) else one for one in arguments]

        def run() -> tuple[()]:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                kernel(*plain)
            return ()

        run()
        self.launched.add(name)
        if self._recording is not None:
            self._recording.operations.append((run, (), {}, ()))


@dataclass(frozen=True)
class _Kernel:
    """In place of a Triton kernel: `kernel[grid](...)`."""

    graphs: Graphs
    name: str
    kernel: Any

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, num_warps: int = 4) -> None:
            self.graphs.launch(self.name, self.kernel[grid], arguments)

        return run


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _memory(values: Any) -> set[int]:
    return {one.untyped_storage()._cdata for one in _tensors(values)}


def _made(operations: list[Operation]) -> list[Tensor]:
    """The answers that are not views of what was given or changes of it."""
    return [
        one
        for _, args, kwargs, answer in operations
        for one in _tensors(answer)
        if one.untyped_storage()._cdata not in _memory((args, kwargs))
    ]


def _replay(operations: list[Operation]) -> None:
    for func, args, kwargs, answer in operations:
        given, again = _memory((args, kwargs)), func(*args, **kwargs)
        for one, values in zip(_tensors(answer), _tensors(again)):
            if one.untyped_storage()._cdata not in given:
                one.copy_(values)


def record_graphs(monkeypatch: pytest.MonkeyPatch, mode: Second) -> Graphs:
    """From now on, strategies record graphs."""
    graphs = Graphs(mode)
    for module in (bayesian, iht, sabal):
        monkeypatch.setattr(module, "captured", graphs.captured)
    monkeypatch.setattr(bait, "_captured", lambda step, state, shard: graphs.captured(step, state))
    return graphs


def record_launches(monkeypatch: pytest.MonkeyPatch, graphs: Graphs, module: Any, kernels: tuple[str, ...]) -> None:
    """From now on, these kernels of a module of Triton kernels are launched for the second device, and recorded."""
    if hasattr(module, "captured"):
        monkeypatch.setattr(module, "captured", graphs.captured)
    for name in kernels:
        monkeypatch.setattr(module, name, _Kernel(graphs, name, getattr(module, name)))
