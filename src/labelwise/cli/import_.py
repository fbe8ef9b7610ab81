"""`labelwise import`: import labels from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from labelwise.project.exchange.changes import Change, Changes

MAX_LINES = 5  # printed of each list


def import_(
    project: Path = typer.Argument(..., help="The project folder."),
    file: Path = typer.Argument(..., help="A .csv file, or a .json file that Label Studio exported."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would change, without changing it."),
    replace: bool = typer.Option(False, "--replace", help="Also replace labels that people have given."),
    predictions: bool = typer.Option(
        False, "--predictions", help="Also import labels of models, for rows without one of a person."
    ),
    add_classes: bool = typer.Option(False, "--add-classes", help="Add classes that the project does not have."),
    label: str = typer.Option(None, metavar="COLUMN", help="The column of a CSV that holds the labels."),
    key: str = typer.Option(
        None, metavar="COLUMN", help="The column of a CSV that identifies the row: id, path or text."
    ),
    who: str = typer.Option("import", help="The person for labels without a name."),
) -> None:
    """Import labels from a CSV or a Label Studio JSON file.

    [bold]labelwise import photos-labelwise old-labels.csv --dry-run[/]

    New labels are added. Labels that differ from the answer of a person are listed and need --replace; the history
    keeps the earlier answer.
    """
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.changes import apply, plan
    from labelwise.project.exchange.read_labels import read_labels

    with closing(Project.open(project)) as opened:
        opened.require_features()  # until then the store does not have every row
        settings = opened.settings
        sets, text = settings.task == "multi", settings.text or "text"
        found = read_labels(file, label=label, key=key, kind=settings.kind, text=text, sets=sets)
        changes = plan(opened, found, who, predictions=predictions, add_classes=add_classes)
        typer.echo(f"{file.name} ({found.kind}): {len(found.labels):,} labels.")
        _print_changes(changes, predictions, add_classes, replace)
        if dry_run:
            typer.echo("Nothing was changed (dry run).")
            return
        written = apply(opened, changes, replacing=replace, who=who)
    typer.echo(f"{written:,} labels written.")


def _print_changes(changes: Changes, predictions: bool, add_classes: bool, replace: bool) -> None:
    _print_labels("new", changes.new)
    _print_labels("same", changes.same, limit=0)
    _print_labels("different", changes.different)
    if changes.different and not replace:
        typer.secho("    these labels are kept; --replace takes those of the file", fg="yellow")
    _print_texts("unknown rows", changes.unknown_rows)
    for name, count in changes.unknown_classes.items():
        typer.echo(
            f"  new class {name!r}: " + ("added" if not count else f"skipped ({count:,} times); --add-classes adds it")
        )
    _print_texts("not usable", changes.unusable)
    if changes.unlabelled:
        typer.echo(f"  no label   {changes.unlabelled:,}")
    if changes.predictions:
        use = "used for rows without a label of a person" if predictions else "not used; --predictions uses them"
        typer.echo(f"  {changes.predictions:,} predictions of models, {use}")


def _print_labels(title: str, found: Sequence[Change], limit: int = MAX_LINES) -> None:
    typer.echo(f"  {title:<10} {len(found):,}")
    for one in found[:limit]:
        before = "" if one.before is None else f"{one.before} -> "
        typer.echo(f"    {one.ref}: {before}{one.value}" + (f" ({', '.join(one.voters)})" if one.voters else ""))


def _print_texts(title: str, found: Sequence[str]) -> None:
    if not found:
        return
    typer.echo(f"  {title} {len(found):,}")
    for line in found[:MAX_LINES]:
        typer.echo(f"    {line}")
