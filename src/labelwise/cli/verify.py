"""`labelwise verify`: check strategies against slow references, invariances and theorems on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from labelwise.selection import Strategy
    from labelwise.verify.result import Outcome
    from labelwise.verify.run import Job

SYMBOLS = {"passed": "[green]ok[/]", "failed": "[bold red]NO[/]", "not applicable": "[dim]-[/]"}
THEOREMS = "theorems"  # the column of the checks that only some strategies have
SHORT_TITLES = {
    "reference": "ref",
    "law": "law",
    THEOREMS: "thm",
    "k rows": "k",
    "row order": "row",
    "ids": "ids",
    "ties": "tie",
    "blocks": "blk",
    "shards": "shd",
    "labelled order": "lab",
    "dtype": "typ",
    "device": "dev",
    "NaN": "NaN",
    "state": "sta",
    "chance": "cha",
    "inputs": "inp",
}


def verify(
    names: list[str] = typer.Argument(
        None,
        metavar="STRATEGY",
        help="Names, or my_module:MyStrategy for one of your own; all strategies if none.",
    ),
    seed: int = typer.Option(0, min=0, help="Seed of the random problems."),
    device: str = typer.Option(
        "cpu", help="cpu, or cuda to run every check there; cpu compares with CUDA if there is one."
    ),
    reference: str = typer.Option(
        None, help="For one of your own: my_module:slow_function, or the name of the strategy that it must equal."
    ),
    json_file: Path = typer.Option(None, "--json", metavar="FILE", help="Write every outcome to this file."),
    out: Path = typer.Option(Path("labelwise-verify"), help="Folder for the arrays of failing checks."),
) -> None:
    """Check the strategies on this machine: against slow references, order, blocks, shards, dtype, device, theorems.

    Exit code 1 if anything fails; the seed and the arrays of a failing check are saved to a file.

    [bold]labelwise verify badge kcenter --seed 3[/]
    """
    from rich.console import Console

    from labelwise.errors import ArgumentError
    from labelwise.io.text import many
    from labelwise.strategies import ALL
    from labelwise.verify.run import plan_one

    if reference is not None and len(names or []) != 1:
        raise ArgumentError("--reference is about one strategy; name exactly one")
    if json_file is not None and json_file.is_dir():
        raise ArgumentError(f"--json {json_file} is a folder. Name a file")
    console = Console()
    jobs = []
    for name in names or [name for name, _ in ALL.items()]:
        function = _import(reference) if reference is not None and ":" in reference else reference
        jobs.extend(plan_one(_strategy(name), seed, device, reference=function))
    outcomes = _run(jobs, console, out)
    _print_table(outcomes, console)
    _print_reasons(outcomes, console)
    if json_file is not None:
        _write(outcomes, json_file, seed, device)
    failed = [one for one in outcomes if one.status == "failed"]
    passed = sum(one.status == "passed" for one in outcomes)
    seconds = sum(one.seconds for one in outcomes)
    strategies = many(len({one.strategy for one in outcomes}), "strategy")
    end = f"{passed} checks of {strategies} passed, {len(failed)} failed, in {seconds:.0f} s (seed {seed})"
    console.print(f"[bold {'red' if failed or not passed else 'green'}]{end}[/]", highlight=False)
    if failed or not passed:
        raise typer.Exit(1)


def _strategy(name: str) -> Strategy:
    """A strategy by its name, or one of the user's own as module:name."""
    from labelwise import strategies
    from labelwise.errors import ArgumentError
    from labelwise.selection import Strategy as Kind

    if ":" not in name:
        return strategies.get(name)
    found = _import(name)
    try:
        strategy = found() if isinstance(found, type) else found
    except TypeError as error:
        raise ArgumentError(f"{name} cannot be created without arguments: {error}; name an instance instead") from error
    if not isinstance(strategy, Kind):
        raise ArgumentError(f"{name} must be a labelwise Strategy or its class, found {type(strategy).__name__}")
    return strategy


def _import(name: str) -> Any:
    """Import module:name; modules of the current folder are found too."""
    import importlib
    import sys

    from labelwise.errors import ArgumentError

    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ArgumentError(f"{name}: the module {module!r} cannot be imported from here: {error}") from error
    except AttributeError as error:
        raise ArgumentError(f"{name}: the module {module!r} has no {attribute!r}") from error


def _run(jobs: list[Job], console: Console, out: Path) -> list[Outcome]:
    from dataclasses import replace

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from labelwise.verify.result import save_case
    from labelwise.verify.run import run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes: list[Outcome] = []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(jobs))
        for job in jobs:
            if not console.is_terminal and (not outcomes or outcomes[-1].strategy != job.name):
                console.print(f"checking {job.name}", highlight=False)
            bar.update(task, description=f"[bold]{job.name}[/]: {job.check}")
            outcome = run(job)
            if outcome.status == "failed":
                outcome = replace(outcome, saved=str(save_case(outcome, out)))
                bar.print(f"[bold red]FAILED  {job.name}, {job.check}[/]")
            outcomes.append(outcome)
            bar.advance(task)
    return outcomes


def _columns(outcomes: list[Outcome]) -> list[str]:
    """Titles of the columns; checks that only some strategies have share one column."""
    from labelwise.verify.invariances import INVARIANCES

    seen = {one.check for one in outcomes}
    return ["reference", "law", THEOREMS, *(title for title in INVARIANCES if title in seen)]


def _column(check: str, titles: list[str]) -> str:
    return check if check in titles else THEOREMS


def _print_table(outcomes: list[Outcome], console: Console) -> None:
    """Print a table of strategies by checks."""
    from rich import box
    from rich.table import Table

    titles, longest = _columns(outcomes), max(len(one.strategy) for one in outcomes)
    wide = console.width >= longest + sum(len(title) + 2 for title in titles) + 8  # full titles, seconds, borders
    table = Table(box=box.SIMPLE_HEAD if wide else None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("strategy", no_wrap=True)
    for title in titles:
        table.add_column(title if wide else SHORT_TITLES.get(title, title), justify="center", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for name in dict.fromkeys(one.strategy for one in outcomes):
        rows = [one for one in outcomes if one.strategy == name]
        cells = [_symbol([one for one in rows if _column(one.check, titles) == title]) for title in titles]
        table.add_row(f"[bold]{name}[/]", *cells, f"{sum(one.seconds for one in rows):.1f}")
    console.print(table)
    if not wide:
        legend = ", ".join(
            f"{SHORT_TITLES[title]} = {title}" for title in titles if SHORT_TITLES.get(title, title) != title
        )
        legend = f"{legend}, law = distribution of the draws"
        console.print(f"[dim]{legend}, s = seconds[/]", highlight=False)


def _symbol(outcomes: list[Outcome]) -> str:
    """The symbol of the worst of some outcomes: failed, then passed."""
    statuses = {one.status for one in outcomes}
    return next((SYMBOLS[one] for one in ("failed", "passed") if one in statuses), SYMBOLS["not applicable"])


def _print_reasons(outcomes: list[Outcome], console: Console) -> None:
    """Print why checks do not apply, each reason once, and what was found where one failed."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in outcomes:
        if one.status == "not applicable":
            reasons.setdefault((one.check, one.why), []).append(one.strategy)
    strategies = len({one.strategy for one in outcomes})
    for (check, why), names in reasons.items():
        whose = "all" if len(names) == strategies and strategies > 1 else ", ".join(names)
        console.print(f"[dim]- {check}[/] ({whose}): {why}", highlight=False, markup=True)
    for one in outcomes:
        if one.status == "failed":
            console.print(f"[bold red]FAILED  {one.strategy}, {one.check}[/]", highlight=False)
            console.print(f"    {one.why}", highlight=False, markup=False, soft_wrap=True)
            console.print(f"    seed {one.seed}; arrays in {one.saved}", highlight=False, markup=False, soft_wrap=True)


def _write(outcomes: list[Outcome], path: Path, seed: int, device: str) -> None:
    """Write every outcome and the environment as JSON."""
    import json

    from labelwise.io.files import write_text
    from labelwise.stats.environment import environment

    checks = [one.as_json() for one in outcomes]
    summary = {"ok": all(one.status != "failed" for one in outcomes), "seed": seed, "device": device}
    write_text(path, json.dumps({**summary, "environment": environment(), "checks": checks}, indent=1) + "\n")
