"""`labelwise annotators`: give people links of their own to the labelling page, with a role each, and revoke them."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.command import App

if TYPE_CHECKING:
    from labelwise.project.store import Store

app = App("Give people links of their own to the labelling page, with a role each, and revoke them.")

PROJECT = typer.Argument(..., help="The project folder.")
PERSONS = typer.Argument(..., metavar="NAME...", help="The people.")
URL = typer.Option(
    None, metavar="ADDRESS", help="Address of the page in the links. \\[default: that of the page that runs]"
)
ROLE = typer.Option("label", help="label, review or own: each may do what those before it may.")


@app.command("add")
def add(project: Path = PROJECT, names: list[str] = PERSONS, role: str = ROLE, url: str = URL) -> None:
    """Give people a link each, or change their role.

    [bold]labelwise annotators add photos-labelwise anna ben[/]
    [bold]labelwise annotators add photos-labelwise rita --role review[/]

    label: answers items and sees their own answers alone. review: also sees and changes the answers of others, decides
    where people disagree, adds classes and reads the report. own: also downloads, reads the history and gives links.
    The first one closes the page to everyone without such a link; you get one with the role own then.
    """
    from labelwise.errors import ArgumentError
    from labelwise.project.store import ROLES

    if role not in ROLES:
        raise ArgumentError(f"--role is one of {', '.join(ROLES)}; found {role!r}")
    checked = [_clean(name) for name in names]
    _check_address(url)
    with _store(project) as store:
        if not any(one.role == "own" for one in store.annotators().values()) and role != "own":
            owner = store.set_annotator(_me(checked), "own", "command line")
            checked = [name for name in checked if name != owner.name]
            typer.echo(f"The page opens with these links alone from now on. {owner.name} owns the project.")
        for name in checked:
            store.set_annotator(name, role, "command line")
        _say_links(project, store, url)


@app.command("list")
def list_(project: Path = PROJECT, url: str = URL) -> None:
    """Print everyone with their role and link."""
    _check_address(url)
    with _store(project) as store:
        _say_links(project, store, url)


@app.command("revoke")
def revoke(project: Path = PROJECT, names: list[str] = PERSONS) -> None:
    """Revoke links. They end within a second, in every browser that has them; answers stay."""
    with _store(project) as store:
        for name in _known(store, project, names):
            store.set_annotator(name, None, "command line")
            typer.echo(f"The link of {name} no longer works.")


@app.command("new-link")
def new_link(project: Path = PROJECT, names: list[str] = PERSONS, url: str = URL) -> None:
    """Replace links, such as one that was sent to the wrong person. The old links stop working."""
    _check_address(url)
    with _store(project) as store:
        checked = _known(store, project, names, revoked=False)
        for name in checked:
            store.set_annotator(name, store.annotators()[name].role, "command line", new_link=True)
        _say_links(project, store, url)


def _known(store: Store, project: Path, names: list[str], revoked: bool = True) -> list[str]:
    """The names, if everyone has a link, or had one: nothing is changed for the others where one is unknown."""
    from labelwise.errors import ArgumentError

    checked, known = [_clean(name) for name in names], store.annotators()
    for name in checked:
        if name not in known or (known[name].role is None and not revoked):
            raise ArgumentError(f"{name!r} has no link. Give one with: labelwise annotators add {project} {name}")
    return checked


def _check_address(url: str | None) -> None:
    """Refuse what is no address of a page, before anybody is given a link that leads nowhere."""
    from urllib.parse import urlsplit

    from labelwise.errors import ArgumentError

    try:
        found = None if url is None else urlsplit(url)
    except ValueError:  # such as http://[::1
        found = urlsplit("")
    if found is not None and (found.scheme not in ("http", "https") or not found.hostname):
        raise ArgumentError(f"--url {url}: expected the address of a page, such as https://labels.example.org")


@contextmanager
def _store(project: Path) -> Iterator[Store]:
    from labelwise.errors import ExtraError, install_command

    try:
        from labelwise.project.project import store_address
        from labelwise.project.settings import read_settings
        from labelwise.project.store import Store
        from labelwise.server.auth import Auth  # noqa: F401  # the links are those of the page
    except ImportError as error:
        raise ExtraError(f"The page needs more packages: {install_command('app')}") from error
    store = Store.open(store_address(project, read_settings(project)))
    try:
        yield store
    finally:
        store.close()


def _clean(name: str) -> str:
    from labelwise.server.auth import clean_name

    return clean_name(name)


def _me(names: list[str]) -> str:
    """The owner's name: that of the account, unless another person in `names` has it in another case."""
    try:
        me = _clean(getpass.getuser())
    except (KeyError, OSError):
        me = "owner"
    return next((f"{me} (owner)" for name in names if name.casefold() == me.casefold()), me)


def _say_links(project: Path, store: Store, url: str | None) -> None:
    from labelwise.project.page_lock import page_address
    from labelwise.server.auth import Auth

    found = store.annotators()
    if not found:
        typer.echo("Nobody has a link of their own: everyone with the link of the page may use it.")
        typer.echo(f"To give links: labelwise annotators add {project} NAME... --role label|review|own")
        return
    auth, base = Auth.make(project), url or page_address(project) or "http://127.0.0.1:8765/"
    width = max(len(name) for name in found)
    for one in sorted(found.values(), key=lambda one: (one.role is None, one.name.casefold())):
        link = f"{base.rstrip('/')}/?token={auth.token_of(one.name, one.link)}" if one.role else ""
        typer.echo(f"{one.name:{width}}  {one.role or 'revoked':7}  {link}".rstrip())
