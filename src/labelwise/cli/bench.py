"""`labelwise bench`: the benchmark's data, its runs and their report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.bench import suites
from labelwise.cli.command import App
from labelwise.cli.comparison import CALLBACK, ENOUGH
from labelwise.cli.interrupted import Stopped
from labelwise.cli.select import MAX_MEMORY

if TYPE_CHECKING:
    from rich.console import Console

    from labelwise.bench.suite.runner import Progress
    from labelwise.bench.suite.suite import Skipped

app = App("The benchmark: data sets, suites and comparisons.")


@app.command("data")
def data() -> None:
    """List the data sets: which were found and where, how to get the rest. LABELWISE_DATA names the folder."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from labelwise.bench.data.catalogue import availability

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("name", "kind", "train / test", "found at, or how to get it", "licence"):
        table.add_column(title, overflow="fold")
    every = availability()
    for one in every:
        where = f"[green]{one.where}[/]" if one.present else f"[yellow]not found:[/] {one.how}"
        table.add_row(one.name, f"{one.kind}, {one.task}", f"{one.rows[0]} / {one.rows[1]}", where, one.licence)
    console = Console()
    console.print(table)
    console.print(f"{sum(one.present for one in every)} of {len(every)} found. LABELWISE_DATA names the data folder.")


@app.command("suites")
def list_suites() -> None:
    """List the packaged suites, which `labelwise bench run NAME` runs."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("name", "what it compares"):
        table.add_column(title, overflow="fold")
    for name in suites.names():
        table.add_row(f"[bold]{name}[/]", suites.summary(name))
    console = Console()
    console.print(table)
    console.print(
        f"The files are in {suites.FOLDER}: examples for one of your own.",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


@app.command("run")
def run(
    config: str = typer.Argument(
        ...,
        metavar="SUITE",
        help=f"What to run: a YAML file of your own, or a packaged suite: {', '.join(suites.names())}.",
    ),
    out: Path = typer.Option(
        None, help="Folder of the run; runs/NAME if not given. Started again, it continues there."
    ),
    processes: int = typer.Option(None, min=1, help="Number of worker processes; replaces that of the configuration."),
    max_memory: str = typer.Option(None, metavar="SIZE", help=f"{MAX_MEMORY} Instead of the configuration's."),
    callback: list[str] = typer.Option(None, metavar="MODULE:NAME", help=CALLBACK),
    together: bool = typer.Option(
        False,
        "--together",
        help="Run in this process and train many networks at once: for small networks with device: cuda. "
        "[dim]Not with --processes.[/]",
    ),
    plan: bool = typer.Option(False, "--plan", help="Print what would run and what is skipped, and exit."),
) -> None:
    """Run data sets x models x strategies x seeds. Each round is saved, so you can stop with Ctrl-C at any time.

    All strategies of a seed start from the same random first batch and the same weights of the model. Started again,
    the run continues and repeats no finished round.
    """
    from dataclasses import replace

    from rich.console import Console
    from rich.markup import escape

    from labelwise.bench.data.catalogue import check_available
    from labelwise.bench.data.features import check_encoder
    from labelwise.bench.suite.display import show_progress
    from labelwise.bench.suite.job import CACHE
    from labelwise.bench.suite.runner import changed_environment, check_labels, run_suite
    from labelwise.bench.suite.suite import read_suite
    from labelwise.callbacks import callbacks_named
    from labelwise.errors import ArgumentError
    from labelwise.io.sizes import parse_size
    from labelwise.io.text import many

    console = Console()
    file = suites.find_suite(config)
    suite = read_suite(file)
    callbacks = callbacks_named(callback or ())
    if together and processes is not None:
        raise ArgumentError("--together runs in this process; leave out --processes")
    if max_memory is not None:
        parse_size(max_memory)
        suite = replace(suite, max_memory=max_memory)
    check_labels(suite.datasets)
    if out is None and Path(suite.name).name != suite.name:
        raise ArgumentError(f"{config}: name: expected the name of a folder, found {suite.name!r}; or give --out")
    folder = Path("runs") / suite.name if out is None else out
    jobs, skipped = suite.jobs()
    console.print(
        f"[bold]{escape(suite.name)}[/]: {many(len(suite.datasets), 'data set')}, "
        f"{many(len(suite.strategies), 'strategy')}, {many(len(suite.seeds), 'seed')}: {many(len(jobs), 'run')}, "
        f"{many(sum(job.data.rounds + 1 for job in jobs), 'round')}, in {escape(str(folder))}",
        highlight=False,
        soft_wrap=True,
    )
    _print_skipped(console, skipped)
    if plan:
        check_available(spec.name for spec in suite.datasets)
        check_encoder(suite.datasets, folder / CACHE)
        return
    if suite.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ArgumentError(f"{config}: expected a GPU for cuda, but torch finds none; use device: cpu")
    for line in changed_environment(folder):
        console.print(f"[yellow]The environment has changed since the run was started:[/] {line}", highlight=False)
    steps = run_suite(suite, file.read_text(encoding="utf-8"), folder, processes, callbacks, together)
    again = _again(config, out, processes, max_memory, callback or (), together)
    try:
        progress = show_progress(steps, console)
    except KeyboardInterrupt:
        steps.close()
        there = escape(f"Every finished round is in {folder}. Continue with: {again}")
        console.print(f"[yellow]Stopped.[/] {there}", highlight=False, soft_wrap=True)
        raise Stopped from None
    _end(console, progress, folder, again)


def _again(
    config: str,
    out: Path | None,
    processes: int | None,
    max_memory: str | None,
    callbacks: Sequence[str],
    together: bool,
) -> str:
    """The shell command that continues the run."""
    words = ["labelwise", "bench", "run", config]
    for option, value in (("--out", out), ("--processes", processes), ("--max-memory", max_memory)):
        words += [] if value is None else [option, str(value)]
    words += ["--together"] if together else []
    return shlex.join([*words, *(word for path in callbacks for word in ("--callback", path))])


def _print_skipped(console: Console, skipped: list[Skipped]) -> None:
    """Print one line for each reason, with its strategies and data set."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for one in skipped:
        grouped.setdefault((one.data, one.model, one.why), []).append(one.strategy)
    for (data, model, why), names in grouped.items():
        console.print(
            f"  [dim]skipped on {data} with {model}: {', '.join(names)} ({why})[/]", highlight=False, soft_wrap=True
        )


def _end(console: Console, progress: Progress | None, folder: Path, again: str) -> None:
    if progress is None:
        return
    done = sum(progress.finished(job) for job in progress.jobs)
    from rich.markup import escape

    place = escape(str(folder))
    console.print(f"[bold]{done} of {len(progress.jobs)} runs are done[/], in {place}", highlight=False, soft_wrap=True)
    if not progress.failed:
        report = f"labelwise bench report {shlex.quote(str(folder))}"
        console.print(f"Make the report with: {report}", highlight=False, soft_wrap=True, markup=False)
        return
    console.print(f"[red]{len(progress.failed)} failed[/]; {place}/failures.txt has the tracebacks:", soft_wrap=True)
    for name, text in progress.failed.items():
        console.print(f"  {name}: {_error_line(text)}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Run the failed ones again with: {again}", highlight=False, soft_wrap=True, markup=False)
    sys.exit(1)


def _error_line(trace: str) -> str:
    """The error at the end of a traceback, in one line."""
    lines = trace.rstrip().splitlines()
    at = max((place for place, line in enumerate(lines) if line and not line[0].isspace()), default=0)
    return " ".join(line.strip() for line in lines[at:])


def report(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Folders of `bench run`."),
    out: Path = typer.Option(Path("labelwise-report"), help="Folder for the report."),
    at: list[str] = typer.Option(
        None, metavar="LEVEL", help="Labels to reach this accuracy, such as 0.9, or rmse=5; can be repeated."
    ),
) -> None:
    """Make the report of runs: curves, labels saved, tests and verdicts."""
    from labelwise.bench.report.report import levels_of
    from labelwise.bench.report.report import report as write_report

    words = ["labelwise", "bench", "report", *map(str, runs), "--out", str(out)]
    command = shlex.join([*words, *(word for level in at or () for word in ("--at", level))])
    for line in write_report(runs, out, command, levels_of(at or ())).lines:
        typer.echo(f"- {line}")
    typer.echo(f"Written: {out / 'report.html'}, report.md, standings.csv, pictures and records next to it")


@app.command("instrument")
def instrument(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Folders of `bench run instrument`, whole or not."),
    out: Path = typer.Option(Path("labelwise-instrument"), help="Folder for the page."),
) -> None:
    """Say which parts of a recipe pay: how rows are chosen, weighed and trained on, and what a certificate predicts."""
    from labelwise.bench.report.instrument import write_instrument

    command = shlex.join(["labelwise", "bench", "instrument", *map(str, runs), "--out", str(out)])
    for line in write_instrument(runs, out, command):
        typer.echo(f"- {line}")
    typer.echo(f"Written: {out / 'instrument.md'}, and instrument.json with all numbers")


@app.command("replay")
def replay(
    project: Path = typer.Argument(..., help="A labelling project, as `labelwise label` makes it."),
    strategies: str = typer.Option(
        None,
        help="Strategies to compare, separated by commas; random is always included. "
        "[dim]\\[default: that of the project][/]",
    ),
    seeds: int = typer.Option(
        None, min=1, help=f"Runs of each strategy, each with its own test rows and first labels. {ENOUGH}"
    ),
    k: int = typer.Option(None, "-k", "--k", min=1, help="Labels of each round; a tenth of the rows by default."),
    test: float = typer.Option(0.3, help="Share of the labelled rows to test on."),
    max_memory: str = typer.Option(None, metavar="SIZE", help=MAX_MEMORY),
    out: Path = typer.Option(Path("labelwise-replay"), help="Folder for page, picture and records."),
) -> None:
    """Replay a labelling project: compare strategies with random on its labelled rows, with its features and model.

    A strategy chose these rows, so the comparison holds on them only, not on the whole pool.
    """
    from labelwise.cli.replay import replay as run_replay

    run_replay(project, strategies, seeds, k, test, out, max_memory)


if find_spec("labelwise.bench.report.report") is not None:
    app.command("report")(report)
