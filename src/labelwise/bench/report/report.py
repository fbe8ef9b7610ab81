"""The report of one or more benchmark runs, as Markdown, HTML, PNG and CSV, made from their records alone.

OUT/report.md, report.html      the verdict, ranks, wins and losses, and every experiment
OUT/EXPERIMENT/                 page.html, curves.png, bands.png, table.md, table.csv of one data set with one model
OUT/ranks-METRIC.png            critical-difference diagram of the experiments with that metric
OUT/standings.csv               each strategy on each experiment against random
OUT/models-DATA.png, models.csv  several models compared by random picks, where a data set has several
OUT/records.jsonl.gz            the records: `labelwise bench report OUT` makes the report again
OUT/config.yaml                 the configuration of the run
"""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from labelwise.bench.report import models
from labelwise.bench.report.experiments import Experiment, experiment_from, group_by_metric
from labelwise.bench.report.load_runs import (
    LIVE,
    RECORDS,
    ExperimentRuns,
    Goals,
    Source,
    experiment_of,
    finished_runs,
    goals_of,
    joined,
    own_starts,
    source_of,
    training_rules,
)
from labelwise.bench.report.pages import Report, html_page, markdown_page, standings_csv
from labelwise.bench.report.sentences import summary
from labelwise.errors import ArgumentError
from labelwise.io.files import write_bytes, write_text
from labelwise.io.text import many
from labelwise.report import rank_diagram
from labelwise.report.figures import CROWDED, panels_png, png
from labelwise.report.page import page_html
from labelwise.report.tables import csv_text, markdown
from labelwise.stats.metric import METRICS, metric_named
from labelwise.stats.record import Record


def report(
    runs: Sequence[Path], out: Path, command: str = "", levels: Mapping[str, Sequence[float]] | None = None
) -> Report:
    """Write the report of run folders.

    Args:
        runs: folders of runs or reports, or files of records.
        out: where the files listed above go.
        command: the command for the page, as typed.
        levels: levels of interest for each metric.

    Raises:
        ArgumentError: no finished runs, or runs that cannot be in one report.
        StoreError: records that cannot be read.
    """
    if (out / LIVE).is_dir() and [run.resolve() for run in runs] != [out.resolve()]:
        raise ArgumentError(f"--out {out} is the folder of a run; name another folder for a report of other runs")
    sources = [source_of(run) for run in runs]
    records = joined(sources)
    found = gather(
        records, goals_of(sources), levels, [source.doubt for source in sources if source.doubt], own_starts(sources)
    )
    if not found.experiments:
        there = f"{many(len(records), 'round')} of unfinished runs" if records else "nothing"
        raise ArgumentError(
            f"{', '.join(map(str, runs))}: expected finished runs, found {there}; continue them with "
            "`labelwise bench run`"
        )
    absent = set(levels or {}) - {one.metric for one in found.experiments}
    if absent:
        raise ArgumentError(f"--at: none of these runs is measured by {', '.join(sorted(absent))}")
    for one in found.with_strategies:
        _write_experiment(out / one.folder, one, command)
    for comparison in found.models:
        for data, curves in comparison.curves.items():
            write_bytes(out / models.picture_name(data), png(curves))
    if found.models:
        write_text(out / "models.csv", models.models_csv(found.models))
    for group in found.groups:
        if group.ranks is not None:
            title = f"Average rank by {group.metric} over {many(group.ranks.experiments, 'experiment')} (1 is best)"
            write_bytes(out / f"ranks-{group.metric}.png", rank_diagram.png(group.ranks, title))
    write_text(out / "standings.csv", standings_csv(found.experiments))
    write_bytes(out / RECORDS, _compress(records))
    again = "\n".join([*_write_configs(sources, out), command or "labelwise bench report RUN"])
    found = replace(found, training=training_rules(((one.path.name, one.suites) for one in sources), found.names))
    write_text(out / "report.md", markdown_page(found, again))
    write_text(out / "report.html", html_page(found, again, out))
    return found


def gather(
    records: Sequence[Record],
    goals: Goals | None = None,
    levels: Mapping[str, Sequence[float]] | None = None,
    doubts: Sequence[str] = (),
    own_start: Container[str] = (),
) -> Report:
    """The report of these records, from their finished runs.

    Args:
        records: of one or more experiments.
        goals: which runs there should be; the head of the report names those that are missing.
        levels: levels of interest by metric.
        doubts: further sentences for the head.
        own_start: experiments in which each strategy chose its own first batch.
    """
    by_name: dict[str, list[Record]] = {name: [] for name in goals or {}}
    for record in records:
        by_name.setdefault(experiment_of(record), []).append(record)
    runs = {name: finished_runs(name, group, goals or {}) for name, group in sorted(by_name.items())}
    experiments = [
        experiment_from(name, one.records, levels or {}, name in own_start) for name, one in runs.items() if one.records
    ]
    missing = _missing(runs)
    if missing:
        finished, expected = (sum(getattr(one, what) for one in runs.values()) for what in ("finished", "expected"))
        missing.insert(
            0,
            f"This benchmark is unfinished: {finished:,} of {many(expected, 'run')} are there, and only those are "
            "compared.",
        )
    compared = models.compare(experiments)
    rest = [one for one in experiments if not models.compared_only_as_models(one, compared)]
    lines = [*missing, *doubts, *map(models.head_line, compared), *(summary(rest) if rest or not compared else [])]
    return Report(experiments, group_by_metric(rest) if rest else [], compared, lines)


def _missing(runs: Mapping[str, ExperimentRuns]) -> list[str]:
    """Sentences on missing runs; experiments that miss the same runs share one."""
    names: dict[str, list[str]] = {}
    for name, one in runs.items():
        if one.missing:
            names.setdefault(one.missing, []).append(name)
    return [f"{', '.join(every)}: {what}." for what, every in names.items()]


def _write_experiment(folder: Path, one: Experiment, command: str) -> None:
    write_bytes(folder / "curves.png", png(one.curves))
    if len(one.curves) > CROWDED:
        write_bytes(folder / "bands.png", panels_png(one.curves))
    write_text(
        folder / "table.md", f"# {one.name}\n\n{one.warning and one.warning + chr(10) * 2}{markdown(one.table, True)}"
    )
    write_text(folder / "table.csv", csv_text(one.table))
    page = page_html(one.records, title=one.name, command=command, metric=one.metric)
    write_text(folder / "page.html", page)


def levels_of(given: Sequence[str]) -> dict[str, list[float]]:
    """Levels by metric: "0.9" is an accuracy, "rmse=5" an RMSE."""
    levels: dict[str, list[float]] = {}
    for text in given:
        name, _, value = text.rpartition("=")
        try:
            level = float(value)
        except ValueError as error:
            raise ArgumentError(f"--at: expected a level such as 0.9 or rmse=5, found {text!r}") from error
        if name and name not in METRICS:
            raise ArgumentError(f"--at: expected one of the metrics {', '.join(METRICS)}, found {name!r}")
        metric = metric_named(name or "accuracy")
        if metric.percent and not 0 < level < 1:
            raise ArgumentError(f"--at: expected a share of {metric.name} between 0 and 1, such as 0.9, found {value}")
        levels.setdefault(metric.name, []).append(level)
    return levels


def _write_configs(sources: Sequence[Source], out: Path) -> list[str]:
    """Write the configurations next to the records; return the commands that run them."""
    texts = [(source, text) for source in sources for text in source.configs]
    names = ["config.yaml"] if len(texts) == 1 else [f"config-{place + 1}.yaml" for place in range(len(texts))]
    if not (out / LIVE).is_dir():
        for old in set(out.glob("config*.yaml")) - {out / name for name in names}:
            old.unlink()  # of a report of other runs
        for name, (_, text) in zip(names, texts):
            write_text(out / name, text)
    lines = []
    for name, (source, _) in zip(names, texts):
        where = ["--out", str(source.path)] if (source.path / LIVE).is_dir() else []
        lines.append(shlex.join(["labelwise", "bench", "run", str(out / name), *where]))
    return lines


def _compress(records: Sequence[Record]) -> bytes:
    """The records, compressed without a timestamp, so that equal records give equal bytes."""
    text = "".join(record.to_json() + "\n" for record in records)
    return gzip.compress(text.encode("utf-8"), mtime=0)
