"""`labelwise import`: labels from elsewhere, as events of the project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from labelwise.project.exchange.changes import Change, Changes

SHOWN = 5


def import_(
    project: Path = typer.Argument(..., help="The project folder."),
    file: Path = typer.Argument(..., help="A .csv file, or a .json file that Label Studio exported."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change, and change nothing."),
    replace: bool = typer.Option(False, "--replace", help="Take labels also where a person has said otherwise."),
    predictions: bool = typer.Option(False, "--predictions", help="Take labels of models too, where no person's is."),
    add_classes: bool = typer.Option(False, "--add-classes", help="Add classes that the project does not have."),
    label: str = typer.Option(None, metavar="COLUMN", help="The column of a CSV that holds the labels."),
    key: str = typer.Option(None, metavar="COLUMN", help="The column of a CSV that says which row: id, path or text."),
    who: str = typer.Option("import", help="In whose name labels are taken that have no name with them."),
) -> None:
    """Take labels from a CSV or a Label Studio JSON file into a project.

    [bold]labelwise import photos-labelwise old-labels.csv --dry-run[/]

    New labels are taken. Where a person has answered otherwise, the difference is listed and needs --replace; the
    history keeps what they said.
    """
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.changes import apply, plan
    from labelwise.project.exchange.read_labels import read_labels

    with closing(Project.open(project)) as opened:
        settings = opened.settings
        found = read_labels(file, label=label, key=key, kind=settings.kind, text=settings.text or "text")
        changes = plan(opened, found, who, predictions=predictions, add_classes=add_classes)
        typer.echo(f"{file.name} ({found.kind}): {len(found.labels):,} labels.")
        _say(changes, predictions, add_classes, replace)
        if dry_run:
            typer.echo("Nothing was changed (dry run).")
            return
        written = apply(opened, changes, replacing=replace, who=who)
    typer.echo(f"{written:,} labels written.")


def _say(changes: Changes, predictions: bool, add_classes: bool, replace: bool) -> None:
    _lines("new", changes.new)
    _lines("same", changes.same, shown=0)
    _lines("different", changes.different)
    if changes.different and not replace:
        typer.secho("    these stay as they are; --replace takes what the file says", fg="yellow")
    _texts("unknown rows", changes.unknown_rows)
    for name, count in changes.unknown_classes.items():
        typer.echo(
            f"  unknown class {name!r}, "
            + ("is added" if not count else f"{count:,} labels left out; --add-classes takes them")
        )
    _texts("cannot be used", changes.unusable)
    if changes.unlabelled:
        typer.echo(f"  {changes.unlabelled:,} without a label")
    if changes.predictions:
        taken = "taken where no person has answered in the file" if predictions else "not taken; --predictions does"
        typer.echo(f"  {changes.predictions:,} predictions of models, {taken}")


def _lines(title: str, found: Sequence[Change], shown: int = SHOWN) -> None:
    typer.echo(f"  {title:<10} {len(found):,}")
    for one in found[:shown]:
        before = "" if one.before is None else f"{one.before} -> "
        typer.echo(f"    {one.ref}: {before}{one.value}" + (f" ({', '.join(one.voters)})" if one.voters else ""))


def _texts(title: str, found: Sequence[str]) -> None:
    if not found:
        return
    typer.echo(f"  {title} {len(found):,}")
    for line in found[:SHOWN]:
        typer.echo(f"    {line}")
