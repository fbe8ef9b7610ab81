"""Held: the memory that selections took, as records have it, for the tables.

Records of earlier versions have a number too, but what a selection took out of memory that training had let go of is
not in it: those are lower bounds, and shown as such.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.stats.record import Record

FRESH = "fresh"  # in the notes on memory: free memory was given back before, so that nothing is hidden in it
NOTE = (
    "Memory is what a selection held above the beginning of its round's selection, in MB: the median over rounds and "
    "seeds, and the most."
)
BOUND = (
    " With ≥ it is of records made before free memory was given back first; what the selection took out of memory that "
    "training had let go of is missing there."
)


@dataclass(frozen=True)
class Held:
    """Memory of the selections of one strategy in MB; `bound` where the numbers are lower bounds."""

    median: float
    most: float
    bound: bool

    @property
    def text(self) -> str:
        """Median and most.

        >>> Held(3.25, 12.0, False).text, Held(0.0, 140.4, True).text, Held(math.nan, math.nan, False).text
        ('3.2, 12', '≥ 0.0, ≥ 140', '–')
        """
        if not math.isfinite(self.median):
            return "–"
        sign = "≥ " if self.bound else ""
        return ", ".join(f"{sign}{value:.1f}" if value < 10 else f"{sign}{value:.0f}" for value in self.numbers)

    @property
    def numbers(self) -> tuple[float, float]:
        """Median and most."""
        return self.median, self.most

    @property
    def kind(self) -> str:
        """For a table of bare numbers: "exact", "at least", or nothing."""
        return "" if not math.isfinite(self.median) else "at least" if self.bound else "exact"


NOTHING = Held(math.nan, math.nan, False)


def held(records: Sequence[Record]) -> Held:
    """What the selections of these records held; NOTHING where no record says it."""
    notes = [record.notes.get("memory") or {} for record in records if record.picked]
    found = [note for note in notes if "above_mb" in note]
    if not found:
        return NOTHING
    above = [float(note["above_mb"]) for note in found]
    return Held(statistics.median(above), max(above), not all(note.get(FRESH) for note in found))
