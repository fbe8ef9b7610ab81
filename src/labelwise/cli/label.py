"""`labelwise label`: make a project of a folder or file and open its page; `labelwise resume` opens it again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.interrupted import Stopped
from labelwise.cli.select import MAX_MEMORY

if TYPE_CHECKING:
    from labelwise.project import Project, Settings
    from labelwise.project.data.features import OnProgress

HOST = typer.Option("127.0.0.1", help="Address the page listens on. Any but 127.0.0.1 requires a token.")
PORT = typer.Option(8765, help="Port of the page; if taken, the next free one is used.")
TOKEN = typer.Option(None, help="Token of the page. [dim]\\[default: made where one is required][/]")
NO_OPEN = typer.Option(False, "--no-open", help="Do not open a browser.")
LIMIT = typer.Option(None, "--max-memory", metavar="SIZE", help=MAX_MEMORY)
NAMES = typer.Option(None, "--name", help="Further host name of the page, such as that of a proxy. Can be repeated.")


def label(
    path: Path = typer.Argument(..., help="A folder of images, or a .csv, .tsv or .parquet file."),
    classes: str = typer.Option(None, help="Class names, separated by commas; more can be added on the page."),
    regress: bool = typer.Option(False, "--regress", help="The labels are numbers."),
    text: str = typer.Option(None, metavar="COLUMN", help="The column with the texts."),
    features: str = typer.Option(None, metavar="COLUMNS", help="The columns that make a row, separated by commas."),
    encoder: str = typer.Option("auto", help="What turns a row into features. auto: the best one installed."),
    project: Path = typer.Option(
        None, metavar="DIR", help="The project folder. [dim]\\[default: DATA-labelwise next to the data][/]"
    ),
    k: int = typer.Option(20, "-k", "--k", min=2, help="Rows of a round, including test rows."),
    recipe: str = typer.Option(
        None, help="How rows are chosen. [dim]\\[default: typiclust+badge; typiclust+kcenter for numbers][/]"
    ),
    people: int = typer.Option(1, min=1, help="How many people answer each row."),
    test_share: float = typer.Option(
        0.15, min=0.0, max=0.9, help="Share of each round drawn at random, to measure quality."
    ),
    store: str = typer.Option("", metavar="URL", help="Store answers in PostgreSQL: its address, or env:VARIABLE."),
    seed: int = typer.Option(0, min=0, help="Source of chance."),
    max_memory: str = LIMIT,
    host: str = HOST,
    port: int = PORT,
    token: str = TOKEN,
    no_open: bool = NO_OPEN,
    name: list[str] = NAMES,
) -> None:
    """Label images, texts or rows of a table in the browser. The rows most worth labelling come first.

    [bold]labelwise label photos --classes cat,dog[/]
    [bold]labelwise label reviews.csv --text body --classes good,bad[/]
    [bold]labelwise label houses.parquet --features size,rooms,city --regress[/]

    The project is stored in a folder next to the data. The same command opens it again.
    """
    from labelwise.project.settings import is_project

    where = project if project is not None else default_folder(path)
    if is_project(where):
        typer.echo(f"Opening the existing project {where}.")
        _check_same(where, path, classes, regress, text, features)
        fixed = {"encoder": encoder, "k": k, "recipe": recipe, "people": people, "test_share": test_share, "seed": seed}
        _warn_ignored(where, {**fixed, "store": store or None})
        serve_project(_open(where, max_memory), host, port, token, not no_open, name or [])
        return
    settings = settings_of(
        path, where, classes, regress, text, features, encoder, k, recipe, people, test_share, store, seed, max_memory
    )
    serve_project(create_project(where, settings), host, port, token, not no_open, name or [])


def resume(
    project: Path = typer.Argument(..., help="The project folder."),
    max_memory: str = LIMIT,
    host: str = HOST,
    port: int = PORT,
    token: str = TOKEN,
    no_open: bool = NO_OPEN,
    name: list[str] = NAMES,
) -> None:
    """Open the labelling page of a project again."""
    serve_project(_open(project, max_memory), host, port, token, not no_open, name or [])


def default_folder(path: Path) -> Path:
    """The default project folder: the name of the data with "-labelwise", next to it."""
    plain = path.resolve()
    name = plain.name if plain.is_dir() else plain.name.split(".")[0]
    return plain.parent / f"{name or 'data'}-labelwise"


def settings_of(
    path: Path,
    where: Path,
    classes: str | None,
    regress: bool,
    text: str | None,
    features: str | None,
    encoder: str,
    k: int,
    recipe: str | None,
    people: int,
    test_share: float,
    store: str,
    seed: int,
    max_memory: str | None = None,
) -> Settings:
    """The settings of a new project, from the options and the data at `path`."""
    from labelwise.errors import ArgumentError
    from labelwise.project.data.source import recognise
    from labelwise.project.project import check_store_address
    from labelwise.project.settings import Settings, new_classes

    found = recognise(path, text, _listed(features))
    if regress and classes:
        raise ArgumentError("labels are either classes or numbers: give --classes or --regress, not both")
    default = "typiclust+kcenter" if regress else "typiclust+badge"
    return Settings(
        name=path.resolve().name,
        kind=found.kind,
        source=os.path.relpath(path.resolve(), where.resolve()),
        task="regress" if regress else "classify",
        text=found.text,
        image=found.image,
        columns=found.columns,
        encoder=encoder,
        classes=new_classes(_listed(classes)),
        people=people,
        k=k,
        test_share=test_share,
        recipe=recipe or default,
        seed=seed,
        store=check_store_address(store) if store else "",
        max_memory=max_memory or "",
    )


def create_project(where: Path, settings: Settings) -> Project:
    """Make the project with a progress bar, and print what was made."""
    from labelwise.project import Project

    try:
        with _progress_bar() as on_progress:
            made = Project.create(where, settings, on_progress)
    except KeyboardInterrupt:
        typer.secho("Stopped. The same command continues where it stopped.", fg="yellow", err=True)
        raise Stopped from None
    rows = {"image": "images", "text": "texts", "table": "rows"}[settings.kind]
    typer.echo(
        f"Project {where}: {len(made.pool):,} {rows}, "
        f"{made.feature_info.width} features each by {made.feature_info.encoder}."
    )
    if made.feature_info.better:
        typer.echo(f"  {made.feature_info.better}")
    if made.excluded:
        count = len(made.excluded)
        typer.secho(
            f"  {count} {'row was' if count == 1 else 'rows were'} excluded, because of read errors; "
            f"see {where / 'left-out.txt'}:",
            fg="yellow",
        )
        for line in made.excluded[:3]:
            typer.echo(f"    {line}")
    if settings.task == "classify" and not settings.classes:
        typer.echo("  The project has no classes yet. Add them on the page.")
    return made


def serve_project(
    project: Path | Project, host: str, port: int, token: str | None, browser: bool, names: list[str]
) -> None:
    """Serve the page of a project until Ctrl-C."""
    from labelwise.errors import ExtraError

    opened = _open(project) if isinstance(project, Path) else project
    for line in opened.warnings:
        typer.secho(f"warning: {line}", fg="yellow", err=True)
    try:
        from labelwise.server.serve import serve
    except ImportError as error:
        raise ExtraError('The page needs more packages: pip install "labelwise[app]"') from error
    try:
        serve(opened, host=host, port=port, token=token, open_browser=browser, names=names, say=typer.echo)
    finally:
        opened.close()


def _open(folder: Path, max_memory: str | None = None) -> Project:
    """Open a project, computing missing features again, and set the memory limit if one is given."""
    from labelwise.errors import LabelwiseError
    from labelwise.project import Project
    from labelwise.project.data.restore_features import restore_features

    with _progress_bar() as on_progress:
        if restore_features(folder, on_progress):
            typer.echo("The features were missing and have been computed again.")
    project = Project.open(folder)
    if max_memory is not None:
        try:
            project.limit_memory(max_memory)
        except LabelwiseError:
            project.close()
            raise
    return project


def _check_same(
    where: Path, path: Path, classes: str | None, regress: bool, text: str | None, features: str | None
) -> None:
    """Refuse options that contradict the existing project."""
    from labelwise.errors import ArgumentError
    from labelwise.project.settings import read_settings

    stored = read_settings(where)
    if stored.path(where).resolve() != path.resolve():
        raise ArgumentError(
            f"{where} is a project of {stored.path(where)}, not of {path}. Choose another with --project"
        )
    if regress != (stored.task == "regress"):
        raise ArgumentError(f"the task of {where} is {stored.task}. Choose another project with --project")
    if (text is not None and text != stored.text) or (features is not None and _listed(features) != stored.columns):
        rows = stored.text if stored.kind == "text" else ", ".join(stored.columns) or "images"
        raise ArgumentError(f"the rows of {where} are made of {rows}. Choose another project with --project")
    new = [name for name in _listed(classes) if name not in stored.classes]
    if new:
        typer.secho(
            f"The project already exists and keeps its classes. Add {', '.join(new)} on the page.",
            fg="yellow",
        )


def _warn_ignored(where: Path, given: dict[str, object]) -> None:
    """Name the options that differ from the settings of the existing project and are ignored."""
    from labelwise.project.settings import Settings, read_settings

    stored, defaults = read_settings(where), Settings(name="", kind="text", source="")
    for name, value in given.items():
        current = getattr(stored, name)
        if value not in (None, current, getattr(defaults, name)):
            option = "-k" if name == "k" else f"--{name.replace('_', '-')}"
            typer.secho(
                f"The project already exists with {option} {current}; {option} {value} is ignored.", fg="yellow"
            )


def _listed(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    """A progress bar on a terminal, otherwise one line per step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    printed: set[str] = set()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def on_progress(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total or None)
            if not console.is_terminal and text not in printed:
                printed.add(text)
                typer.echo(text + (f" of {total:,} rows" if total else ""), err=True)

        yield on_progress
