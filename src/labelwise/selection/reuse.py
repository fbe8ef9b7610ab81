"""Reuse between rounds: numbers of rows that a later selection need not compute again.

A session has one `RowCache`, in memory; its selections run with it in reach (`reusing`). An entry has for each row a
hash of the values that its numbers were computed from. It is used only where every row of the selection is in it with
that hash, so a model that has changed, or a value, is never answered from the cache. What is reused must be what would
be computed, up to rounding: the picks are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.rng import Key

ROW_BYTES = 64  # an upper bound of what an entry holds for each row
HASHED_NUMBERS = 1 << 17  # numbers hashed at once
CENTRE_BYTES = 256  # of a centre, as Python objects
LIMIT_SHARE = 50  # with a limit on memory, the cache may have 1/50 of it
_cache: ContextVar[RowCache | None] = ContextVar("cache", default=None)


@dataclass(frozen=True)
class Entry:
    """What is stored under one name.

    Attributes:
        ids: (N,) of the rows, rising.
        hashes: (N,) of their values.
        columns: (N, ...) numbers of the rows.
        centres: the hash of each other row, by id, that the numbers were computed with.
    """

    ids: Tensor
    hashes: Tensor
    columns: Mapping[str, Tensor]
    centres: Mapping[int, int]


class RowCache:
    """Numbers of rows by name; a name has one entry, the last one stored."""

    def __init__(self) -> None:
        self._entries: dict[Any, Entry] = {}
        self.hits = 0  # entries that were used

    @staticmethod
    def is_allowed(rows: int, centres: int, limit: int | None) -> bool:
        """Whether a cache for this many rows and other rows, the centres, fits a limit on memory."""
        return limit is None or LIMIT_SHARE * (ROW_BYTES * rows + CENTRE_BYTES * centres) <= limit

    def recall(
        self, name: Any, ids: Tensor, hashes: Tensor, centres: Mapping[int, int]
    ) -> tuple[dict[str, Tensor], frozenset[int]] | None:
        """The columns of these rows and the ids of the centres they were computed with; None where anything differs.

        Args:
            name: of the entry.
            ids: (n,) of the rows.
            hashes: (n,) of their values now.
            centres: the hashes of all centres there are now, by id. Each centre of the entry must be among them.
        """
        entry = self._entries.get(name)
        if entry is None or not len(ids) or any(centres.get(one) != known for one, known in entry.centres.items()):
            return None
        places = torch.searchsorted(entry.ids, ids).clamp_(max=len(entry.ids) - 1)
        if not torch.equal(entry.ids[places], ids) or not torch.equal(entry.hashes[places], hashes):
            return None
        self.hits += 1
        return {column: values[places] for column, values in entry.columns.items()}, frozenset(entry.centres)

    def store(
        self, name: Any, ids: Tensor, hashes: Tensor, columns: Mapping[str, Tensor], centres: Mapping[int, int]
    ) -> None:
        """Replace the entry of this name."""
        order = ids.argsort()
        rows = {column: values[order] for column, values in columns.items()}
        self._entries[name] = Entry(ids[order], hashes[order], rows, dict(centres))


@contextmanager
def reusing(cache: RowCache | None) -> Iterator[None]:
    """Within, selections in this process use the cache; None for none."""
    before = _cache.set(cache)
    try:
        yield
    finally:
        _cache.reset(before)


def current_cache() -> RowCache | None:
    """The cache of `reusing`, if there is one in this process."""
    return _cache.get()


def row_hashes(x_ND: Tensor) -> Tensor:
    """64 bits for each row (N,), from the bits of its values."""
    kind = torch.int32 if x_ND.dtype == torch.float32 else torch.int64
    factors = (Key(0).fold("row hashes").lots(torch.arange(x_ND.shape[1])) | 1).to(x_ND.device)
    step = max(1, HASHED_NUMBERS // max(1, x_ND.shape[1]))
    parts = [(part.contiguous().view(kind).to(torch.int64) * factors).sum(1) for part in x_ND.split(step)]
    return torch.cat(parts) if parts else x_ND.new_zeros(0, dtype=torch.int64)
