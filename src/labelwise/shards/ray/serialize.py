"""What travels between a process and its workers: values as bytes that are ours to open, and errors.

Ray would open a value before the worker's method begins, and an error before it is raised here; one that cannot be
opened then ends as an error of Ray that says little of what went wrong. So both are packed and opened by hand.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import WorkerError

Packed = list[np.ndarray]  # a pickle, then the arrays that belong to it: Ray shares all of them between processes


def packed(value: Any) -> Packed:
    """A value as bytes; those of its arrays are not copied."""
    from ray import cloudpickle

    apart: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(value, protocol=5, buffer_callback=apart.append)
    return [np.frombuffer(data, np.uint8), *(np.asarray(one.raw()) for one in apart)]


def unpacked(sent: Packed) -> Any:
    """The value; its arrays may only be read where several processes share them."""
    return pickle.loads(sent[0].data, buffers=sent[1:])


def size_of(sent: Packed) -> int:
    """In bytes."""
    return sum(one.nbytes for one in sent)


class WorkerTraceback(Exception):
    """Where in a worker an error was raised; the cause of that error in this process."""


@dataclass(frozen=True)
class Raised:
    """An error that a worker raised: in words and, where it can travel, itself."""

    said: str
    trace: str
    sent: Packed | None

    @staticmethod
    def of(error: BaseException) -> Raised:
        """In the worker."""
        said = "".join(traceback.format_exception_only(error)).strip()
        return Raised(said, "".join(traceback.format_exception(error)), _travelling(error))

    def error(self) -> BaseException:
        """In the process that asked: the same error, or what it said."""
        try:
            error = None if self.sent is None else unpacked(self.sent)
        except Exception:  # its class may be known to the worker alone, and raise anything when it is made
            error = None
        if not isinstance(error, BaseException):
            error = WorkerError(f"a worker raised an error that cannot be brought to this process: {self.said}")
        error.__cause__ = WorkerTraceback(f"\n{self.trace}")
        return error


def _travelling(error: BaseException) -> Packed | None:
    """The error as bytes, if what is made of them is the same: pickle calls a class with `args`, whatever it takes."""
    try:
        sent = packed(error)
        back = unpacked(sent)
        return sent if type(back) is type(error) and str(back) == str(error) else None
    except Exception:  # it holds a lock, or its class takes other arguments
        return None
