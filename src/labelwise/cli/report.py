"""`labelwise report`: what a labelling project has reached, as a page in one file."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    project: Path = typer.Argument(..., help="The project folder."),
    to: Path = typer.Option(None, "--to", metavar="FILE", help="The page; PROJECT/report.html otherwise."),
    force: bool = typer.Option(False, "--force", help="Replace a file that is there."),
) -> None:
    """Write the report of a project as one page: meter, curve, labels by class, people and their pace."""
    from contextlib import closing

    from labelwise.errors import StoreError
    from labelwise.project import Project
    from labelwise.server.report_file import write_report

    path = to if to is not None else project / "report.html"
    if to is not None and to.exists() and not force:
        raise StoreError(f"{to} is there; name another file with --to, or pass --force to replace it")
    with closing(Project.open(project)) as opened:
        write_report(opened, path)
    typer.echo(f"Report: {path}")
