"""`labelwise status`: the state of a labelling project, in the terminal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer


def status(
    project: Path = typer.Argument(..., help="The project folder."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON for other programs."),
) -> None:
    """Show labels, rounds, worker, quality and suspected label errors of a project. Changes nothing."""
    from contextlib import closing

    from labelwise.project import Project

    with closing(Project.open(project)) as opened:
        progress, worker, meter = opened.store.progress(), opened.heartbeat(), opened.meter()
        found = opened.suspects()
        encoder = opened.settings.encoder if opened.pending else opened.feature_info.encoder
        rows = len(opened.data) if opened.pending else len(opened.pool)
        if as_json:
            values = {
                "project": str(project),
                "settings": asdict(opened.settings),
                "encoder": encoder,
                "progress": asdict(progress),
                "working": asdict(worker),
                "meter": None if meter is None else asdict(meter),
                "suspects": len(found),
                "left_out": len(opened.excluded),
                "warnings": list(opened.warnings),
            }
            typer.echo(json.dumps(values, indent=1, ensure_ascii=False))
            return
        settings = opened.settings
        typer.echo(f"{settings.name}: {rows:,} {settings.kind} rows, encoder {encoder}, recipe {settings.recipe}")
        typer.echo(
            f"  labels   {progress.labels:,} by {progress.people} {'person' if progress.people == 1 else 'people'}"
            + _pace(progress.median_seconds)
        )
        typer.echo(f"  round    {progress.round}: {progress.answered} of {progress.picks} items answered")
        state = "not running" if worker.state == "dead" else worker.state
        typer.echo(f"  worker   {state}: {worker.message}")
        for number, line in enumerate(meter.words if meter is not None else ["not measured yet"]):
            typer.echo(f"  {'' if number else 'quality':<8} {line}")
        typer.echo(f"  suspects {len(found)} labels may be wrong" + (" (see the gallery of the page)" if found else ""))
        if opened.excluded:
            typer.echo(f"  excluded {len(opened.excluded)} rows that could not be read; see {project / 'left-out.txt'}")
        for line in opened.warnings:
            typer.secho(f"  warning  {line}", fg="yellow")
        typer.echo(f"Continue with: labelwise resume {project}")


def _pace(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:.1f} seconds per label (median)"
