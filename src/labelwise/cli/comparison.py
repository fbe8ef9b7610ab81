"""Shared by `labelwise demo`, `simulate` and `bench replay`: the live display of a comparison, its table and files."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.cli.interrupted import Stopped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from labelwise.bench.data.load import Data
    from labelwise.bench.suite.compare import Comparison
    from labelwise.recommend import Recommendation
    from labelwise.stats.record import Record
    from labelwise.stats.summary import Table

ENOUGH = "[dim]\\[default: 5, the fewest that a verdict needs][/]"
CALLBACK = "A callback, called with the record of each round; can be repeated. See docs/callbacks.md."
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Presentation:
    """How a comparison is presented.

    Attributes:
        title: of its page.
        metric: what is measured.
        protocol: lines for the page on data, model and training.
        next: commands to suggest, and what they are for.
        resumable: whether the same command continues a stopped run.
        others: further metrics, each with a table.
    """

    title: str
    metric: str
    protocol: Mapping[str, str]
    next: Sequence[tuple[str, str]]
    resumable: bool
    others: Sequence[str] = ()


def check_writable(out: Path) -> None:
    """Raise before the runs if the folder is not writable. Folders that this makes are removed again."""
    from labelwise.errors import StoreError

    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".labelwise-probe"
        probe.touch()
        probe.unlink()
        for folder in made:
            folder.rmdir()
    except OSError as error:
        raise StoreError(f"--out {out}: results cannot be written there ({error}); name another folder") from error


def check_drawing() -> None:
    """Raise before the runs if matplotlib is missing."""
    from labelwise.report.style import import_matplotlib

    import_matplotlib()


def parse_names(recipes: str, recommended: Callable[[], str] | None = None) -> tuple[str, ...]:
    """Split comma-separated names: each once, random first, "recommended" as the name of the recipe it stands for."""
    names = [one.strip() for one in recipes.split(",") if one.strip()]
    if recommended is not None:
        names = [recommended() if one == "recommended" else one for one in names]
    return tuple(dict.fromkeys(["random", *names]))


def recommendation_for(data: Data, learner: Any, k: int) -> Recommendation:
    """What is recommended for these rows and this learner."""
    from labelwise import recipes

    return recipes.recommended(learner, data.pool, task=data.task, classes=len(data.classes or ()) or None, k=k)


def recommended_for(data: Data, learner: Any, k: int) -> str:
    """The recipe recommended for these rows and this learner; where that is random, the one that saved most.

    Raises:
        ArgumentError: it is random itself, and no strategy with records can run.
    """
    from labelwise.errors import ArgumentError
    from labelwise.recommend import to_compare

    found = recommendation_for(data, learner, k)
    name = to_compare(found)
    if name == "random":
        raise ArgumentError(f"random itself is recommended here: {found.why} Name other strategies to compare")
    return name


def show_progress(
    plan: Comparison, records: Iterable[Record], console: Console, about: Presentation
) -> tuple[list[Record], bool]:
    """Collect the records while showing progress; also return whether Ctrl-C stopped the run.

    A terminal has a live display; anywhere else a line is printed for each finished run of a recipe.
    """
    from rich.live import Live

    from labelwise.errors import TrainingWarning

    warnings.simplefilter("ignore", TrainingWarning)  # what is shown at the end counts them
    taken: list[Record] = []
    try:
        if console.is_terminal:
            with Live(_display(plan, taken, about.metric), console=console, refresh_per_second=4) as live:
                for record in records:
                    taken.append(record)
                    live.update(_display(plan, taken, about.metric))
        else:
            for record in records:
                taken.append(record)
                if record.round == plan.n:
                    console.print(_line(plan, taken, about.metric), highlight=False, soft_wrap=True, markup=False)
    except KeyboardInterrupt:
        return taken, True
    return taken, False


def _line(plan: Comparison, records: list[Record], metric: str) -> str:
    """The run that has just ended, in a line."""
    from labelwise.stats.metric import metric_named

    measured, last = metric_named(metric), records[-1]
    value = f"{measured.title} {measured.text(last.metrics[metric])}{measured.unit}"
    return f"{len(records)}/{plan.records} rounds: {last.strategy}, seed {last.seed}, {value} at {last.labels} labels"


def complete_seeds(plan: Comparison, records: list[Record]) -> list[Record]:
    """The records of the seeds that every recipe finished."""
    count: dict[int, int] = {}
    for record in records:
        count[record.seed] = count.get(record.seed, 0) + 1
    return [record for record in records if count[record.seed] == len(plan.recipes) * (plan.n + 1)]


def _display(plan: Comparison, records: list[Record], metric: str) -> RenderableType:
    """Progress and the curves so far: the mean metric of each recipe by number of labels."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from labelwise.stats.metric import metric_named

    measured = metric_named(metric)
    done, total = len(records), plan.records
    head = Table.grid(padding=(0, 1))
    what = f"{records[-1].strategy}, seed {records[-1].seed}" if records else "starting"
    head.add_row(ProgressBar(total=total, completed=done, width=40), f"{done}/{total}", f"[dim]{what}[/]")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("recipe")
    way = "" if measured.higher else " (lower is better)"
    table.add_column(f"{measured.title}{way}, {plan.start} to {plan.start + plan.n * plan.k} labels")
    table.add_column("last", justify="right")
    table.add_column("seeds", justify="right")
    means = {recipe: _means(plan, records, recipe, metric) for recipe in plan.recipes}
    values = [value for curve in means.values() for value in curve]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    for recipe, curve in means.items():
        runs = {record.seed for record in records if record.strategy == recipe}
        last = measured.text(curve[-1]) + measured.unit if curve else ""
        table.add_row(recipe, Text(_bars(curve, low, high), style="cyan"), last, str(len(runs)) if runs else "")
    return Group(head, table)


def _means(plan: Comparison, records: list[Record], recipe: str, metric: str) -> list[float]:
    """Mean of the metric at each label count, over the seeds that reached it."""
    by_round: dict[int, list[float]] = {}
    for record in records:
        if record.strategy == recipe:
            by_round.setdefault(record.round, []).append(record.metrics[metric])
    return [sum(by_round[r]) / len(by_round[r]) for r in range(plan.n + 1) if r in by_round]


def _bars(values: list[float], low: float, high: float) -> str:
    span = (high - low) or 1.0
    return "".join(BARS[1 + round((value - low) / span * (len(BARS) - 2))] * 3 for value in values)


def write_results(
    plan: Comparison, records: list[Record], out: Path, console: Console, stopped: bool, about: Presentation
) -> None:
    """Write table, page, picture and records; after Ctrl-C, of the seeds that every recipe finished."""
    from rich.markup import escape

    from labelwise.stats import training_warnings
    from labelwise.stats.summary import summarise

    if stopped:
        records = _of_complete_seeds(plan, records, out, console, about)
    table = summarise(records, about.metric)
    console.print(_table(table))
    for line in training_warnings.sentences(records):
        console.print(f"[yellow]{escape(line)}[/]", highlight=False)
    _write(records, table, out, about)
    for other in about.others:
        console.print(_last(records, other), highlight=False)
    console.print("[bold]Written[/]")
    for name, what in (
        ("report.html", "the page: curves, table, how to read it"),
        ("curves.png", "the picture"),
        ("table.csv", "the table; table.md is the same in Markdown"),
        ("records.jsonl", "every round of every run"),
    ):
        console.print(f"  {escape(str(out / name))}  [dim]{what}[/]", highlight=False, soft_wrap=True)
    if stopped:
        raise Stopped
    console.print("[bold]Next[/]")
    for line, what in about.next:
        console.print(f"  {line}  [dim]{what}[/]", highlight=False, soft_wrap=True)


def _of_complete_seeds(
    plan: Comparison, records: list[Record], out: Path, console: Console, about: Presentation
) -> list[Record]:
    """The records of a stopped run to report; exit if there are none, or if they would replace an earlier result."""
    from rich.markup import escape

    on = " The same command continues from here." if about.resumable else ""
    whole = complete_seeds(plan, records)
    if not whole:
        note = "; nothing was written" if not about.resumable else ""
        console.print(f"[yellow]Stopped before the first seed was done for every recipe{note}.[/]{on}")
        raise Stopped
    if (out / "records.jsonl").exists() and not about.resumable:
        console.print(
            f"[yellow]Stopped.[/] {escape(str(out))} holds the results of an earlier run, which were not changed."
        )
        raise Stopped
    console.print(f"[yellow]Stopped.[/] Seeds that every recipe finished: {len({r.seed for r in whole})}.{on}")
    return whole


def _write(records: list[Record], table: Table, out: Path, about: Presentation) -> None:
    from labelwise.io.files import write_bytes, write_text
    from labelwise.report.figures import png
    from labelwise.report.page import page_html
    from labelwise.report.tables import csv_text, markdown
    from labelwise.stats.curves import learning_curves
    from labelwise.stats.record import write
    from labelwise.stats.summary import summarise

    write(out / "records.jsonl", records)
    command = "labelwise " + shlex.join(sys.argv[1:])
    page = page_html(records, title=about.title, command=command, protocol=about.protocol, metric=about.metric)
    write_text(out / "report.html", page)
    write_bytes(out / "curves.png", png(learning_curves(records, about.metric)))
    for name, one in (("table", table), *((f"table-{other}", summarise(records, other)) for other in about.others)):
        write_text(out / f"{name}.csv", csv_text(one))
        write_text(out / f"{name}.md", markdown(one, True))


def _last(records: list[Record], metric: str) -> str:
    """The mean of another metric at the last label count, in a line."""
    from labelwise.stats.curves import learning_curves
    from labelwise.stats.metric import metric_named

    measured = metric_named(metric)
    curves = learning_curves(records, metric)
    ends = [f"{name} {measured.text(float(lines.values_ST[:, -1].mean()))}" for name, lines in curves.items()]
    return f"{measured.title[:1].upper()}{measured.title[1:]} at the last count: {', '.join(ends)}"


def _table(table: Table) -> RenderableType:
    """The table for a terminal: means only; the spread is on the page."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    from labelwise.report.tables import saved_text, seconds

    metric = table.metric
    grid = Grid(
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"{metric.title[:1].upper()}{metric.title[1:]}{' (%)' if metric.percent else ''} by number of labels, "
        "area under the curve, seconds per selection, labels saved",
        title_justify="left",
    )
    for title in ("recipe", *map(str, table.counts), "area", "seconds"):
        if title == "recipe":  # its parts wrap where names are long
            grid.add_column(title, min_width=max(len(word) for row in table.rows for word in row.strategy.split()))
        else:
            grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("saved")  # it wraps on a narrow terminal; numbers are never cut
    for row in table.rows:
        means = [metric.text(stat.mean) for stat in (*row.at, row.area)]
        grid.add_row(row.strategy, *means, seconds(row.select_seconds), saved_text(row.saved))
    verdicts = [Text.assemble((row.strategy, "bold"), ": ", row.verdict) for row in table.rows if row.saved]
    return Group(grid, *verdicts, Text(at_the_end(table)))


def at_the_end(table: Table) -> str:
    """The metric at the last label count and over the whole curve, of every recipe."""
    metric = table.metric
    last = ", ".join(f"{row.strategy} {metric.text(row.at[-1].mean)}{metric.unit}" for row in table.rows if row.at)
    area = ", ".join(f"{row.strategy} {metric.text(row.area.mean)}{metric.unit}" for row in table.rows)
    counts = f"At {table.counts[-1]} labels: {last}. " if table.counts else ""
    return f"{counts}Mean over the curve (area): {area}."
