"""Experiments: what the records of one data set and model say, and what several experiments say together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labelwise.stats.curves import Curves, area, learning_curves
from labelwise.stats.record import Record
from labelwise.stats.standings import Ranks, Score, ranks, win_tie_loss
from labelwise.stats.summary import Table, no_learning_warning, summarise
from labelwise.stats.verdict import ORACLE, Verdict


@dataclass(frozen=True)
class Experiment:
    """One data set with one model: the records of its finished runs, random first and then the best first."""

    name: str
    metric: str
    records: tuple[Record, ...]
    curves: dict[str, Curves]
    table: Table
    warning: str  # why the experiment does not count (no model learns anything); empty if it counts
    levels: tuple[float, ...] = ()  # levels of interest, at which labels are counted too
    own_start: bool = False  # each strategy chose its own first batch

    @property
    def folder(self) -> str:
        """Its name as a folder."""
        return re.sub(r"[^A-Za-z0-9.+-]+", "-", self.name)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each contender, by strategy."""
        return {row.strategy: row.found for row in self.table.rows if row.found is not None}

    @property
    def incomplete(self) -> list[str]:
        """Strategies without some of the seeds of others. Their means do not compare, so they get no rank."""
        every = {seed for lines in self.curves.values() for seed in lines.seeds}
        return [name for name, lines in self.curves.items() if set(lines.seeds) != every]


@dataclass(frozen=True)
class MetricGroup:
    """The experiments with one metric that count, with ranks and scores over all of them."""

    metric: str
    experiments: tuple[Experiment, ...]
    ranks: Ranks | None  # None with fewer than two strategies in all experiments
    scores: dict[tuple[str, str], Score]


def experiment_from(
    name: str, records: list[Record], levels: Mapping[str, Sequence[float]], own_start: bool = False
) -> Experiment:
    """The experiment of these records of finished runs."""
    metric = "accuracy" if "accuracy" in records[0].metrics else "rmse"
    found = learning_curves(records, metric)
    order = _ordered(found)
    records = sorted(records, key=lambda record: order.index(record.strategy))  # stable: rounds stay in order
    curves = {strategy: found[strategy] for strategy in order}
    table, warning = summarise(records, metric), no_learning_warning(records)
    return Experiment(name, metric, tuple(records), curves, table, warning, tuple(levels.get(metric, ())), own_start)


def group_by_metric(experiments: Sequence[Experiment]) -> list[MetricGroup]:
    """Ranks and scores of the experiments of each metric that count."""
    groups = []
    for metric in sorted({one.metric for one in experiments}):
        counted = tuple(one for one in experiments if one.metric == metric and not one.warning)
        curves = {one.name: {name: x for name, x in one.curves.items() if name != ORACLE} for one in counted}
        whole = {one.name: {n: x for n, x in curves[one.name].items() if n not in one.incomplete} for one in counted}
        shared = set.intersection(*(set(by_strategy) for by_strategy in whole.values())) if whole else set()
        ranked = ranks(whole) if len(shared) > 1 else None
        groups.append(MetricGroup(metric, counted, ranked, win_tie_loss(curves)))
    return groups


def _ordered(curves: Mapping[str, Curves]) -> list[str]:
    """Random first, then by mean area, the oracle last."""

    def place(name: str) -> tuple[int, float]:
        good = float(area(curves[name]).mean()) * (1.0 if curves[name].metric.higher else -1.0)
        return (name != "random") + (name == ORACLE), -good

    return sorted(curves, key=place)
