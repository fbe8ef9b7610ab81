"""`labelwise bench`: the benchmark's data."""

from __future__ import annotations

import typer

app = typer.Typer(help="The benchmark: data sets and comparisons.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """The benchmark: data sets and comparisons."""


@app.command("data")
def data() -> None:
    """List the data sets: which were found and where, how to get the rest. LABELWISE_DATA names the folder."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from labelwise.bench.catalogue import found

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("name", "kind", "train / test", "found at, or how to get it", "licence"):
        table.add_column(title, overflow="fold")
    every = found()
    for one in every:
        where = f"[green]{one.where}[/]" if one.present else f"[yellow]not found:[/] {one.how}"
        table.add_row(one.name, f"{one.kind}, {one.task}", f"{one.rows[0]} / {one.rows[1]}", where, one.licence)
    console = Console()
    console.print(table)
    console.print(f"{sum(one.present for one in every)} of {len(every)} found. LABELWISE_DATA names the data folder.")
