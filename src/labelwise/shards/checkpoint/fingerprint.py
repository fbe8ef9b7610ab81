"""A fingerprint of rows: whether a selection that goes on sees the rows that it began with.

All bytes of a column count up to WHOLE of them in a shard; of a longer one, WHOLE bytes in short runs of rows, evenly
spread from the first row to the last. That is a fraction of a second beside selections that take minutes, and a change
of a few rows of a longer column may go unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from labelwise.shards.devices import raw
from labelwise.shards.shards import Shard, Shards

WHOLE = 64 << 20  # bytes of a column that are looked at
RUN = 64 << 10  # bytes looked at in one place, and held


def fingerprint(shards: Shards) -> str:
    """A digest of the ids and columns of all rows, as they are spread over the shards."""
    return hashlib.sha256("".join(shards.map(_digest)).encode()).hexdigest()


def _digest(shard: Shard) -> str:
    found = hashlib.blake2b(raw(shard.ids).data)
    if shard.device.type != "cpu":  # kept answers hold tensors of it: on another device the selection begins anew
        found.update(str(shard.device).encode())
    for signal, column in shard.columns.items():
        found.update(f"{signal!r} {tuple(column.shape)} {column.dtype}".encode())
        for run in _runs(len(column), column[:1].numel() * column.element_size()):
            found.update(raw(column[run]).data)
    return found.hexdigest()


def _runs(rows: int, row: int) -> Iterator[slice]:
    """Runs of rows of so many bytes: all of them, or as many as WHOLE allows."""
    step = max(1, RUN // row)
    places = -(-rows // step)
    count = min(places, max(1, WHOLE // (step * row)))
    for number in range(count):
        start = number * (places - 1) // max(1, count - 1) * step
        yield slice(start, min(start + step, rows))
