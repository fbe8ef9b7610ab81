"""`labelwise report`: the result of a labelling project as a page in one file."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    project: Path = typer.Argument(..., help="The project folder."),
    to: Path = typer.Option(
        None, "--to", metavar="FILE", help="The file to write. [dim]\\[default: PROJECT/report.html][/]"
    ),
    force: bool = typer.Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write the report of a project as one page: quality, learning curve, labels by class, people and rounds."""
    from contextlib import closing

    from labelwise.errors import StoreError
    from labelwise.project import Project
    from labelwise.server.report import write_report

    path = to if to is not None else project / "report.html"
    if to is not None and to.exists() and not force:
        raise StoreError(f"{to} already exists. Choose another file with --to, or replace it with --force")
    with closing(Project.open(project)) as opened:
        write_report(opened, path)
    typer.echo(f"Report: {path}")
