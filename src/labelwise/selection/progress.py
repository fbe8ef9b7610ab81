"""Progress inside a selection: strategies say how far they are, whoever started the selection may listen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int], None]

STEPS = 1000  # of a method that works in stages
LEAST_WAIT = 0.05  # seconds between two calls of a listener
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def told(listener: Listener | None) -> Iterator[None]:
    """Within, `listener(done, total)` hears how far the selection is, at most twenty times a second.

    What it raises stops the selection.
    """
    before = _listener.set(None if listener is None else _Sparing(listener))
    try:
        yield
    finally:
        _listener.reset(before)


def tick(done: int, total: int) -> None:
    """Say that `done` of `total` picks are made (of steps, in a method that makes all picks in its last one)."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total)


@contextmanager
def stage(start: float, stop: float) -> Iterator[None]:
    """Within, what is said counts from `start` to `stop` of the whole: a method of several stages hears of all of them.

    A whole of stages is counted in steps, STEPS of them, and not in picks.
    """
    outer = _listener.get()
    if outer is None:
        yield
        return
    before = _listener.set(lambda done, total: outer(round((start + (stop - start) * done / total) * STEPS), STEPS))
    try:
        yield
        tick(1, 1)
    finally:
        _listener.reset(before)


class _Sparing:
    """Calls a listener only when it has waited long enough, or all is done."""

    def __init__(self, listener: Listener):
        self._listener = listener
        self._last = -LEAST_WAIT

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= LEAST_WAIT:
            self._last = now
            self._listener(done, total)
