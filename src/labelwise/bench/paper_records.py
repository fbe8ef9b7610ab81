"""Which records of a paper's table are shown: those of complete runs, or of rounds that all methods have reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.bench.paper_tables import Sheet
from labelwise.bench.suite import Cell
from labelwise.report import Record


@dataclass(frozen=True)
class Ran:
    """A sheet with the records that are shown of it, how many runs are complete and how many there should be."""

    sheet: Sheet
    records: list[Record]
    done: int
    cells: int

    @property
    def unfinished(self) -> list[str]:
        """What is not there yet, in words."""
        if self.done == self.cells:
            return []
        last = max(record.round for record in self.records)
        said = f"{self.sheet.name}: {self.done} of {self.cells} runs are complete"
        if last == self.sheet.rounds:
            return [f"{said}."]
        seeds = sorted({record.seed for record in self.records})
        named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        return [f"{said}, and of no seed those of all methods: shown are the rounds up to {last} of {named}."]


def ran_of(sheet: Sheet, found: Sequence[Record], cells: Sequence[Cell], by: str) -> Ran:
    """What is shown of the records of a sheet.

    A table of accuracies by round of which no seed is complete shows the rounds that all methods of a seed have
    reached: they are compared on the same number of labels all the same.
    """
    wanted = {cell.name for cell in cells}
    own = [record for record in found if record.run in wanted]
    full = {record.run for record in own if record.round == sheet.rounds}
    shown = [record for record in own if record.run in full]
    if by == "round":
        reached = _reached(own, len(sheet.strategies))
        last = max(reached.values(), default=sheet.rounds)
        if last < sheet.rounds:
            shown = [record for record in own if reached.get(record.seed, -1) == last and record.round <= last]
    return Ran(sheet, shown, len(full), len(cells))


def _reached(records: Sequence[Record], methods: int) -> dict[int, int]:
    """The last round that all methods of a seed have; without seeds that not all methods have begun."""
    last: dict[int, dict[str, int]] = {}
    for record in records:
        of_seed = last.setdefault(record.seed, {})
        of_seed[record.strategy] = max(record.round, of_seed.get(record.strategy, 0))
    return {seed: min(rounds.values()) for seed, rounds in last.items() if len(rounds) == methods}
