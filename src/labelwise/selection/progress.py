"""Progress of a selection: strategies report how many picks are made, and the caller's function is called with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ProgressCallback = Callable[[int, int], None]

STEPS = 1000  # the total that a method of several stages reports
MIN_INTERVAL = 0.05  # seconds between two calls of a callback
_callback: ContextVar[ProgressCallback | None] = ContextVar("progress callback", default=None)


@contextmanager
def progress_to(callback: ProgressCallback | None) -> Iterator[None]:
    """Within, call `callback(done, total)` as picks are made, at most twenty times a second.

    An exception of the callback stops the selection.
    """
    before = _callback.set(None if callback is None else _Throttled(callback))
    try:
        yield
    finally:
        _callback.reset(before)


def tick(done: int, total: int) -> None:
    """Report `done` of `total` picks, or of steps in a method that makes all its picks in the last step."""
    callback = _callback.get()
    if callback is not None:
        callback(done, total)


@contextmanager
def stage(start: float, stop: float) -> Iterator[None]:
    """Within, map reports to the share from `start` to `stop` of the whole, counted in STEPS instead of picks."""
    outer = _callback.get()
    if outer is None:
        yield
        return
    before = _callback.set(lambda done, total: outer(round((start + (stop - start) * done / total) * STEPS), STEPS))
    try:
        yield
        tick(1, 1)
    finally:
        _callback.reset(before)


class _Throttled:
    """Calls a callback when MIN_INTERVAL has passed since the last call, or all is done."""

    def __init__(self, callback: ProgressCallback):
        self._callback = callback
        self._last = -MIN_INTERVAL

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= MIN_INTERVAL:
            self._last = now
            self._callback(done, total)
