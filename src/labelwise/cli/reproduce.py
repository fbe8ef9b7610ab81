"""`labelwise reproduce`: the tables and figures of the papers, by name."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from labelwise.reproduce.registry import Reproduction


def reproduce(
    names: list[str] = typer.Argument(
        None, metavar="NAME", help="Tables or figures such as sabal/table2 or ally/figure3, run one after the other."
    ),
    every: bool = typer.Option(False, "--list", help="List every table and figure of the papers and exit."),
    scale: str = typer.Option("small", help="smoke: seconds. small: minutes on two cores. paper: the paper's sizes."),
    only: list[str] = typer.Option(None, help="One row of a table, such as MNIST; can be repeated."),
    seeds: int = typer.Option(None, min=1, help="Number of seeds; replaces that of the scale."),
    processes: int = typer.Option(1, min=1, help="Processes that run side by side."),
    device: str = typer.Option(None, help="cpu or cuda; cuda by default if available."),
    paper_compat: bool = typer.Option(
        False, "--paper-compat", help="Do as the paper where Labelwise differs by default."
    ),
    together: bool = typer.Option(
        None, "--together/--one-by-one", help="Train the networks of all runs at once; by default on CUDA."
    ),
    change: list[str] = typer.Option(
        None, "--set", metavar="NAME=VALUE", help="Change the training, such as keep=accuracy; on a page of its own."
    ),
    page: bool = typer.Option(False, "--page", help="Run nothing; write the page of what has run so far."),
    data: str = typer.Option(None, help="Another data set, for figures; `labelwise bench data` lists them."),
    seed: int = typer.Option(0, min=0, help="The first seed."),
    out: Path = typer.Option(Path("labelwise-reproduce"), help="Folder for the page; a stopped run continues there."),
) -> None:
    """Run tables or figures of a paper: a page with our numbers and the paper's, a picture, JSON, and all records.

    [bold]labelwise reproduce sabal/table2 --only MNIST --scale paper[/]
    """
    from rich.console import Console

    console = Console()
    if every or not names:
        _list(console)
        return
    from labelwise.errors import ArgumentError
    from labelwise.reproduce.registry import SCALES, Setting, describe_time, named, read_changes, stem_of
    from labelwise.reproduce.registry import reproduce as run

    sizes = {size: size for size in SCALES}
    if scale not in sizes:
        raise ArgumentError(f"--scale is {', '.join(sizes)}, not {scale!r}")
    setting = Setting(
        sizes[scale],
        data,
        seed,
        lambda text: console.print(f"  [dim]{text}[/]", highlight=False),
        tuple(only or ()),
        seeds,
        processes,
        device,
        paper_compat,
        page,
        together=together,
        changes=read_changes(change or ()),
    )
    for name, one in [
        (name, named(name)) for name in dict.fromkeys(names)
    ]:  # a wrong name is reported before anything runs
        time = "nothing is run" if page else describe_time(one, setting)
        console.print(f"[bold]{name}[/], {scale} scale: {time}", highlight=False)
        made_by = [word for word in sys.argv[1:] if word == name or word not in names]  # of this one alone
        result = run(name, setting, out, "labelwise " + shlex.join(made_by))
        stem = stem_of(name, setting)
        console.print(result.verdict, highlight=False, markup=False)
        console.print(f"[bold]Written[/]  {out / f'{stem}.md'}, .png, .json", highlight=False, soft_wrap=True)


def _list(console: Console) -> None:
    """List what can be run, with times and data, then what is not run and where its numbers are."""
    from rich import box
    from rich.table import Table

    from labelwise.reproduce.registry import reproductions

    every = reproductions().values()
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for title in ("smoke", "small", "paper"):
        table.add_column(title, justify="right", no_wrap=True)
    papers: set[str] = set()
    for one in every:
        if one.run is not None:
            if one.paper not in papers:
                papers.add(one.paper)
                table.add_section()
                table.add_row("", f"[dim]{one.paper}[/]")
            table.add_row(f"[bold]{one.name}[/]", f"{one.what}{_absent(one)}", *_times(one))
    console.print(table)
    console.print("[bold]Not run by themselves[/]")
    for one in every:
        if one.run is None:
            console.print(f"  {one.name}: {one.why}", highlight=False)
    console.print()
    console.print("The paper of bss (Sample complexity of deep active learning) has no experiments: these are our own.")
    console.print(
        f"Times: smoke and small on one core; paper on one H200{_no_cuda()}, or on one core where marked [bold]c[/]."
    )
    console.print("They were measured where the pages under docs/results were made; those with [bold]~[/] are guesses.")
    console.print(
        "[bold]no data[/]: a data set that it needs was not found; `labelwise bench data` says how to get it."
    )
    console.print("labelwise reproduce NAME --scale smoke|small|paper: a page with our numbers and the paper's.")


def _times(one: Reproduction) -> list[str]:
    """The time of each scale, the paper's on a GPU or where it was measured; ~ marks a guess."""
    from labelwise.errors import LabelwiseError
    from labelwise.reproduce.registry import Setting, describe_time

    times = []
    for scale, device in (("smoke", "cpu"), ("small", "cpu"), ("paper", "cuda")):
        try:
            text = describe_time(one, Setting(scale, device=device))  # type: ignore[arg-type]
        except LabelwiseError:
            times.append("no data")
            continue
        time, _, where = text.removeprefix("about ").partition(" on ")
        core = " c" if scale == "paper" and "core" in where else ""
        times.append(f"{'~' if 'a guess' in where else ''}{time}{core}")
    return times


def _no_cuda() -> str:
    """A note if this machine has no GPU, as the times of the paper's scale assume."""
    from labelwise.reproduce.registry import Setting, device_of

    return "" if device_of(Setting()) == "cuda" else " (there is no CUDA here: it takes far longer)"


def _absent(one: Reproduction) -> str:
    """The missing data sets of the paper's scale."""
    from labelwise.reproduce.tables import present

    missing = [name for name in one.data if not present(name)]
    return f" [yellow](not found: {', '.join(missing)})[/]" if missing else ""
