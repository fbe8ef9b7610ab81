"""The rows a selection chooses from, read with a model: here, where room.py says, or by the workers of a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from labelwise.pool import Pool
from labelwise.selection.memory import check_each
from labelwise.selection.placement import Rule, placed
from labelwise.selection.run import How
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shards
from labelwise.shards.devices import wait_for
from labelwise.shards.factories import ReadPart, edges
from labelwise.shards.placement import Home, place_by
from labelwise.shards.ray import spill as set_aside
from labelwise.shards.ray.ray_shards import Ray
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import LabelProbs, Signal, stored

NEAR_ONE = 0.02  # a temperature so near 1 leaves next to nothing of p - q


@dataclass(frozen=True)
class Gathering:
    """Where rows are read to, and how the selection among them is run.

    `spill` is a folder for mapped files; without one, room.py says where rows go. With `half` they are kept in float16.
    """

    pool: Pool
    batch: int
    how: How
    cluster: Ray | None
    spill: Path | None
    half: bool = False

    @contextmanager
    def rows(
        self, strategy: Strategy, k: int, reader: Reader | None, ids: Tensor, labelled: Labelled
    ) -> Iterator[tuple[Shards, Home]]:
        """The rows `ids` with what the strategy asks of the pool, and where rows beside them belong.

        They are there within: an accelerator has done its work. Workers of a cluster are gone afterwards.
        """
        wanted = stored(strategy.needs.pool)
        cuts = self._cuts(len(ids))
        rule = self._rule(strategy, k, cuts, len(labelled.ids))
        if self.cluster is None:
            stream = partial(read, reader, self.pool, ids, wanted, self.batch, labelled, device=None, half=self.half)
            shards, home = place_by(rule, stream, len(ids), None if self.spill is None else self.spill / "pool")
            wait_for(home.device)
            yield shards, home
            return
        home = Home()
        if self.how.limit is not None:  # refused here and not by every worker, which then asks about its own device
            home = rule(self._first(strategy, reader, ids, labelled))
        rule = replace(rule, share=min(1.0, self.cluster.gpus or 1.0))
        whole = self._maker(reader, ids, wanted, labelled, rule)
        makers = [self._part(whole, part, cut) for part, cut in enumerate(cuts)]
        try:
            with self.cluster.shards(makers, [len(maker.ids) for maker in makers]) as shards:
                yield shards, home
        finally:
            set_aside.remove(whole.token)

    def check(self, strategy: Strategy, k: int, n: int, reader: Reader | None, ids: Tensor, labelled: Labelled) -> None:
        """Raise MemoryLimitError where the limit is too small for one of the next n batches of k of the rows `ids`.

        One row is read to know its shape.
        """
        if self.how.limit is None or not len(ids) or n < 1:
            return
        first = self._first(strategy, reader, ids, labelled)
        steps = range(0, min(n * k, len(ids)), k)
        rules = (self._rule(strategy, k, self._cuts(len(ids) - done), len(labelled.ids) + done) for done in steps)
        check_each(partial(rule, first) for rule in rules)

    def _first(self, strategy: Strategy, reader: Reader | None, ids: Tensor, labelled: Labelled) -> Rows:
        """One row, on the CPU."""
        wanted = stored(strategy.needs.pool)
        return next(iter(read(reader, self.pool, ids[:1], wanted, self.batch, labelled, half=self.half)))

    def _cuts(self, rows: int) -> list[slice]:
        """The parts of so many rows.

        Every forward batch is the one it is in one process: a model's last bits depend on the shape of its batch, and
        some picks on those.
        """
        return [slice(0, rows)] if self.cluster is None else edges(rows, self.cluster.parts(rows), self.batch)

    def _rule(self, strategy: Strategy, k: int, cuts: list[slice], labelled: int) -> Rule:
        rows = max(cut.stop - cut.start for cut in cuts)
        return Rule(strategy, int(k), rows, labelled, self.how.limit, self.spill is not None)

    def _maker(
        self, reader: Reader | None, ids: Tensor, wanted: tuple[Signal, ...], labelled: Labelled, rule: Rule
    ) -> ReadPart:
        """Makes all rows; parts of it share what they need to read."""
        token = uuid.uuid4().hex  # files of this reading, not of an earlier model
        given = self.cluster is not None and self.cluster.gpus > 0
        return ReadPart(reader, self.pool, ids, wanted, self.batch, labelled, None, rule, token, given, self.half)

    def _part(self, whole: ReadPart, number: int, cut: slice) -> ReadPart:
        """Makes those rows of it."""
        folder = None if self.spill is None else self.spill.absolute() / f"pool-{number}"
        return replace(whole, ids=whole.ids[cut], folder=folder, token=f"{whole.token}-{number}")


def noted(picks: Selection, pool: Shards, fit: Any, signals: tuple[Signal, ...]) -> Selection:
    """The picks with where they were chosen, what the reader of the fit has to say, and the T of LabelProbs."""
    reader = getattr(fit, "reader", None)
    notes = getattr(reader, "notes", None)
    said = dict(notes()) if callable(notes) else {}
    if LabelProbs() in stored(signals):
        said = {**_warmth(reader, fit.notes), **said}
    places = placed(pool)
    if places:
        said["place"] = places
    return replace(picks, notes={**picks.notes, **said}) if said else picks


def _warmth(reader: Any, trained: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature of LabelProbs, one for each member of an ensemble, and a note where it leaves them as Probs."""
    found = getattr(reader, "temperature", None)
    if found is None:
        return {}
    if "temperature_note" in trained:
        return {"temperature": found, "temperature_note": trained["temperature_note"]}
    if all(abs(one - 1) < NEAR_ONE for one in (found if isinstance(found, list) else [found])):
        return {"temperature": found, "temperature_note": f"within {NEAR_ONE} of 1: LabelProbs are nearly Probs"}
    return {"temperature": found}
