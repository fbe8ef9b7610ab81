"""The page: one self-contained HTML file that says what was saved, first in words, then in a figure and numbers.

It asks nothing of any server: style and figure are inside, and a content security policy forbids the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from labelwise.errors import ArgumentError
from labelwise.report import figures
from labelwise.report.charts import Line, Point, line_chart, looks
from labelwise.report.html import definition_list, html_document, table_box, text
from labelwise.report.tables import cells, header, memory_note
from labelwise.rng import Key
from labelwise.stats import training_warnings
from labelwise.stats.curves import SPREADS, Curves, Spread, band, learning_curves
from labelwise.stats.metric import Metric
from labelwise.stats.paired import name_of_test
from labelwise.stats.record import Record
from labelwise.stats.savings import MIN_SEEDS, Level, Saved
from labelwise.stats.summary import Row, Table, no_learning_warning, summarise
from labelwise.stats.verdict import Verdict


def page_html(
    records: Sequence[Record],
    *,
    title: str,
    command: str,
    protocol: Mapping[str, str] | None = None,
    metric: str = "accuracy",
    higher: bool | None = None,
    counts: Sequence[int] | None = None,
    against: str = "random",
    level: Level = "common",
    spread: Spread = "t95",
    key: Key | None = None,
) -> str:
    """The page of a comparison as HTML text.

    Args:
        records: of one data set and model; strategies, seeds, label counts and environment are read from them.
        title: names the comparison ("Handwritten digits, small network").
        command: the command that made it.
        protocol: what the records do not hold: data, model, training.
        metric, higher, counts, against, level, spread, key: as in `summarise`.

    Raises:
        ArgumentError: no records, or records of several experiments.
    """
    if not records:
        raise ArgumentError("A page needs records; found none. Run a comparison first.")
    by_strategy = learning_curves(records, metric, higher)
    numbers = summarise(
        records,
        metric,
        higher=higher,
        counts=counts,
        against=against,
        level=level,
        spread=spread,
        key=key,
    )
    nothing = no_learning_warning(records)
    table = table_box(header(numbers)[:-1], [row[:-1] for row in cells(numbers)], "Results by strategy")
    parts = [
        '<div class="report">',
        f'<p class="over">{escape(title)}</p>',
        f"<h1>{text(headline(numbers))}</h1>",
        f'<p class="lead">{text(nothing)}</p>' if nothing else "",
        *(f'<p class="bad">{text(line)}</p>' for line in training_warnings.sentences(records)),
        '<div class="parts">',
        _part("most", "Learning curves", _figure(by_strategy, numbers)),
        _part("least", "Verdicts", _verdicts(numbers) or "<p>There is nothing to compare.</p>"),
        _part("whole", "The numbers", table, _mean_curves(by_strategy, numbers)),
        _part("", "How to read this", *(f"<p>{text(line)}</p>" for line in _reading(numbers))),
        _part("", "What was run", definition_list({**(protocol or {}), **_protocol(records, by_strategy, numbers)})),
        _part("", "Environment", definition_list(_environment(records))),
        _part("", "Make it again", f'<pre tabindex="0">{escape(command)}</pre>'),
        "</div></div>",
    ]
    return html_document(title, parts)


def _part(width: str, title: str, *inside: str) -> str:
    return f'<section class="part {width}"><h2>{escape(title)}</h2>{"".join(inside)}</section>'


def headline(table: Table) -> str:
    """The result in one sentence: the best of the strategies that beat the baseline, if any does."""
    compared = [row for row in table.rows if row.found is not None and row.saved is not None]
    if not compared:
        return f"Nothing to compare: these runs need {table.against} and another strategy with the same seeds"
    better = [row for row in compared if _found(row).outcome == "better"]
    if better:
        best = max(better, key=_share)
        return f"{best.strategy} is {best.verdict}"
    if len(compared) == 1:
        return f"{compared[0].strategy}: {compared[0].verdict}"
    if all(_found(row).outcome == "open" for row in compared):
        needed = _found(compared[0]).needed
        return f"Too few seeds to tell the strategies from {table.against}: {needed} or more are needed"
    return f"No strategy is measurably better than {table.against} here"


def _found(row: Row) -> Verdict:
    assert row.found is not None, "only rows that were compared"
    return row.found


def _share(row: Row) -> float:
    """The share of labels saved, for sorting: unknown ones last."""
    return -math.inf if row.saved is None or math.isnan(row.saved.share) else row.saved.share


def _verdicts(table: Table) -> str:
    """The verdicts as a list: better, no difference, worse; in each group by labels saved."""
    order = ("better", "same", "open", "worse")
    kinds = {"better": "good", "worse": "bad"}
    compared = [row for row in table.rows if row.found is not None and row.saved is not None]
    items = []
    for row in sorted(compared, key=lambda row: (order.index(_found(row).outcome), -_share(row))):
        assert row.saved is not None
        items.append(
            f'<li><b>{escape(row.strategy)}</b> <span class="{kinds.get(_found(row).outcome, "same")}">'
            f"{text(row.verdict)}</span><small>{text(detail(table.metric, row.saved))} "
            f"{text(_ends(table, row))}</small></li>"
        )
    return f'<ul class="verdicts">{"".join(items)}</ul>' if items else ""


def _ends(table: Table, row: Row) -> str:
    """Both results at the last label count and over the whole curve: "At 90 labels 95.2 %, random 93.1 %; area ..."."""
    base = next((one for one in table.rows if one.strategy == table.against), None)
    if base is None or not row.at or not base.at:
        return ""
    metric = table.metric

    def both(one: float, other: float) -> str:
        return f"{metric.text(one)}{metric.unit}, {table.against} {metric.text(other)}{metric.unit}"

    ends, areas = both(row.at[-1].mean, base.at[-1].mean), both(row.area.mean, base.area.mean)
    return f"At {table.counts[-1]} labels {ends}; area under the curve {areas}."


def detail(metric: Metric, saved: Saved) -> str:
    """The numbers behind the share of labels saved: "reached 95.2 % with 131 labels; random needed 190"."""
    level = f"{metric.text(saved.level)}{metric.unit}"
    own = f"Reached {metric.title} {level} with {saved.labels:.0f} labels" if saved.labels else ""
    other = f"{saved.against} needed {saved.labels_random:.0f}" if saved.labels_random else ""
    if own and other:
        return f"{own}; {other}."
    if own:
        return f"{own}; {saved.against} did not within its budget."
    if other:
        return f"Did not reach {metric.title} {level} within its budget; {other} labels."
    return f"Neither it nor {saved.against} reached {metric.title} {level} within the budget."


def _figure(by_strategy: Mapping[str, Curves], table: Table) -> str:
    metric, shaded = table.metric, figures.banded_strategies(by_strategy, table.against)
    lines = []
    for name, (colour, dash) in looks(list(by_strategy), table.against).items():
        found = band(by_strategy[name], table.spread)
        points = [
            Point(*ends) for ends in np.stack([found.labels_T, found.mean_T, found.low_T, found.high_T], 1).tolist()
        ]
        lines.append(Line(name, points, colour, dash, name in shaded))
    caption = figures.caption_of(by_strategy, table.spread, table.against)
    way = "" if metric.higher else " (lower is better)"
    chart = line_chart(
        lines,
        f"Learning curves: {metric.title}{way} against labels for {', '.join(by_strategy)}. {caption}",
        lambda value: f"{metric.text(value)}{metric.unit}",
        metric.percent,
    )
    above = f'<p class="note">{text(metric.title)}{way}</p>'
    return f"{above}<figure>{chart}<figcaption>{text(caption)}</figcaption></figure>"


def _mean_curves(by_strategy: Mapping[str, Curves], table: Table) -> str:
    bands = {name: band(lines, table.spread) for name, lines in by_strategy.items()}
    counts = sorted({int(count) for line in bands.values() for count in line.labels_T})
    rows = []
    for count in counts:
        row = [str(count)]
        for line in bands.values():
            found = line.mean_T[line.labels_T == count]
            row.append(table.metric.text(float(found[0])) if len(found) else "–")
        rows.append(row)
    inside = table_box(["labels", *bands], rows, "Mean curves")
    unit = " (%)" if table.metric.percent else ""
    return f"<details><summary>Mean {escape(table.metric.title)}{unit} at every label count</summary>{inside}</details>"


_HEADLINE = (
    " The strategy in the headline was picked after the results were known, which flatters it slightly; the verdicts "
    "show every strategy that was run."
)


def _reading(table: Table) -> list[str]:
    better = "Higher" if table.metric.higher else "Lower"
    compared = max((row.found.compared for row in table.rows if row.found is not None), default=0)
    several = sum(row.found is not None for row in table.rows)
    by = name_of_test(row.found.test.seeds for row in table.rows if row.found is not None)
    tested = "" if compared < 2 else f" As {compared} strategies were compared, Holm's correction is applied to it."
    return [
        f"Each line shows the {table.metric.title} of the model by the number of labels it was trained on. {better} is "
        "better. A line that reaches a level further left needs fewer labels for it.",
        f"The verdict (better, worse or no measurable difference) uses the area between the lines of a strategy and "
        f"{table.against}, seed by seed, because each seed gives every strategy the same rows, and the same first "
        f"labels unless the strategy chooses them. By the {by}, a difference is measurable if two equal strategies "
        f"would differ as much in fewer than one of twenty such runs.{tested}",
        f"Labels saved tell the size of the difference: the labels that each needed on average to reach "
        f"{_level(table)}, the start set included. A saving of 30 % means that 70 labels do the work of 100, a "
        "speed-up of 1.43.",
        *_range(table),
        f"± is the {SPREADS[table.spread]}. Area is the area under the curve divided by the label range, which is the "
        "average level; the plain mean is the mean over all label counts. Selection time is the mean over the rounds "
        f"that chose rows.{memory_note(table)}",
        f"These numbers hold for this data, model and label budget.{'' if several < 2 else _HEADLINE}",
    ]


def _range(table: Table) -> list[str]:
    """What an interval means, if one is shown."""
    if not any(row.saved is not None and row.saved.seeds >= MIN_SEEDS for row in table.rows):
        return []
    return [
        "The range in brackets is a 95 % interval for other seeds. It belongs to that one level and is not corrected "
        "for several strategies, so it can exclude 0 where the verdict is no difference, or include 0 where there is "
        "one."
    ]


def _level(table: Table) -> str:
    if table.level == "common":
        return f"the best level that both a strategy and {table.against} reach"
    if table.level == "final":
        return f"the best level a strategy reaches (where {table.against} never does, the saving is a lower bound)"
    return f"the level {table.metric.text(table.level)}{table.metric.unit}"


def _protocol(records: Sequence[Record], by_strategy: Mapping[str, Curves], table: Table) -> dict[str, str]:
    seeds = sorted({record.seed for record in records})
    counts = sorted({int(count) for lines in by_strategy.values() for count in lines.labels_T})
    return {
        "Strategies": ", ".join(by_strategy),
        "Seeds": f"{len(seeds)} ({', '.join(map(str, seeds))})",
        "Label counts": ", ".join(map(str, counts)),
        "Measured": f"{table.metric.title}, after training on each label count",
    }


def _environment(records: Sequence[Record]) -> dict[str, str]:
    """Every entry of the records' environments, with up to three different values."""
    seen: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.environment.items():
            seen.setdefault(name, {})[value] = None
    return {
        name: ", ".join(values) if len(values) <= 3 else f"{len(values)} values, in the records of each run"
        for name, values in seen.items()
    }
