"""What makes two strategies the same: their class and all that they hold, however deep; not only what a repr shows."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from labelwise.errors import ArgumentError
from labelwise.selection.strategy import Strategy

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
BY_REPR = (np.generic, np.dtype, torch.dtype, torch.device, Enum, PurePath)


def identity(strategy: Strategy) -> str:
    """A digest that is the same in every process for a strategy of the same parameters, and for no other.

    ArgumentError where a parameter is something that cannot be told from another of its kind.
    """
    name = type(strategy).__name__
    try:
        return hashlib.sha256(_told(strategy, name).encode()).hexdigest()
    except RecursionError:
        raise _untold(name, "something that holds itself") from None


def _told(value: Any, whose: str) -> str:
    if type(value) in PLAIN:
        return repr(value)
    if isinstance(value, BY_REPR):
        return f"{_class(value)} {value!r}"
    if isinstance(value, np.ndarray | torch.Tensor):
        return _array(value, whose)
    if isinstance(value, Mapping):
        return f"{_class(value)} {_list((pair for item in value.items() for pair in item), whose)}"
    if isinstance(value, set | frozenset):
        return f"{_class(value)} {sorted(_told(one, whose) for one in value)}"
    if isinstance(value, list | tuple):
        return f"{_class(value)} {_list(value, whose)}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return _callable(value, whose) if callable(value) else _object(value, whose)


def _list(values: Iterable[Any], whose: str) -> list[str]:
    return [_told(one, whose) for one in values]


def _class(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _array(value: Any, whose: str) -> str:
    array = value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
    if array.dtype == object:
        return f"{array.shape} {_list(array.ravel().tolist(), whose)}"
    return f"{_class(value)} {value.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _callable(value: Any, whose: str) -> str:
    if isinstance(value, functools.partial):
        return f"partial {_list((value.func, value.args, value.keywords), whose)}"
    if isinstance(value, types.MethodType):
        return f"method {_list((value.__func__, value.__self__), whose)}"
    if isinstance(value, types.FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        held.append(value.__defaults__)
        return f"{value.__module__}.{value.__qualname__} {_code(value.__code__)} {_list(held, whose)}"
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return f"{getattr(value, '__module__', None)}.{value.__name__}"
    return _object(value, whose)


def _code(code: types.CodeType) -> str:
    inner = [_code(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _object(value: Any, whose: str) -> str:
    slots = [name for one in type(value).__mro__ for name in getattr(one, "__slots__", ())]
    if not slots and not hasattr(value, "__dict__"):
        raise _untold(whose, _class(value))
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return f"{_class(value)} {[(name, _told(held[name], f'{whose}.{name}')) for name in sorted(held)]}"


def _untold(whose: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"{whose} is or holds {what}, and folder= has to know whether a selection that goes on is by the same "
        "strategy: hold numbers, texts, arrays, or objects with attributes of such, or select without folder="
    )
