"""Evidence: the report of one or more benchmark runs, as Markdown, HTML, PNG and CSV, made from their records alone.

OUT/report.md, report.html      the verdict, ranks, wins and losses, and every experiment
OUT/EXPERIMENT/                 page.html, curves.png, table.md, table.csv of one data set with one model
OUT/ranks-METRIC.png            critical-difference diagram of the experiments with that metric
OUT/standings.csv               each strategy on each experiment against random
OUT/records.jsonl.gz            the records it was made from: `labelwise bench report OUT` makes it again
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labelwise.bench import evidence_text as words
from labelwise.bench import kept_runs
from labelwise.errors import ArgumentError, StoreError
from labelwise.report import diagram
from labelwise.report.atomic import write_pieces, write_text
from labelwise.report.curves import Curves, finished, learning_curves
from labelwise.report.figure import png
from labelwise.report.page import page_html
from labelwise.report.paired import Paired, holm, paired
from labelwise.report.record import Record, read_records
from labelwise.report.standings import Ranks, Score, ranks, win_tie_loss
from labelwise.report.table import Table, csv_text, markdown, summarise

RECORDS = "records.jsonl.gz"
_AGAIN = "its rounds run again with the next `labelwise bench run`, and all other runs are kept"
ORACLE = "oracle"  # shows the headroom, is not a strategy: it is drawn but not ranked


@dataclass(frozen=True)
class Experiment:
    """One data set with one model: its records, curves, table and each strategy's test against random."""

    name: str
    metric: str
    records: tuple[Record, ...]
    curves: dict[str, Curves]
    table: Table
    against: dict[str, Paired]
    corrected: dict[str, float]  # Holm's p over the strategies of this experiment

    @property
    def folder(self) -> str:
        """Its name as a folder."""
        return re.sub(r"[^A-Za-z0-9.+-]+", "-", self.name)


@dataclass(frozen=True)
class Overall:
    """What the experiments with one metric say together."""

    metric: str
    ranks: Ranks | None  # None with fewer than two strategies in all experiments
    scores: dict[tuple[str, str], Score]


def report(runs: Sequence[Path], out: Path, command: str = "") -> list[Experiment]:
    """Write the report of these run folders into `out`."""
    records = [record for run in runs for record in records_of(run)]
    if not records:
        raise ArgumentError(
            f"{', '.join(map(str, runs))}: no finished round was found; run `labelwise bench run` first"
        )
    experiments = gather(records)
    overall = together(experiments)
    for one in experiments:
        _write_experiment(out / one.folder, one, command)
    for group in overall:
        if group.ranks is not None:
            title = f"Average rank by {group.metric} over {group.ranks.experiments} experiments (1 is best)"
            write_pieces(out / f"ranks-{group.metric}.png", [diagram.png(group.ranks, title)])
    write_text(out / "standings.csv", words.standings_csv(experiments))
    write_pieces(out / RECORDS, [_packed(records)])
    write_text(out / "report.md", words.markdown_page(experiments, overall, command))
    write_text(out / "report.html", words.html_page(experiments, overall, command, out))
    return experiments


def records_of(run: Path) -> list[Record]:
    """The records of a run folder, of a report's folder, or of one file of records."""
    if run.is_file():
        try:
            return read_records(run)
        except StoreError as error:
            raise StoreError(f"{error} Name the folder of a run or of a report, or a file of records") from error
    if not run.is_dir():
        raise StoreError(f"{run}: the folder of a run was expected, found nothing there")
    if (run / RECORDS).is_file():
        return kept_runs.records_of(run / RECORDS, "`labelwise bench report` makes it again from the folders of runs")
    files = sorted((run / "records").glob("**/*.jsonl"))
    return [record for path in files for record in kept_runs.records_of(path, _AGAIN)]


def gather(records: Sequence[Record]) -> list[Experiment]:
    """The experiments these records hold, by name; runs that were not finished are left out."""
    groups: dict[str, list[Record]] = {}
    seen: set[tuple[str, int]] = set()
    for record in records:
        if (record.run, record.round) in seen:
            raise ArgumentError(f"round {record.round} of {record.run!r} was found twice; name each run folder once")
        seen.add((record.run, record.round))
        groups.setdefault(record.run.removesuffix(f"/{record.strategy}/{record.seed}"), []).append(record)
    return [_experiment(name, finished(group)) for name, group in sorted(groups.items())]


def together(experiments: Sequence[Experiment]) -> list[Overall]:
    """Ranks and scores of the experiments of each metric."""
    found = []
    for metric in sorted({one.metric for one in experiments}):
        curves = {
            one.name: {name: lines for name, lines in one.curves.items() if name != ORACLE}
            for one in experiments
            if one.metric == metric
        }
        shared = set.intersection(*(set(by_strategy) for by_strategy in curves.values()))
        ranked = ranks(curves) if len(shared) > 1 else None
        found.append(Overall(metric, ranked, win_tie_loss(curves)))
    return found


def _experiment(name: str, records: list[Record]) -> Experiment:
    metric = "accuracy" if "accuracy" in records[0].metrics else "rmse"
    curves = learning_curves(records, metric)
    random = curves.get("random")
    against = {other: paired(lines, random) for other, lines in curves.items() if random and other != "random"}
    corrected = dict(zip(against, holm([result.p for result in against.values()])))
    return Experiment(name, metric, tuple(records), curves, summarise(records, metric), against, corrected)


def _write_experiment(folder: Path, one: Experiment, command: str) -> None:
    write_pieces(folder / "curves.png", [png(one.curves)])
    write_text(folder / "table.md", f"# {one.name}\n\n{markdown(one.table)}")
    write_text(folder / "table.csv", csv_text(one.table))
    page = page_html(one.records, title=one.name, command=command, metric=one.metric)
    write_text(folder / "page.html", page)


def _packed(records: Sequence[Record]) -> bytes:
    """The records, compressed; without a time inside, so that the same records give the same bytes."""
    text = "".join(record.to_json() + "\n" for record in records)
    return gzip.compress(text.encode("utf-8"), mtime=0)
