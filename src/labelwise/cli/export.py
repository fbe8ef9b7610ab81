"""`labelwise export`: write the labels of a project for other programs."""

from __future__ import annotations

from pathlib import Path

import typer

from labelwise.cli.command import echo_faults


def export(
    project: Path = typer.Argument(..., help="The project folder."),
    to: Path = typer.Option(..., "--to", metavar="FILE|DIR", help="The file, or the folder for --format folders."),
    format: str = typer.Option(
        None,
        help="csv, parquet, folders, label-studio or coco. [dim]\\[default: csv or parquet, by the ending of FILE][/]",
    ),
    include: list[str] = typer.Option(
        None,
        help="Rows to add: test rows (test), rows without an agreed label (unsure), or all (all). Can be repeated.",
    ),
    force: bool = typer.Option(False, "--force", help="Replace an existing file, or a folder that an export made."),
    link: bool = typer.Option(False, "--link", help="For folders: make links to the images instead of copies."),
    image_url: str = typer.Option(None, metavar="PREFIX", help="For label-studio: prefix of the images' paths."),
) -> None:
    """Write the labels of a project to a table, to image folders by class, or in the format of other programs.

    [bold]labelwise export photos-labelwise --to labels.csv[/]
    [bold]labelwise export photos-labelwise --to sorted --format folders[/]
    [bold]labelwise export photos-labelwise --to tasks.json --format label-studio --include all[/]

    Writes the labelled rows outside the test slice. A model trained on test rows cannot be measured with them.
    """
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.export import export as write

    with closing(Project.open(project)) as opened:
        made = write(opened, to, format, include or (), force=force, link=link, image_url=image_url)
    typer.echo(f"{made.rows:,} rows written to {made.to} ({made.format}).")
    if made.omitted_test:
        typer.echo(f"  omitted: {made.omitted_test:,} labelled test rows; --include test adds them")
    if made.omitted_unsure:
        typer.echo(f"  omitted: {made.omitted_unsure:,} rows without an agreed label; --include unsure adds them")
    echo_faults("not written", made.faults)
