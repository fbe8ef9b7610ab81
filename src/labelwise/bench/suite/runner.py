"""Runner: a suite in a folder. Started again on the same folder it goes on where it was, to the bit.

RUN/config.yaml       the configuration as given
RUN/suite.json        what it means: a run goes on only with the same
RUN/environment.json  versions and machine
RUN/records/*.jsonl   one file for each cell, one record for each round
RUN/failures.txt      cells that failed, with their tracebacks
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.bench.data.catalogue import Known, check_found, known, located
from labelwise.bench.data.features import check_encoder
from labelwise.bench.suite.cell import CACHE, RECORDS, check_cells, records_file
from labelwise.bench.suite.checkpoint import begun, differences, locked, records_of_run
from labelwise.bench.suite.suite import Cell, DataSpec, LeftOut, Suite
from labelwise.bench.suite.workers import Event, Here, Workers
from labelwise.errors import BudgetError, StoreError
from labelwise.io.files import append_text, write_text
from labelwise.stats.environment import environment
from labelwise.stats.record import Record

EVERY = 1.0  # seconds between looks at the clock


@dataclass
class Progress:
    """What is done, what runs and what is left; the display reads it."""

    cells: list[Cell]
    left_out: list[LeftOut]
    rounds: dict[str, int]  # records on disk, by cell
    processes: int
    running: dict[str, float] = field(default_factory=dict)  # when each began with its round
    failed: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    paced: float | None = None  # when the first round began that was finished since: loading comes before it
    doing: str = ""  # what is done now instead of rounds
    spent: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # seconds of rounds by data set, strategy

    @property
    def total(self) -> int:
        """Rounds of the whole suite."""
        return sum(cell.data.rounds + 1 for cell in self.cells)

    @property
    def done(self) -> int:
        """Rounds on disk."""
        return sum(self.rounds.values())

    def finished(self, cell: Cell) -> bool:
        """Whether all rounds of a cell are on disk."""
        return self.rounds[cell.name] > cell.data.rounds

    def heard(self, event: Event) -> None:
        """Take note of an event."""
        name = event.cell.name
        if event.kind == "began":
            self.running[name] = time.monotonic()
        elif event.kind == "round":
            self.rounds[name] = event.round + 1
            self.running[name] = time.monotonic()
            self.paced = self.paced or time.monotonic() - event.seconds
            kind = (event.cell.data.label, event.cell.strategy.label)
            self.spent.setdefault(kind, []).append(event.seconds)
        else:
            self.running.pop(name, None)
            if event.kind == "failed":
                self.failed[name] = event.text

    def seconds_left(self) -> float | None:
        """How long the rest takes at the pace so far, each strategy by its own; None before anything is known."""
        known = {kind: sum(times) / len(times) for kind, times in self.spent.items()}
        if not known:
            return None
        mean = sum(known.values()) / len(known)
        left = 0.0
        for cell in self.cells:
            if cell.name not in self.failed:
                of_one = known.get((cell.data.label, cell.strategy.label), mean)
                left += (cell.data.rounds + 1 - self.rounds[cell.name]) * of_one
        # Measuring, loading and waiting are not in the records: by how much more the clock went on so far.
        ran = sum(sum(times) for times in self.spent.values())
        since = self.began if self.paced is None else self.paced
        slower = max(1.0, (time.monotonic() - since) * self.processes / ran) if ran > 0 else 1.0
        return left * min(slower, 10.0) / self.processes


def run_suite(suite: Suite, text: str, run: Path, processes: int | None = None) -> Generator[Progress, None, None]:
    """Run what is left of a suite in the folder `run`, and give the progress each time something happened.

    `text` is the configuration as the user wrote it; 0 processes are this one. Cells that fail are in
    `progress.failed`, and the others go on.
    """
    check_labels(suite.datasets)
    with locked(run):
        _settle(suite, text, run)
        cells, left_out = suite.cells()
        count = suite.processes if processes is None else processes
        rounds = {cell.name: _rounds(run, cell) for cell in cells}
        progress = Progress(cells, left_out, rounds, max(1, min(count, len(cells))))
        yield progress
        rest = [cell for cell in cells if not progress.finished(cell)]
        check_found(cell.data.name for cell in rest)
        check_encoder((cell.data for cell in rest), run / CACHE)
        if suite.max_memory is not None:
            progress.doing = "seeing whether max_memory is enough for each strategy"
            yield progress
            check_cells(rest, run)
            progress.doing = ""
        with Workers(run, min(count, max(1, len(rest)))) if count else Here(run) as workers:
            for event in workers.events(rest, EVERY):
                if event is not None:
                    progress.heard(event)
                    if event.kind == "failed":
                        _note_failure(run, event)
                yield progress


def read_run(run: Path) -> list[Record]:
    """All records of a run so far, the cells in the order of their file names."""
    folder = run / RECORDS
    if not folder.is_dir():
        raise StoreError(f"{run} holds no run: there is no folder {RECORDS}. Expected the folder of `bench run`")
    return [record for path in sorted(folder.glob("*.jsonl")) for record in records_of_run(path)]


def _settle(suite: Suite, text: str, run: Path) -> None:
    """Write what the run is, or check that it is the one that is there."""
    path, settings = run / "suite.json", suite.settings()
    if not begun(path, settings):
        write_text(run / "config.yaml", text)
        write_text(run / "environment.json", json.dumps(environment(), indent=2) + "\n")
        write_text(path, json.dumps(settings, indent=2) + "\n")  # last: a run is one only when all of it is there


def changed_environment(run: Path) -> list[str]:
    """What is not as it was when the run began: records of both cannot be equal to the bit."""
    try:
        before = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return differences(before, environment())


def _rounds(run: Path, cell: Cell) -> int:
    path = records_file(cell, run)
    return len(records_of_run(path, cell.name)) if path.exists() else 0


def _note_failure(run: Path, event: Event) -> None:
    append_text(run / "failures.txt", f"{event.cell.name}\n{event.text.rstrip()}\n\n")


BY_PERSON = ("parkinsons",)  # split by person: how many rows the pool has depends on the seed


def check_labels(datasets: Iterable[DataSpec]) -> None:
    """Raise where a data set is asked for more labels than its pool can have; a cell checks the pool it has loaded."""
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
    """The number of rows that the pool of a data set cannot exceed: limit, hard case and rows set aside counted in."""
    most = _most(known(spec.name))
    if spec.limit is not None:
        most = min(most, spec.limit)
    if spec.hard is not None and spec.hard.case in ("duplicates", "near", "outliers"):
        more = max(1, round(spec.hard.share * most))
        most += more if spec.hard.case == "outliers" else more * (spec.hard.times - 1)
    return most - (spec.valid or 0)


def _most(entry: Known) -> int:
    files = located(entry) if entry.files else None
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
