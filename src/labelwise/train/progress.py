"""Progress of training: the training loop reports its epochs, and the caller's function is called with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

EpochCallback = Callable[[int, int, Mapping[str, float]], None]  # epoch from 1, all epochs, what was measured

_callback: ContextVar[EpochCallback | None] = ContextVar("epoch callback", default=None)


@contextmanager
def epochs_to(callback: EpochCallback | None) -> Iterator[None]:
    """Within, call `callback` after each epoch of each training."""
    before = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(before)


def report_epoch(epoch: int, total: int, metrics: Mapping[str, float]) -> None:
    """Report an epoch, counted from 1, of `total`, and what was measured in it."""
    callback = _callback.get()
    if callback is not None:
        callback(epoch, total, metrics)
