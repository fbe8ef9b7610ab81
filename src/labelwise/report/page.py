"""The page: one self-contained HTML file that says what was saved, first in words, then in a figure and numbers.

It asks nothing of any server: style and figure are inside, and a content security policy forbids the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from labelwise.errors import ArgumentError
from labelwise.report import figures
from labelwise.report.html import box, document, pairs, text
from labelwise.report.tables import cells, header, memory_note
from labelwise.rng import Key
from labelwise.stats.curves import SPREADS, Curves, Spread, band, learning_curves
from labelwise.stats.metric import Metric
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
    """The page as HTML text; `atomic.write_text` puts it into a file.

    `title` names the comparison ("Handwritten digits, small network"), `command` is the one that made it, and
    `protocol` holds what the records cannot know: data, model, training. Strategies, seeds, label counts and the
    environment are read from the records. The rest is as in `summarise`.
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
    parts = [
        f'<p class="over">{escape(title)}</p>',
        f"<h1>{text(headline(numbers))}</h1>",
        f'<p class="lead">{text(nothing)}</p>' if nothing else "",
        _verdicts(numbers),
        _figure(by_strategy, numbers),
        "<h2>The numbers</h2>",
        box(header(numbers)[:-1], [row[:-1] for row in cells(numbers)], "Results by strategy"),
        _mean_curves(by_strategy, numbers),
        "<h2>How to read this</h2>",
        *(f"<p>{text(line)}</p>" for line in _reading(numbers)),
        "<h2>What was run</h2>",
        pairs({**(protocol or {}), **_protocol(records, by_strategy, numbers)}),
        "<h2>Environment</h2>",
        pairs(_environment(records)),
        "<h2>Make it again</h2>",
        f'<pre tabindex="0">{escape(command)}</pre>',
    ]
    return document(title, parts)


def headline(table: Table) -> str:
    """The result in one sentence: of the strategies that are better, if any is, the one that saves most."""
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
    """The share of labels saved, what is not known last."""
    return -math.inf if row.saved is None or math.isnan(row.saved.share) else row.saved.share


def _verdicts(table: Table) -> str:
    """Every strategy that was compared: better, no difference, worse; in each the one that saves most first."""
    order = ("better", "same", "open", "worse")
    kinds = {"better": "good", "worse": "bad"}
    compared = [row for row in table.rows if row.found is not None and row.saved is not None]
    items = []
    for row in sorted(compared, key=lambda row: (order.index(_found(row).outcome), -_share(row))):
        assert row.saved is not None
        items.append(
            f'<li><b>{escape(row.strategy)}</b> <span class="{kinds.get(_found(row).outcome, "same")}">'
            f"{text(row.verdict)}</span><small>{text(detail(table.metric, row.saved))}</small></li>"
        )
    return f'<ul class="verdicts">{"".join(items)}</ul>' if items else ""


def detail(metric: Metric, saved: Saved) -> str:
    """What the share was computed from: "reached 95.2 % with 131 labels; random needed 190"."""
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
    drawn = [
        f'<div class="{name}">'
        + figures.svg(by_strategy, spread=table.spread, against=table.against, size=size, prefix=name)
        + "</div>"
        for name, size in (("wide", figures.WIDE), ("narrow", figures.NARROW))
    ]
    said = figures.caption_of(by_strategy, table.spread, table.against)
    return f"<figure>{''.join(drawn)}<figcaption>{text(said)}</figcaption></figure>"


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
    inside = box(["labels", *bands], rows, "Mean curves")
    unit = " (%)" if table.metric.percent else ""
    return f"<details><summary>Mean {escape(table.metric.title)}{unit} at every label count</summary>{inside}</details>"


def _reading(table: Table) -> list[str]:
    better = "Higher" if table.metric.higher else "Lower"
    compared = max((row.found.compared for row in table.rows if row.found is not None), default=0)
    tested = "" if compared < 2 else f" As {compared} strategies were compared, Holm's correction is applied to it."
    return [
        f"Each line shows how good the model is ({table.metric.title}) when it was trained on that many labels. "
        f"{better} is better; a line that gets there further left needed fewer labels.",
        f"Better, worse or no measurable difference: by the area between the lines of a strategy and of "
        f"{table.against}, seed by seed, as each seed gives every strategy the same start. A difference is measurable "
        f"where two strategies that are alike would differ as much in fewer than one of twenty such runs.{tested}",
        f"Labels saved are the size of that: take {_level(table)}, and count the labels each needed for it on average, "
        "the start set included. A saving of 30 % means 70 labels do the work of 100, a speed-up of 1.43.",
        *_range(table),
        f"± is the {SPREADS[table.spread]}. Area is the area under the curve divided by the label range: the average "
        "level along the way; its plain mean is that of the levels at all label counts. Selection time is the mean "
        f"over the rounds that chose rows.{memory_note(table)}",
        "These numbers hold for this data, model and label budget. The strategy in the headline was chosen after "
        "looking, which flatters it a little; the list under it shows every strategy that was run.",
    ]


def _range(table: Table) -> list[str]:
    """What an interval says, where one is shown."""
    if not any(row.saved is not None and row.saved.seeds >= MIN_SEEDS for row in table.rows):
        return []
    return [
        "The range in brackets is a 95 % interval: other seeds would give another number, and it says how different. "
        "It is of that one level and not corrected, so that it can leave out 0 where the verdict is no difference, "
        "or include 0 where there is one."
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
    """Every entry of the records' environments; one that differs between records shows up to three values."""
    seen: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.environment.items():
            seen.setdefault(name, {})[value] = None
    return {
        name: ", ".join(values) if len(values) <= 3 else f"{len(values)} values, in the records of each run"
        for name, values in seen.items()
    }
