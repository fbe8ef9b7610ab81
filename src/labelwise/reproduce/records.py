"""Select the records of a paper's table that its page shows, and describe them in words.

Shown are complete runs, or the rounds that all methods have reached, and rows of earlier runs that are on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from labelwise.bench.data.catalogue import CATALOGUE
from labelwise.bench.models.registry import ModelSpec
from labelwise.bench.suite.suite import Job, StrategySpec
from labelwise.io.text import many
from labelwise.reproduce.tables import PaperTable, Sheet, pool_rows, suite_of, valid_rows
from labelwise.reproduce.verdicts import Same
from labelwise.stats.record import Record

MOST = 0.8  # of the rounds: an area under less of the curve says little of the paper's


@dataclass(frozen=True)
class SheetRuns:
    """The runs of a sheet.

    Attributes:
        sheet: what was run.
        records: the records the page shows.
        complete: the records of all complete runs; more than shown if other runs of a seed are missing.
        finished: how many runs are complete.
        expected: how many there should be.
        command: the command of an earlier run.
        is_new: whether some of it is not on the page yet.
    """

    sheet: Sheet
    records: list[Record]
    complete: list[Record]
    finished: int
    expected: int
    command: str = ""  # what ran it, where that was before
    is_new: bool = True  # whether any of it is not on the page yet

    @property
    def unfinished(self) -> list[str]:
        """Sentences on what is missing."""
        if self.finished == self.expected:
            return []
        last = max(record.round for record in self.records)
        seeds = sorted({record.seed for record in self.records})
        named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        text = f"{self.sheet.name}: {self.finished} of {self.expected} runs are complete"
        if last < self.sheet.rounds:
            labels = self.sheet.start + last * self.sheet.k
            up_to = f"the rounds up to {last} ({labels} labels)"
            return [f"{text}, and of no seed those of all methods: shown are {up_to} of {named}."]
        if len(self.records) < len(self.complete):
            return [f"{text}: shown are those of {named}, which all methods have."]
        return [f"{text}."]


def select_records(sheet: Sheet, found: Sequence[Record], jobs: Sequence[Job], by: str, command: str = "") -> SheetRuns:
    """Select the records of a sheet that its page shows.

    These are the seeds of which all methods are complete, so that all are compared on the same seeds; complete runs if
    there is no such seed. A table of accuracies by round without a complete seed shows the rounds that all methods of a
    seed have reached, a table of areas those that all seeds have reached, if that is most of the curve.
    """
    wanted = {job.name for job in jobs}
    own = [record for record in found if record.run in wanted]
    full = {record.run for record in own if record.round == sheet.rounds}
    complete = [record for record in own if record.run in full]
    reached = _reached(own, len(sheet.strategies))
    last = max(reached.values(), default=-1)
    chosen = [record for record in own if reached.get(record.seed) == last and record.round <= last]
    if last < sheet.rounds and by == "area" and min(reached.values(), default=0) >= MOST * sheet.rounds:
        last = min(reached.values())
        chosen = [record for record in own if record.seed in reached and record.round <= last]
    elif last < sheet.rounds and (by != "round" or last < 0):
        chosen = complete
    complete += [record for record in chosen if record.run not in full]
    return SheetRuns(sheet, chosen, complete, len(full), len(jobs), command)


def merge_records(found: Sequence[Record], earlier: SheetRuns | None, sheet: Sheet) -> list[Record]:
    """The records of a run, with complete earlier runs of the same sheet that are not in it."""
    if earlier is None or replace(earlier.sheet, seeds=sheet.seeds, changes=sheet.changes) != sheet:
        return list(found)
    full = {record.run for record in found if record.round == sheet.rounds}
    more = {record.run for record in earlier.complete if record.round == sheet.rounds} - full
    return [one for one in found if one.run not in more] + [one for one in earlier.complete if one.run in more]


def start_gap(runs: SheetRuns) -> float:
    """The largest accuracy gap, in points, between methods in round 0, where all have the same labels and weights.

    It is above 0 for runs on a device made before kernels were deterministic.
    """
    first: dict[int, list[float]] = {}
    for record in runs.records:
        if record.round == 0:
            first.setdefault(record.seed, []).append(100 * record.metrics["accuracy"])
    return max(max(values) - min(values) for values in first.values())


def unequal_starts(runs: Sequence[SheetRuns]) -> list[str]:
    """A sentence for each sheet whose methods differ in round 0."""
    return [
        f"{one.sheet.name}: methods of a seed have the same first labels and weights, yet up to {points:.2f} points "
        "between them in round 0: these runs were made with kernels that do not repeat to the bit, which adds to the "
        "differences between seeds."
        for one in runs
        if (points := start_gap(one)) > 0
    ]


def same_picks(runs: Sequence[SheetRuns], by: str) -> Same:
    """Methods with the same picks in every batch of every seed, by row; the rows of a table by round are its rounds."""
    found: dict[tuple[str, frozenset[str]], int] = {}
    for one in runs:
        rows = sorted({str(record.round) for record in one.records}) if by == "round" else [one.sheet.row]
        for pair, batches in _alike(one.records).items():
            found |= {(row, pair): batches for row in rows}
    return found


def _alike(records: Sequence[Record]) -> dict[frozenset[str], int]:
    """Pairs of methods with the same picks in every batch of every seed, and the number of batches."""
    picks: dict[str, dict[tuple[int, int], frozenset[int]]] = {}
    for record in records:
        if record.picked:
            picks.setdefault(record.strategy, {})[record.seed, record.round] = frozenset(record.picked)
    return {frozenset(pair): len(picks[pair[0]]) for pair in combinations(picks, 2) if picks[pair[0]] == picks[pair[1]]}


def _reached(records: Sequence[Record], methods: int) -> dict[int, int]:
    """The last round that all methods of a seed have, for seeds that all methods have started."""
    last: dict[int, dict[str, int]] = {}
    for record in records:
        of_seed = last.setdefault(record.seed, {})
        of_seed[record.strategy] = max(record.round, of_seed.get(record.strategy, 0))
    return {seed: min(rounds.values()) for seed, rounds in last.items() if len(rounds) == methods}


def sheet_numbers(runs: SheetRuns) -> dict[str, Any]:
    """A sheet as written to the JSON next to the page."""
    sheet = runs.sheet
    numbers: dict[str, Any] = {
        "name": sheet.name,
        "data": sheet.data,
        "rows": pool_rows(sheet),
        "valid": valid_rows(sheet),
    }
    numbers |= {} if sheet.centred else {"centred": False}
    numbers |= {"limit": sheet.limit, "said": list(sheet.changes)}
    numbers |= {"start": sheet.start, "k": sheet.k, "rounds": sheet.rounds, "seeds": sheet.seeds}
    numbers |= {"model": vars(sheet.model), "strategies": [_spec_numbers(spec) for spec in sheet.strategies]}
    return numbers | ({"command": runs.command} if runs.command else {})


def _spec_numbers(spec: StrategySpec) -> dict[str, Any]:
    """A strategy as written to the JSON; parts of recipes only where there are any, as in pages made before them."""
    return {name: value for name, value in vars(spec).items() if value is not None or name not in ("first", "parts")}


def earlier_runs(
    table: PaperTable, numbers: Mapping[str, Any], records: Sequence[Record], seed: int
) -> dict[str, SheetRuns]:
    """The sheets of earlier runs by name, from the JSON and the records next to the page."""
    named = {sheet.name: sheet for sheet in table.sheets}
    others = [line for line in numbers.get("differences", ()) if line not in numbers.get("missing", ())]
    found: dict[str, SheetRuns] = {}
    for one in numbers.get("sheets", ()):
        if one["name"] not in named:
            continue
        sheet = replace(
            named[one["name"]],
            model=ModelSpec(**_tuples(one["model"])),
            strategies=tuple(StrategySpec(**_tuples(spec)) for spec in one["strategies"]),
            changes=tuple(one.get("said", (line for line in others if line.startswith(f"{one['name']}: ")))),
            centred=one.get("centred", True),
            limit=one.get("limit", one["rows"] if one["rows"] < CATALOGUE[one["data"]].rows[0] else None),
            **{key: one[key] for key in ("data", "start", "k", "rounds", "seeds")},
        )
        jobs = suite_of(sheet, table.name, seed, "cpu", 1).jobs()[0]  # their names are the same on every device
        command = one.get("command", numbers.get("command", ""))
        runs = select_records(sheet, records, jobs, table.by, command)
        if runs.records:
            found[sheet.name] = replace(runs, is_new=False)
    return found


def _tuples(spec: dict[str, Any]) -> dict[str, Any]:
    """A model or strategy from JSON, with tuples for lists."""
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in spec["parameters"].items()}
    return {**spec, "parameters": given}


def sizes(runs: Sequence[SheetRuns]) -> str:
    """The sizes of what was run, a line for each sheet."""
    return "\n".join(
        f"- {one.sheet.name}: {one.sheet.data}, {pool_rows(one.sheet)} rows"
        + (f" ({valid_rows(one.sheet)} of them set aside)" if one.sheet.valid else "")
        + f", {one.sheet.start} first labels, {many(one.sheet.rounds, 'batch')} of {one.sheet.k}, {_seeds(one)}; "
        + f"{one.sheet.model.kind}: "
        + ", ".join(f"{name} {value}" for name, value in one.sheet.model.parameters.items() if value is not None)
        + _elsewhere(one, runs[0])
        for one in runs
    )


def fewer_seeds(runs: Sequence[SheetRuns], papers: Mapping[str, int]) -> list[str]:
    """A sentence for each sheet with fewer seeds than the paper; `papers` has the paper's seeds by sheet."""
    return [
        f"{one.sheet.name}: {many(seeds, 'seed')} where the paper has {papers[one.sheet.name]}."
        for one in runs
        if (seeds := len({record.seed for record in one.records})) < papers[one.sheet.name]
    ]


def spent(seconds: Mapping[str, Any]) -> str:
    """The seconds of all runs."""
    return (
        f"All runs together: {seconds['train_seconds']} s of training, {seconds['read_seconds']} s of reading the "
        f"pool, {seconds['select_seconds']} s of choosing."
    )


def _seeds(one: SheetRuns) -> str:
    """The number of seeds shown, and how many were asked for if more."""
    seeds = len({record.seed for record in one.records})
    return many(seeds, "seed") + (f" of {one.sheet.seeds}" if seeds < one.sheet.seeds else "")


def _elsewhere(one: SheetRuns, first: SheetRuns) -> str:
    """How the environment of a sheet differs from the first one, which is at the end of the page."""
    usual, own = first.records[0].environment, one.records[0].environment
    changed = [f"{name} {value}" for name, value in own.items() if usual.get(name) != value and name != "seed"]
    return f"; with {', '.join(changed)}" if changed else ""
