"""Which records of a paper's table are shown: those of complete runs, or of rounds that all methods have reached; and
those of rows that were run before, which stay on the page.
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
from labelwise.reproduce.verdicts import Doubt
from labelwise.stats.record import Record


@dataclass(frozen=True)
class Ran:
    """A sheet with the records that are shown of it, how many runs are complete and how many there should be.

    `kept` is more than is shown: runs that are complete while others of their seed are not.
    """

    sheet: Sheet
    records: list[Record]
    kept: list[Record]
    done: int
    jobs: int
    command: str = ""  # what ran it, where that was before
    new: bool = True  # whether any of it is not beside the page yet

    @property
    def unfinished(self) -> list[str]:
        """What is not there yet, in words."""
        if self.done == self.jobs:
            return []
        last = max(record.round for record in self.records)
        seeds = sorted({record.seed for record in self.records})
        named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        said = f"{self.sheet.name}: {self.done} of {self.jobs} runs are complete"
        if last < self.sheet.rounds:
            return [f"{said}, and of no seed those of all methods: shown are the rounds up to {last} of {named}."]
        if len(self.records) < len(self.kept):
            return [f"{said}: shown are those of {named}, which all methods have."]
        return [f"{said}."]


def ran_of(sheet: Sheet, found: Sequence[Record], jobs: Sequence[Job], by: str, command: str = "") -> Ran:
    """What is shown of the records of a sheet: seeds of which all methods are complete, so that all are compared on
    the same ones; complete runs where there is no such seed.

    A table of accuracies by round of which no seed is complete shows the rounds that all methods of a seed have
    reached: they are compared on the same number of labels all the same.
    """
    wanted = {job.name for job in jobs}
    own = [record for record in found if record.run in wanted]
    full = {record.run for record in own if record.round == sheet.rounds}
    kept = [record for record in own if record.run in full]
    reached = _reached(own, len(sheet.strategies))
    last = max(reached.values(), default=-1)
    shown = [record for record in own if reached.get(record.seed) == last and record.round <= last]
    if last < sheet.rounds and (by != "round" or last < 0):
        shown = kept
    kept += [record for record in shown if record.run not in full]
    return Ran(sheet, shown, kept, len(full), len(jobs), command)


def joined(found: Sequence[Record], earlier: Ran | None, sheet: Sheet) -> list[Record]:
    """The records of a run, and those of complete runs of the same sheet that were kept before and are not in it."""
    if earlier is None or replace(earlier.sheet, seeds=sheet.seeds, said=sheet.said) != sheet:
        return list(found)
    full = {record.run for record in found if record.round == sheet.rounds}
    more = {record.run for record in earlier.kept if record.round == sheet.rounds} - full
    return [one for one in found if one.run not in more] + [one for one in earlier.kept if one.run in more]


def apart(ran: Ran) -> float:
    """Points between models of the first labels of a seed, which all methods share: more than 0 where runs on a device
    were made before its kernels repeated to the bit.
    """
    first: dict[int, list[float]] = {}
    for record in ran.records:
        if record.round == 0:
            first.setdefault(record.seed, []).append(100 * record.metrics["accuracy"])
    return max(max(values) - min(values) for values in first.values())


def unequal(ran: Sequence[Ran]) -> list[str]:
    """Where models of the first labels differ between methods of a seed, in words."""
    return [
        f"{one.sheet.name}: methods of a seed have the same first labels and weights, yet up to {points:.2f} points "
        "between them in round 0: these runs were made with kernels that do not repeat to the bit. Differences of that "
        "size say nothing."
        for one in ran
        if (points := apart(one)) > 0
    ]


def doubt_of(ran: Sequence[Ran], by: str) -> Doubt:
    """What keeps the numbers of these sheets from deciding; rows of a table of accuracies by round are the rounds."""
    points: dict[str, float] = {}
    same: dict[tuple[str, frozenset[str]], int] = {}
    for one in ran:
        rows = sorted({str(record.round) for record in one.records}) if by == "round" else [one.sheet.row]
        points |= dict.fromkeys(rows, apart(one))
        same |= {(one.sheet.row, pair): batches for pair, batches in _alike(one.records).items()}
    return Doubt(points, same)


def _alike(records: Sequence[Record]) -> dict[frozenset[str], int]:
    """Pairs of methods that made the same picks in every batch of every seed, and in how many batches."""
    picks: dict[str, dict[tuple[int, int], frozenset[int]]] = {}
    for record in records:
        if record.picked:
            picks.setdefault(record.strategy, {})[record.seed, record.round] = frozenset(record.picked)
    return {frozenset(pair): len(picks[pair[0]]) for pair in combinations(picks, 2) if picks[pair[0]] == picks[pair[1]]}


def _reached(records: Sequence[Record], methods: int) -> dict[int, int]:
    """The last round that all methods of a seed have; without seeds that not all methods have begun."""
    last: dict[int, dict[str, int]] = {}
    for record in records:
        of_seed = last.setdefault(record.seed, {})
        of_seed[record.strategy] = max(record.round, of_seed.get(record.strategy, 0))
    return {seed: min(rounds.values()) for seed, rounds in last.items() if len(rounds) == methods}


def about(ran: Ran) -> dict[str, Any]:
    """A sheet as it stands in the JSON beside the page."""
    sheet = ran.sheet
    said: dict[str, Any] = {
        "name": sheet.name,
        "data": sheet.data,
        "rows": pool_rows(sheet),
        "valid": valid_rows(sheet),
    }
    said |= {"limit": sheet.limit, "said": list(sheet.said)}
    said |= {"start": sheet.start, "k": sheet.k, "rounds": sheet.rounds, "seeds": sheet.seeds}
    said |= {"model": vars(sheet.model), "strategies": [vars(spec) for spec in sheet.strategies]}
    return said | ({"command": ran.command} if ran.command else {})


def before(table: PaperTable, numbers: Mapping[str, Any], records: Sequence[Record], seed: int) -> dict[str, Ran]:
    """The sheets, by name, that were run before, from the JSON and the records beside the page."""
    named = {sheet.name: sheet for sheet in table.sheets}
    others = [line for line in numbers.get("differences", ()) if line not in numbers.get("missing", ())]
    found: dict[str, Ran] = {}
    for one in numbers.get("sheets", ()):
        if one["name"] not in named:
            continue
        sheet = replace(
            named[one["name"]],
            model=ModelSpec(**_tuples(one["model"])),
            strategies=tuple(StrategySpec(**_tuples(spec)) for spec in one["strategies"]),
            said=tuple(one.get("said", (line for line in others if line.startswith(f"{one['name']}: ")))),
            limit=one.get("limit", one["rows"] if one["rows"] < CATALOGUE[one["data"]].rows[0] else None),
            **{key: one[key] for key in ("data", "start", "k", "rounds", "seeds")},
        )
        jobs = suite_of(sheet, table.name, seed, "cpu", 1).jobs()[0]  # their names are the same on every device
        command = one.get("command", numbers.get("command", ""))
        ran = ran_of(sheet, records, jobs, table.by, command)
        if ran.records:
            found[sheet.name] = replace(ran, new=False)
    return found


def _tuples(spec: dict[str, Any]) -> dict[str, Any]:
    """A model or strategy out of JSON, which has no tuples."""
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in spec["parameters"].items()}
    return {**spec, "parameters": given}


def sizes(ran: Sequence[Ran]) -> str:
    """What was run, a line for each sheet."""
    return "\n".join(
        f"- {one.sheet.name}: {one.sheet.data}, {pool_rows(one.sheet)} rows"
        + (f" ({valid_rows(one.sheet)} of them set aside)" if one.sheet.valid else "")
        + f", {one.sheet.start} first labels, {many(one.sheet.rounds, 'batch')} of {one.sheet.k}, {_seeds(one)}; "
        + f"{one.sheet.model.kind}: "
        + ", ".join(f"{name} {value}" for name, value in one.sheet.model.parameters.items() if value is not None)
        + _elsewhere(one, ran[0])
        for one in ran
    )


def fewer_seeds(ran: Sequence[Ran], papers: Mapping[str, int]) -> list[str]:
    """Sheets of which fewer seeds are shown than the paper has, in words; `papers` has its seeds by sheet."""
    return [
        f"{one.sheet.name}: {many(shown, 'seed')} where the paper has {papers[one.sheet.name]}."
        for one in ran
        if (shown := len({record.seed for record in one.records})) < papers[one.sheet.name]
    ]


def spent(seconds: Mapping[str, Any]) -> str:
    """The seconds of all runs."""
    return (
        f"All runs together: {seconds['train_seconds']} s of training, {seconds['read_seconds']} s of reading the "
        f"pool, {seconds['select_seconds']} s of choosing."
    )


def _seeds(one: Ran) -> str:
    """The seeds that are shown, by the records, and how many were asked for where that is more."""
    shown = len({record.seed for record in one.records})
    return many(shown, "seed") + (f" of {one.sheet.seeds}" if shown < one.sheet.seeds else "")


def _elsewhere(one: Ran, first: Ran) -> str:
    """In what a sheet was run otherwise than the first one, whose surroundings are at the end of the page."""
    usual, own = first.records[0].environment, one.records[0].environment
    changed = [f"{name} {value}" for name, value in own.items() if usual.get(name) != value and name != "seed"]
    return f"; with {', '.join(changed)}" if changed else ""
