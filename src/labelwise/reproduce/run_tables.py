"""Run a table of a paper: a benchmark suite for each sheet, in a folder where a stopped run continues."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labelwise.bench.suite.runner import read_run, run_suite
from labelwise.bench.suite.suite import Suite, slug
from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.reproduce.dynamical import tables as dynamical_tables
from labelwise.reproduce.plots import curve_panels, lines
from labelwise.reproduce.records import (
    SheetRuns,
    earlier_runs,
    fewer_seeds,
    merge_records,
    same_picks,
    select_records,
    sheet_numbers,
    sizes,
    spent,
    unequal_starts,
)
from labelwise.reproduce.registry import Reproduction, Result, Setting, device_of, trains_together
from labelwise.reproduce.sabal import tables as sabal_tables
from labelwise.reproduce.tables import PaperTable, Sheet, suite_of
from labelwise.reproduce.times import chosen, seconds_of
from labelwise.reproduce.verdicts import (
    Claim,
    Rows,
    Stat,
    above,
    below_all,
    best,
    claims_text,
    every_round,
    falling,
    near,
    not_below,
    stat_of,
)
from labelwise.stats.curves import Curves, area, learning_curves
from labelwise.stats.record import Record


def paper_rows(name: str) -> Rows:
    """The paper's own numbers; none where the paper has a picture."""
    table = _papers().get(name, {"rows": {}})
    return {
        row: {column: Stat(value[0], value[1] if len(value) > 1 else None) for column, value in found.items()}
        for row, found in table["rows"].items()
    }


def compared(paper: Rows, table: PaperTable, ours: Rows) -> Rows:
    """The paper's numbers by our columns."""
    named = {
        row: {here: found[theirs] for here, theirs in table.same if here in ours.get(row, {}) and theirs in found}
        for row, found in paper.items()
    }
    return {row: {**found, **named[row]} for row, found in paper.items()}


def run_table(table: PaperTable, setting: Setting) -> Result:
    """Run the rest of a table and compare it with the paper's."""
    if setting.data is not None:
        raise ArgumentError(f"{table.name} has its own data sets; expected no --data, or --only with a row")
    runs, missing = _rows(table, setting)
    if not runs:
        where = f"no run is complete in {setting.work}"
        raise StoreError(f"{table.name}: {where}; start it without --page, or see the failures.txt there")
    curves = {one.sheet.name: _curves(one, setting) for one in runs}
    ours = numbers_of(table, runs, curves)
    paper = compared(paper_rows(table.name), table, ours)
    unfinished = [line for one in runs for line in one.unfinished]
    size = "" if setting.scale == "paper" else _NOT_COMPARED
    claims = claims_text(claims_of(table, ours), ours, paper, same_picks(runs, table.by))
    verdict = _replaced_data(table, runs) + claims
    band = near(ours, paper) if setting.scale == "paper" else ""
    numbers: dict[str, Any] = {
        "by": table.by,
        "ours": {row: {name: stat.numbers for name, stat in found.items()} for row, found in ours.items()},
        "papers": {row: {name: stat.numbers for name, stat in found.items()} for row, found in paper.items()},
        "seconds": {kind: round(sum(getattr(r, kind) for one in runs for r in one.records)) for kind in _SECONDS},
        "sheets": [sheet_numbers(one) for one in runs],
        "missing": [*missing, *unfinished],
        "environment": runs[0].records[0].environment | {"seed": str(setting.seed)},
    }
    if table.by == "area":
        numbers["plain_mean"] = {name: _plain(found) for name, found in curves.items()}
    parts = (size, markdown_of(ours, paper), band, sizes(runs), spent(numbers["seconds"]))
    text = "\n\n".join(part for part in parts if part)
    records = tuple(record for one in runs for record in one.complete)
    differences = _differences(table, runs, [*missing, *unfinished], setting)
    return Result(numbers, _picture(table, runs, ours, curves), verdict, text, records, differences)


def _differences(table: PaperTable, runs: list[SheetRuns], missing: list[str], setting: Setting) -> tuple[str, ...]:
    """How the runs differ from the paper; unchanged if nothing ran since the page was written."""
    lines = [line for one in runs for line in one.sheet.changes] + list(table.differences)
    lines += [f"Here as the paper: {line}" for line in table.compat if setting.paper_compat]
    if not any(one.is_new for one in runs):
        lines = [
            line
            for line in setting.saved_numbers["differences"]
            if line not in setting.saved_numbers.get("missing", ())
        ]
    few = fewer_seeds(runs, {sheet.name: sheet.seeds for sheet in table.sheets}) if setting.scale == "paper" else []
    return tuple(dict.fromkeys([*unequal_starts(runs), *few, *missing, *lines]))


def _rows(table: PaperTable, setting: Setting) -> tuple[list[SheetRuns], list[str]]:
    """The rows of the table: those wanted now, run as far as possible, and those of earlier runs."""
    earlier = earlier_runs(table, setting.saved_numbers, setting.saved_records, setting.seed)
    try:
        sheets, missing = chosen(table, setting)
    except SourceError:
        if not (setting.page and earlier):
            raise
        sheets, missing = [], []  # a page is made without data too
    now = {sheet.name: _run_sheet(table, sheet, setting, earlier.get(sheet.name)) for sheet in sheets}
    found = earlier | {name: one for name, one in now.items() if one.records}
    if setting.page and not any(one.is_new for one in now.values()):  # as it was when that was run
        missing = [line for line in setting.saved_numbers.get("missing", ()) if line.startswith("Not run:")]
    missing = [line for line in missing if not line.startswith(tuple(f"Not run: {name}:" for name in found))]
    return [found[sheet.name] for sheet in table.sheets if sheet.name in found], missing


def _replaced_data(table: PaperTable, runs: list[SheetRuns]) -> str:
    """A sentence on the data sets that the digits replace."""
    intended = {sheet.name: sheet.data for sheet in table.sheets}
    absent = dict.fromkeys(intended[one.sheet.name] for one in runs if one.sheet.data == "digits")
    absent.pop("digits", None)
    return f"Digits stand in for {', '.join(absent)}: lines on such data are on the digits.\n\n" if absent else ""


def _run_sheet(table: PaperTable, sheet: Sheet, setting: Setting, earlier: SheetRuns | None) -> SheetRuns:
    """The records of a sheet after running the rest of it, with those of earlier runs."""
    assert setting.work is not None, "reproduce() names a folder"
    run = setting.work / slug(sheet.name)
    if not setting.page:
        _run(table, sheet, setting, run)
    found = read_run(run) if (run / "records").is_dir() else []
    if setting.page and setting.seeds is None:  # the number of the run
        if not found and earlier is not None:
            return earlier
        sheet = replace(sheet, seeds=_seeds(run, sheet.seeds))
    jobs = _suite(table, sheet, setting).jobs()[0]
    command = (_command(run) if found else "") or (earlier.command if earlier is not None else "")
    return replace(
        select_records(sheet, merge_records(found, earlier, sheet), jobs, table.by, command), is_new=bool(found)
    )


def _run(table: PaperTable, sheet: Sheet, setting: Setting, run: Path) -> None:
    """Run the rest of a sheet; the configuration notes the command that started it."""
    suite = _suite(table, sheet, setting)
    jobs = suite.jobs()[0]
    last = 0
    text = f"# {table.name} {sheet.name}\n{_BY}{setting.command}\n"
    for progress in run_suite(suite, text, run, _processes(setting), together=trains_together(setting)):
        done = sum(progress.finished(job) for job in jobs)
        if done != last:
            last = done
            setting.on_progress(f"{sheet.name}: {done} of {len(jobs)} runs, {progress.done} of {progress.total} rounds")
    if progress.failed:
        name, why = next(iter(progress.failed.items()))
        setting.on_progress(f"{len(progress.failed)} runs failed; {name}: {why.strip().splitlines()[-1]}")


def _suite(table: PaperTable, sheet: Sheet, setting: Setting) -> Suite:
    return suite_of(sheet, table.name, setting.seed, device_of(setting), max(1, setting.processes))


def _command(run: Path) -> str:
    """The command that started a run, if it was noted."""
    path = run / "config.yaml"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.removeprefix(_BY) for line in lines if line.startswith(_BY)), "")


def _seeds(run: Path, usual: int) -> int:
    """The number of seeds of a run."""
    path = run / "suite.json"
    return len(json.loads(path.read_text(encoding="utf-8"))["seeds"]) if path.is_file() else usual


def numbers_of(table: PaperTable, runs: list[SheetRuns], curves: Mapping[str, Mapping[str, Curves]]) -> Rows:
    """Our numbers in the form of the paper's table."""
    rows: dict[str, dict[str, Stat]] = {}
    for one in runs:
        for name in [spec.label for spec in one.sheet.strategies if spec.label in curves[one.sheet.name]]:
            lines = curves[one.sheet.name][name]
            values_ST = 100 * lines.values_ST
            if table.by == "area":
                rows.setdefault(one.sheet.row, {})[name] = stat_of(100 * area(lines), lines.seeds)
            elif table.by == "last":
                rows.setdefault(one.sheet.row, {})[one.sheet.column] = stat_of(values_ST[:, -1], lines.seeds)
            else:
                for t in range(values_ST.shape[1]):
                    rows.setdefault(str(t), {})[name] = stat_of(values_ST[:, t], lines.seeds)
    return rows


def claims_of(table: PaperTable, rows: Rows) -> list[Claim]:
    """The claims to test on a table: orders and bands.

    What the paper claims is asked of its methods as they are meant; a variant of one, such as a rule with a printing
    error, is compared with that method alone.
    """
    variants = dict(table.same)
    own = tuple(one for one in table.own if one not in variants and any(one in found for found in rows.values()))
    if table.by == "round":
        last = list(rows)[-1]
        claims = [every_round(one, min(3, int(last)), table.random) for one in own]
        return [*claims, *(every_round(one, 1, None) for one in own), best(last, own, "round ")]
    if table.by == "last":
        order = [row for row in dict.fromkeys(sheet.row for sheet in table.sheets) if row in rows]
        columns = dict.fromkeys(column for row in order for column in rows[row])
        return [falling(column, order) for column in columns] if len(order) > 1 else []
    claims = []
    for row, found in rows.items():
        if "Variance only" in found:
            claims += [above(row, one, other) for one in own for other in ("Variance only", f"{one}, bias only")]
        elif "BADGE" in found:
            claims += [below_all(row, table.random, variants), not_below(row, own, "BADGE")]
        else:
            claims += [*(above(row, one, table.random) for one in own), best(row, own)]
        both = [(one, variant) for variant, one in variants.items() if variant in found and one in found]
        claims += [replace(above(row, *pair), from_paper=False) for pair in both]
    return claims


def markdown_of(ours: Rows, paper: Rows) -> str:
    """Our numbers, the paper's below each in italics."""
    columns = list(dict.fromkeys(name for found in ours.values() for name in found))
    out = ["|  | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row, found in ours.items():
        out.append(f"| {row} | " + " | ".join(str(found.get(name, "")) for name in columns) + " |")
        if row in paper:
            theirs = [f"*{paper[row][name]}*" if name in paper[row] else "" for name in columns]
            out.append("| *paper* | " + " | ".join(theirs) + " |")
    return "\n".join(out) + "\n\nMean ± standard deviation over seeds, in per cent."


def _curves(one: SheetRuns, setting: Setting) -> dict[str, Curves]:
    """The curves of a sheet in the order of its strategies."""
    found = learning_curves(_scored(one.records, setting))
    return {spec.label: found[spec.label] for spec in one.sheet.strategies if spec.label in found}


def _scored(records: list[Record], setting: Setting) -> list[Record]:
    """The records with the number that is reported: with paper_compat the best of the round."""
    if not setting.paper_compat or "looked" not in records[0].notes.get("training", {}):
        return records
    return [replace(one, metrics={**one.metrics, "accuracy": one.notes["training"]["looked"]}) for one in records]


def _picture(table: PaperTable, runs: list[SheetRuns], ours: Rows, curves: Mapping[str, Mapping[str, Curves]]) -> bytes:
    titles = _titles(table, runs)
    if table.by != "last":
        panels = {titles[name]: {_legend_name(one): found[one] for one in found} for name, found in curves.items()}
        return curve_panels(panels)
    columns = dict.fromkeys(column for found in ours.values() for column in found)
    by_name = {}
    for column in columns:
        rows = [row for row in ours if column in ours[row]]
        by_name[titles[column]] = (
            [int(row[2:].split(",")[0]) for row in rows],
            [ours[row][column].mean for row in rows],
        )
    return lines((table.what, "rounds", "accuracy %"), by_name)


def _titles(table: PaperTable, runs: list[SheetRuns]) -> dict[str, str]:
    """Titles of sheets and columns in a picture, which name the digits if they replace other data."""
    intended = {sheet.name: sheet.data for sheet in table.sheets}
    found: dict[str, str] = {}
    for one in runs:
        first = "digits for " if one.sheet.data == "digits" != intended[one.sheet.name] else ""
        found |= {name: first + name for name in (one.sheet.name, one.sheet.column)}
    return found


def _legend_name(name: str) -> str:
    return "random" if name == "Random" else name  # drawn as the baseline


def _plain(found: Mapping[str, Curves]) -> dict[str, float]:
    """The area as a plain mean over the rounds, which the paper may have taken."""
    return {name: float(100 * area(one, "mean").mean()) for name, one in found.items()}


def _processes(setting: Setting) -> int:
    return setting.processes if setting.processes > 1 else 0


@functools.cache
def _papers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("paper_numbers.json").read_text(encoding="utf-8"))
    return found


_BY = "# by: "
_NOT_COMPARED = "This is not the paper's size: compare orders, not numbers."
_SECONDS = ("train_seconds", "read_seconds", "select_seconds")
TABLES = (*sabal_tables.TABLES, *dynamical_tables.TABLES)

REPRODUCTIONS = tuple(
    Reproduction(
        table.name,
        table.paper,
        table.what,
        functools.partial(run_table, table),
        table.data,
        functools.partial(seconds_of, table),
        tables=True,
    )
    for table in TABLES
)
