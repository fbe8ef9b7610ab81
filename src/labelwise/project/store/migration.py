"""Create a store, and upgrade an older one to this version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select, text, update

from labelwise.errors import StoreError
from labelwise.io.files import sync_folder
from labelwise.project.store import chains, schema
from labelwise.project.store.database import Database
from labelwise.project.store.schema import about


def _add_chains(connection: Connection) -> None:
    """Version 2: events and rounds are chained, and the items have a digest."""
    is_sqlite = connection.dialect.name == "sqlite"
    for table in ("labelwise_event", "labelwise_round"):
        if is_sqlite:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN chain TEXT NOT NULL DEFAULT ''"))
            connection.execute(text(f"DROP TRIGGER {table}_no_update"))
        else:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN chain TEXT"))
            connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
    chains.begin(connection, int(_about(connection)["people"]))
    chains.link_all(connection)
    if is_sqlite:
        connection.execute(text("DROP TRIGGER labelwise_event_in_order"))
        for statement in schema.sqlite_triggers():
            if any(f"TRIGGER {name} " in statement for name in _CHANGED):
                connection.execute(text(statement))
        return
    for table in ("labelwise_event", "labelwise_round"):
        connection.execute(text(f"ALTER TABLE {table} ALTER COLUMN chain SET NOT NULL"))
        connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))


_CHANGED = ("labelwise_event_no_update", "labelwise_round_no_update", "labelwise_event_in_order")

Steps = Mapping[int, Callable[[Connection], None]]
# STEPS[n] upgrades version n to version n + 1. A released step is never edited.
STEPS: Steps = {1: _add_chains}


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
        chains.begin(connection, people)
    if database.path is not None:
        sync_folder(database.path.parent)


def migrate(database: Database, steps: Steps = STEPS) -> int:
    """Upgrade the store to this version, all steps or none, and check it. Returns how many people answer each item.

    Raises:
        StoreError: there is no store, or it is not as it was written.
    """
    upgrade(database, steps)
    faults = database.faults()
    if faults:
        more = f" ({len(faults) - 3} more)" if len(faults) > 3 else ""
        raise StoreError(
            f"the store {database.name} is not as it was written: {'; '.join(faults[:3])}{more}. Restore it from a "
            "backup, or run `labelwise doctor PROJECT --repair`, which sets it aside and keeps what is good"
        )
    with database.reading() as connection:
        return int(_about(connection)["people"])


def fresh_file(path: Path) -> Path:
    """Where a repair writes the new SQLite file, until that is in its place."""
    return path.with_name(f"{path.name}.repaired")


def upgrade(database: Database, steps: Steps = STEPS) -> None:
    """Upgrade the store to the version after the last of `steps`, all or none. StoreError if there is no store."""
    if database.path is not None and not database.path.is_file():
        if fresh_file(database.path).exists():
            raise StoreError(
                f"the repair of {database.name} was interrupted; `labelwise doctor PROJECT --repair` finishes it"
            )
        raise StoreError(
            f"there is no store at {database.name}. If it was deleted, restore it from a backup: it holds the answers. "
            "Otherwise check the address, or make a project first"
        )
    with database.reading() as connection:
        found = _version(database, connection, steps)
    newest = _newest(steps)
    if found < newest:
        with database.building() as connection:
            # Read again: another process may have upgraded meanwhile.
            for version in range(_version(database, connection, steps), newest):
                steps[version](connection)
                now = update(about).where(about.c.name == "version").values(value=str(version + 1))
                connection.execute(now)


def _newest(steps: Steps) -> int:
    return max(steps) + 1


def _version(database: Database, connection: Connection, steps: Steps) -> int:
    if not inspect(connection).has_table(about.name):
        raise StoreError(
            f"{database.name} holds no project: its tables are missing. Restore it from a backup, or make a new "
            "project in another folder"
        )
    written = _about(connection).get("version")
    version = int(written) if isinstance(written, str) and written.isdecimal() else -1
    oldest, newest = min(steps), _newest(steps)
    if version > newest:
        raise StoreError(
            f"{database.name} was written by a newer Labelwise (store version {version}); this one reads up to version "
            f"{newest}. Upgrade Labelwise from where you installed it. Nothing was changed"
        )
    if version < oldest:
        raise StoreError(f"{database.name} has store version {version}; versions {oldest} to {newest} are read")
    return version


def _about(connection: Connection) -> dict[str, str]:
    return {one.name: one.value for one in connection.execute(select(about))}
