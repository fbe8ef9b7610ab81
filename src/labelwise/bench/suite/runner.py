"""Runner: runs a suite in a folder. Started again on the same folder, it continues, with bit-identical records.

RUN/config.yaml       the configuration as given
RUN/suite.json        its parsed form: a run continues only with the same
RUN/environment.json  versions and machine
RUN/records/*.jsonl   one file for each job, one record for each round
RUN/failures.txt      jobs that failed, with their tracebacks
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.bench.data.catalogue import DatasetEntry, check_available, dataset_entry, find_files
from labelwise.bench.data.features import check_encoder, prepare_data, spec_to_json
from labelwise.bench.suite.checkpoint import differences, has_started, lock_folder, read_run_records
from labelwise.bench.suite.job import CACHE, RECORDS, check_jobs, records_file
from labelwise.bench.suite.suite import DataSpec, Job, Skipped, Suite
from labelwise.bench.suite.workers import Event, Workers, in_groups, in_process
from labelwise.callbacks import NO_CALLBACKS, Callbacks
from labelwise.errors import BudgetError, StoreError
from labelwise.io.files import append_text, write_text
from labelwise.stats.environment import environment
from labelwise.stats.record import Record

EVERY = 1.0  # seconds between updates of the display


@dataclass
class Progress:
    """The state of a run: what is done, running and left. The display reads it."""

    jobs: list[Job]
    skipped: list[Skipped]
    rounds: dict[str, int]  # records on disk, by job
    processes: int
    running: dict[str, float] = field(default_factory=dict)  # job name: when its current round started
    failed: dict[str, str] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)
    first_round_at: float | None = None  # when the first round started that finished in this process
    activity: str = ""  # what is done before the first round
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # of rounds, by data set and strategy

    @property
    def total(self) -> int:
        """Rounds of the whole suite."""
        return sum(job.data.rounds + 1 for job in self.jobs)

    @property
    def done(self) -> int:
        """Rounds on disk."""
        return sum(self.rounds.values())

    def finished(self, job: Job) -> bool:
        """Whether all rounds of a job are on disk."""
        return self.rounds[job.name] > job.data.rounds

    def update(self, event: Event) -> None:
        """Take an event into account."""
        name = event.job.name
        if event.kind == "began":
            self.running[name] = time.monotonic()
        elif event.kind == "round":
            self.rounds[name] = event.round + 1
            self.running[name] = time.monotonic()
            self.first_round_at = self.first_round_at or time.monotonic() - event.seconds
            kind = (event.job.data.label, event.job.strategy.label)
            self.seconds.setdefault(kind, []).append(event.seconds)
        else:
            self.running.pop(name, None)
            if event.kind == "failed":
                self.failed[name] = event.text

    def seconds_left(self) -> float | None:
        """Estimate of the seconds left, from the rounds so far of each data set and strategy; None before the first."""
        known = {kind: sum(times) / len(times) for kind, times in self.seconds.items()}
        if not known:
            return None
        mean = sum(known.values()) / len(known)
        left = 0.0
        for job in self.jobs:
            if job.name not in self.failed:
                of_one = known.get((job.data.label, job.strategy.label), mean)
                left += (job.data.rounds + 1 - self.rounds[job.name]) * of_one
        # Records do not hold the time of measuring, loading and waiting: scale by how much slower the clock was so far.
        ran = sum(sum(times) for times in self.seconds.values())
        since = self.started_at if self.first_round_at is None else self.first_round_at
        slower = max(1.0, (time.monotonic() - since) * self.processes / ran) if ran > 0 else 1.0
        return left * min(slower, 10.0) / self.processes


def run_suite(
    suite: Suite,
    text: str,
    run: Path,
    processes: int | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
    together: bool = False,
    most: int | None = None,
) -> Generator[Progress, None, None]:
    """Run the remaining jobs of a suite; yield the progress each time something happened.

    Args:
        suite: what to run.
        text: the configuration as the user wrote it.
        run: the folder of the run.
        processes: how many workers; 0 runs in this process, None takes the number of the suite.
        callbacks: called in this process with the record of each round that is run.
        together: run all jobs in this process round by round, and train their networks at once.
        most: networks trained at once; None for what suits a GPU.

    A job that fails is listed in `progress.failed`; the others continue.
    """
    check_labels(suite.datasets)
    with lock_folder(run):
        _write_settings(suite, text, run)
        jobs, skipped = suite.jobs()
        count = suite.processes if processes is None else processes
        rounds = {job.name: _rounds(run, job) for job in jobs}
        progress = Progress(jobs, skipped, rounds, max(1, min(count, len(jobs))))
        yield progress
        rest = [job for job in jobs if not progress.finished(job)]
        check_available(job.data.name for job in rest)
        check_encoder((job.data for job in rest), run / CACHE)
        if suite.max_memory is not None:
            progress.activity = "checking that max_memory is enough for each strategy"
            yield progress
            check_jobs(rest, run)
            progress.activity = ""
        yield from _encode(rest, run, progress)
        with contextlib.ExitStack() as stack:
            events: Iterator[Event | None] = in_process(run, rest)
            if together:
                events = in_groups(run, jobs, rest, most)
            elif count:
                events = stack.enter_context(Workers(run, min(count, max(1, len(rest))))).events(rest, EVERY)
            for event in events:
                if event is not None:
                    progress.update(event)
                    if event.kind == "failed":
                        _note_failure(run, event)
                    elif event.kind == "round" and callbacks:
                        records = read_run_records(records_file(event.job, run), event.job.name)
                        callbacks.call("on_round", records[event.round])
                        callbacks.call("on_progress", "rounds", progress.done, progress.total)
                yield progress


def _encode(jobs: Iterable[Job], run: Path, progress: Progress) -> Generator[Progress, None, None]:
    """Make the vectors of encoders once, with all threads: workers that start together would each make them."""
    for data in dict.fromkeys(job.data for job in jobs if job.data.features == "encoder"):
        progress.activity = f"encoding {data.label}"
        yield progress
        with contextlib.suppress(Exception):  # its jobs fail with the same error, and the others run
            prepare_data(spec_to_json(data), run / CACHE)
    progress.activity = ""


def read_run(run: Path) -> list[Record]:
    """All records of a run so far, the jobs in the order of their file names."""
    folder = run / RECORDS
    if not folder.is_dir():
        raise StoreError(f"{run} holds no run: there is no folder {RECORDS}. Expected the folder of `bench run`")
    return [record for path in sorted(folder.glob("*.jsonl")) for record in read_run_records(path)]


def _write_settings(suite: Suite, text: str, run: Path) -> None:
    """Write the settings of a new run, or check that those in the folder are the same."""
    path, settings = run / "suite.json", suite.settings()
    if not has_started(path, settings):
        write_text(run / "config.yaml", text)
        write_text(run / "environment.json", json.dumps(environment(), indent=2) + "\n")
        write_text(path, json.dumps(settings, indent=2) + "\n")  # last, so that the folder holds all or no run


def changed_environment(run: Path) -> list[str]:
    """How the environment differs from the start of the run; then records are not bit-identical."""
    try:
        before = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return differences(before, environment())


def _rounds(run: Path, job: Job) -> int:
    path = records_file(job, run)
    return len(read_run_records(path, job.name)) if path.exists() else 0


def _note_failure(run: Path, event: Event) -> None:
    append_text(run / "failures.txt", f"{event.job.name}\n{event.text.rstrip()}\n\n")


BY_PERSON = ("parkinsons",)  # split by person: how many rows the pool has depends on the seed


def check_labels(datasets: Iterable[DataSpec]) -> None:
    """Raise if a data set needs more labels than its pool can have; a job checks the pool again once loaded."""
    found = []
    for spec in datasets:
        wanted, most = spec.start + spec.k * spec.rounds, most_rows(spec)
        if wanted > most:
            found.append(
                f"{spec.label}: {spec.start} first labels and {spec.rounds} rounds of {spec.k} are {wanted} labels; "
                f"the pool has {most} rows at most"
            )
    if found:
        raise BudgetError("; ".join(found) + ". Lower start, k or rounds, or raise limit where there is one")


def most_rows(spec: DataSpec) -> int:
    """The number of rows that the pool of a data set cannot exceed: with limit, corruption and validation rows."""
    most = _most(dataset_entry(spec.name))
    if spec.limit is not None:
        most = min(most, spec.limit)
    if spec.hard is not None and spec.hard.case in ("duplicates", "near", "outliers"):
        more = max(1, round(spec.hard.share * most))
        most += more if spec.hard.case == "outliers" else more * (spec.hard.times - 1)
    return most - (spec.valid or 0)


def _most(entry: DatasetEntry) -> int:
    files = find_files(entry) if entry.files else None
    total = sum(entry.rows)
    if files and all(file.suffix == ".parquet" for file in files):
        there = _rows(files)
        if there is not None and there != total:  # not the files that the catalogue describes: all that is in them
            return there
    return total if entry.name in BY_PERSON else entry.rows[0]


def _rows(files: list[Path]) -> int | None:
    """Rows of Parquet files by their footers; None where that cannot be read, which loading will explain."""
    try:
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(file).num_rows for file in files)
    except (ImportError, OSError, ValueError):
        return None
