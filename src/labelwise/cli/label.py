"""`labelwise label`: from a folder or a file to the labelling page; `labelwise resume` goes on."""

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

HOST = typer.Option("127.0.0.1", help="Address the page listens on. Elsewhere than here it asks for a token.")
PORT = typer.Option(8765, help="Port of the page; a taken one gives the next free one.")
TOKEN = typer.Option(None, help="Token the page asks for; one is made up where it needs one.")
NO_OPEN = typer.Option(False, "--no-open", help="Do not open a browser.")
LIMIT = typer.Option(None, "--max-memory", metavar="SIZE", help=MAX_MEMORY)
NAMES = typer.Option(None, "--name", help="Further host names the page answers to, behind a proxy.")


def label(
    path: Path = typer.Argument(..., help="A folder of images, or a .csv, .tsv or .parquet file."),
    classes: str = typer.Option(None, help="Names of the classes, with commas; more can be added on the page."),
    regress: bool = typer.Option(False, "--regress", help="Labels are numbers."),
    text: str = typer.Option(None, metavar="COLUMN", help="The column that holds the texts."),
    features: str = typer.Option(None, metavar="COLUMNS", help="Columns that make a row, with commas."),
    encoder: str = typer.Option("auto", help="What turns a row into features; the best installed by default."),
    project: Path = typer.Option(None, metavar="DIR", help="The project folder; by default beside the data."),
    k: int = typer.Option(20, "-k", "--k", min=2, help="Rows of a round, test rows among them."),
    recipe: str = typer.Option(None, help="How rows are chosen; typiclust+badge, or for numbers typiclust+kcenter."),
    people: int = typer.Option(1, min=1, help="How many people answer each row."),
    test_share: float = typer.Option(0.15, min=0.0, max=0.9, help="Share of each round drawn at random, to measure."),
    store: str = typer.Option("", metavar="URL", help="Keep answers in PostgreSQL: its address, or env:VARIABLE."),
    seed: int = typer.Option(0, min=0, help="The only source of chance."),
    max_memory: str = LIMIT,
    host: str = HOST,
    port: int = PORT,
    token: str = TOKEN,
    no_open: bool = NO_OPEN,
    name: list[str] = NAMES,
) -> None:
    """Label a folder of images, texts or a table in the browser; the rows worth labelling come first.

    [bold]labelwise label photos --classes cat,dog[/]
    [bold]labelwise label reviews.csv --text body --classes good,bad[/]
    [bold]labelwise label houses.parquet --features size,rooms,city --regress[/]

    The project is kept in a folder beside the data; the same command goes on with it.
    """
    from labelwise.project.settings import is_project

    where = project if project is not None else beside(path)
    if is_project(where):
        typer.echo(f"{where} is there; going on with it.")
        _check_same(where, path, classes, regress, text, features)
        fixed = {"encoder": encoder, "k": k, "recipe": recipe, "people": people, "test_share": test_share, "seed": seed}
        _say_kept(where, {**fixed, "store": store or None})
        show(_opened(where, max_memory), host, port, token, not no_open, name or [])
        return
    settings = settings_of(
        path, where, classes, regress, text, features, encoder, k, recipe, people, test_share, store, seed, max_memory
    )
    show(make(where, settings), host, port, token, not no_open, name or [])


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
    show(_opened(project, max_memory), host, port, token, not no_open, name or [])


def beside(path: Path) -> Path:
    """The project folder of some data: its name with "-labelwise", beside it."""
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
    """The settings of a new project, from what was asked for and what is found at `path`."""
    from labelwise.errors import ArgumentError
    from labelwise.project.data.source import recognise
    from labelwise.project.project import check_store_address
    from labelwise.project.settings import Settings, new_classes

    found = recognise(path, text, _listed(features))
    if regress and classes:
        raise ArgumentError("labels are classes or numbers: give --classes or --regress, not both")
    usual = "typiclust+kcenter" if regress else "typiclust+badge"
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
        recipe=recipe or usual,
        seed=seed,
        store=check_store_address(store) if store else "",
        max_memory=max_memory or "",
    )


def make(where: Path, settings: Settings) -> Project:
    """Make the project, with a display of how far it is, and say what was made."""
    from labelwise.project import Project

    try:
        with _display() as say:
            made = Project.create(where, settings, say)
    except KeyboardInterrupt:
        typer.secho("Stopped; the same command goes on where it was.", fg="yellow", err=True)
        raise Stopped from None
    rows = {"image": "images", "text": "texts", "table": "rows"}[settings.kind]
    typer.echo(
        f"Project {where}: {len(made.pool):,} {rows}, "
        f"{made.feature_info.width} features each by {made.feature_info.encoder}."
    )
    if made.feature_info.better:
        typer.echo(f"  {made.feature_info.better}")
    if made.excluded:
        were = "was" if len(made.excluded) == 1 else "were"
        typer.secho(
            f"  {len(made.excluded)} could not be used and {were} left out; the list is in {where / 'left-out.txt'}:",
            fg="yellow",
        )
        for line in made.excluded[:3]:
            typer.echo(f"    {line}")
    if settings.task == "classify" and not settings.classes:
        typer.echo("  No classes were named; add them on the page.")
    return made


def show(project: Path | Project, host: str, port: int, token: str | None, browser: bool, names: list[str]) -> None:
    """Serve the page of a project until Ctrl-C."""
    from labelwise.errors import ExtraError

    opened = _opened(project) if isinstance(project, Path) else project
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


def _opened(folder: Path, max_memory: str | None = None) -> Project:
    """The project in `folder`, its features computed again where they are gone; with a new limit, if one is given."""
    from labelwise.errors import LabelwiseError
    from labelwise.project import Project
    from labelwise.project.data.restore_features import restore_features

    with _display() as say:
        if restore_features(folder, say):
            typer.echo("The features of the project were gone, and were computed again.")
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
    """Going on with a project takes its own settings; what was said now and differs is not silently dropped."""
    from labelwise.errors import ArgumentError
    from labelwise.project.settings import read_settings

    stored = read_settings(where)
    if stored.path(where).resolve() != path.resolve():
        raise ArgumentError(f"{where} is a project of {stored.path(where)}, not of {path}; name another with --project")
    if regress != (stored.task == "regress"):
        raise ArgumentError(f"{where} is a project whose task is {stored.task}; name another folder with --project")
    if (text is not None and text != stored.text) or (features is not None and _listed(features) != stored.columns):
        said = stored.text if stored.kind == "text" else ", ".join(stored.columns) or "images"
        raise ArgumentError(f"{where} is a project whose rows are made of {said}; name another folder with --project")
    new = [name for name in _listed(classes) if name not in stored.classes]
    if new:
        typer.secho(
            f"The project is there already: its classes stay as they are ({', '.join(new)} can be added on the page).",
            fg="yellow",
        )


def _say_kept(where: Path, said: dict[str, object]) -> None:
    """Name the options that were given now and differ from the project's, which stay."""
    from labelwise.project.settings import Settings, read_settings

    stored, usual = read_settings(where), Settings(name="", kind="text", source="")
    for name, value in said.items():
        kept = getattr(stored, name)
        if value not in (None, kept, getattr(usual, name)):
            option = "-k" if name == "k" else f"--{name.replace('_', '-')}"
            typer.secho(f"The project is there already: {option} stays {kept}, not {value}.", fg="yellow")


def _listed(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


@contextmanager
def _display() -> Iterator[OnProgress]:
    """A progress display on a terminal; a line for each step elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    said: set[str] = set()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def say(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total or None)
            if not console.is_terminal and text not in said:
                said.add(text)
                typer.echo(text + (f" of {total:,} rows" if total else ""), err=True)

        yield say
