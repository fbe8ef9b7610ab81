"""`labelwise label-studio`: send picks to a running Label Studio, import its annotations, or be its ML backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.command import App, echo_faults
from labelwise.cli.label import CERTIFICATE, CERTIFICATE_KEY, HOST, NAMES, PROXIES

if TYPE_CHECKING:
    from labelwise.project.exchange.studio_client import Client

app = App("Label the picks of a project in Label Studio.")

PROJECT = typer.Argument(..., help="The project folder.")
URL = typer.Option(..., help="Address of Label Studio, such as http://localhost:8080.")
TOKEN_ENV = typer.Option(
    "LABEL_STUDIO_TOKEN", metavar="NAME", help="The environment variable that holds a personal access token."
)
LEGACY = typer.Option(False, "--legacy-token", help="The token is a legacy token.")
ID = typer.Option(
    None, metavar="N", help="The project of Label Studio. [dim]\\[default: the last one used, or a new one][/]"
)


@app.command("push")
def push(
    project: Path = PROJECT,
    url: str = URL,
    token_env: str = TOKEN_ENV,
    legacy_token: bool = LEGACY,
    project_id: int = ID,
    round: int = typer.Option(None, min=1, help="The round to push. [dim]\\[default: the last one][/]"),
    image_url: str = typer.Option(
        None,
        metavar="PREFIX",
        help="Prefix of the images' paths for Label Studio. [dim]\\[default: the images are put into the tasks][/]",
    ),
) -> None:
    """Send the picks of a round as tasks, with the model's predictions. Can be repeated: no task is made twice."""
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.studio_sync import push as send

    client = _client(url, token_env, legacy_token)
    with closing(Project.open(project)) as opened:
        made = send(opened, client, round=round, project_id=project_id, image_url=image_url)
    typer.echo(f"Round {made.round}: {made.created} tasks created in {made.url}/projects/{made.project}")
    if made.existing:
        typer.echo(f"  {made.existing} picks already had a task")
    if made.answered:
        typer.echo(f"  {made.answered} picks are already answered and need no task")
    echo_faults("not sent", made.faults)


@app.command("pull")
def pull(
    project: Path = PROJECT,
    url: str = URL,
    token_env: str = TOKEN_ENV,
    legacy_token: bool = LEGACY,
    project_id: int = ID,
    add_classes: bool = typer.Option(False, "--add-classes", help="Add classes that the project does not have."),
) -> None:
    """Import the finished annotations with person and time. Can be repeated: nothing is imported twice."""
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.studio_sync import pull as take

    client = _client(url, token_env, legacy_token)
    with closing(Project.open(project)) as opened:
        found = take(opened, client, project_id=project_id, add_classes=add_classes)
    typer.echo(f"{found.labels} labels and {found.skips} skips imported, by {len(found.people)} people.")
    for count, what in (
        (found.known, "were imported before"),
        (found.open, "tasks have no annotation yet"),
        (found.foreign, "tasks belong to other projects and were ignored"),
    ):
        if count:
            typer.echo(f"  {count} {what}")
    for name, count in found.unknown_classes.items():
        typer.secho(
            f"  class {name!r} is not in the project: skipped ({count} times); --add-classes adds it", fg="yellow"
        )
    echo_faults("skipped", found.unusable)


@app.command("serve")
def serve(
    project: Path = typer.Argument(..., help="The project folder, or the data it was made of."),
    add_classes: bool = typer.Option(False, "--add-classes", help="Add classes that the project does not have."),
    host: str = HOST,
    port: int = typer.Option(9090, help="Port of the backend; if taken, the next free one is used."),
    token: str = typer.Option(None, help="Token of the backend. [dim]\\[default: made where one is required][/]"),
    name: list[str] = NAMES,
    proxy: list[str] = PROXIES,
    certificate: Path = CERTIFICATE,
    certificate_key: Path = CERTIFICATE_KEY,
) -> None:
    """Serve an ML backend for Label Studio: order its tasks, predict, and learn from every annotation.

    [bold]labelwise label-studio serve photos-labelwise[/]
    [bold]labelwise label-studio serve photos-labelwise --host 0.0.0.0 --name host.docker.internal[/]

    The second line is for a Label Studio in a container. The printed address goes into Settings > Model.
    """
    from contextlib import closing

    from labelwise.errors import ExtraError, StoreError, install_command
    from labelwise.project import Project
    from labelwise.project.settings import default_folder, is_project

    folder = project if is_project(project) else default_folder(project)
    if not is_project(folder):
        raise StoreError(
            f"{project} is not a project, and {folder} is none either. Make one with: labelwise label {project}"
        )
    try:
        from labelwise.server.connections import Limits
        from labelwise.server.label_studio import serve_backend
    except ImportError as error:
        raise ExtraError(f"The backend needs more packages: {install_command('app')}") from error
    with closing(Project.open(folder)) as opened:
        for line in opened.warnings:
            typer.secho(f"warning: {line}", fg="yellow", err=True)
        serve_backend(
            opened,
            host,
            port,
            token,
            name or (),
            add_classes,
            typer.echo,
            limits=Limits(proxies=frozenset(proxy or ())),
            certificate=certificate,
            certificate_key=certificate_key,
        )


def _client(url: str, token_env: str, legacy: bool) -> Client:
    import os

    from labelwise.errors import ArgumentError
    from labelwise.project.exchange.studio_client import Client, is_local

    token = os.environ.get(token_env, "").strip()
    if not token:
        raise ArgumentError(
            f"the environment variable {token_env} is not set. Set it to a personal access token (from Label Studio's "
            "account page), or name another variable with --token-env"
        )
    client = Client(url, token, True if legacy else None)
    if client.url.startswith("http://") and not is_local(client.url):
        typer.secho(
            f"warning: {client.url} is not encrypted; others on the network can read the token", fg="yellow", err=True
        )
    return client
