"""Shard and Shards: rows where they live, and the four verbs of a selection: map, sum, best, take.

A strategy never sees where a shard is. It hands functions to the shards and gets small answers back; what it keeps
for each row stays beside the row in `Shard.state`. `sum`, `best` and `take` are built on `map` alone, and `map` asks
one thing of a shard, `begin`: shards in other processes and on other machines (`ray.py`) have one verb to write.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from labelwise.errors import RowError
from labelwise.shards.devices import current, sent
from labelwise.shards.topk import by_value, floor, highest
from labelwise.signals.check import check_block
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Signal

T = TypeVar("T")

CPU_BLOCK_BYTES = 8 << 20  # a block of rows and its scratch stay in the cache; smaller ones cost more in calls
ID_WIDTH = 8  # what a row's id and a draw hashed from it take, in numbers
DEVICE_BLOCK_BYTES = 256 << 20  # an accelerator wants long kernels


class Best(NamedTuple):
    """Rows with the highest values, highest first, ties to the smaller id."""

    ids: Tensor  # (k,)
    values: Tensor  # (k,)


class Part(Protocol):
    """Some rows, here or elsewhere, that a function can be run on."""

    def __len__(self) -> int: ...

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """Start fn of the shard where it lives; what comes back waits for the answer and gives it."""


@dataclass(frozen=True)
class Once:
    """A function that leaves the shard as it is and does something elsewhere: after a loss it is not run again."""

    fn: Callable[[Shard], Any]

    def __call__(self, shard: Shard) -> Any:
        return self.fn(shard)


class Journal(Protocol):
    """Keeps the answers of `map`, see `journal.py`."""

    def answers(self, ask: Callable[[], list[T]]) -> list[T]:
        """The answers `ask` gives, or those it gave when the same question was asked before the stop."""


class Shard:
    """Some rows, their stored columns, and the state a selection keeps beside them.

    Columns keep the storage they came in (half precision, a mapped file); a block is cast when it is read: float64
    stays float64, everything else is computed in float32.
    """

    def __init__(
        self, ids: Tensor, columns: Mapping[Signal, Tensor], dtype: torch.dtype | None = None, whose: str = "row id"
    ):
        self.ids = ids
        self.columns = dict(columns)
        self.dtype = computed_in(columns) if dtype is None else dtype
        self.state: dict[str, Tensor] = {}
        self.made: dict[Signal, Tensor] = {}  # columns that a selection makes; they stand before those that came
        self.shift: dict[
            Signal, Tensor
        ] = {}  # what is taken off a column when it is read, see strategies/distance/centering.py
        self.block_bytes: int | None = None  # of a block and its scratch; None is what suits the device
        self.placement_note = ""  # for notes["place"] of a selection; "" on the CPU alone
        self._whose = whose  # what a row is called in an error
        self._checked = False
        self._index: tuple[Tensor, Tensor | None] | None = None  # see `_by_id`

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """See `Part`; rows in this process are worked on when the answer is asked for."""
        return functools.partial(_on_its_device, fn, self)

    def some_blocks(self, at: Tensor, scratch: int = 0) -> Iterator[tuple[Tensor, Rows]]:
        """Blocks of the rows at these positions; `scratch` as in `blocks`, which has to have read all of them once."""
        for part in at.split(self.block_rows(scratch)) if len(at) else ():
            yield part, self.rows(part)

    def blocks(self, scratch: int = 0) -> Iterator[tuple[slice, Rows]]:
        """Blocks of rows in order, with their place in the shard; `scratch` numbers a row is what the caller adds.

        Each value is checked the first time it is read, while it is in the cache, instead of in a pass of its own.
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
        """fn of every block, put together in the order of the rows."""
        out: Tensor | None = None
        for where, rows in self.blocks(scratch):
            values = fn(rows)
            if out is None:
                out = values.new_empty((len(self), *values.shape[1:]))
            out[where] = values
        return out if out is not None else torch.empty(0, device=self.device, dtype=self.dtype)

    def rows(self, where: slice | Tensor) -> Rows:
        """The rows at these positions, cast for computing."""
        held = {**self.columns, **self.made}
        columns = {signal: column[where].to(self.device, self.dtype) for signal, column in held.items()}
        for signal, mean_D in self.shift.items():
            columns[signal] = columns[signal] - mean_D
        return Rows(self.ids[where], columns)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The asked ids that live here: their places in the question, on the CPU, and their positions in this shard.

        Looked up on the CPU, whence questions come: how many rows are found is known at once there, where a device
        would make the host wait.
        """
        sorted_ids, by_id = self._by_id()
        asked = ids.cpu()
        place = torch.searchsorted(sorted_ids, asked).clamp_(max=len(self) - 1)
        here = (sorted_ids[place] == asked).nonzero()[:, 0]
        place = place[here]
        return here, sent(place if by_id is None else by_id[place], self.device)

    def _by_id(self) -> tuple[Tensor, Tensor | None]:
        """The ids in order, on the CPU, and their positions; None where position and order are the same."""
        if self._index is None:  # once; a shard's ids never change
            ids = self.ids.cpu()
            by_id = None if bool((ids[1:] > ids[:-1]).all()) else ids.argsort()
            self._index = (ids if by_id is None else ids[by_id], by_id)
        return self._index

    def kept(self) -> dict[str, dict[Any, Tensor]]:
        """All that a selection has changed here so far: with it, a shard of the same rows can go on from this point."""
        return {"state": dict(self.state), "made": dict(self.made), "shift": dict(self.shift)}

    def put_back(self, kept: Mapping[str, Mapping[Any, Tensor]]) -> None:
        """Go on from what `kept` gave."""
        for name, values in kept.items():
            held: dict[Any, Tensor] = getattr(self, name)
            held.clear()
            held.update(values)

    def block_rows(self, scratch: int) -> int:
        """How many rows make a block, where the caller adds `scratch` numbers to each."""
        usual = CPU_BLOCK_BYTES if self.device.type == "cpu" else DEVICE_BLOCK_BYTES
        budget = usual if self.block_bytes is None else min(usual, self.block_bytes)
        width = ID_WIDTH + scratch + sum(column[:1].numel() for column in self.columns.values())
        return max(64, budget // (width * self.dtype.itemsize))


class Shards:
    """All rows of a pool, as shards here or elsewhere."""

    def __init__(self, shards: Sequence[Part], journal: Journal | None = None):
        self._shards = [shard for shard in shards if len(shard)]
        self._journal = journal
        self.n = sum(len(shard) for shard in self._shards)

    def __getstate__(self) -> dict[str, Any]:
        """A function that is sent to a shard may hold all of them; it has no use for the others there."""
        return {"_shards": [], "_journal": None, "n": self.n}

    @property
    def sizes(self) -> list[int]:
        """How many rows each shard has."""
        return [len(shard) for shard in self._shards]

    @property
    def on_one_device(self) -> bool:
        """Whether all rows are one shard of this process on an accelerator: a question for each pick makes it wait."""
        return len(self._shards) == 1 and isinstance(self._shards[0], Shard) and self._shards[0].device.type != "cpu"

    def join(self, other: Shards) -> Shards:
        """Both sets of rows as one; ids of the two must differ. Rows and their state are shared, not copied."""
        return Shards([*self._shards, *other._shards], self._journal or other._journal)

    def kept(self, journal: Journal) -> Shards:
        """The same rows, with a journal of what they answer."""
        return Shards(self._shards, journal)

    def in_blocks(self, size: int | None) -> Shards:
        """The same rows, read in blocks of at most so many bytes from now on."""
        if size is not None:
            self._ask(functools.partial(_set_block, size))
        return self

    def map(self, fn: Callable[[Shard], T]) -> list[T]:
        """fn of every shard, run where the shard lives; answers should be small. In the order of the shards.

        fn changes nothing but the shard's state: it may run in another process, and again after a loss, unless it is
        to run `Once`.
        """
        if self._journal is not None:
            return self._journal.answers(functools.partial(self._ask, fn))
        return self._ask(fn)

    def _ask(self, fn: Callable[[Shard], T]) -> list[T]:
        waiting = [shard.begin(fn) for shard in self._shards]  # all at work before the first is waited for
        return [answer() for answer in waiting]

    def sum(self, fn: Callable[[Shard], Any]) -> Any:
        """The sum over shards of something that adds up over rows (a number or a tensor)."""
        return functools.reduce(operator.add, self.map(fn))

    def best(self, fn: Callable[[Shard], Tensor], k: int, slack: float = 0.0) -> Best:
        """The k rows with the highest fn(shard) (n,), ties to the smaller id. -inf marks a row that may not be taken.

        `slack` is for k = 1: values within `slack` times the size of the largest count as equal to it. A value that
        comes out of a matrix product depends in its last bits on the block it was computed in; with slack above that
        rounding, copies of a row are tied whatever the blocks, and the smallest id is taken.
        """
        found = self.map(functools.partial(_shard_best, fn, k, slack))
        ids, values = (torch.cat([part[i].cpu() for part in found]) for i in (0, 1))
        if slack:
            order = ids.argsort()
            first = order[(values[order] >= floor(values.max(), slack)).to(torch.uint8).argmax()]
            return Best(ids[first : first + 1], values[first : first + 1])
        order = by_value(ids, values)[:k]
        return Best(ids[order], values[order])

    def take(self, ids: Tensor) -> Rows:
        """The rows with these ids, in this order."""
        parts = self.map(functools.partial(_shard_take, ids))
        found = torch.cat([part[0] for part in parts])
        if len(found) != len(ids):
            missing = sorted(set(ids.tolist()) - set(found.tolist()))
            raise RowError(f"ids {missing[:5]} are not among the {self.n} rows; each id asked for has to be there once")
        if len(parts) == 1:  # in this order already
            return parts[0][1]
        signals = parts[0][1].columns
        home = parts[0][1].ids.device
        order = sent(found.argsort(), home)
        merged = {s: torch.cat([part[1].columns[s].to(home) for part in parts])[order] for s in signals}
        return Rows(torch.cat([part[1].ids.to(home) for part in parts])[order], merged)


def _on_its_device(fn: Callable[[Shard], T], shard: Shard) -> T:
    with current(shard.device):
        return fn(shard)


def _set_block(size: int, shard: Shard) -> None:
    shard.block_bytes = size


def computed_in(columns: Mapping[Signal, Tensor]) -> torch.dtype:
    """float64 as soon as one column is float64, else float32."""
    wide = any(column.dtype == torch.float64 for column in columns.values())
    return torch.float64 if wide else torch.float32


def _shard_best(fn: Callable[[Shard], Tensor], k: int, slack: float, shard: Shard) -> tuple[Tensor, Tensor]:
    """One shard's candidates for `Shards.best`."""
    return highest(shard.ids, fn(shard), k, slack)


def _shard_take(ids: Tensor, shard: Shard) -> tuple[Tensor, Rows]:
    """The asked rows that live in this shard, and their places in the question."""
    here, positions = shard.find(ids)
    return here, shard.rows(positions)
