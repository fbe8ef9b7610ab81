"""Load the runs of a report: their records and configuration, and which runs are missing.

A run folder has its records in records/ and its configuration in config.yaml. The folder of a report has both, with the
records compressed. If a report was written into the folder of its run, records/ is the newer one and is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labelwise.bench.models.registry import ModelSpec
from labelwise.bench.suite import checkpoint
from labelwise.bench.suite.suite import Suite, read_suite
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.text import many
from labelwise.stats.record import Record, read_records
from labelwise.train import TorchLearner

RECORDS = "records.jsonl.gz"
LIVE = "records"
_AGAIN = "the next `labelwise bench run` then runs its rounds again, and all other runs stay"
Goals = dict[str, dict[tuple[str, int], int]]  # by experiment, strategy and seed: labels of a finished run


@dataclass(frozen=True)
class Source:
    """A folder or file of records, with the configurations next to them."""

    path: Path
    records: list[Record]
    suites: tuple[Suite, ...] = ()
    configs: tuple[str, ...] = ()  # the same, as text
    doubt: str = ""  # why a configuration cannot be read


@dataclass(frozen=True)
class ExperimentRuns:
    """The finished runs of an experiment, and a sentence on the missing ones."""

    records: list[Record]
    finished: int
    expected: int
    missing: str


def source_of(run: Path) -> Source:
    """Read a run folder, the folder of a report, or one file of records."""
    records = records_of(run)
    texts, suites, doubts = [], [], []
    for path in sorted(run.glob("config*.yaml")) if run.is_dir() else []:
        texts.append(path.read_text(encoding="utf-8"))
        try:
            suites.append(read_suite(path))
        except ArgumentError as error:  # of another version: its records can be used without it
            doubts.append(f"The configuration cannot be read, so missing runs are not known: {error}")
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
    """The records of all sources.

    Raises:
        ArgumentError: they cannot belong to one benchmark.
    """
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
    """Every run that the configurations ask for, with the number of labels at its end."""
    goals: Goals = {}
    for suite in (suite for source in sources for suite in source.suites):
        for job in suite.jobs()[0]:
            last = job.data.start + job.data.k * job.data.rounds
            goals.setdefault(f"{job.data.label}/{job.model.name}", {})[(job.strategy.label, job.seed)] = last
    return goals


def own_starts(sources: Iterable[Source]) -> set[str]:
    """The experiments in which each strategy chooses its own first batch."""
    jobs = (job for source in sources for suite in source.suites for job in suite.jobs()[0])
    return {f"{job.data.label}/{job.model.name}" for job in jobs if job.own_start}


def experiment_of(record: Record) -> str:
    """The experiment of a record: the name of its run without strategy and seed."""
    return record.run.removesuffix(f"/{record.strategy}/{record.seed}")


def training_of(model: ModelSpec) -> str:
    """The training rule of a model as its configuration has it; of a network, also which epoch is kept by default.

    >>> training_of(ModelSpec("mlp", "mlp", {"epochs": 80, "hidden": (64,)}))
    'epochs 80, hidden 64, schedule cosine, keep last'
    >>> training_of(ModelSpec("forest", "sklearn.ensemble.RandomForestClassifier", {"n_estimators": 50}))
    'RandomForestClassifier, n estimators 50'
    """
    values = dict(model.parameters)
    if model.is_torch:
        defaults = inspect.signature(TorchLearner).parameters
        values |= {name: defaults[name].default for name in ("schedule", "keep") if name not in values}
    settings = [f"{key.replace('_', ' ')} {_plain(value)}" for key, value in values.items()]
    if model.is_torch and "epochs" not in model.parameters:
        settings.append("else TorchLearner's defaults")
    kind = model.kind.rpartition(".")[2]
    return ", ".join(settings if kind == model.name else [kind, *settings])


def training_rules(suites_by_folder: Iterable[tuple[str, Sequence[Suite]]], names: Iterable[str]) -> dict[str, str]:
    """The training rule of each model that the experiments use, by its name; by folder too where they differ.

    Args:
        suites_by_folder: the configurations in each folder.
        names: of the experiments; each ends with the name of its model.
    """
    used = {name.rpartition("/")[2].removesuffix("+warm") for name in names}
    rules: dict[str, dict[str, str]] = {}
    for folder, suites in suites_by_folder:
        for model in (model for suite in suites for model in suite.models if model.name in used):
            rules.setdefault(model.name, {})[folder] = training_of(model)
    return {
        name: next(iter(by_folder.values()))
        if len(set(by_folder.values())) == 1
        else "; ".join(f"{folder}: {rule}" for folder, rule in by_folder.items())
        for name, by_folder in rules.items()
    }


def finished_runs(name: str, records: Sequence[Record], goals: Goals) -> ExperimentRuns:
    """The finished runs of an experiment. Without goals, the longest run tells where a run ends."""
    counts = _counts(name, records)
    goal = max((each[-1] for each in counts.values()), default=0)
    wanted = goals.get(name) or dict.fromkeys(counts, goal)
    full = {run for run, labels in counts.items() if labels[-1] >= wanted.get(run, goal)}
    short: dict[str, list[int]] = {}
    for strategy, seed in wanted:
        if (strategy, seed) not in full:
            short.setdefault(strategy, []).append(seed)
    none = {strategy for strategy in short if not any(run[0] == strategy for run in full)}
    by_gap: dict[str, list[str]] = {}
    for one, seeds in short.items():
        by_gap.setdefault("none" if one in none else _seeds(seeds), []).append(one)
    asked = len({strategy for strategy, _ in wanted})
    gaps = [
        f"{'every strategy' if len(names) == asked > 1 else ', '.join(names)} ({gap})" for gap, names in by_gap.items()
    ]
    expected = len(set(wanted) | full)
    missing = f"{len(full)} of {many(expected, 'run')} finished; missing: {', '.join(gaps)}" if gaps else ""
    return ExperimentRuns([r for r in records if (r.strategy, r.seed) in full], len(full), expected, missing)


def _counts(name: str, records: Sequence[Record]) -> dict[tuple[str, int], list[int]]:
    """Label counts of each run; raise if one is not the beginning of the longest, as in one experiment."""
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
                "separately, or give one of them another label"
            )
    return counts


def _check_settings(sources: Sequence[Source]) -> None:
    """Raise if two configurations give one name to different settings."""
    seen: dict[str, tuple[Any, Path]] = {}
    for source in sources:
        for suite in source.suites:
            for name, settings in _settings(suite).items():
                before, path = seen.setdefault(name, (settings, source.path))
                sides = (f"in {path}", f"in {source.path}")
                found = checkpoint.differences(before, settings, sides=sides)
                if found:
                    lines = "; ".join(found[:5])
                    raise ArgumentError(
                        f"{name} is not the same in {path} and {source.path}: {lines}. Report them separately, or give "
                        "the data set, model or strategy another label in one of the configurations and run it again"
                    )


def _settings(suite: Suite) -> dict[str, Any]:
    """The settings that decide the curves of each experiment and each strategy in it."""
    found: dict[str, Any] = {}
    for job in suite.jobs()[0]:
        name = f"{job.data.label}/{job.model.name}"
        data = {key: value for key, value in asdict(job.data).items() if key not in ("models", "without")}
        strategy = {key: value for key, value in asdict(job.strategy).items() if key != "datasets"}
        found[name] = {"data": data, "model": asdict(job.model), "device": job.device, "training": job.training}
        found[f"{name}/{job.strategy.label}"] = strategy
    return found


def _twice(record: Record, one: Source, other: Source) -> str:
    if one is other:
        return f"{one.path}: round {record.round} of {record.run!r} appears twice; remove one of the two"
    if one.path.resolve() == other.path.resolve():
        return f"{one.path} was named twice; name each folder once"
    return (
        f"{record.run} is in {one.path} and in {other.path}: runs of the same data set, model, strategy and seed "
        "cannot be in one report. Report the folders separately, or run one of them with other seeds or another label"
    )


def _seeds(seeds: Sequence[int]) -> str:
    """ "seed 4", "seeds 2, 5", "seeds 2 to 9"."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _some(labels: Sequence[int]) -> str:
    return ", ".join(map(str, labels[:4])) + (", ..." if len(labels) > 4 else "")


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)
