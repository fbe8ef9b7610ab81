"""The final table written down: one row for each strategy as text cells, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math

from labelwise.io.text import markdown_table, percent
from labelwise.stats.curves import SPREADS
from labelwise.stats.metric import Metric
from labelwise.stats.paired import name_of_test
from labelwise.stats.savings import MIN_SEEDS, Saved, interval
from labelwise.stats.summary import MEMORY_BOUND, MEMORY_NOTE, Stat, Table


def header(table: Table, whole: bool = True) -> list[str]:
    """The titles of the columns of `cells`.

    Args:
        table: of `stats.summary.summarise`.
        whole: as for `cells`.
    """
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
    """The rows as texts; `whole` adds the plain mean and the memory.

    Args:
        table: of `stats.summary.summarise`.
        whole: whether the plain mean and the memory are columns too.

    Returns:
        A list for each row, in the order of `header`.
    """
    return [
        [
            row.strategy,
            *(plus_minus(table.metric, stat) for stat in row.at),
            plus_minus(table.metric, row.area),
            *([table.metric.text(row.area_mean)] if whole else []),
            seconds(row.select_seconds),
            *([row.memory.text] if whole and _knows_memory(table) else []),
            saved_text(row.saved),
            speed_text(row.saved),
            row.verdict,
        ]
        for row in table.rows
    ]


def footnote(table: Table, whole: bool = True) -> str:
    """What ± and the columns mean, and how the verdict is decided."""
    way = "higher" if table.metric.higher else "lower"
    compared = max((row.found.compared for row in table.rows if row.found is not None), default=0)
    tested = "" if compared < 2 else f", after Holm's correction for the {compared} strategies compared"
    by = name_of_test(row.found.test.seeds for row in table.rows if row.found is not None)
    plain = ", its plain mean the mean over all label counts" if whole else ""
    return (
        f"± is the {SPREADS[table.spread]}. Area is the area under the curve divided by the label range{plain}; {way} "
        f"is better. The verdict is by the {by} on the area, by seed, at 5 %{tested}. Labels saved and speed-up "
        f"({table.against}'s labels divided by the strategy's) give the size of the effect at "
        f"{_level(table)}{_intervals(table)} and do not decide the verdict.{memory_note(table) if whole else ''}"
    )


def memory_note(table: Table) -> str:
    """What the column of memory means, with a space before it; empty if there is none."""
    if not _knows_memory(table):
        return ""
    return f" {MEMORY_NOTE}{MEMORY_BOUND if any(row.memory.bound for row in table.rows) else ''}"


def _knows_memory(table: Table) -> bool:
    return any(math.isfinite(row.memory.most) for row in table.rows)


def _intervals(table: Table) -> str:
    """Whether labels saved and speed-up have intervals."""
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
    """The table in Markdown, with its footnote.

    Args:
        table: of `stats.summary.summarise`.
        whole: as for `cells`.
    """
    table_text = markdown_table(header(table, whole), cells(table, whole), texts=1)
    return f"{table_text}\n\n{footnote(table, whole)}\n"


def csv_text(table: Table) -> str:
    """The table as CSV: bare numbers, shares as fractions, empty cells for missing values.

    Args:
        table: of `stats.summary.summarise`.
    """
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
        numbers = [*map(_bare, (*stats, row.area_mean, row.select_seconds, *row.memory.numbers)), row.memory.kind]
        tests = [_bare(row.found.test.p), _bare(row.found.p)] if row.found else ["", ""]
        writer.writerow([row.strategy, row.seeds, *numbers, *_saved_cells(row.saved), *tests, row.verdict])
    return out.getvalue()


def seconds(value: float) -> str:
    """Seconds with two or so significant digits.

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
    """Random's labels divided by the strategy's, with interval: "1.45 (1.14 to 1.79)", "≥ 1.25 (1.05 or more)"."""
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


def _bare(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _saved_cells(saved: Saved | None) -> list[str]:
    if saved is None:
        return [""] * 10
    numbers = (saved.low, saved.high, saved.level, saved.labels, saved.labels_random, *saved.speed_up)
    return [_bare(saved.share), saved.bound, *map(_bare, numbers)]
