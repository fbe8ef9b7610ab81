"""Read the rows a selection of a session chooses from, with a model: into this process, or into a cluster's workers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from labelwise.pool import Pool
from labelwise.selection.memory import PlacementPolicy, check_each
from labelwise.selection.progress import tick
from labelwise.selection.run import RunOptions
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shards
from labelwise.shards.devices import wait_for
from labelwise.shards.factories import ReadPart, split_rows
from labelwise.shards.placement import Placement, place_by, placement_note
from labelwise.shards.ray import Ray
from labelwise.shards.ray import spill as spill_files
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import LabelProbs, Signal, stored

NEAR_ONE = 0.02  # a temperature this near 1 leaves p - q next to zero


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
