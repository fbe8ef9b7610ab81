"""The section of the benchmark report that compares models by random picks alone, such as training rules.

Random picks show how a model is trained, not how rows are chosen, so they can decide between training rules without
favouring a strategy.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labelwise.bench.report.experiments import Experiment
from labelwise.io.text import many
from labelwise.stats.curves import Curves, learning_curves
from labelwise.stats.models import Gap, ModelRow, ModelTable, compare_models
from labelwise.stats.training_warnings import training_warnings

Cells = tuple[list[str], list[list[str]]]  # titles, rows
TITLE = "Models compared by random picks"
_WHAT = {"area": "Area under the curve", "last": "Score at the last label count"}


@dataclass(frozen=True)
class ModelComparison:
    """The models that ran random on the same data sets, by one metric."""

    curves: dict[str, dict[str, Curves]]  # by data set and model
    tables: tuple[ModelTable, ...]  # by area, and by the last score
    warned: tuple[str, ...] = ()  # which models had hardly learnt, where and how often


def compare(experiments: Sequence[Experiment]) -> list[ModelComparison]:
    """A comparison for each metric of the data sets on which several models ran random."""
    by_metric: dict[str, dict[str, dict[str, Curves]]] = {}
    for one in experiments:
        records = [record for record in one.records if record.strategy == "random"]
        if records:
            # R² compares over data sets, whatever the unit of their numbers.
            metric = "r2" if one.metric == "rmse" and all("r2" in record.metrics for record in records) else one.metric
            data, _, model = one.name.rpartition("/")
            curves = learning_curves(records, metric)["random"]
            by_metric.setdefault(metric, {}).setdefault(data, {})[model] = curves
    found = []
    for _, by_data in sorted(by_metric.items()):
        several = {data: models for data, models in by_data.items() if len(models) > 1}
        if several:
            tables = (compare_models(several, "area"), compare_models(several, "last"))
            found.append(ModelComparison(several, tables, tuple(_warned(experiments, several))))
    return found


def _warned(experiments: Sequence[Experiment], several: Mapping[str, Mapping[str, Curves]]) -> list[str]:
    """A sentence for each model whose training had hardly learnt in some rounds of random picks."""
    found: dict[str, list[str]] = {}
    for one in experiments:
        data, _, model = one.name.rpartition("/")
        warned = training_warnings(record for record in one.records if record.strategy == "random")
        if model in several.get(data, {}) and warned:
            found.setdefault(model, []).append(f"{data} ({warned['random'].text})")
    return [f"Training of {model} had hardly learnt on {', '.join(where)}." for model, where in found.items()]


def compared_only_as_models(one: Experiment, comparisons: Sequence[ModelComparison]) -> bool:
    """Whether an experiment has random alone, so that the comparison of models shows all of it."""
    data, _, model = one.name.rpartition("/")
    return set(one.curves) == {"random"} and any(model in each.curves.get(data, {}) for each in comparisons)


def head_line(comparison: ModelComparison) -> str:
    """The best models in a sentence."""
    area = comparison.tables[0]
    where = many(len(area.datasets), "data set")
    if area.best is None:
        return f"{many(len(area.rows), 'model')} are compared by random picks on {where}; no mean over all is possible."
    near = [row.model for row in area.rows if row.gap is not None and row.gap.low <= 0 <= row.gap.high]
    also = f"; not measurably worse: {', '.join(near)}" if near else ""
    complete = many(sum(math.isfinite(row.mean) for row in area.rows), "model")
    where = f"that ran on each of {where}" if len(area.datasets) > 1 else f"on {area.datasets[0]}"
    return (
        f"Of {complete} {where}, {area.best.model} has the highest {'mean ' * (len(area.datasets) > 1)}area of "
        f"{area.metric.title} by random picks ({area.metric.text(area.best.mean)}{area.metric.unit}){also}."
    )


def section_title(table: ModelTable) -> str:
    """The title of a table."""
    return f"{_WHAT[table.measure]}: {table.metric.title}{table.metric.unit}"


def picture_name(data: str) -> str:
    """The file of a data set's picture."""
    return f"models-{re.sub(r'[^A-Za-z0-9.+-]+', '-', data)}.png"


def model_table(table: ModelTable) -> Cells:
    """One row for each model, best mean first."""
    titles = ["model", *(f"{data} ({many(table.seeds[data], 'seed')})" for data in table.datasets)]
    titles += ["mean", "difference from the best", "most behind"] if len(table.datasets) > 1 else ["difference"]
    return titles, [_row(table, row) for row in table.rows]


def _row(table: ModelTable, row: ModelRow) -> list[str]:
    cells = [row.model]
    for data in table.datasets:
        text = table.metric.text(row.values.get(data, math.nan))
        own = row.seeds.get(data, 0)
        cells.append(text if own in (0, table.seeds[data]) else f"{text} ({many(own, 'seed')})")
    best = table.best is not None and row is table.best
    gap = "best" if best else gap_text(table, row.gap)
    if len(table.datasets) == 1:
        return [*cells, gap]
    loss = f"{_points(table, row.largest_loss, sign=False)} ({row.largest_loss_on})" if row.largest_loss > 0 else "–"
    return [*cells, table.metric.text(row.mean), gap, loss]


def gap_text(table: ModelTable, gap: Gap | None) -> str:
    """A difference with its interval, and how many seeds and data sets are behind it if fewer than the table's."""
    if gap is None:
        return "–"
    text = _points(table, gap.mean)
    if math.isfinite(gap.low):
        text += f" ({_points(table, gap.low)} to {_points(table, gap.high)})"
    fewer = [many(gap.datasets, "data set")] if gap.datasets < len(table.datasets) else []
    fewer += [many(gap.seeds, "seed")] if gap.seeds < min(table.seeds.values()) else []
    return f"{text}, {' and '.join(fewer)}" if fewer else text


def _points(table: ModelTable, value: float, sign: bool = True) -> str:
    if not math.isfinite(value):
        return "–"
    text = f"{100 * value if table.metric.percent else value:{'+' if sign else ''}.{2 if table.metric.percent else 3}f}"
    return text.replace("-", "−")


def note(table: ModelTable) -> str:
    """What the columns mean."""
    if len(table.datasets) == 1:
        return (
            "The difference is from the best model, paired by seed, with Student's 95 % interval over seeds, without "
            "correction for the number of models; below 0 is worse."
        )
    mean = "mean is over the data sets"
    if table.best is None:
        mean = "there is no mean: no model ran on all data sets, or their units differ"
    return (
        f"All picks are random; {mean}. The difference from the best model by that mean is paired by seed and averaged "
        "over the data sets, with Student's 95 % interval over seeds; below 0 is worse. It is not corrected for the "
        "number of models, and holds for these data sets. Most behind is the largest loss against the best model of a "
        "data set, and where. A model with less than half of the seeds is compared on those it has and gets no mean."
    )


def models_csv(comparisons: Sequence[ModelComparison]) -> str:
    """Every value and every difference as bare numbers; differences are from the best model by mean."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["metric", "measure", "model", "dataset", "seeds", "value", "difference", "low", "high"])
    for table in (table for each in comparisons for table in each.tables):
        for row in table.rows:
            start = [table.metric.name, table.measure, row.model]
            for data, value in row.values.items():
                writer.writerow([*start, data, row.seeds[data], f"{value:.6g}", "", "", ""])
            gap = row.gap or Gap(math.nan, math.nan, math.nan, 0, 0)
            numbers = [f"{x:.6g}" if math.isfinite(x) else "" for x in (row.mean, gap.mean, gap.low, gap.high)]
            writer.writerow([*start, "mean", gap.seeds or "", *numbers])
    return out.getvalue()
