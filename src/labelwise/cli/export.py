"""`labelwise export`: the labels of a project for other programs."""

from __future__ import annotations

from pathlib import Path

import typer


def export(
    project: Path = typer.Argument(..., help="The project folder."),
    to: Path = typer.Option(..., "--to", metavar="FILE|DIR", help="Where to write: a file, or a folder for folders."),
    format: str = typer.Option(
        None, help="csv, parquet, folders, label-studio or coco. [dim]By the ending of FILE for csv and parquet[/]"
    ),
    include: list[str] = typer.Option(
        None, help="Also test rows (test), rows without an agreed label (unsure), every row (all). May be repeated."
    ),
    force: bool = typer.Option(False, "--force", help="Replace what is there; of a folder, only one an export made."),
    link: bool = typer.Option(False, "--link", help="For folders: links to the images, not copies."),
    image_url: str = typer.Option(
        None, metavar="PREFIX", help="For label-studio: what stands before the path of an image."
    ),
) -> None:
    """Write the labels of a project to a table, to image folders by class, or in the form of other programs.

    [bold]labelwise export photos-labelwise --to labels.csv[/]
    [bold]labelwise export photos-labelwise --to sorted --format folders[/]
    [bold]labelwise export photos-labelwise --to tasks.json --format label-studio --include all[/]

    Labelled rows are written, but not those of the test slice: whoever trains on them can no longer measure with them.
    """
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.export import export as write

    with closing(Project.open(project)) as opened:
        made = write(opened, to, format, include or (), force=force, link=link, image_url=image_url)
    typer.echo(f"{made.rows:,} rows written to {made.to} ({made.format}).")
    if made.omitted_test:
        typer.echo(f"  left out: {made.omitted_test:,} labelled test rows; --include test adds them")
    if made.omitted_unsure:
        typer.echo(f"  left out: {made.omitted_unsure:,} rows without an agreed label; --include unsure adds them")
    for line in made.faults[:5]:
        typer.secho(f"  not written: {line}", fg="yellow")
    if len(made.faults) > 5:
        typer.secho(f"  and {len(made.faults) - 5:,} more", fg="yellow")
