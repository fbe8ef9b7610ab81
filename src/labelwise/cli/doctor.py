"""`labelwise doctor`: find what was changed or lost in the folder of a project or session, and keep the rest."""

from __future__ import annotations

from pathlib import Path

import typer


def doctor(
    folder: Path = typer.Argument(..., metavar="PROJECT", help="The folder of a project or of a session."),
    repair: bool = typer.Option(False, "--repair", help="Set aside what is damaged and keep the rest."),
) -> None:
    """Check every file of a project or session: changes, missing entries, damage.

    [bold]labelwise doctor photos-labelwise[/]
    [bold]labelwise doctor photos-labelwise --repair[/]

    Nothing is thrown away: a damaged file is set aside next to its place. The exit code is 1 where something is damaged
    and not repaired.
    """
    from labelwise.errors import ExtraError, StoreError
    from labelwise.session.repair import check_session, is_session

    check = check_session
    if not is_session(folder):
        try:
            from labelwise.project.repair import check_project, is_project_folder
        except ExtraError as error:
            raise StoreError(f"{folder} holds no session, and for a project: {error}") from None
        if not is_project_folder(folder):
            raise StoreError(f"{folder} holds no project and no session; pass the folder of one")
        check = check_project
    faults = check(folder, repair)
    for fault in faults:
        typer.echo(f"- {fault}")
    left = check(folder) if repair and faults else faults
    if not faults:
        typer.echo(f"{folder} is whole: every file has the checksum it was written with.")
    elif not left:
        typer.echo("Repaired. Give lost answers again; the damaged files are next to the repaired ones.")
    elif repair:
        typer.secho(f"{len(left)} of these cannot be repaired; restore the files from a backup.", fg="red")
    else:
        typer.echo(f"To set aside what is damaged and keep the rest: labelwise doctor {folder} --repair")
    if left:
        raise typer.Exit(1)
