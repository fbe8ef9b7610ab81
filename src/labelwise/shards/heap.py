"""The heap under a limit: large tensors go back to the system as soon as they are let go.

The allocator of glibc learns to keep ever larger pieces for later, and then holds several times what is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TIGHT, LEARNT = 1 << 20, 32 << 20  # pieces from this size on go back; LEARNT is the most glibc comes to by itself
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # names of mallopt


@contextmanager
def tight(limited: bool) -> Iterator[None]:
    """Within, if `limited`, large pieces are not kept."""
    if limited:
        keep_pieces_up_to(TIGHT)
    try:
        yield
    finally:
        if limited:
            keep_pieces_up_to(LEARNT)


def keep_pieces_up_to(size: int) -> None:
    """Tell the allocator, where it is one that listens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another system, another allocator
        return
    mallopt(MMAP_THRESHOLD, size)
    mallopt(TRIM_THRESHOLD, 2 * size)
