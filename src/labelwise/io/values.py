"""Values as bytes and back, data only: nothing that is read runs code, whoever wrote it.

A value is a tree of numbers, texts, lists, tensors and records. It is written as

    the length of the tree (8 bytes) | the tree as JSON | the bytes of its tensors and arrays, one after another

A record is a dataclass, a named tuple, an enumeration or a class marked `storable`. It is stored by name and fields. On
reading, its class must be loaded already: no module is imported, and neither `__init__` nor any other method is called.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
import sys
import warnings
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import StoreError
from labelwise.io.checked import check_sealed, write_sealed

C = TypeVar("C", bound=type)

_LENGTH = struct.Struct("<Q")
_PLAIN = (bool, int, float, str, type(None))  # as JSON has them; JSON of Python also has nan and inf
_NUMBERS = "biufcSUmM"  # kinds of arrays that are bytes alone
_STORABLE: set[type] = set()
_NO_METHODS = ("__del__", "__setattr__", "__setstate__")  # unless they are those of a frozen dataclass


def save_value(path: Path, value: Any) -> None:
    """Replace a file by a value and its checksum."""
    write_sealed(path, functools.partial(write_value, value))


def load_value(path: Path, remedy: str) -> Any:
    """The value that `save_value` wrote, on the CPU. StoreError if the file was changed or cannot be read."""
    begin = check_sealed(path, remedy)
    with open(path, "rb") as file:
        file.seek(begin)
        return read_value(file, path.stat().st_size - begin, torch.device("cpu"))


def storable(kind: C) -> C:
    """Mark a class whose objects are data: all their attributes are stored, and none of their methods is called."""
    _STORABLE.add(kind)
    return kind


def write_value(value: Any, write: Callable[[Any], object]) -> None:
    """Write a value by `write`, which takes bytes; a tensor that is contiguous in memory is not copied.

    Raises:
        StoreError: it holds something that is not data, such as a function or an open file.
    """
    written = _Writer()
    tree = json.dumps(written.node(value), separators=(",", ":")).encode()
    write(_LENGTH.pack(len(tree)))
    write(tree)
    for buffer in written.buffers:  # a tensor of an accelerator is copied when its turn comes
        write((raw(buffer) if isinstance(buffer, Tensor) else buffer).data)


def read_value(file: BinaryIO, size: int, device: torch.device | None = None) -> Any:
    """Read what `write_value` wrote.

    Args:
        file: an open file, at the first byte of the value.
        size: the number of bytes from there to the end of what may be read.
        device: where tensors go; None is where they were.

    Raises:
        StoreError: the bytes are not those of a value.
    """
    try:
        return _Reader(file, size, device).value()
    except StoreError:
        raise
    # A changed file may ask for a wrong dtype, a shape that does not fit, or a device that is not there.
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the bytes are not those of a stored value ({type(error).__name__}: {error})") from error


def raw(values: Tensor) -> np.ndarray:
    """The bytes of a tensor in the CPU's memory; a view where the tensor is contiguous there."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def from_raw(
    data: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device | str = "cpu"
) -> Tensor:
    """A tensor over the bytes that `raw` returned."""
    if not data.size:  # torch gives no bytes a stride of 0, and no view
        return torch.empty(shape, dtype=dtype, device=device)
    with warnings.catch_warnings():
        # Memory that processes share may only be read; nothing writes to a column.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(data).view(dtype).reshape(shape).to(device)


class _Writer:
    """The tree of a value, and the bytes of its tensors in the order of the tree."""

    def __init__(self) -> None:
        self.buffers: list[np.ndarray | Tensor] = []
        self._tensors: dict[int, int] = {}  # a tensor that occurs twice is one tensor again when it is read

    def node(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return self._all(value)
        if kind is tuple:
            return {"tuple": self._all(value)}
        if kind in (set, frozenset):
            return {kind.__name__: self._all(value)}
        if kind is dict:
            return {"dict": [[self.node(key), self.node(one)] for key, one in value.items()]}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        return self._rare(value)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self.node(one) for one in values]

    def _tensor(self, value: Tensor) -> Any:
        if value.layout != torch.strided or value.is_quantized:
            raise _not_data(value)
        if id(value) in self._tensors:
            return {"again": self._tensors[id(value)]}
        self._tensors[id(value)] = len(self._tensors)
        self.buffers.append(value)
        return {"tensor": [_name_of(value.dtype), list(value.shape), str(value.device)]}

    def _array(self, value: np.ndarray | np.generic) -> Any:
        if value.dtype.kind not in _NUMBERS:
            raise _not_data(value)
        self.buffers.append(np.frombuffer(value.tobytes(), np.uint8))
        return {"array" if isinstance(value, np.ndarray) else "scalar": [value.dtype.str, list(value.shape)]}

    def _rare(self, value: Any) -> Any:
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, bytes):
            self.buffers.append(np.frombuffer(value, np.uint8))
            return {"bytes": len(value)}
        if isinstance(value, slice | range):
            return {type(value).__name__: self._all((value.start, value.stop, value.step))}
        if isinstance(value, torch.dtype):
            return {"dtype": _name_of(value)}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if value is ...:
            return {"ellipsis": 0}
        return self._record(value)

    def _record(self, value: Any) -> Any:
        kind = type(value)
        name = f"{kind.__module__}:{kind.__qualname__}"
        if not _is_storable(kind) or _class_named(name) is not kind:
            raise _not_data(value)
        if isinstance(value, Enum):
            return {"enum": [name, value.name]}
        if isinstance(value, tuple):
            return {"named": [name, self._all(value)]}
        fields = {one: getattr(value, one) for one in _slots(kind) if hasattr(value, one)} | getattr(
            value, "__dict__", {}
        )
        return {"record": [name, [[one, self.node(field)] for one, field in fields.items()]]}


class _Reader:
    """Reads the tree of a value, and the bytes of its tensors as it comes to them."""

    def __init__(self, file: BinaryIO, size: int, device: torch.device | None):
        self._file, self._left, self._device = file, size, device
        self._tensors: list[Tensor] = []

    def value(self) -> Any:
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size).tobytes())
        return self._node(json.loads(self._take(length).tobytes()))

    def _take(self, size: int) -> np.ndarray:
        if not 0 <= size <= self._left:
            raise StoreError(f"{size} bytes of a stored value were expected, {self._left} are left")
        self._left -= size
        data = np.empty(size, np.uint8)
        # A large read of a file without a buffer may give a part.
        filled = 0
        while filled < size and (got := self._file.readinto(data[filled:].data)):  # type: ignore[attr-defined]
            filled += got
        if filled < size:
            raise StoreError(f"{size} bytes of a stored value were expected, the file ends after {filled}")
        return data

    def _node(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._node(one) for one in node]
        if not isinstance(node, dict):
            return node
        ((kind, inside),) = node.items()
        return getattr(self, f"_of_{kind}")(inside)

    def _of_tuple(self, inside: list[Any]) -> Any:
        return tuple(self._node(inside))

    def _of_set(self, inside: list[Any]) -> Any:
        return set(self._node(inside))

    def _of_frozenset(self, inside: list[Any]) -> Any:
        return frozenset(self._node(inside))

    def _of_dict(self, inside: list[Any]) -> Any:
        return {self._node(key): self._node(one) for key, one in inside}

    def _of_tensor(self, inside: list[Any]) -> Any:
        name, shape, device = inside
        dtype = _dtype(name)
        data = self._take(_count(shape) * dtype.itemsize)
        found = from_raw(data, dtype, tuple(shape), self._device or torch.device(device))
        self._tensors.append(found)
        return found

    def _of_again(self, inside: int) -> Any:
        return self._tensors[inside]

    def _of_array(self, inside: list[Any]) -> Any:
        dtype = np.dtype(str(inside[0]))
        if dtype.kind not in _NUMBERS:
            raise StoreError(f"an array of numbers was expected, found {dtype}")
        return self._take(_count(inside[1]) * dtype.itemsize).view(dtype).reshape(inside[1])

    def _of_scalar(self, inside: list[Any]) -> Any:
        return self._of_array(inside)[()]

    def _of_complex(self, inside: list[Any]) -> Any:
        return complex(*inside)

    def _of_bytes(self, inside: int) -> Any:
        return self._take(inside).tobytes()

    def _of_slice(self, inside: list[Any]) -> Any:
        return slice(*self._node(inside))

    def _of_range(self, inside: list[Any]) -> Any:
        return range(*inside)

    def _of_dtype(self, inside: str) -> Any:
        return _dtype(inside)

    def _of_device(self, inside: str) -> Any:
        return torch.device(inside)

    def _of_ellipsis(self, inside: Any) -> Any:
        return ...

    def _of_enum(self, inside: list[Any]) -> Any:
        return _storable_named(inside[0], Enum).__members__[inside[1]]

    def _of_named(self, inside: list[Any]) -> Any:
        return tuple.__new__(_storable_named(inside[0], tuple), self._node(inside[1]))

    def _of_record(self, inside: list[Any]) -> Any:
        name, fields = inside
        made = object.__new__(_storable_named(name, object))
        for field, node in fields:
            object.__setattr__(made, str(field), self._node(node))
        return made


def _is_storable(kind: type) -> bool:
    """Whether objects of a class are data. One with a say in how its objects are made or end is not."""
    if kind in _STORABLE or issubclass(kind, Enum):
        return True
    if issubclass(kind, tuple):
        return hasattr(kind, "_fields")
    if not dataclasses.is_dataclass(kind):
        return False
    frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    refused = ("__del__",) if frozen else _NO_METHODS
    return all(getattr(kind, name, None) is getattr(object, name, None) for name in refused)


def _storable_named(name: str, base: type) -> Any:
    kind = _class_named(name)
    if kind is None or not _is_storable(kind) or not issubclass(kind, base):
        raise StoreError(
            f"the record {name!r} is no class that can be stored here: import the module that has it first, as it was "
            "when the file was written"
        )
    return kind


def _class_named(name: str) -> type | None:
    """The class `module:qualname` of a loaded module; None if there is none."""
    module, _, path = str(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None  # `getattr` may run code
    is_it = isinstance(found, type) and (found.__module__, found.__qualname__) == (module, path)
    return found if is_it else None


def _slots(kind: type) -> list[str]:
    return [name for one in kind.__mro__ for name in getattr(one, "__slots__", ()) if name != "__weakref__"]


def _count(shape: Any) -> int:
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise StoreError(f"a shape of whole numbers was expected, found {shape!r}")
        count *= size
    return count


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: Any) -> torch.dtype:
    found = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise StoreError(f"a dtype of torch was expected, found {name!r}")
    return found


def _not_data(value: Any) -> StoreError:
    kind = type(value)
    return StoreError(
        f"{kind.__module__}.{kind.__qualname__} cannot be stored: expected a number, a text, a tensor, an array, a "
        "list, tuple or dict of such, or a dataclass or named tuple of a module"
    )
