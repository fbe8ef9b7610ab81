"""Serialization between a process and its workers: values and errors as bytes.

Ray would deserialize a value before the worker's method begins, and an error before it is raised here; a failure there
ends as an error of Ray that says little. So both are serialized and deserialized by this module.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import WorkerError

Serialized = list[np.ndarray]  # a pickle, then its arrays: Ray shares them between processes


def serialize(value: Any) -> Serialized:
    """A value as bytes; its arrays are not copied."""
    from ray import cloudpickle

    apart: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(value, protocol=5, buffer_callback=apart.append)
    return [np.frombuffer(data, np.uint8), *(np.asarray(one.raw()) for one in apart)]


def deserialize(serialized: Serialized) -> Any:
    """The value; arrays that several processes share are read-only."""
    return pickle.loads(serialized[0].data, buffers=serialized[1:])


def byte_count(serialized: Serialized) -> int:
    """The size in bytes."""
    return sum(one.nbytes for one in serialized)


class WorkerTraceback(Exception):
    """Where in a worker an error was raised; the cause of that error in this process."""


@dataclass(frozen=True)
class RemoteError:
    """An error of a worker: its message and, if it can be serialized, the error itself."""

    message: str
    trace: str
    serialized: Serialized | None

    @staticmethod
    def of(error: BaseException) -> RemoteError:
        """From an error, in the worker."""
        message = "".join(traceback.format_exception_only(error)).strip()
        return RemoteError(message, "".join(traceback.format_exception(error)), _serialize_error(error))

    def error(self) -> BaseException:
        """In the calling process: the same error, or a WorkerError with its message."""
        try:
            error = None if self.serialized is None else deserialize(self.serialized)
        except Exception:  # its class may be known to the worker alone, and raise anything when it is made
            error = None
        if not isinstance(error, BaseException):
            error = WorkerError(f"a worker raised an error that cannot be brought to this process: {self.message}")
        error.__cause__ = WorkerTraceback(f"\n{self.trace}")
        return error


def _serialize_error(error: BaseException) -> Serialized | None:
    """The error as bytes; None if it does not come back equal: pickle calls a class with `args`, whatever it takes."""
    try:
        serialized = serialize(error)
        back = deserialize(serialized)
        return serialized if type(back) is type(error) and str(back) == str(error) else None
    except Exception:  # it holds a lock, or its class takes other arguments
        return None
