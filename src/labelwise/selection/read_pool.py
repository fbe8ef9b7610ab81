"""Read the rows a selection chooses from, with a model: into this process, or into the workers of a cluster.

Signals that a model computed on an accelerator stay there if they fit, with all that the selection holds besides them;
else they go to the CPU's memory; where `max_memory` does not allow that either, to mapped files. A folder that the
caller gave for files is always used. The limit applies to whichever memory holds the signals.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.pool import Pool
from labelwise.selection.memory import block_bytes, check_each, needed_bytes, smallest_limit
from labelwise.selection.progress import tick
from labelwise.selection.run import RunOptions
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Size, Strategy
from labelwise.shards import Shard, Shards
from labelwise.shards.devices import free_bytes, wait_for
from labelwise.shards.factories import ReadPart, split_rows
from labelwise.shards.placement import RESERVED_PART, Placement, place_by
from labelwise.shards.ray import Ray
from labelwise.shards.ray import spill as spill_files
from labelwise.shards.shard import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import LabelProbs, Signal, stored

NEAR_ONE = 0.02  # a temperature this near 1 leaves p - q next to zero


def choose_storage(
    signals: int, needed_there: int, needed_here: int, free: int | None, limit: int | None
) -> Literal["accelerator", "memory", "files"]:
    """Where signals are kept.

    Args:
        signals: bytes of the signals.
        needed_there: the fewest bytes that the selection needs besides the signals on the accelerator.
        needed_here: the same on the CPU.
        free: bytes free on the accelerator; None if there is no accelerator.
        limit: the caller's limit in bytes; None if there is no limit.

    >>> choose_storage(600, 100, 50, free=1000, limit=None), choose_storage(700, 100, 50, free=1000, limit=None)
    ('accelerator', 'memory')
    >>> choose_storage(600, 100, 50, free=1000, limit=690), choose_storage(600, 100, 50, free=1000, limit=640)
    ('memory', 'files')
    """
    if free is not None and signals + needed_there <= _usable_bytes(free, limit):
        return "accelerator"
    return "memory" if limit is None or signals + needed_here <= limit else "files"


def _usable_bytes(free: int, limit: int | None) -> int:
    usable = free - free // RESERVED_PART  # the rest is for the model's next batch and for others
    return usable if limit is None else min(usable, limit)


@dataclass(frozen=True)
class PlacementPolicy:
    """Chooses the placement of a selection's rows once it sees the first of them; it may run in another process.

    Attributes:
        strategy, k: the selection.
        rows: rows of the pool, in one process.
        labelled: rows already labelled.
        limit: the caller's limit in bytes.
        files: whether the caller gave a folder for files.
        share: the share of the accelerator's memory that this process may use.
    """

    strategy: Strategy
    k: int
    rows: int
    labelled: int
    limit: int | None
    files: bool = False
    share: float = 1.0

    def __call__(self, first: Rows) -> Placement:
        there = replace(Size.of(self.rows, self.k, first.columns, labelled=self.labelled), accelerator=True)
        here = replace(there, accelerator=False)
        signals = self.rows * sum(column[:1].numel() * column.element_size() for column in first.columns.values())
        device = _accelerator(first)
        free = None if device is None or self.files else free_bytes(device)
        free = None if free is None else int(free * self.share)
        needed = needed_bytes(self.strategy, there, CPU_BLOCK_BYTES), smallest_limit(self.strategy, here)
        storage = "files" if self.files else choose_storage(signals, *needed, free, self.limit)
        if storage == "accelerator":
            assert device is not None, "without one nothing is free on it"
            assert free is not None, "without one nothing is free on it"
            left = _usable_bytes(free, self.limit) - signals
            block = block_bytes(self.strategy, there, left, DEVICE_BLOCK_BYTES)
            return Placement(device, False, block, f"selected on {device}")
        note = "" if free is None else f"selected on cpu: no room on {device}"
        limit = self.limit - signals if self.limit is not None and storage == "memory" else self.limit
        return Placement(files=storage == "files", block=block_bytes(self.strategy, here, limit), note=note)


def _accelerator(first: Rows) -> torch.device | None:
    """The device, not the CPU, that signals were computed on, if there is one."""
    return next((column.device for column in first.columns.values() if column.device.type != "cpu"), None)


@dataclass(frozen=True)
class PoolReader:
    """Reads the signals of a session's rows and places them.

    Attributes:
        pool: the pool.
        batch: rows of a forward batch.
        options: how the selection runs.
        cluster: where the rows are read, or None for this process.
        spill: a folder for mapped files; without one, `PlacementPolicy` chooses where they are stored.
        half: whether they are kept in float16.
    """

    pool: Pool
    batch: int
    options: RunOptions
    cluster: Ray | None
    spill: Path | None
    half: bool = False

    @contextmanager
    def rows(
        self, strategy: Strategy, k: int, reader: Reader | None, ids: Tensor, labelled: Labelled
    ) -> Iterator[tuple[Shards, Placement]]:
        """Within, the rows `ids` with the signals in `needs.pool`, and the placement that labelled rows should share.

        An accelerator has finished reading them. Workers of a cluster stop afterwards.
        """
        wanted = stored(strategy.needs.pool)
        slices = self._slices(len(ids))
        policy = self._policy(strategy, k, slices, len(labelled.ids))
        if self.cluster is None:
            rows = partial(read, reader, self.pool, ids, wanted, self.batch, labelled, device=None, half=self.half)
            stream = partial(_counted, rows, len(ids))
            folder = None if self.spill is None else self.spill / "pool"
            shards, placement = place_by(policy, stream, len(ids), folder)
            wait_for(placement.device)
            yield shards, placement
            return
        placement = Placement()
        if self.options.limit is not None:  # one error here instead of one from each worker, which asks its own device
            placement = policy(self._first(strategy, reader, ids, labelled))
        policy = replace(policy, share=min(1.0, self.cluster.gpus or 1.0))
        whole = self._factory(reader, ids, wanted, labelled, policy)
        parts = [self._part(whole, number, rows) for number, rows in enumerate(slices)]
        try:
            with self.cluster.shards(parts, [len(part.ids) for part in parts]) as shards:
                yield shards, placement
        finally:
            spill_files.remove(whole.token)

    def check(self, strategy: Strategy, k: int, n: int, reader: Reader | None, ids: Tensor, labelled: Labelled) -> None:
        """Check the limit for each of the next n batches of k of the rows `ids`; one row is read to know its shape.

        Raises:
            MemoryLimitError: if the limit is too small for one of them.
        """
        if self.options.limit is None or not len(ids) or n < 1:
            return
        first = self._first(strategy, reader, ids, labelled)
        taken = range(0, min(n * k, len(ids)), k)
        policies = (self._policy(strategy, k, self._slices(len(ids) - m), len(labelled.ids) + m) for m in taken)
        check_each(partial(policy, first) for policy in policies)

    def _first(self, strategy: Strategy, reader: Reader | None, ids: Tensor, labelled: Labelled) -> Rows:
        """One row, on the CPU."""
        wanted = stored(strategy.needs.pool)
        return next(iter(read(reader, self.pool, ids[:1], wanted, self.batch, labelled, half=self.half)))

    def _slices(self, rows: int) -> list[slice]:
        """The rows of each worker.

        Every forward batch is the one it is in one process: a model's last bits depend on the shape of its batch, and
        some picks on those bits.
        """
        return [slice(0, rows)] if self.cluster is None else split_rows(rows, self.cluster.parts(rows), self.batch)

    def _policy(self, strategy: Strategy, k: int, slices: list[slice], labelled: int) -> PlacementPolicy:
        rows = max(one.stop - one.start for one in slices)
        return PlacementPolicy(strategy, k, rows, labelled, self.options.limit, self.spill is not None)

    def _factory(
        self,
        reader: Reader | None,
        ids: Tensor,
        wanted: tuple[Signal, ...],
        labelled: Labelled,
        policy: PlacementPolicy,
    ) -> ReadPart:
        """Makes all rows; its parts share what they need to read."""
        token = uuid.uuid4().hex  # files of this reading, not of an earlier model
        gpu = self.cluster is not None and self.cluster.gpus > 0
        return ReadPart(reader, self.pool, ids, wanted, self.batch, labelled, None, policy, token, gpu, self.half)

    def _part(self, whole: ReadPart, number: int, rows: slice) -> ReadPart:
        """Makes those rows of it."""
        folder = None if self.spill is None else self.spill.absolute() / f"pool-{number}"
        return replace(whole, ids=whole.ids[rows], folder=folder, token=f"{whole.token}-{number}")


def _counted(rows: Callable[[], Iterator[Rows]], total: int) -> Iterator[Rows]:
    """The rows, while their number is reported as progress."""
    done = 0
    for some in rows():
        yield some
        done += len(some)
        tick(done, total)


def add_notes(picks: Selection, pool: Shards, fit: Any, signals: tuple[Signal, ...]) -> Selection:
    """The picks with notes on where they were chosen, from the reader of the fit, and the temperature of LabelProbs."""
    reader = getattr(fit, "reader", None)
    reader_notes = getattr(reader, "notes", None)
    notes = dict(reader_notes()) if callable(reader_notes) else {}
    if LabelProbs() in stored(signals):
        notes = {**_temperature_notes(reader, fit.notes), **notes}
    place = placement_note(pool)
    if place:
        notes["place"] = place
    return replace(picks, notes={**picks.notes, **notes}) if notes else picks


def placement_note(pool: Shards) -> str:
    """Where the rows were chosen from, for notes["place"], once all work on them is done; "" on the CPU alone."""
    return "; ".join(dict.fromkeys(note for note in pool.map(_finished_note) if note))


def _finished_note(shard: Shard) -> str:
    wait_for(shard.device)
    return shard.placement_note


def _temperature_notes(reader: Any, fit_notes: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature of LabelProbs, one for each member of an ensemble, and a note where it leaves them as Probs."""
    temperature = getattr(reader, "temperature", None)
    if temperature is None:
        return {}
    if "temperature_note" in fit_notes:
        return {"temperature": temperature, "temperature_note": fit_notes["temperature_note"]}
    if all(abs(one - 1) < NEAR_ONE for one in (temperature if isinstance(temperature, list) else [temperature])):
        return {"temperature": temperature, "temperature_note": f"within {NEAR_ONE} of 1: LabelProbs are nearly Probs"}
    return {"temperature": temperature}
