"""Work in threads while the caller uses what is done: the next batch of rows, the images of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 8  # more of them wait for each other: parts of decoding hold Python's lock

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """What `make` gives for each item, in order; a thread makes the next one while the caller uses this one.

    Two results are in memory at once. An exception of `make` is raised where its result is due. A caller that stops
    early waits for the one that is being made.
    """
    worker = ThreadPoolExecutor(1, "labelwise-ahead")
    try:
        due: Future[Made] | None = None
        for item in items:
            following = worker.submit(make, item)
            if due is not None:
                yield due.result()
            due = following
        if due is not None:
            yield due.result()
    finally:
        worker.shutdown(wait=True, cancel_futures=True)


def in_threads(work: Callable[[int], None], count: int, least: int) -> None:
    """Call `work` with 0 .. count-1, in threads if there are at least `least` calls for each.

    Of several calls that fail, the exception of the first one is raised.
    """
    threads = min(MOST_THREADS, _cores(), count // max(1, least))
    if threads < 2:
        for number in range(count):
            work(number)
        return
    worker = ThreadPoolExecutor(threads, "labelwise-decode")
    try:
        for done in [worker.submit(work, number) for number in range(count)]:
            done.result()
    finally:
        worker.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
