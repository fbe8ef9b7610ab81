"""Fingerprints of rows and strategies: a resumed selection must have the rows and parameters it began with.

All bytes of a column count up to WHOLE of them in a shard; of a longer one, WHOLE bytes in short runs of rows, evenly
spread from the first row to the last. That takes a fraction of a second where selections take minutes, and a change
of a few rows of a longer column may go unseen.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from labelwise.errors import ArgumentError
from labelwise.io.values import raw
from labelwise.shards.shard import Shard, Shards

WHOLE = 64 << 20  # bytes of a column that are read
RUN = 64 << 10  # bytes that are read in one place


def fingerprint(shards: Shards) -> str:
    """A digest of the ids and columns of all rows, as they are spread over the shards."""
    return hashlib.sha256("".join(shards.map(_digest)).encode()).hexdigest()


def _digest(shard: Shard) -> str:
    found = hashlib.blake2b(raw(shard.ids).data)
    if shard.device.type != "cpu":  # stored answers hold its tensors: on another device the selection starts again
        found.update(str(shard.device).encode())
    for signal, column in shard.columns.items():
        found.update(f"{signal!r} {tuple(column.shape)} {column.dtype}".encode())
        for run in _runs(len(column), column[:1].numel() * column.element_size()):
            found.update(raw(column[run]).data)
    return found.hexdigest()


def _runs(rows: int, row: int, whole: int = WHOLE, run: int = RUN) -> Iterator[slice]:
    """Runs of rows of `row` bytes each: all rows, or as many runs of `run` bytes as `whole` bytes allow."""
    step = max(1, run // row)
    places = -(-rows // step)
    count = min(places, max(1, whole // (step * row)))
    for number in range(count):
        start = number * (places - 1) // max(1, count - 1) * step
        yield slice(start, min(start + step, rows))


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_BY_REPR = (np.generic, np.dtype, torch.dtype, torch.device, Enum, PurePath)


def object_fingerprint(value: Any) -> str:
    """A digest of an object's class and all that it holds, however deep: equal parameters give it in every process.

    Raises:
        ArgumentError: if it holds something that cannot be compared with another of its kind.
    """
    name = type(value).__name__
    try:
        return hashlib.sha256(_describe(value, name).encode()).hexdigest()
    except RecursionError:
        raise _cannot_compare(name, "something that holds itself") from None


def _describe(value: Any, owner: str) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, _BY_REPR):
        return f"{_class_name(value)} {value!r}"
    if isinstance(value, np.ndarray | torch.Tensor):
        return _describe_array(value, owner)
    if isinstance(value, Mapping):
        return f"{_class_name(value)} {_describe_all((one for item in value.items() for one in item), owner)}"
    if isinstance(value, set | frozenset):
        return f"{_class_name(value)} {sorted(_describe(one, owner) for one in value)}"
    if isinstance(value, list | tuple):
        return f"{_class_name(value)} {_describe_all(value, owner)}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return _describe_callable(value, owner) if callable(value) else _describe_object(value, owner)


def _describe_all(values: Iterable[Any], owner: str) -> list[str]:
    return [_describe(one, owner) for one in values]


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _describe_array(value: Any, owner: str) -> str:
    array = value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
    if array.dtype == object:
        return f"{array.shape} {_describe_all(array.ravel().tolist(), owner)}"
    return f"{_class_name(value)} {value.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _describe_callable(value: Any, owner: str) -> str:
    if isinstance(value, functools.partial):
        return f"partial {_describe_all((value.func, value.args, value.keywords), owner)}"
    if isinstance(value, types.MethodType):
        return f"method {_describe_all((value.__func__, value.__self__), owner)}"
    if isinstance(value, types.FunctionType):
        captured = [variable.cell_contents for variable in value.__closure__ or ()]
        captured.append(value.__defaults__)
        code = _describe_code(value.__code__)
        return f"{value.__module__}.{value.__qualname__} {code} {_describe_all(captured, owner)}"
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return f"{getattr(value, '__module__', None)}.{value.__name__}"
    return _describe_object(value, owner)


def _describe_code(code: types.CodeType) -> str:
    inner = [_describe_code(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _describe_object(value: Any, owner: str) -> str:
    slots = [name for one in type(value).__mro__ for name in getattr(one, "__slots__", ())]
    if not slots and not hasattr(value, "__dict__"):
        raise _cannot_compare(owner, _class_name(value))
    fields = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return f"{_class_name(value)} {[(name, _describe(fields[name], f'{owner}.{name}')) for name in sorted(fields)]}"


def _cannot_compare(owner: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"{owner} is or holds {what}, which cannot be compared, so a selection stopped in folder= could not be resumed "
        "safely: hold numbers, texts, arrays, or objects with attributes of such, or select without folder="
    )
