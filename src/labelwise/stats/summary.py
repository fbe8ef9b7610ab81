"""Summary: one row for each strategy of an experiment, as plain data. `report.tables` writes it down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.stats.curves import Array, Curves, Spread, area, at, half_width, learning_curves
from labelwise.stats.metric import Metric
from labelwise.stats.record import Record
from labelwise.stats.savings import Level, Saved, labels_saved
from labelwise.stats.verdict import ORACLE, Verdict, sentence, verdicts

FRESH = "fresh"  # key of the memory notes: free memory was given back before the selection was measured
MEMORY_NOTE = (
    "Memory is the peak of a selection above its start, in MB: the median over rounds and seeds, and the maximum."
)
MEMORY_BOUND = (
    " ≥ marks records of earlier versions, which do not count memory that training had freed and the selection reused: "
    "they are lower bounds."
)


@dataclass(frozen=True)
class SelectionMemory:
    """Peak memory of the selections of one strategy in MB; `bound` if the numbers are lower bounds."""

    median: float
    most: float
    bound: bool

    @property
    def text(self) -> str:
        """Median and most.

        >>> one, two, none = (3.25, 12.0, False), (0.0, 140.4, True), (math.nan, math.nan, False)
        >>> SelectionMemory(*one).text, SelectionMemory(*two).text, SelectionMemory(*none).text
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


NO_MEMORY = SelectionMemory(math.nan, math.nan, False)


def selection_memory(records: Sequence[Record]) -> SelectionMemory:
    """The memory of the selections of these records; NO_MEMORY if none has it."""
    notes = [record.notes.get("memory") or {} for record in records if record.picked]
    found = [note for note in notes if "above_mb" in note]
    if not found:
        return NO_MEMORY
    above = [float(note["above_mb"]) for note in found]
    return SelectionMemory(statistics.median(above), max(above), not all(note.get(FRESH) for note in found))


@dataclass(frozen=True)
class Stat:
    """A mean over seeds and its spread.

    Attributes:
        mean: over the seeds.
        spread: half the width of the band around the mean; NaN for one seed.
    """

    mean: float
    spread: float


@dataclass(frozen=True)
class Row:
    """What one strategy cost and gained.

    Attributes:
        strategy: its name.
        seeds: how many there are.
        at: the metric at each of `Table.counts`.
        area: under the curve, by the trapezoid rule.
        area_mean: under the curve, as the plain mean over the label counts.
        select_seconds: mean over the rounds that chose rows; NaN if none did.
        memory: of those selections.
        saved: labels saved against the baseline. None for the baseline itself, without a baseline, and where the two
            share no seed.
        found: the verdict. None in the same cases, and for the oracle.
        verdict: the verdict in words.
    """

    strategy: str
    seeds: int
    at: tuple[Stat, ...]
    area: Stat
    area_mean: float
    select_seconds: float
    memory: SelectionMemory
    saved: Saved | None
    found: Verdict | None
    verdict: str


@dataclass(frozen=True)
class Table:
    """A row for each strategy, with what is needed to read them.

    Attributes:
        metric: what was measured.
        counts: the label counts of the columns `Row.at`.
        spread: what `Stat.spread` is.
        against: the name of the baseline.
        level: the level of the metric at which labels saved are counted.
        rows: one for each strategy.
    """

    metric: Metric
    counts: tuple[int, ...]
    spread: Spread
    against: str
    level: Level
    rows: tuple[Row, ...]


def summarise(
    records: Sequence[Record],
    metric: str = "accuracy",
    *,
    higher: bool | None = None,
    counts: Sequence[int] | None = None,
    against: str = "random",
    level: Level = "common",
    spread: Spread = "t95",
    key: Key | None = None,
) -> Table:
    """The table of these records; four label counts are chosen evenly unless `counts` names them.

    Args:
        records: of one data set and model.
        metric: its name.
        higher: whether more of it is better; needed for metrics that are not known here.
        counts: the label counts of the columns.
        against: the strategy that is compared with.
        level: at which level labels saved are counted.
        spread: of the means.
        key: the source of chance of intervals.

    Returns:
        A row for each strategy.

    Raises:
        ArgumentError: there are no records, or they are of several experiments.
    """
    if not records:
        raise ArgumentError("A table needs records; found none. Run a comparison first.")
    by_strategy = learning_curves(records, metric, higher)
    chosen = tuple(counts) if counts is not None else default_counts(by_strategy)
    seconds, found = _select_seconds(records), verdicts(by_strategy, against)
    rows = []
    for name, lines in by_strategy.items():
        saved = _saved(lines, by_strategy.get(against), level, key)
        areas_S = area(lines)
        rows.append(
            Row(
                strategy=name,
                seeds=len(lines.seeds),
                at=tuple(_stat(column_S, spread) for column_S in at(lines, chosen).T),
                area=_stat(areas_S, spread),
                area_mean=float(area(lines, "mean").mean()),
                select_seconds=seconds[name],
                memory=_memory_of(name, records),
                saved=saved,
                found=found.get(name),
                verdict=_verdict(name, against, saved, found.get(name), against in by_strategy),
            )
        )
    return Table(next(iter(by_strategy.values())).metric, chosen, spread, against, level, tuple(rows))


def default_counts(by_strategy: dict[str, Curves], number: int = 4) -> tuple[int, ...]:
    """Evenly spaced counts up to the last that every strategy has, without the start set all share."""
    shared = sorted(set.intersection(*(set(lines.labels_T.tolist()) for lines in by_strategy.values())))
    if not shared:
        return ()
    last = len(shared) - 1
    places = [math.ceil(last * step / number) for step in range(1, number + 1)]
    return tuple(int(shared[place]) for place in dict.fromkeys(places))


def no_learning_warning(records: Sequence[Record]) -> str:
    """A sentence if no strategy has a mean R² above 0 at its last label count; empty otherwise."""
    if not records or any("r2" not in record.metrics for record in records):
        return ""
    ends = {name: float(lines.values_ST[:, -1].mean()) for name, lines in learning_curves(records, "r2").items()}
    best = max(ends, key=lambda name: ends[name])
    if ends[best] > 0:
        return ""
    return (
        "No model here predicts better than the mean of the target, even at the last label count (best R² there: "
        f"{ends[best]:.2f}, {best}), so labels saved mean little."
    )


def _stat(values_S: Array, spread: Spread) -> Stat:
    return Stat(float(values_S.mean()), float(half_width(values_S, spread)))


def _select_seconds(records: Sequence[Record]) -> dict[str, float]:
    spent: dict[str, list[float]] = {record.strategy: [] for record in records}
    for record in records:
        if record.picked:
            spent[record.strategy].append(record.select_seconds)
    return {name: float(np.mean(each)) if each else math.nan for name, each in spent.items()}


def _memory_of(name: str, records: Sequence[Record]) -> SelectionMemory:
    """The memory of a strategy's selections; none for the oracle, which trains while it selects."""
    return NO_MEMORY if name == ORACLE else selection_memory([record for record in records if record.strategy == name])


def _saved(lines: Curves, random: Curves | None, level: Level, key: Key | None) -> Saved | None:
    if random is None or random is lines or not set(random.seeds) & set(lines.seeds):
        return None
    return labels_saved(lines, random, level=level, key=key)


def _verdict(name: str, against: str, saved: Saved | None, found: Verdict | None, present: bool) -> str:
    if name == against:
        return "the baseline of the comparison"
    if name == ORACLE:
        return "not a contender: it uses the test rows"
    if saved is not None and found is not None:
        return sentence(found, saved)
    return f"shares no seed with {against}" if present else f"no run of {against} to compare with"
