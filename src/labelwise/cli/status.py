"""`labelwise status`: where a labelling project stands, in the terminal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer


def status(
    project: Path = typer.Argument(..., help="The project folder."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON for other programs."),
) -> None:
    """Labels, rounds, worker, meter and suspected label errors of a project. It changes nothing."""
    from contextlib import closing

    from labelwise.project import Project

    with closing(Project.open(project)) as opened:
        progress, working, meter = opened.store.progress(), opened.heartbeat(), opened.meter()
        found = opened.suspects()
        if as_json:
            said = {
                "project": str(project),
                "settings": asdict(opened.settings),
                "encoder": opened.feature_info.encoder,
                "progress": asdict(progress),
                "working": asdict(working),
                "meter": None if meter is None else asdict(meter),
                "suspects": len(found),
                "left_out": len(opened.excluded),
                "warnings": list(opened.warnings),
            }
            typer.echo(json.dumps(said, indent=1, ensure_ascii=False))
            return
        settings = opened.settings
        typer.echo(
            f"{settings.name}: {len(opened.pool):,} {settings.kind} rows, encoder {opened.feature_info.encoder}, "
            f"recipe {settings.recipe}"
        )
        typer.echo(f"  labels   {progress.labels:,} by {progress.people} people" + _pace(progress.median_seconds))
        typer.echo(f"  round    {progress.round}: {progress.answered} of {progress.picks} picks answered")
        state = "not running" if working.state == "dead" else working.state
        typer.echo(f"  worker   {state}: {working.message}")
        for place, line in enumerate(meter.words if meter is not None else ["nothing measured yet."]):
            typer.echo(f"  {'meter ' if place == 0 else '      '}   {line}")
        typer.echo(f"  suspects {len(found)} labels that may be wrong" + (", see the page" if found else ""))
        if opened.excluded:
            typer.echo(f"  left out {len(opened.excluded)}, see {project / 'left-out.txt'}")
        for line in opened.warnings:
            typer.secho(f"  warning  {line}", fg="yellow")
        typer.echo(f"Go on with: labelwise resume {project}")


def _pace(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:.1f} seconds each (median)"
