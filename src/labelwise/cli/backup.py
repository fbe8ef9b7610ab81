"""`labelwise backup`: a project in one file, also while its page runs; `labelwise restore`: a project of that file."""

from __future__ import annotations

from pathlib import Path

import typer


def backup(
    project: Path = typer.Argument(..., help="The project folder; its page may run."),
    to: Path = typer.Option(..., "--to", metavar="FILE", help="The file to write, such as photos.backup."),
    without_features: bool = typer.Option(
        False, "--without-features", help="Leave out the features, which `labelwise resume` computes from the data."
    ),
    force: bool = typer.Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write every answer, round and model of a project to one file, and check that file.

    [bold]labelwise backup photos-labelwise --to photos.backup[/]

    The images, texts or tables are not part of it. Answers in PostgreSQL are backed up with its own tools.
    """
    from labelwise.io.progress_bar import DelayedBar
    from labelwise.project.backup import back_up

    with DelayedBar("writing and checking the backup", 4) as bar:
        made = back_up(project, to, not without_features, force, bar)
    typer.echo(f"{to}: {made.events:,} events and {made.rounds:,} rounds, opened again and checked.")
    typer.echo(f"  The data is not part of it: {made.data}")
    typer.echo(f"  Restore it with: labelwise restore {to} --to DIR")


def restore(
    file: Path = typer.Argument(..., help="A file that `labelwise backup` wrote."),
    to: Path = typer.Option(..., "--to", metavar="DIR", help="The project folder to make."),
    data: Path = typer.Option(None, metavar="PATH", help="Where the images or the table are now, if they were moved."),
    store: str = typer.Option(
        "", metavar="URL", help="Move the answers to an empty PostgreSQL database: its address, or env:VARIABLE."
    ),
) -> None:
    """Make a project from a backup.

    [bold]labelwise restore photos.backup --to photos-labelwise[/]
    """
    from labelwise.project.backup import restore as restored
    from labelwise.project.project import check_store_address

    found, rows = restored(file, to, data, check_store_address(store) if store else "")
    typer.echo(f"Project {to}: {found.events:,} events and {found.rounds:,} rounds.")
    if not rows.exists():
        typer.secho(f"  Its data is not at {rows}. Put it there, or restore with --data PATH.", fg="yellow", err=True)
    if not found.features:
        typer.echo("  The features are computed again when the project is opened.")
    typer.echo(f"Continue with: labelwise resume {to}")
