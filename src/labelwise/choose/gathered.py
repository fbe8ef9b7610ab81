"""The rows a selection chooses from, read with a model: in memory, in mapped files, or by the workers of a cluster."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from labelwise.choose.kept import How, checked, size_of
from labelwise.choose.memory import smallest
from labelwise.choose.selection import Selection
from labelwise.choose.strategy import Strategy
from labelwise.pool import Pool
from labelwise.shards import Shards, place
from labelwise.shards.parts import ReadPart, edges
from labelwise.shards.place import place_aside
from labelwise.shards.ray import Ray
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.spec import LabelProbs, Signal, stored


@dataclass(frozen=True)
class Gathering:
    """Where rows are read to, and how the selection among them is run.

    `spill` is a folder for mapped files; without one, rows that would not fit the limit go to temporary files.
    """

    pool: Pool
    batch: int
    how: How
    cluster: Ray | None
    spill: Path | None

    def rows(
        self, strategy: Strategy, k: int, reader: Reader | None, ids: Tensor, labelled: Labelled
    ) -> tuple[Shards, int | None]:
        """The rows `ids` with what the strategy asks of the pool, and how large blocks of them may be."""
        wanted = stored(strategy.needs.pool)
        parts = 1 if self.cluster is None else self.cluster.parts(len(ids))
        here = -(-len(ids) // parts)
        block, aside = self._room(strategy, k, reader, ids, wanted, labelled, here)
        if self.cluster is None:
            stream = read(reader, self.pool, ids, wanted, self.batch, labelled)
            if aside and self.spill is None:
                return place_aside(stream, len(ids)), block
            return place(stream, len(ids), None if self.spill is None else self.spill / "pool"), block
        token = uuid.uuid4().hex  # files of this reading, not of an earlier model
        makers = [
            self._maker(reader, ids[cut].clone(), wanted, labelled, aside, part, token)
            for part, cut in enumerate(edges(len(ids), parts))
        ]
        return self.cluster.shards(makers, [len(maker.ids) for maker in makers]), block

    def _maker(
        self,
        reader: Reader | None,
        ids: Tensor,
        wanted: tuple[Signal, ...],
        labelled: Labelled,
        aside: bool,
        part: int,
        token: str,
    ) -> ReadPart:
        where = None if self.spill is None else self.spill / f"pool-{part}"
        return ReadPart(reader, self.pool, ids, wanted, self.batch, labelled, where, aside, token)

    def _room(
        self,
        strategy: Strategy,
        k: int,
        reader: Reader | None,
        ids: Tensor,
        wanted: tuple[Signal, ...],
        labelled: Labelled,
        here: int,
    ) -> tuple[int | None, bool]:
        """How large blocks may be, and whether the columns have to go to files. One row is read to know its shape."""
        if self.how.limit is None:
            return None, False
        first = next(iter(read(reader, self.pool, ids[:1], wanted, self.batch, labelled)))
        size = size_of(here, k, first.columns, labelled=len(labelled.ids))
        columns = here * sum(one[:1].numel() * one.element_size() for one in first.columns.values())
        if self.spill is not None or columns + smallest(strategy, size) > self.how.limit:
            return checked(strategy, size, self.how), True
        return checked(strategy, size, replace(self.how, limit=self.how.limit - columns)), False


def noted(picks: Selection, reader: Any, signals: tuple[Signal, ...]) -> Selection:
    """The picks with what the reader of the model has to say about its signals, and the T of LabelProbs."""
    notes, warmth = getattr(reader, "notes", None), getattr(reader, "temperature", None)
    said = dict(notes()) if callable(notes) else {}
    if warmth is not None and LabelProbs() in stored(signals):
        said["temperature"] = float(warmth)
    return replace(picks, notes={**picks.notes, **said}) if said else picks
