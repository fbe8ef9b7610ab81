"""Create a store, and upgrade an older one to this version."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, insert, inspect, select, update

from labelwise.errors import StoreError
from labelwise.io.files import sync_folder
from labelwise.project.store import schema
from labelwise.project.store.database import Database
from labelwise.project.store.schema import about

# STEPS[n] upgrades version n to version n + 1. A released step is never edited.
STEPS: dict[int, Callable[[Connection], None]] = {}


def create(database: Database, people: int) -> None:
    """Create the tables. StoreError if the database already holds a store."""
    if database.path is not None and not database.path.parent.is_dir():
        raise StoreError(f"the folder of the store {database.name} does not exist. Make it first")
    with database.building() as connection:
        if inspect(connection).has_table(about.name):
            raise StoreError(f"{database.name} already holds a project. Open it, or choose another place")
        schema.build(connection)
        rows = {"version": schema.VERSION, "people": people}
        connection.execute(insert(about), [{"name": name, "value": str(value)} for name, value in rows.items()])
    if database.path is not None:
        sync_folder(database.path.parent)


def migrate(database: Database) -> int:
    """Upgrade the store to this version, all steps or none. Returns how many people answer each item."""
    if database.path is not None and not database.path.is_file():
        raise StoreError(
            f"there is no store at {database.name}. If it was deleted, restore it from a backup: it holds the answers. "
            "Otherwise check the address, or make a project first"
        )
    with database.reading() as connection:
        found = _version(database, connection)
        people = int(_about(connection)["people"])
    if found < schema.VERSION:
        with database.building() as connection:
            # Read again: another process may have upgraded meanwhile.
            for version in range(_version(database, connection), schema.VERSION):
                STEPS[version](connection)
                now = update(about).where(about.c.name == "version").values(value=str(version + 1))
                connection.execute(now)
    return people


def _version(database: Database, connection: Connection) -> int:
    if not inspect(connection).has_table(about.name):
        raise StoreError(
            f"{database.name} holds no project: its tables are missing. Restore it from a backup, or make a new "
            "project in another folder"
        )
    version = int(_about(connection).get("version", "-1"))
    if version > schema.VERSION:
        raise StoreError(
            f"{database.name} was written by a newer Labelwise (store version {version}); this one reads up to version "
            f"{schema.VERSION}. Upgrade with: pip install -U labelwise. Nothing was changed"
        )
    oldest = min([*STEPS, schema.VERSION])
    if version < oldest:
        raise StoreError(f"{database.name} has store version {version}; versions {oldest} to {schema.VERSION} are read")
    return version


def _about(connection: Connection) -> dict[str, str]:
    return {one.name: one.value for one in connection.execute(select(about))}
