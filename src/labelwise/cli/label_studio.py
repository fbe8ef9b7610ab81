"""`labelwise label-studio`: picks to a running Label Studio, and its annotations back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from labelwise.project.exchange.studio_client import Client

app = typer.Typer(help="Label the picks of a round in a running Label Studio.", no_args_is_help=True)

PROJECT = typer.Argument(..., help="The project folder.")
URL = typer.Option(..., help="Address of Label Studio, such as http://localhost:8080.")
TOKEN_ENV = typer.Option(
    "LABEL_STUDIO_TOKEN", metavar="NAME", help="The environment variable that holds a personal access token."
)
LEGACY = typer.Option(False, "--legacy-token", help="The token is a legacy one.")
ID = typer.Option(None, metavar="N", help="A project of Label Studio; the one of last time, or a new one, otherwise.")


@app.command("push")
def push(
    project: Path = PROJECT,
    url: str = URL,
    token_env: str = TOKEN_ENV,
    legacy_token: bool = LEGACY,
    project_id: int = ID,
    round: int = typer.Option(None, min=1, help="The round whose picks are pushed; the last one otherwise."),
    image_url: str = typer.Option(
        None, metavar="PREFIX", help="Label Studio finds images under this and their path. [dim]Inside the tasks[/]"
    ),
) -> None:
    """Send the picks of a round as tasks, with what the model thinks of them. Repeating it makes no task twice."""
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.studio_sync import push as send

    client = _client(url, token_env, legacy_token)
    with closing(Project.open(project)) as opened:
        made = send(opened, client, round=round, project_id=project_id, image_url=image_url)
    typer.echo(f"Round {made.round}: {made.created} tasks made in {made.url}/projects/{made.project}")
    if made.existing:
        typer.echo(f"  {made.existing} picks had a task already")
    if made.answered:
        typer.echo(f"  {made.answered} picks have an answer already and need none")
    for line in made.faults[:5]:
        typer.secho(f"  not sent: {line}", fg="yellow")


@app.command("pull")
def pull(
    project: Path = PROJECT,
    url: str = URL,
    token_env: str = TOKEN_ENV,
    legacy_token: bool = LEGACY,
    project_id: int = ID,
    add_classes: bool = typer.Option(False, "--add-classes", help="Add classes that the project does not have."),
) -> None:
    """Take in the finished annotations, each in the name of its person, with its time. Repeating it changes nothing."""
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.project.exchange.studio_sync import pull as take

    client = _client(url, token_env, legacy_token)
    with closing(Project.open(project)) as opened:
        found = take(opened, client, project_id=project_id, add_classes=add_classes)
    typer.echo(f"{found.labels} labels and {found.skips} skips taken in, by {len(found.people)} people.")
    for count, what in (
        (found.known, "were taken in before"),
        (found.open, "tasks have no annotation yet"),
        (found.foreign, "tasks are not of this project and were left alone"),
    ):
        if count:
            typer.echo(f"  {count} {what}")
    for name, count in found.unknown_classes.items():
        typer.secho(f"  class {name!r} is not in the project: {count} left out; --add-classes takes them", fg="yellow")
    for line in found.unusable[:5]:
        typer.secho(f"  left out: {line}", fg="yellow")


def _client(url: str, token_env: str, legacy: bool) -> Client:
    import os

    from labelwise.errors import ArgumentError
    from labelwise.project.exchange.studio_client import Client, is_local

    token = os.environ.get(token_env, "").strip()
    if not token:
        raise ArgumentError(
            f"the environment variable {token_env} is not set; put a personal access token of Label Studio into it "
            "(its account page makes one), or name another variable with --token-env"
        )
    client = Client(url, token, True if legacy else None)
    if client.url.startswith("http://") and not is_local(client.url):
        typer.secho(f"warning: {client.url} is not encrypted; the token can be read on the way", fg="yellow", err=True)
    return client
