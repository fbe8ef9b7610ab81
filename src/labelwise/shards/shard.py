"""Shard and Shards: rows where they live, and the four verbs of a selection: map, sum, best, take.

A strategy never sees where a shard is. It sends functions to the shards and gets small answers back; what it stores
for each row stays with the row in `Shard.state`. `sum`, `best` and `take` are built on `map` alone, and `map` needs
one method of a shard, `begin`: shards in other processes and on other machines (`ray/engine.py`) implement only that.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from labelwise.errors import RowError
from labelwise.rng import Key
from labelwise.shards.devices import on_device, to_device
from labelwise.shards.topk import lowest_tie, order_by_value, top_rows
from labelwise.signals.check import check_block
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Signal

T = TypeVar("T")

CPU_BLOCK_BYTES = 8 << 20  # a block of rows and its scratch stay in the cache; smaller blocks cost more in calls
DEVICE_BLOCK_BYTES = 256 << 20  # an accelerator is faster with long kernels
DEFAULT_TIES = Key(0)  # until a selection names its own key
TIE = 1e-12  # values of float64 this close, relative to their size, are tied in a greedy choice
TIE_SINGLE = 1e-6  # the same for float32
ID_WIDTH = 8  # numbers that a row's id and a draw hashed from it take


class Best(NamedTuple):
    """Rows with the highest values, highest first, ties by lot."""

    ids: Tensor  # (k,)
    values: Tensor  # (k,)


class Part(Protocol):
    """Some rows, in this process or another, that a function can be run on."""

    def __len__(self) -> int: ...

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """Start fn(shard) where the shard lives. Returns a function that waits for the answer and returns it."""


@dataclass(frozen=True)
class Once:
    """A function that changes something else than the shard, such as a file: it is not run again after a loss."""

    fn: Callable[[Shard], Any]

    def __call__(self, shard: Shard) -> Any:
        return self.fn(shard)


class Journal(Protocol):
    """Stores the answers of `map`, see `checkpoint/journal.py`."""

    def answers(self, compute: Callable[[], list[T]]) -> list[T]:
        """The stored answers to this call of `map`, if there are any; else those of `compute`, which are stored."""


class Shard:
    """Some rows, their stored columns, and what a selection stores for each row.

    Columns stay in the storage they came in (half precision, a mapped file). A block is cast when it is read: float64
    stays float64, everything else is computed in float32.

    Attributes:
        ids: (n,) global ids of the rows.
        columns: a stored column for each signal.
        state: (n, ...) tensors by name, which the strategy owns.
        made: columns that the selection computed; they override stored ones.
        shift: what is subtracted from a column when it is read, see strategies/distance/centering.py.
        block_bytes: size of a block with its scratch; None means what suits the device.
        placement_note: for notes["place"] of a selection; "" on the CPU alone.
        ties: the key whose lots break ties between rows.
    """

    def __init__(
        self, ids: Tensor, columns: Mapping[Signal, Tensor], dtype: torch.dtype | None = None, whose: str = "row id"
    ):
        self.ids = ids
        self.columns = dict(columns)
        self.dtype = computed_in(columns) if dtype is None else dtype
        self.state: dict[str, Tensor] = {}
        self.made: dict[Signal, Tensor] = {}
        self.shift: dict[Signal, Tensor] = {}
        self.block_bytes: int | None = None
        self.placement_note = ""
        self.ties = DEFAULT_TIES
        self._whose = whose  # what a row is called in an error
        self._checked = False
        self._lots: Tensor | None = None
        self._index: tuple[Tensor, Tensor | None] | None = None  # see `_by_id`

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @property
    def lots(self) -> Tensor:
        """The lot (n,) of each row: of tied rows the smallest lot wins. It is computed at the first use."""
        if self._lots is None:
            self._lots = self.ties.lots(self.ids)
        return self._lots

    def break_ties(self, key: Key) -> None:
        """Break ties from now on by the lots of this key."""
        if key != self.ties:
            self.ties, self._lots = key, None

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """See `Part`. In this process the function runs when the answer is fetched."""
        return functools.partial(_run_on_device, fn, self)

    def some_blocks(self, positions: Tensor, scratch: int = 0) -> Iterator[tuple[Tensor, Rows]]:
        """Blocks of the rows at these positions. Call `blocks` before, which checks the values of every row.

        Args:
            positions: (m,) positions in this shard.
            scratch: numbers per row that the caller adds to a block.
        """
        for some in positions.split(self.block_rows(scratch)) if len(positions) else ():
            yield some, self.rows(some)

    def blocks(self, scratch: int = 0) -> Iterator[tuple[slice, Rows]]:
        """Blocks of rows in order, with their positions in the shard.

        Values are checked the first time they are read, while they are in the cache.

        Args:
            scratch: numbers per row that the caller adds to a block.
        """
        size = self.block_rows(scratch)
        for start in range(0, len(self), size):
            where = slice(start, min(start + size, len(self)))
            rows = self.rows(where)
            if not self._checked:
                for signal, column in self.columns.items():
                    check_block(signal, rows.ids, rows.columns[signal], column.dtype, self._whose)
            yield where, rows
        self._checked = True

    def each(self, fn: Callable[[Rows], Tensor], scratch: int = 0) -> Tensor:
        """fn of every block, concatenated in the order of the rows."""
        out: Tensor | None = None
        for where, rows in self.blocks(scratch):
            values = fn(rows)
            if out is None:
                out = values.new_empty((len(self), *values.shape[1:]))
            out[where] = values
        return out if out is not None else torch.empty(0, device=self.device, dtype=self.dtype)

    def rows(self, where: slice | Tensor) -> Rows:
        """The rows at these positions, cast for computing."""
        stored = {**self.columns, **self.made}
        columns = {signal: column[where].to(self.device, self.dtype) for signal, column in stored.items()}
        for signal, mean_D in self.shift.items():
            columns[signal] = columns[signal] - mean_D
        return Rows(self.ids[where], columns)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Find those of `ids` that are in this shard.

        Ids are looked up on the CPU: the number of hits is known there at once, a device would make the host wait.

        Returns:
            Their places in `ids`, on the CPU, and their positions in this shard, on its device.
        """
        sorted_ids, by_id = self._by_id()
        wanted = ids.cpu()
        rank = torch.searchsorted(sorted_ids, wanted).clamp_(max=len(self) - 1)
        hits = (sorted_ids[rank] == wanted).nonzero()[:, 0]
        rank = rank[hits]
        return hits, to_device(rank if by_id is None else by_id[rank], self.device)

    def _by_id(self) -> tuple[Tensor, Tensor | None]:
        """The sorted ids, on the CPU, and their positions; None where the ids are in order already."""
        if self._index is None:  # once; a shard's ids never change
            ids = self.ids.cpu()
            by_id = None if bool((ids[1:] > ids[:-1]).all()) else ids.argsort()
            self._index = (ids if by_id is None else ids[by_id], by_id)
        return self._index

    def snapshot(self) -> dict[str, dict[Any, Tensor]]:
        """All that a selection has changed so far. A shard of the same rows continues from it after `restore`."""
        return {name: dict(values) for name, values in self._changed().items()}

    def restore(self, snapshot: Mapping[str, Mapping[Any, Tensor]]) -> None:
        """Continue from what `snapshot` returned."""
        for name, changed in self._changed().items():
            changed.clear()
            changed.update(snapshot[name])

    def _changed(self) -> dict[str, dict[Any, Tensor]]:
        return {"state": self.state, "made": self.made, "shift": self.shift}

    def block_rows(self, scratch: int) -> int:
        """The number of rows in a block where the caller adds `scratch` numbers to each."""
        usual = CPU_BLOCK_BYTES if self.device.type == "cpu" else DEVICE_BLOCK_BYTES
        budget = usual if self.block_bytes is None else min(usual, self.block_bytes)
        width = ID_WIDTH + scratch + sum(column[:1].numel() for column in self.columns.values())
        return max(64, budget // (width * self.dtype.itemsize))


class Shards:
    """All rows of a pool, as shards in this process or others."""

    def __init__(self, shards: Sequence[Part], journal: Journal | None = None, ties: Key = DEFAULT_TIES):
        self._shards = [shard for shard in shards if len(shard)]
        self._journal = journal
        self.ties = ties
        self.n = sum(len(shard) for shard in self._shards)

    def __getstate__(self) -> dict[str, Any]:
        """Without the shards: a function that is sent to one of them may refer to all, and cannot use the others."""
        return {"_shards": [], "_journal": None, "n": self.n, "ties": self.ties}

    @property
    def sizes(self) -> list[int]:
        """The number of rows in each shard."""
        return [len(shard) for shard in self._shards]

    @property
    def on_one_device(self) -> bool:
        """Whether all rows are one shard of this process on an accelerator. It waits at every call."""
        return len(self._shards) == 1 and isinstance(self._shards[0], Shard) and self._shards[0].device.type != "cpu"

    def join(self, other: Shards) -> Shards:
        """Both sets of rows as one. Their ids must differ; rows and their state are shared, not copied."""
        return Shards([*self._shards, *other._shards], self._journal or other._journal, self.ties)

    @property
    def has_journal(self) -> bool:
        """Whether answers may come from a journal, so from an earlier process."""
        return self._journal is not None

    def with_journal(self, journal: Journal | None) -> Shards:
        """The same rows, with a journal that stores their answers, or with none."""
        return Shards(self._shards, journal, self.ties)

    def with_ties(self, key: Key) -> Shards:
        """The same rows; from now on ties between them are broken by the lots of this key."""
        self._run(functools.partial(_break_ties, key))
        return Shards(self._shards, self._journal, key)

    def in_blocks(self, size: int | None) -> Shards:
        """The same rows, read from now on in blocks of at most `size` bytes."""
        if size is not None:
            self._run(functools.partial(_set_block, size))
        return self

    def map(self, fn: Callable[[Shard], T]) -> list[T]:
        """Run a function on every shard, where the shard lives.

        Args:
            fn: changes nothing but the shard's state, and returns something small. It may run in another process, and
                again after a loss unless it is wrapped in `Once`.

        Returns:
            The answers in the order of the shards.
        """
        if self._journal is not None:
            return self._journal.answers(functools.partial(self._run, fn))
        return self._run(fn)

    def _run(self, fn: Callable[[Shard], T]) -> list[T]:
        pending = [shard.begin(fn) for shard in self._shards]  # all have started before the first is waited for
        return [wait() for wait in pending]

    def sum(self, fn: Callable[[Shard], Any]) -> Any:
        """The sum over shards of a number or a tensor that is itself a sum over rows."""
        return functools.reduce(operator.add, self.map(fn))

    def best(self, fn: Callable[[Shard], Tensor], k: int, slack: float = 0.0) -> Best:
        """The k rows with the highest values, ties by lot: of tied rows the smallest `Key.lots` wins.

        Args:
            fn: the values (n,) of a shard's rows; -inf marks a row that must not be taken.
            k: the number of rows.
            slack: for k = 1: values within `slack` times the size of the largest count as equal to it. The last bits
                of a matrix product depend on the block it was computed in; with a slack above that rounding, copies of
                a row are tied in every block.
        """
        found = self.map(functools.partial(_shard_best, fn, k, slack))
        ids, values = (torch.cat([part[i].cpu() for part in found]) for i in (0, 1))
        if slack:
            order = self.ties.lots(ids).argsort() if len(ids) > 1 else torch.zeros(1, dtype=torch.int64)
            first = order[(values[order] >= lowest_tie(values.max(), slack)).to(torch.uint8).argmax()]
            return Best(ids[first : first + 1], values[first : first + 1])
        order = order_by_value(self.ties.lots(ids), values)[:k]
        return Best(ids[order], values[order])

    def tie_tolerance(self) -> float:
        """The relative difference up to which a greedy choice counts two values as equal: the `slack` of `best`."""
        return max(self.map(_tie_tolerance))

    def take(self, ids: Tensor) -> Rows:
        """The rows with these ids, in this order. Raises RowError if one is missing."""
        parts = self.map(functools.partial(_shard_take, ids))
        found = torch.cat([part[0] for part in parts])
        if len(found) != len(ids):
            missing = sorted(set(ids.tolist()) - set(found.tolist()))
            raise RowError(f"ids {missing[:5]} are not among the {self.n} rows; expected ids of these rows, each once")
        if len(parts) == 1:  # in this order already
            return parts[0][1]
        signals = parts[0][1].columns
        device = parts[0][1].ids.device
        order = to_device(found.argsort(), device)
        merged = {s: torch.cat([part[1].columns[s].to(device) for part in parts])[order] for s in signals}
        return Rows(torch.cat([part[1].ids.to(device) for part in parts])[order], merged)


def shards_of(
    ids: Tensor,
    columns: Mapping[Signal, Tensor],
    count: int = 1,
    dtype: torch.dtype | None = None,
    whose: str = "row id",
) -> Shards:
    """Shards over whole columns, as views: nothing is copied."""
    dtype = computed_in(columns) if dtype is None else dtype
    edges = [len(ids) * i // count for i in range(count + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    return Shards(
        [Shard(ids[part], {signal: column[part] for signal, column in columns.items()}, dtype, whose) for part in parts]
    )


def _run_on_device(fn: Callable[[Shard], T], shard: Shard) -> T:
    with on_device(shard.device):
        return fn(shard)


def _set_block(size: int, shard: Shard) -> None:
    shard.block_bytes = size


def _break_ties(key: Key, shard: Shard) -> None:
    shard.break_ties(key)


def computed_in(columns: Mapping[Signal, Tensor]) -> torch.dtype:
    """float64 as soon as one column is float64, else float32."""
    wide = any(column.dtype == torch.float64 for column in columns.values())
    return torch.float64 if wide else torch.float32


def _shard_best(fn: Callable[[Shard], Tensor], k: int, slack: float, shard: Shard) -> tuple[Tensor, Tensor]:
    """The rows of one shard that may be the best of all."""
    return top_rows(shard.ids, shard.ties.lots, fn(shard), k, slack)


def _tie_tolerance(shard: Shard) -> float:
    return TIE if shard.dtype == torch.float64 else TIE_SINGLE


def _shard_take(ids: Tensor, shard: Shard) -> tuple[Tensor, Rows]:
    """Those of the rows that are in this shard, and their places in `ids`."""
    places, positions = shard.find(ids)
    return places, shard.rows(positions)
