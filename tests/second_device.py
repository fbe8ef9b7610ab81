"""A second device for tests on machines that have one only: its tensors cannot meet those of the CPU.

They lie in the CPU's memory and are computed by its kernels, but say that they are on `AWAY`, and the rules of an
accelerator hold for them: an operation that takes tensors of both is refused, but for copies, for numbers (tensors
without an axis) of the CPU, and for places in the CPU's memory that index a tensor that is away; NumPy sees none of
them. Only inside `second_device()`: there, functions of torch that make tensors hear of the device.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

AWAY = torch.device("privateuseone", 0)
CPU = torch.device("cpu")
BLIND = {Tensor.numpy, Tensor.__array__}
COPIES = {Tensor.to, Tensor.copy_, Tensor.type_as, Tensor.new_tensor, torch.tensor, torch.as_tensor}
INDEXED = {Tensor.__getitem__, Tensor.__setitem__}
# What makes the host wait for an accelerator whatever it is given: numbers that are read, and answers whose shape, or
# whose error, only the device knows.
READ = {Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.cpu}
READ |= {torch.equal, Tensor.equal, torch.allclose, torch.nonzero, Tensor.nonzero, torch.unique, Tensor.unique}
READ |= {torch.masked_select, Tensor.masked_select, torch.bincount, Tensor.bincount, torch.block_diag}
READ |= {torch.linalg.solve, torch.linalg.inv, torch.linalg.cholesky, torch.linalg.eigh, torch.linalg.eigvalsh}
JOINED = {torch.cat, torch.stack}  # here a number of the CPU is none either
_homeward = False


class Away(Tensor):
    """A tensor on the second device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return called(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _arrived, (self.as_subclass(Tensor).clone(),)


class Mixed(AssertionError):
    """What an accelerator would have refused."""


class Second(TorchFunctionMode):
    """Counts what crosses from the second device to the CPU, by its size in numbers, and where the host would wait.

    `waits` is by the line of the library that asked. Kernels of torch that look at their answers inside (a
    decomposition of many matrices, say) may wait more often than is seen from here.
    """

    def __init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self.crossed: Counter[int] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        there = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, Away)]
        found = called(func, args, kwargs or {})
        if _waits(func, args, kwargs or {}, bool(there), found):
            self.waits[_asked_at()] += 1
        into = found if func not in (Tensor.copy_, Tensor.__setitem__) else args[0]
        brought = isinstance(into, Tensor) and not isinstance(into, Away)
        if there and (brought or func in (Tensor.tolist, Tensor.item)):
            self.crossed[there[0].numel()] += 1
        return found


def _waits(func: Any, args: Any, kwargs: dict[str, Any], there: bool, found: Any) -> bool:
    """Whether the host would wait for an accelerator, as `torch.cuda.set_sync_debug_mode` counts it."""
    if func in READ:
        return there
    if func in INDEXED and isinstance(args[0], Away):
        at = [one for one in tree_leaves(args[1]) if isinstance(one, Tensor)]
        brought = [one for one in args[2:] if isinstance(one, Tensor)]
        return any(one.dtype == torch.bool or not isinstance(one, Away) for one in at) or any(
            not isinstance(one, Away) for one in brought
        )
    if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
        return isinstance(found, Away)
    if func in (Tensor.to, Tensor.copy_):
        into, given = (args[0], args[1]) if func is Tensor.copy_ else (found, args[0])
        crosses = isinstance(into, Away) != isinstance(given, Away)
        return crosses and not (kwargs.get("non_blocking") and isinstance(into, Away))
    return func is torch.where and len(args) == 1 and there


def _asked_at() -> str:
    """The line of the library that is at work."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "labelwise" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@contextmanager
def second_device() -> Iterator[Second]:
    """Within, `AWAY` is a device."""
    with Second() as mode:
        yield mode


def on_host(value: Any) -> Any:
    """A copy of a value whose tensors are on the CPU, as it comes from another process without the device."""
    global _homeward
    with torch._C.DisableTorchFunction():
        sent = pickle.dumps(value)
        _homeward = True
        try:
            return pickle.loads(sent)
        finally:
            _homeward = False


def _arrived(values: Tensor) -> Tensor:
    return values if _homeward else values.as_subclass(Away)


def called(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of torch, with the rules of a second device."""
    with torch._C.DisableTorchFunctionSubclass():
        return _called(func, args, kwargs)


def _called(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    there = [one for one in given if isinstance(one, Away)]
    name = getattr(func, "__name__", "")
    if func == Tensor.device.__get__:
        return AWAY if there else CPU
    if there and func in BLIND:
        raise Mixed(f"NumPy was shown a tensor {tuple(there[0].shape)} of another device")
    target = _target(func, args, kwargs)
    if there and len(there) != len(given):
        _check_mixed(func, args, given, name)
    plain = {id(one): one.as_subclass(Tensor) for one in there}
    args, kwargs = tree_map(
        lambda one: plain.get(id(one), CPU if isinstance(one, torch.device) else one), (args, kwargs)
    )
    found = func(*args, **kwargs)
    into = args[0] if func in (Tensor.copy_, Tensor.__setitem__) else None  # they stay where they are
    away = (target == AWAY) if target is not None else bool(there)
    if into is not None:
        away = any(into is one for one in plain.values())
    return _home(found, {id(plain[id(one)]): one for one in there}, away)


def _home(found: Any, before: dict[int, Tensor], away: bool) -> Any:
    """The tensors of an answer as those of their device; one that was given comes back as it was given."""
    if isinstance(found, Iterator):
        return iter([_home(one, before, away) for one in found])

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or not away:
            return value
        return before.get(id(value), value.as_subclass(Away))

    return tree_map(one, found)


def _target(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """The device that is asked for by name, if one is."""
    if func is Tensor.cpu:
        return CPU
    named = kwargs.get("device")
    if named is None and func is Tensor.to:
        named = next((one for one in args[1:] if isinstance(one, torch.device | str)), None)
        other = next((one for one in args[1:] if isinstance(one, Tensor)), None)
        named = named if other is None else (AWAY if isinstance(other, Away) else CPU)
    if func is Tensor.type_as:
        named = AWAY if isinstance(args[1], Away) else CPU
    if func in (Tensor.new_tensor,) and named is None:
        named = AWAY if isinstance(args[0], Away) else CPU
    if func in (torch.tensor,) and named is None:
        named = CPU
    return None if named is None else torch.device(named)


def _check_mixed(func: Any, args: Any, given: list[Tensor], name: str) -> None:
    """Raise Mixed where tensors of both devices may not meet."""
    if func in COPIES:
        return
    if func in INDEXED:
        at = [one for one in tree_leaves(args[1]) if isinstance(one, Tensor)]
        if not at:
            return  # a copy into a slice
        # Places of the CPU serve tensors of both; values that go to places must be there already.
        given = [args[0], *(one for one in at if isinstance(one, Away)), *args[2:]]
        given = [one for one in given if isinstance(one, Tensor)]
        if len({isinstance(one, Away) for one in given}) == 1:
            return
    here = [one for one in given if not isinstance(one, Away) and (one.ndim or func in JOINED)]
    if here:
        shapes = [f"{tuple(one.shape)} {'away' if isinstance(one, Away) else 'cpu'}" for one in given]
        raise Mixed(f"{name} was given tensors of two devices: {', '.join(shapes)}")
