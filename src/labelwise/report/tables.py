"""The final table: one row for each strategy, as plain data, as text cells, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ArgumentError
from labelwise.io.text import markdown_table
from labelwise.rng import Key
from labelwise.stats import memory as memory
from labelwise.stats.curves import SPREADS, Array, Curves, Spread, area, at, half_width, learning_curves
from labelwise.stats.memory import Held, held
from labelwise.stats.metric import Metric
from labelwise.stats.record import Record
from labelwise.stats.savings import MIN_SEEDS, Level, Saved, interval, labels_saved, percent
from labelwise.stats.verdict import ORACLE, Verdict, sentence, verdicts


@dataclass(frozen=True)
class Stat:
    """A mean over seeds and the spread beside it; NaN where there is nothing to say."""

    mean: float
    spread: float


@dataclass(frozen=True)
class Row:
    """What one strategy cost and gained."""

    strategy: str
    seeds: int
    at: tuple[Stat, ...]  # the metric at each of `Table.counts`
    area: Stat  # by trapezoid
    area_mean: float  # by plain mean over the label counts
    select_seconds: float  # mean over the rounds that chose rows; NaN if none did
    held: Held  # the memory of those selections
    saved: Saved | None  # None for the strategy compared with, or when there is none or no seed is shared
    found: Verdict | None  # likewise, and None for the oracle
    verdict: str  # the same in words


@dataclass(frozen=True)
class Table:
    """The rows, with what is needed to read them."""

    metric: Metric
    counts: tuple[int, ...]
    spread: Spread
    against: str
    level: Level  # at which labels saved are counted
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
    """The table of these records; four label counts are chosen evenly unless `counts` names them."""
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
                held=_held(name, records),
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


def header(table: Table, whole: bool = True) -> list[str]:
    """The titles of the columns of `cells`."""
    unit = table.metric.unit
    return [
        "strategy",
        *(f"{table.metric.name}{unit} at {count}" for count in table.counts),
        f"area{unit}",
        *(["area, plain mean"] if whole else []),
        "seconds per selection",
        *(["MB per selection"] if whole and _knows_memory(table) else []),
        "labels saved",
        "speed-up",
        "verdict",
    ]


def cells(table: Table, whole: bool = True) -> list[list[str]]:
    """The rows as texts for people; those that are not `whole` leave out the plain mean and the memory."""
    return [
        [
            row.strategy,
            *(plus_minus(table.metric, stat) for stat in row.at),
            plus_minus(table.metric, row.area),
            *([table.metric.text(row.area_mean)] if whole else []),
            seconds(row.select_seconds),
            *([row.held.text] if whole and _knows_memory(table) else []),
            saved_text(row.saved),
            speed_text(row.saved),
            row.verdict,
        ]
        for row in table.rows
    ]


def footnote(table: Table, whole: bool = True) -> str:
    """What ± and the columns mean, and how the verdict comes about."""
    way = "higher" if table.metric.higher else "lower"
    compared = max((row.found.compared for row in table.rows if row.found is not None), default=0)
    tested = "" if compared < 2 else f", after Holm's correction for the {compared} strategies compared"
    plain = ", its plain mean that of the levels at all label counts" if whole else ""
    return (
        f"± is the {SPREADS[table.spread]}. Area is the area under the curve divided by the label range{plain}; {way} "
        f"is better. The verdict is by the paired test on the area, by seed, at 5 %{tested}. Labels saved and speed-up "
        f"({table.against}'s labels for one of the strategy's) are the size of the effect at "
        f"{_level(table)}{_intervals(table)} and do not decide it.{memory_note(table) if whole else ''}"
    )


def memory_note(table: Table) -> str:
    """What the column of memory means, where there is one; with a space before it."""
    if not _knows_memory(table):
        return ""
    return f" {memory.NOTE}{memory.BOUND if any(row.held.bound for row in table.rows) else ''}"


def _knows_memory(table: Table) -> bool:
    return any(math.isfinite(row.held.most) for row in table.rows)


def _intervals(table: Table) -> str:
    """Of labels saved and speed-up: promised where some row has one."""
    seeds = [row.saved.seeds for row in table.rows if row.saved is not None]
    if any(count >= MIN_SEEDS for count in seeds):
        return ", with 95 % bootstrap intervals over seeds,"
    return f", without intervals, for which {MIN_SEEDS} seeds or more are needed," if seeds else ""


def _level(table: Table) -> str:
    if table.level == "common":
        return "the best level both reach"
    if table.level == "final":
        return "the best level of the strategy"
    return f"{table.metric.title} {table.metric.text(table.level)}{table.metric.unit}"


def markdown(table: Table, whole: bool = False) -> str:
    """The table in Markdown, with its footnote."""
    shown = markdown_table(header(table, whole), cells(table, whole), texts=1)
    return f"{shown}\n\n{footnote(table, whole)}\n"


def csv_text(table: Table) -> str:
    """The table in CSV: bare numbers, shares as fractions, an empty cell where there is nothing to say."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    name, spread = table.metric.name, table.spread
    writer.writerow(
        [
            *("strategy", "seeds"),
            *(f"{name}_at_{count}{part}" for count in table.counts for part in ("", f"_{spread}")),
            *("area", f"area_{spread}", "area_mean", "select_seconds_per_round"),
            *("select_mb_median", "select_mb_most", "select_mb_bound"),
            *("saved", "saved_bound", "saved_low", "saved_high", "saved_level", "labels"),
            *(f"labels_{table.against}", "speed_up", "speed_up_low", "speed_up_high", "p", "p_holm", "verdict"),
        ]
    )
    for row in table.rows:
        stats = [number for stat in (*row.at, row.area) for number in (stat.mean, stat.spread)]
        numbers = [*map(_bare, (*stats, row.area_mean, row.select_seconds, *row.held.numbers)), row.held.kind]
        tests = [_bare(row.found.test.p), _bare(row.found.p)] if row.found else ["", ""]
        writer.writerow([row.strategy, row.seeds, *numbers, *_saved_cells(row.saved), *tests, row.verdict])
    return out.getvalue()


def seconds(value: float) -> str:
    """Seconds with as many digits as they are worth.

    >>> seconds(0.00042), seconds(0.25), seconds(75.0)
    ('0.0004', '0.25', '75')
    """
    if not math.isfinite(value):
        return "–"
    return f"{value:.4f}" if value < 0.01 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def saved_text(saved: Saved | None) -> str:
    """The share saved and its interval: "31 % (12 % to 44 %)", "≥ 20 % (5 % or more)"."""
    if saved is None or saved.bound == "unknown":
        return "–"
    sign = {"exact": "", "at least": "≥ ", "at most": "≤ ", "unknown": ""}[saved.bound]
    share = f"{sign}{percent(saved.share)}"
    return share if saved.seeds < MIN_SEEDS else f"{share} ({interval(saved)})"


def speed_text(saved: Saved | None) -> str:
    """Random's labels for one of the strategy's, and the interval: "1.45 (1.14 to 1.79)", "≥ 1.25 (1.05 or more)"."""
    if saved is None or saved.bound == "unknown":
        return "–"
    sign = {"exact": "", "at least": "≥ ", "at most": "≤ ", "unknown": ""}[saved.bound]
    factor, low, high = saved.speed_up
    if saved.seeds < MIN_SEEDS:
        return f"{sign}{factor:.2f}"
    return f"{sign}{factor:.2f} ({low:.2f} {'or more' if math.isinf(high) else f'to {high:.2f}'})"


def plus_minus(metric: Metric, stat: Stat) -> str:
    """A mean with its spread, where there is one."""
    if not math.isfinite(stat.mean) or not math.isfinite(stat.spread):
        return metric.text(stat.mean)
    return f"{metric.text(stat.mean)} ± {metric.text(stat.spread)}"


def _stat(values_S: Array, spread: Spread) -> Stat:
    return Stat(float(values_S.mean()), float(half_width(values_S, spread)))


def _select_seconds(records: Sequence[Record]) -> dict[str, float]:
    spent: dict[str, list[float]] = {record.strategy: [] for record in records}
    for record in records:
        if record.picked:
            spent[record.strategy].append(record.select_seconds)
    return {name: float(np.mean(each)) if each else math.nan for name, each in spent.items()}


def _held(name: str, records: Sequence[Record]) -> Held:
    """The oracle has none: it trains while it chooses."""
    return memory.NOTHING if name == ORACLE else held([record for record in records if record.strategy == name])


def _saved(lines: Curves, random: Curves | None, level: Level, key: Key | None) -> Saved | None:
    if random is None or random is lines or not set(random.seeds) & set(lines.seeds):
        return None
    return labels_saved(lines, random, level=level, key=key)


def _verdict(name: str, against: str, saved: Saved | None, found: Verdict | None, present: bool) -> str:
    if name == against:
        return "what the others are compared with"
    if name == ORACLE:
        return "no contender: it looks at the test rows"
    if saved is not None and found is not None:
        return sentence(found, saved)
    return f"shares no seed with {against}" if present else f"no run of {against} to compare with"


def _bare(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _saved_cells(saved: Saved | None) -> list[str]:
    if saved is None:
        return [""] * 10
    numbers = (saved.low, saved.high, saved.level, saved.labels, saved.labels_random, *saved.speed_up)
    return [_bare(saved.share), saved.bound, *map(_bare, numbers)]
