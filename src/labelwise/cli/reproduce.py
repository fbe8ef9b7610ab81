"""`labelwise reproduce`: experiments of the papers, by name."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer


def reproduce(
    name: str = typer.Argument(None, metavar="[NAME]", help="Which one, such as dynamical/figure1."),
    every: bool = typer.Option(False, "--list", help="List what can be reproduced and exit."),
    scale: str = typer.Option("small", help="small: minutes on two cores. paper: the paper's sizes, hours."),
    data: str = typer.Option(None, help="Another data set; `labelwise bench data` lists them."),
    seed: int = typer.Option(0, min=0, help="The only source of chance."),
    out: Path = typer.Option(Path("labelwise-reproduce"), help="Folder for the picture and the numbers."),
) -> None:
    """Run an experiment of a paper: a page (Markdown), a picture (PNG), numbers (JSON) and every round's record.

    [bold]labelwise reproduce ally/figure3 --scale paper[/]
    """
    from rich.console import Console

    console = Console()
    if every or name is None:
        _list(console)
        return
    from labelwise.bench.reproductions import SCALES, Setting
    from labelwise.bench.reproductions import reproduce as run
    from labelwise.errors import ArgumentError

    sizes = {size: size for size in SCALES}
    if scale not in sizes:
        raise ArgumentError(f"--scale is {' or '.join(sizes)}, not {scale!r}")
    setting = Setting(sizes[scale], data, seed, lambda text: console.print(f"  [dim]{text}[/]", highlight=False))
    console.print(f"[bold]{name}[/], {scale} scale")
    result = run(name, setting, out, "labelwise " + shlex.join(sys.argv[1:]))
    stem = name.replace("/", "-")
    console.print(result.verdict, highlight=False)
    console.print(f"[bold]Written[/]  {out / f'{stem}.md'}, .png, .json", highlight=False, soft_wrap=True)


def _list(console: object) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from labelwise.bench.reproductions import reproductions

    assert isinstance(console, Console)
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("name", "what", "paper"):
        table.add_column(title, overflow="fold")
    for one in reproductions().values():
        table.add_row(f"[bold]{one.name}[/]", one.what, one.paper)
    console.print(table)
    console.print("labelwise reproduce NAME [--scale paper] [--data cifar10]: a picture and its numbers.")
