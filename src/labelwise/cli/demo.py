"""`labelwise demo`: the main job on the handwritten digits that come with scikit-learn. No download."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from labelwise.bench.compare import Comparison
    from labelwise.report.record import Record
    from labelwise.report.table import Table

RECIPES = "random,margin,badge,typiclust"
PROTOCOL = {
    "Data": "handwritten digits of scikit-learn, 8 x 8 pixels, 10 classes: 1,438 rows to choose from, 359 test rows",
    "Model": "multi-layer perceptron 64-128-64-10, trained anew in each round (Adam, early stopping)",
}
POOL = 1438  # rows of the digits to choose from
BARS = " ▁▂▃▄▅▆▇█"


def demo(
    out: Path = typer.Option(
        Path("labelwise-demo"), help="Folder for the page, the picture and the records; a full run replaces them."
    ),
    seeds: int = typer.Option(5, min=1, help="Runs of each recipe, each from its own first labels."),
    recipes: str = typer.Option(RECIPES, help="What to compare, by name, with commas; random is always among them."),
    k: int = typer.Option(10, "-k", min=1, help="Labels of each round."),
    rounds: int = typer.Option(12, min=1, help="Rounds after the first labels."),
) -> None:
    """Compare ways of choosing labels on 1,797 handwritten digits, with a live display and a page of results."""
    from rich.console import Console
    from rich.live import Live

    from labelwise.bench.compare import Comparison
    from labelwise.errors import ArgumentError

    names = ["random", *(one.strip() for one in recipes.split(",") if one.strip() not in ("", "random"))]
    plan = Comparison(tuple(dict.fromkeys(names)), tuple(range(seeds)), start=10, k=k, n=rounds)
    _check_place(out)
    if plan.start + plan.n * plan.k > POOL:
        raise ArgumentError(
            f"{plan.start} first labels and {plan.n} rounds of {plan.k} are more than the {POOL} rows to choose from"
        )
    console = Console()
    console.print(
        f"[bold]Labelwise demo[/]: {', '.join(plan.recipes)} on handwritten digits, {seeds} seeds each, "
        f"{plan.start} to {plan.start + plan.n * plan.k} labels."
    )
    records: list[Record] = []
    stopped = False
    with Live(_display(plan, records), console=console, refresh_per_second=4) as live:
        try:
            for record in _records(plan):
                records.append(record)
                live.update(_display(plan, records))
        except KeyboardInterrupt:
            stopped = True
    _finish(plan, records, out, console, stopped)


def _check_place(out: Path) -> None:
    """Raise now, and not after the runs, when nothing can be written to the folder."""
    from labelwise.errors import StoreError

    try:
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".labelwise-probe"
        probe.touch()
        probe.unlink()
        if made:
            out.rmdir()
    except OSError as error:
        raise StoreError(f"--out {out}: results cannot be written there ({error}); name another folder") from error


def _whole_seeds(plan: Comparison, records: list[Record]) -> list[Record]:
    """The records of the seeds that every recipe ran to the end."""
    count: dict[int, int] = {}
    for record in records:
        count[record.seed] = count.get(record.seed, 0) + 1
    return [record for record in records if count[record.seed] == len(plan.recipes) * (plan.n + 1)]


def _records(plan: Comparison) -> Iterator[Record]:
    import torch

    from labelwise.bench.compare import compare
    from labelwise.bench.data import load
    from labelwise.bench.networks import mlp
    from labelwise.train import TorchLearner

    torch.set_num_threads(1)  # products this small are faster on one thread
    data = load("digits")
    return compare(plan, data, lambda: TorchLearner(mlp(64, 10)), "mlp")


def _display(plan: Comparison, records: list[Record]) -> RenderableType:
    """How far it is, and the curves so far: mean test accuracy of each recipe from the first to the last label."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    done, total = len(records), plan.records
    head = Table.grid(padding=(0, 1))
    what = f"{records[-1].strategy}, seed {records[-1].seed}" if records else "starting"
    head.add_row(ProgressBar(total=total, completed=done, width=40), f"{done}/{total}", f"[dim]{what}[/]")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("recipe")
    table.add_column(f"test accuracy, {plan.start} to {plan.start + plan.n * plan.k} labels")
    table.add_column("last", justify="right")
    table.add_column("seeds", justify="right")
    means = {recipe: _means(plan, records, recipe) for recipe in plan.recipes}
    values = [value for curve in means.values() for value in curve]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    for recipe, curve in means.items():
        runs = {record.seed for record in records if record.strategy == recipe}
        last = f"{curve[-1]:.1%}" if curve else ""
        table.add_row(recipe, Text(_bars(curve, low, high), style="cyan"), last, str(len(runs)) if runs else "")
    return Group(head, table)


def _means(plan: Comparison, records: list[Record], recipe: str) -> list[float]:
    """Mean accuracy at each label count over the seeds that got there."""
    by_round: dict[int, list[float]] = {}
    for record in records:
        if record.strategy == recipe:
            by_round.setdefault(record.round, []).append(record.metrics["accuracy"])
    return [sum(by_round[r]) / len(by_round[r]) for r in range(plan.n + 1) if r in by_round]


def _bars(values: list[float], low: float, high: float) -> str:
    span = (high - low) or 1.0
    return "".join(BARS[1 + round((value - low) / span * (len(BARS) - 2))] * 3 for value in values)


def _finish(plan: Comparison, records: list[Record], out: Path, console: Console, stopped: bool) -> None:
    """Table, page, picture and records of what ran; after Ctrl-C, of the seeds that every recipe finished."""
    from labelwise.report import csv_text, learning_curves, markdown, png, summarise, write, write_page
    from labelwise.report.atomic import write_pieces, write_text

    if stopped:
        records = _whole_seeds(plan, records)
        if not records:
            console.print("[yellow]Stopped before the first seed was done for every recipe; nothing was written.[/]")
            raise typer.Exit(130)
        if (out / "records.jsonl").exists():
            console.print(f"[yellow]Stopped.[/] {out} holds the results of an earlier run; they were kept as they are.")
            raise typer.Exit(130)
        console.print(f"[yellow]Stopped.[/] Seeds that every recipe finished: {len({r.seed for r in records})}.")
    command = "labelwise " + shlex.join(sys.argv[1:])
    table = summarise(records)
    console.print(_table(table))
    write(out / "records.jsonl", records)
    write_page(
        out / "report.html", records, title="Handwritten digits, small network", command=command, protocol=PROTOCOL
    )
    write_pieces(out / "curves.png", [png(learning_curves(records))])
    write_text(out / "table.csv", csv_text(table))
    write_text(out / "table.md", markdown(table))
    console.print("[bold]Written[/]")
    for name, what in (
        ("report.html", "the page: curves, table, how to read it"),
        ("curves.png", "the picture"),
        ("table.csv", "the table; table.md is the same in Markdown"),
        ("records.jsonl", "every round of every run"),
    ):
        console.print(f"  {out / name}  [dim]{what}[/]", highlight=False, soft_wrap=True)
    console.print("[bold]Next[/]")
    for line, what in (
        ("labelwise strategies", "what each needs, costs and cites"),
        ("labelwise demo --recipes entropy,kcenter,probcover+badge --seeds 10", "another comparison"),
        ("labelwise select --help", "choose rows from your own probabilities and embeddings"),
    ):
        console.print(f"  {line}  [dim]{what}[/]", highlight=False, soft_wrap=True)
    if stopped:
        raise typer.Exit(130)


def _table(table: Table) -> RenderableType:
    """The table at the width of a terminal: means only, the spread is on the page."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Shown
    from rich.text import Text

    from labelwise.report.table import cells, saved_text, seconds

    shown = Shown(
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="Test accuracy (%) at so many labels, area under the curve, seconds of a selection, labels saved",
        title_justify="left",
    )
    shown.add_column("recipe", no_wrap=True)
    for title in (*map(str, table.counts), "area", "seconds", "saved"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row, texts in zip(table.rows, cells(table)):
        means = [table.metric.text(stat.mean) for stat in row.at]
        area = texts[1 + len(table.counts)]
        shown.add_row(row.strategy, *means, area, seconds(row.select_seconds), saved_text(row.saved))
    verdicts = [Text.assemble((row.strategy, "bold"), " ", row.verdict) for row in table.rows if row.saved]
    return Group(shown, *verdicts)
