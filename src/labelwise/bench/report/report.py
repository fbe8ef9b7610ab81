"""Evidence: the report of one or more benchmark runs, as Markdown, HTML, PNG and CSV, made from their records alone.

OUT/report.md, report.html      the verdict, ranks, wins and losses, and every experiment
OUT/EXPERIMENT/                 page.html, curves.png, bands.png, table.md, table.csv of one data set with one model
OUT/ranks-METRIC.png            critical-difference diagram of the experiments with that metric
OUT/standings.csv               each strategy on each experiment against random
OUT/records.jsonl.gz            the records it was made from: `labelwise bench report OUT` makes it again
OUT/config.yaml                 the configuration they were run by, where it was in the folder of the run
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelwise.bench.report import render
from labelwise.bench.report.load_runs import (
    LIVE,
    RECORDS,
    Goals,
    Source,
    experiment_of,
    goals_of,
    joined,
    source_of,
    standing,
)
from labelwise.bench.report.sentences import summary
from labelwise.bench.report.tables import standings_csv
from labelwise.errors import ArgumentError
from labelwise.io.files import write_bytes, write_text
from labelwise.io.text import many
from labelwise.report import rank_diagram
from labelwise.report.figures import CROWDED, panels_png, png
from labelwise.report.page import page_html
from labelwise.report.tables import Table, csv_text, markdown, summarise
from labelwise.stats.baseline import nothing_learnt
from labelwise.stats.curves import Curves, area, learning_curves
from labelwise.stats.metric import METRICS, metric_named
from labelwise.stats.record import Record
from labelwise.stats.standings import Ranks, Score, ranks, win_tie_loss
from labelwise.stats.verdict import ORACLE, Verdict


@dataclass(frozen=True)
class Experiment:
    """One data set with one model: the records of its finished runs, random first and then the best first."""

    name: str
    metric: str
    records: tuple[Record, ...]
    curves: dict[str, Curves]
    table: Table
    nothing: str  # said where no model learnt anything: such an experiment does not count
    levels: tuple[float, ...] = ()  # at which labels are counted beside the best that both reach

    @property
    def folder(self) -> str:
        """Its name as a folder."""
        return re.sub(r"[^A-Za-z0-9.+-]+", "-", self.name)

    @property
    def against(self) -> dict[str, Verdict]:
        """The verdict on each contender, by the table."""
        return {row.strategy: row.found for row in self.table.rows if row.found is not None}

    @property
    def short(self) -> list[str]:
        """Strategies that have not all seeds which others have: their means are of other seeds, so they get no rank."""
        every = {seed for lines in self.curves.values() for seed in lines.seeds}
        return [name for name, lines in self.curves.items() if set(lines.seeds) != every]


@dataclass(frozen=True)
class Overall:
    """What the experiments with one metric say together; those that count."""

    metric: str
    experiments: tuple[Experiment, ...]
    ranks: Ranks | None  # None with fewer than two strategies in all experiments
    scores: dict[tuple[str, str], Score]


@dataclass(frozen=True)
class Found:
    """All that a report says: experiments, what they say together, and what is missing."""

    experiments: list[Experiment]
    overall: list[Overall]
    missing: list[str]

    @property
    def lines(self) -> list[str]:
        """The report in plain sentences."""
        return [*self.missing, *summary(self.experiments)]


def report(
    runs: Sequence[Path], out: Path, command: str = "", levels: Mapping[str, Sequence[float]] | None = None
) -> Found:
    """Write the report of these run folders into `out`; `levels` has levels of interest for each metric."""
    if (out / LIVE).is_dir() and [run.resolve() for run in runs] != [out.resolve()]:
        raise ArgumentError(
            f"--out {out} is the folder of a run; name another one for a report of other runs than that"
        )
    sources = [source_of(run) for run in runs]
    records = joined(sources)
    found = gather(records, goals_of(sources), levels or {})
    found.missing.extend(source.doubt for source in sources if source.doubt)
    if not found.experiments:
        there = f"{many(len(records), 'round')} of unfinished runs" if records else "nothing"
        raise ArgumentError(
            f"{', '.join(map(str, runs))}: finished runs were expected, found {there}; go on with `labelwise bench run`"
        )
    absent = set(levels or {}) - {one.metric for one in found.experiments}
    if absent:
        raise ArgumentError(f"--at: none of these runs is measured by {', '.join(sorted(absent))}")
    for one in found.experiments:
        _write_experiment(out / one.folder, one, command)
    for group in found.overall:
        if group.ranks is not None:
            title = f"Average rank by {group.metric} over {many(group.ranks.experiments, 'experiment')} (1 is best)"
            write_bytes(out / f"ranks-{group.metric}.png", rank_diagram.png(group.ranks, title))
    write_text(out / "standings.csv", standings_csv(found.experiments))
    write_bytes(out / RECORDS, _packed(records))
    again = "\n".join([*_kept_configs(sources, out), command or "labelwise bench report RUN"])
    write_text(out / "report.md", render.markdown_page(found, again))
    write_text(out / "report.html", render.html_page(found, again, out))
    return found


def gather(
    records: Sequence[Record], goals: Goals | None = None, levels: Mapping[str, Sequence[float]] | None = None
) -> Found:
    """The experiments of these records, by name, from their finished runs; `goals` says which runs there should be."""
    groups: dict[str, list[Record]] = {name: [] for name in goals or {}}
    for record in records:
        groups.setdefault(experiment_of(record), []).append(record)
    stands = {name: standing(name, group, goals or {}) for name, group in sorted(groups.items())}
    experiments = [_experiment(name, one.records, levels or {}) for name, one in stands.items() if one.records]
    lines = [one.missing for one in stands.values() if one.missing]
    if lines:
        done, all_runs = (sum(getattr(one, what) for one in stands.values()) for what in ("finished", "expected"))
        first = (
            f"This benchmark is unfinished: {done:,} of {many(all_runs, 'run')} are there, and only those are compared"
        )
        lines = [f"{first}.", *(f"{line}." for line in lines)]
    return Found(experiments, together(experiments), lines)


def together(experiments: Sequence[Experiment]) -> list[Overall]:
    """Ranks and scores of the experiments of each metric that count."""
    found = []
    for metric in sorted({one.metric for one in experiments}):
        counted = tuple(one for one in experiments if one.metric == metric and not one.nothing)
        curves = {one.name: {name: x for name, x in one.curves.items() if name != ORACLE} for one in counted}
        whole = {one.name: {n: x for n, x in curves[one.name].items() if n not in one.short} for one in counted}
        shared = set.intersection(*(set(by_strategy) for by_strategy in whole.values())) if whole else set()
        ranked = ranks(whole) if len(shared) > 1 else None
        found.append(Overall(metric, counted, ranked, win_tie_loss(curves)))
    return found


def _experiment(name: str, records: list[Record], levels: Mapping[str, Sequence[float]]) -> Experiment:
    metric = "accuracy" if "accuracy" in records[0].metrics else "rmse"
    found = learning_curves(records, metric)
    order = _ordered(found)
    records = sorted(records, key=lambda record: order.index(record.strategy))  # stable: rounds stay in order
    curves = {strategy: found[strategy] for strategy in order}
    table, nothing = summarise(records, metric), nothing_learnt(records)
    return Experiment(name, metric, tuple(records), curves, table, nothing, tuple(levels.get(metric, ())))


def _ordered(curves: Mapping[str, Curves]) -> list[str]:
    """Random, then the largest mean area first, and the oracle last."""

    def place(name: str) -> tuple[int, float]:
        good = float(area(curves[name]).mean()) * (1.0 if curves[name].metric.higher else -1.0)
        return (name != "random") + (name == ORACLE), -good

    return sorted(curves, key=place)


def _write_experiment(folder: Path, one: Experiment, command: str) -> None:
    write_bytes(folder / "curves.png", png(one.curves))
    if len(one.curves) > CROWDED:
        write_bytes(folder / "bands.png", panels_png(one.curves))
    write_text(
        folder / "table.md", f"# {one.name}\n\n{one.nothing and one.nothing + chr(10) * 2}{markdown(one.table, True)}"
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


def _kept_configs(sources: Sequence[Source], out: Path) -> list[str]:
    """Keep the configurations beside the records, and give the commands that run them."""
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


def _packed(records: Sequence[Record]) -> bytes:
    """The records, compressed; without a time inside, so that the same records give the same bytes."""
    text = "".join(record.to_json() + "\n" for record in records)
    return gzip.compress(text.encode("utf-8"), mtime=0)
