"""The runs a report is made of: their records where they are now, the configuration they ran by, and what is missing.

A run folder has its records in records/ and its configuration in config.yaml; a report's folder keeps both, the records
packed. Records in records/ come first: they are the live ones where a report was written into the folder of its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labelwise.bench.suite import checkpoint
from labelwise.bench.suite.suite import Suite, read_suite
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.text import many
from labelwise.stats.record import Record, read_records

RECORDS = "records.jsonl.gz"
LIVE = "records"
_AGAIN = "its rounds run again with the next `labelwise bench run`, and all other runs are kept"
Goals = dict[str, dict[tuple[str, int], int]]  # by experiment, strategy and seed: the labels a finished run has


@dataclass(frozen=True)
class Source:
    """A folder or file of records, and the configurations that are beside them."""

    path: Path
    records: list[Record]
    suites: tuple[Suite, ...] = ()
    configs: tuple[str, ...] = ()  # the same as they were written
    doubt: str = ""  # why a configuration that is there cannot be read


@dataclass(frozen=True)
class ExperimentRuns:
    """The finished runs of an experiment, and what is missing of it in words."""

    records: list[Record]
    finished: int
    expected: int
    missing: str


def source_of(run: Path) -> Source:
    """What is in a run folder, a report's folder, or one file of records."""
    records = records_of(run)
    texts, suites, doubts = [], [], []
    for path in sorted(run.glob("config*.yaml")) if run.is_dir() else []:
        texts.append(path.read_text(encoding="utf-8"))
        try:
            suites.append(read_suite(path))
        except ArgumentError as error:  # written for another version: its records are good without it
            doubts.append(f"Whether runs are missing is not known, as the configuration cannot be read: {error}")
    return Source(run, records, tuple(suites), tuple(texts), " ".join(doubts))


def records_of(run: Path) -> list[Record]:
    """The records of a run folder, of a report's folder, or of one file of records."""
    if run.is_file():
        try:
            return read_records(run)
        except StoreError as error:
            raise StoreError(f"{error} Name the folder of a run or of a report, or a file of records") from error
    if not run.is_dir():
        raise StoreError(f"{run}: the folder of a run was expected, found nothing there")
    if (run / LIVE).is_dir():
        files = sorted((run / LIVE).glob("**/*.jsonl"))
        return [record for path in files for record in checkpoint.read_or_advise(path, _AGAIN)]
    if (run / RECORDS).is_file():
        return checkpoint.read_or_advise(run / RECORDS, "`labelwise bench report` makes it again from the run folders")
    return []


def joined(sources: Sequence[Source]) -> list[Record]:
    """The records of all sources together; an error where they cannot be of one benchmark."""
    where: dict[tuple[str, int], Source] = {}
    for source in sources:
        for record in source.records:
            other = where.get((record.run, record.round))
            if other is not None:
                raise ArgumentError(_twice(record, other, source))
            where[(record.run, record.round)] = source
    _check_settings(sources)
    return [record for source in sources for record in source.records]


def goals_of(sources: Iterable[Source]) -> Goals:
    """Every run the configurations ask for, with the labels it ends at."""
    goals: Goals = {}
    for suite in (suite for source in sources for suite in source.suites):
        for job in suite.jobs()[0]:
            last = job.data.start + job.data.k * job.data.rounds
            goals.setdefault(f"{job.data.label}/{job.model.name}", {})[(job.strategy.label, job.seed)] = last
    return goals


def experiment_of(record: Record) -> str:
    """The experiment of a record: what its run is called before strategy and seed."""
    return record.run.removesuffix(f"/{record.strategy}/{record.seed}")


def finished_runs(name: str, records: Sequence[Record], goals: Goals) -> ExperimentRuns:
    """What is finished of an experiment: all its runs go to the same labels, without a goal those of the longest."""
    counts = _counts(name, records)
    goal = max((each[-1] for each in counts.values()), default=0)
    wanted = goals.get(name) or dict.fromkeys(counts, goal)
    full = {run for run, labels in counts.items() if labels[-1] >= wanted.get(run, goal)}
    short: dict[str, list[int]] = {}
    for strategy, seed in wanted:
        if (strategy, seed) not in full:
            short.setdefault(strategy, []).append(seed)
    none = {strategy for strategy in short if not any(run[0] == strategy for run in full)}
    said = [f"{one} ({'none' if one in none else _seeds(seeds)})" for one, seeds in short.items()]
    expected = len(set(wanted) | full)
    missing = f"{name}: {len(full)} of {many(expected, 'run')} finished; missing: {', '.join(said)}" if said else ""
    return ExperimentRuns([r for r in records if (r.strategy, r.seed) in full], len(full), expected, missing)


def _counts(name: str, records: Sequence[Record]) -> dict[tuple[str, int], list[int]]:
    """Label counts of each run in order; each is the beginning of the longest, or they are not of one experiment."""
    counts: dict[tuple[str, int], list[int]] = {}
    for record in records:
        counts.setdefault((record.strategy, record.seed), []).append(record.labels)
    counts = {run: sorted(labels) for run, labels in counts.items()}
    longest = max(counts.values(), key=len, default=[])
    for (strategy, seed), labels in counts.items():
        if labels != longest[: len(labels)]:
            raise ArgumentError(
                f"{name}: runs of one experiment have the same label counts; found {_some(longest)}, and for "
                f"{strategy}, seed {seed}, {_some(labels)}. These are different configurations: report them "
                "apart, or give one of them another label"
            )
    return counts


def _check_settings(sources: Sequence[Source]) -> None:
    """Raise where two configurations give one name to different things."""
    seen: dict[str, tuple[Any, Path]] = {}
    for source in sources:
        for suite in source.suites:
            for name, settings in _settings(suite).items():
                before, path = seen.setdefault(name, (settings, source.path))
                sides = (f"in {path}", f"in {source.path}")
                found = checkpoint.differences(before, settings, sides=sides)
                if found:
                    shown = "; ".join(found[:5])
                    raise ArgumentError(
                        f"{name} is not the same in {path} and {source.path}: {shown}. Report them apart, or give the "
                        "data set, model or strategy another label in one of the configurations and run it again"
                    )


def _settings(suite: Suite) -> dict[str, Any]:
    """What decides the curves of each experiment, and of each strategy in it."""
    found: dict[str, Any] = {}
    for job in suite.jobs()[0]:
        name = f"{job.data.label}/{job.model.name}"
        data = {key: value for key, value in asdict(job.data).items() if key not in ("models", "without")}
        strategy = {key: value for key, value in asdict(job.strategy).items() if key != "datasets"}
        found[name] = {"data": data, "model": asdict(job.model), "device": job.device}
        found[f"{name}/{job.strategy.label}"] = strategy
    return found


def _twice(record: Record, one: Source, other: Source) -> str:
    if one is other:
        return f"{one.path}: round {record.round} of {record.run!r} was found twice; remove one of the two"
    if one.path.resolve() == other.path.resolve():
        return f"{one.path} was named twice; name each folder once"
    return (
        f"{record.run} is in {one.path} and in {other.path}: runs of the same data set, model, strategy and seed "
        "cannot be one report. Report the folders apart, or run one of them with other seeds or another label"
    )


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _some(labels: Sequence[int]) -> str:
    return ", ".join(map(str, labels[:4])) + (", ..." if len(labels) > 4 else "")
