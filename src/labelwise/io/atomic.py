"""Atomic writing: a reader sees the old file or the new one, never half of either."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Write `pieces` to a file beside `path`, then put it in the place of `path` in one step.

    An exception on the way, also one raised by `pieces`, leaves `path` as it was and no file beside it.
    """
    target = Path(os.path.realpath(path))  # the place of the file a link points to, not of the link
    # Not `tempfile`: its files can be read by their owner alone, and a report is there to be shared.
    beside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}-{time.time_ns()}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(beside, "xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:  # also on Ctrl-C
        beside.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`text` as UTF-8, atomically, with line ends as they are."""
    write_pieces(path, [text.encode("utf-8")])
