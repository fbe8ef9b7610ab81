"""`labelwise label`: make a project of a folder or file and open its page; `labelwise resume` opens it again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.interrupted import Stopped
from labelwise.cli.select import MAX_MEMORY

if TYPE_CHECKING:
    from labelwise.project import Project, Settings
    from labelwise.project.data.features import OnProgress
    from labelwise.project.suggest.settings import SuggestSettings

NETWORK = "Network"
HOST = typer.Option(
    "127.0.0.1", help="Address the page listens on. Any but 127.0.0.1 requires a token.", rich_help_panel=NETWORK
)
PORT = typer.Option(8765, help="Port of the page; if taken, the next free one is used.", rich_help_panel=NETWORK)
TOKEN = typer.Option(
    None, help="Token of the page. [dim]\\[default: made where one is required][/]", rich_help_panel=NETWORK
)
NAMES = typer.Option(
    None, "--name", help="Another host name of the page, such as that of a proxy. Repeatable.", rich_help_panel=NETWORK
)
PROXIES = typer.Option(
    None,
    "--proxy",
    metavar="ADDRESS",
    help="Address of a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed. Repeatable. "
    "[dim]\\[default with --name: 127.0.0.1][/]",
    rich_help_panel=NETWORK,
)
CERTIFICATE = typer.Option(
    None, metavar="FILE", help="Serve HTTPS with this certificate chain (PEM).", rich_help_panel=NETWORK
)
CERTIFICATE_KEY = typer.Option(
    None, metavar="FILE", help="Private key of the certificate, if it is in a separate file.", rich_help_panel=NETWORK
)
CONNECTIONS = typer.Option(512, "--max-connections", min=1, help="Connections at a time.", rich_help_panel=NETWORK)
OF_ONE_PEER = typer.Option(
    128,
    "--max-per-address",
    min=1,
    help="Connections of one address at a time, unless it is that of a --proxy.",
    rich_help_panel=NETWORK,
)
NO_OPEN = typer.Option(False, "--no-open", help="Do not open a browser.")
LIMIT = typer.Option(None, "--max-memory", metavar="SIZE", help=MAX_MEMORY)

ENCODER = (
    "What turns a row into features: auto (the best one installed), efficientnet-lite0, minilm, the name or folder of "
    "a Hugging Face model, or MODULE:NAME, a function of your own."
)
VECTORS = typer.Option(
    None, metavar="FILE", help="Features from a .npy or .parquet file instead, one vector for each row."
)

SUGGEST = typer.Option(
    None,
    help="What suggests labels before you give them: auto (the encoder reads the class names), an encoder that reads "
    "names, the address of an OpenAI-compatible endpoint, model (of the project; the default) or off.",
    rich_help_panel="Suggestions",
)
SUGGEST_MODEL = typer.Option(
    None, "--suggest-model", metavar="NAME", help="The model at that address.", rich_help_panel="Suggestions"
)
DESCRIBE = typer.Option(
    None, metavar="FILE", help="YAML with a line `class: what it means` for each.", rich_help_panel="Suggestions"
)
JOIN = typer.Option(False, "--join", help="Serve a second page of a project whose page runs already.")


@dataclass(frozen=True)
class Page:
    """How the page is served, as `labelwise.server.serve` takes it."""

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    browser: bool = True
    names: list[str] | None = None
    join: bool = False
    proxies: list[str] | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None
    max_connections: int = 512
    max_per_address: int = 128


def label(
    path: Path = typer.Argument(..., help="A folder of images, or a .csv, .tsv or .parquet file."),
    classes: str = typer.Option(None, help="Class names, separated by commas; more can be added on the page."),
    regress: bool = typer.Option(False, "--regress", help="The labels are numbers."),
    multi: bool = typer.Option(False, "--multi", help="An item may have several classes, or none."),
    text: str = typer.Option(None, metavar="COLUMN", help="The column with the texts."),
    features: str = typer.Option(None, metavar="COLUMNS", help="The columns that make a row, separated by commas."),
    encoder: str = typer.Option("auto", help=ENCODER),
    embeddings: str = VECTORS,
    project: Path = typer.Option(
        None, metavar="DIR", help="The project folder. [dim]\\[default: DATA-labelwise next to the data][/]"
    ),
    k: int = typer.Option(20, "-k", "--k", min=2, help="Rows of a round, including test rows."),
    recipe: str = typer.Option(
        "recommended",
        help="How rows are chosen: a strategy, first+then, what `labelwise recommend` names, or parts such as "
        "'badge | weigh sabal | certify basis'.",
    ),
    people: int = typer.Option(1, min=1, help="How many people answer each row."),
    test_share: float = typer.Option(
        0.15, min=0.0, max=0.9, help="Share of each round drawn at random, to measure quality."
    ),
    store: str = typer.Option("", metavar="URL", help="Store answers in PostgreSQL: its address, or env:VARIABLE."),
    seed: int = typer.Option(0, min=0, help="Random seed."),
    suggest: str = SUGGEST,
    suggest_model: str = SUGGEST_MODEL,
    describe: Path = DESCRIBE,
    max_memory: str = LIMIT,
    no_open: bool = NO_OPEN,
    join: bool = JOIN,
    host: str = HOST,
    port: int = PORT,
    token: str = TOKEN,
    name: list[str] = NAMES,
    proxy: list[str] = PROXIES,
    certificate: Path = CERTIFICATE,
    certificate_key: Path = CERTIFICATE_KEY,
    max_connections: int = CONNECTIONS,
    per_address: int = OF_ONE_PEER,
) -> None:
    """Label images, texts or rows of a table in the browser. The rows most worth labelling come first.

    [bold]labelwise label photos --classes cat,dog[/]
    [bold]labelwise label reviews.csv --text body --classes good,bad[/]
    [bold]labelwise label houses.parquet --features size,rooms,city --regress[/]

    The project is stored in a folder next to the data. The same command opens it again.
    """
    from labelwise.project.settings import default_folder, is_project

    page = Page(
        host, port, token, not no_open, name, join, proxy, certificate, certificate_key, max_connections, per_address
    )
    where = project if project is not None else default_folder(path)
    encoder = _encoder_name(where, encoder, embeddings) or "auto"
    if is_project(where):
        typer.echo(f"Opening the existing project {where}.")
        _check_same(where, path, classes, regress, text, features, multi)
        fixed = {"k": k, "recipe": recipe, "people": people, "test_share": test_share, "seed": seed}
        _warn_ignored(where, {**fixed, "store": store or None})
        with closing(open_project(where, max_memory, join, None if encoder == "auto" else encoder)) as opened:
            set_suggestions(opened, suggest, suggest_model, describe)
            serve_project(opened, page)
        return
    settings = settings_of(
        path, where, classes, regress, text, features, encoder, k, recipe, people, test_share, store, seed, max_memory,
        multi,
    )  # fmt: skip
    check_page(page)
    _suggest_settings(suggest, suggest_model, describe)  # a mistake is told before a project is made
    with closing(create_project(where, settings)) as made:
        set_suggestions(made, suggest, suggest_model, describe)
        serve_project(made, page)


def resume(
    project: Path = typer.Argument(..., help="The project folder."),
    encoder: str = typer.Option(None, help="Compute the features again with this encoder; every answer stays."),
    embeddings: str = VECTORS,
    suggest: str = SUGGEST,
    suggest_model: str = SUGGEST_MODEL,
    describe: Path = DESCRIBE,
    max_memory: str = LIMIT,
    no_open: bool = NO_OPEN,
    join: bool = JOIN,
    host: str = HOST,
    port: int = PORT,
    token: str = TOKEN,
    name: list[str] = NAMES,
    proxy: list[str] = PROXIES,
    certificate: Path = CERTIFICATE,
    certificate_key: Path = CERTIFICATE_KEY,
    max_connections: int = CONNECTIONS,
    per_address: int = OF_ONE_PEER,
) -> None:
    """Open the labelling page of a project again.

    [bold]labelwise resume photos-labelwise[/]
    [bold]labelwise resume photos-labelwise --encoder auto[/]
    """
    page = Page(
        host, port, token, not no_open, name, join, proxy, certificate, certificate_key, max_connections, per_address
    )
    with closing(open_project(project, max_memory, join, _encoder_name(project, encoder, embeddings))) as opened:
        set_suggestions(opened, suggest, suggest_model, describe)
        serve_project(opened, page)


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
    multi: bool = False,
) -> Settings:
    """The settings of a new project, from the options and the data at `path`."""
    from labelwise.errors import ArgumentError
    from labelwise.project.data.source import recognise
    from labelwise.project.project import check_store_address
    from labelwise.project.settings import Settings, new_classes
    from labelwise.recommend import RECOMMENDED

    found = recognise(path, text, _listed(features))
    if regress and classes:
        raise ArgumentError("labels are either classes or numbers: give --classes or --regress, not both")
    if regress and multi:
        raise ArgumentError("labels are either numbers or sets of classes: give --regress or --multi, not both")
    return Settings(
        name=path.resolve().name,
        kind=found.kind,
        source=os.path.relpath(path.resolve(), where.resolve()),
        task="regress" if regress else "multi" if multi else "classify",
        text=found.text,
        image=found.image,
        columns=found.columns,
        encoder=encoder,
        classes=new_classes(_listed(classes)),
        people=people,
        k=k,
        test_share=test_share,
        recipe=recipe or RECOMMENDED,
        seed=seed,
        store=check_store_address(store) if store else "",
        max_memory=max_memory or "",
    )


def create_project(where: Path, settings: Settings) -> Project:
    """Make the project with a progress bar, and print what was made."""
    from labelwise.project.create import begin
    from labelwise.project.data.encoders import best_name

    try:
        with progress_bar() as on_progress:
            made = begin(where, settings, on_progress)
    except KeyboardInterrupt:
        typer.secho("Stopped. The same command continues where it stopped.", fg="yellow", err=True)
        raise Stopped from None
    rows = {"image": "images", "text": "texts", "table": "rows"}[settings.kind]
    if made.pending:
        typer.echo(f"Project {where}: {len(made.data):,} {rows}. Features are computed while you label.")
        _say_origin(best_name(settings.kind) if settings.encoder == "auto" else settings.encoder)
        _say_no_classes(settings)
        return made
    typer.echo(
        f"Project {where}: {len(made.pool):,} {rows}, each with {made.feature_info.width} features from the encoder "
        f"{made.feature_info.encoder}."
    )
    if settings.recipe != made.settings.recipe:
        typer.echo(f"  Rows are chosen by {made.settings.recipe}, as recommended; why: labelwise recommend {where}")
    if made.feature_info.better:
        typer.echo(f"  {made.feature_info.better}")
    _say_origin(made.feature_info.encoder)
    if made.excluded:
        count = len(made.excluded)
        typer.secho(
            f"  {count} {'row was' if count == 1 else 'rows were'} excluded, because of read errors; "
            f"see {where / 'left-out.txt'}:",
            fg="yellow",
        )
        for line in made.excluded[:3]:
            typer.echo(f"    {line}")
    _say_no_classes(settings)
    return made


def _say_no_classes(settings: Settings) -> None:
    if settings.task != "regress" and not settings.classes:
        typer.echo("  The project has no classes yet. Add them on the page.")


def _suggest_settings(by: str | None, model: str | None, describe: Path | None) -> SuggestSettings | None:
    """The options as `suggest.json` has them; None if none was given."""
    from labelwise.project.suggest.settings import AUTO, SuggestSettings, read_descriptions

    if by is None and model is None and describe is None:
        return None
    return SuggestSettings(by or AUTO, model or "", {} if describe is None else read_descriptions(describe))


def set_suggestions(project: Project, by: str | None, model: str | None, describe: Path | None) -> None:
    """Let the project have these suggestions, if the user named any, and say where rows are sent."""
    from labelwise.errors import ArgumentError
    from labelwise.project.data.encoders import is_code
    from labelwise.project.suggest.class_names import embed, sentences
    from labelwise.project.suggest.endpoint import KEYS, is_far

    found = _suggest_settings(by, model, describe)
    if found is None:
        return
    if project.settings.task == "regress":
        raise ArgumentError("--suggest is for classes; the labels of this project are numbers")
    project.require_one_label("--suggest")
    unknown = sorted(set(found.descriptions) - set(project.store.classes()))
    if unknown:
        raise ArgumentError(f"--describe: the project has no class {unknown[0]!r}; it has {project.store.classes()}")
    if found.is_class_names and not project.pending:
        classes = tuple(project.store.classes())
        named = is_code(project.feature_info.encoder if found.by == "auto" else found.by)
        if classes:
            with progress_bar() as on_progress:
                texts = sentences(project.settings.kind, classes, found.descriptions)
                embed(project, found.by, texts, on_progress, trusted=named).write(project.folder)
    found.write(project.folder)
    if found.is_endpoint:
        rows = "The items that are asked, and the names of the classes, are sent to"
        typer.secho(f"  {rows} {found.by}.", fg="yellow" if is_far(found.by) else None)
        typer.echo(f"  If it needs a key, set {KEYS[0]} before this command.")


def check_page(page: Page) -> None:
    """Refuse what the page cannot be served with, before a project is made for it."""
    from labelwise.errors import ExtraError, install_command

    try:
        from labelwise.server.connections import Limits
        from labelwise.server.serve import check_page_arguments
    except ImportError as error:
        raise ExtraError(f"The page needs more packages: {install_command('app')}") from error
    Limits(page.max_connections, page.max_per_address, frozenset(page.proxies or ()))
    check_page_arguments(page.host, page.port, page.token, page.certificate, page.certificate_key)


def serve_project(project: Project, page: Page) -> None:
    """Serve the page of an open project until Ctrl-C."""
    from labelwise.errors import ExtraError, install_command

    for line in project.warnings:
        typer.secho(f"warning: {line}", fg="yellow", err=True)
    try:
        from labelwise.server.connections import Limits
        from labelwise.server.serve import serve
    except ImportError as error:
        raise ExtraError(f"The page needs more packages: {install_command('app')}") from error
    serve(
        project,
        host=page.host,
        port=page.port,
        token=page.token,
        open_browser=page.browser,
        names=page.names or (),
        say=typer.echo,
        join=page.join,
        limits=Limits(page.max_connections, page.max_per_address, frozenset(page.proxies or ())),
        certificate=page.certificate,
        certificate_key=page.certificate_key,
    )


def open_project(
    folder: Path, max_memory: str | None = None, join: bool = False, encoder: str | None = None
) -> Project:
    """Open a project, computing features that are missing or of another encoder, and set the memory limit if given."""
    from labelwise.project import Project
    from labelwise.project.data.restore_features import change_encoder, restore_features
    from labelwise.project.loop.worker import worker_lock
    from labelwise.project.page_lock import check_page

    check_page(folder, join and encoder is None)
    with progress_bar() as on_progress:
        if encoder is not None:
            with worker_lock(folder):
                changed = change_encoder(folder, encoder, on_progress)
            typer.echo(
                f"The features are now those of {encoder}; every answer is kept."
                if changed
                else f"The project already has the features of {encoder}."
            )
        elif restore_features(folder, on_progress, encoder):
            typer.echo("Computed the missing features again.")
    project = Project.open(folder)
    with project.store.closed_on_error():
        if encoder is not None:
            _say_origin(project.feature_info.encoder)
        if max_memory is not None:
            project.limit_memory(max_memory)
    return project


def _say_origin(encoder: str) -> None:
    """Licence and author of pretrained weights that are used or suggested, as their package states them."""
    from labelwise.project.data.encoders import origin

    if origin(encoder):
        typer.echo(f"  {origin(encoder)}")


def _check_same(
    where: Path, path: Path, classes: str | None, regress: bool, text: str | None, features: str | None, multi: bool
) -> None:
    """Refuse options that contradict the existing project."""
    from labelwise.errors import ArgumentError
    from labelwise.project.settings import read_settings

    stored = read_settings(where)
    if stored.path(where).resolve() != path.resolve():
        raise ArgumentError(
            f"{where} is a project of {stored.path(where)}, not of {path}. Choose another with --project"
        )
    if regress != (stored.task == "regress") or (multi and stored.task != "multi"):
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
        if value not in (None, current, getattr(defaults, name), "recommended"):
            option = "-k" if name == "k" else f"--{name.replace('_', '-')}"
            typer.secho(
                f"The project already exists with {option} {current}; {option} {value} is ignored.", fg="yellow"
            )


def _encoder_name(folder: Path, encoder: str | None, embeddings: str | None) -> str | None:
    """The encoder as the settings of a project name it; None if neither option was given."""
    from labelwise.errors import ArgumentError
    from labelwise.project.data.encoders import EMBEDDINGS

    if embeddings is None:
        return encoder
    if encoder not in (None, "auto"):
        raise ArgumentError("features come from an encoder or from a file: give --encoder or --embeddings, not both")
    return EMBEDDINGS + os.path.relpath(Path(embeddings).resolve(), folder.resolve())


def _listed(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
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
