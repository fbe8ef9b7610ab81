"""Repair a store: what is good stays under its number, the damaged store is set aside, and nothing is thrown away.

An event that was damaged or is missing becomes one of kind "lost", so that all others keep their numbers. A damaged
round goes with its picks: its rows can be picked again, and the answers to them stay.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert
from sqlalchemy import text as sql

from labelwise.errors import StoreError
from labelwise.io.chain import Link, head_file, read_heads
from labelwise.io.checked import digest_of
from labelwise.io.files import create_file, sync_folder
from labelwise.project.store import chains, migration, schema
from labelwise.project.store.database import Database
from labelwise.project.store.event_log import fresh_token
from labelwise.project.store.records import Item
from labelwise.project.store.schema import about, event, item, lease, pick, round_

LOST = "this event was damaged or missing; `labelwise doctor` has set aside what was left of it"
_TABLES = (about, item, round_, pick, event, lease)
_Row = dict[str, Any]


def store_faults(url: str) -> list[str]:
    """What is wrong with the store at an address, in words; one of an early version is upgraded first."""
    database = Database(url)
    with contextlib.closing(database):
        try:
            migration.upgrade(database)
            return database.faults()
        except StoreError as error:
            return [str(error)]


def repair_store(url: str, people: int, items: Sequence[Item], dump: Path) -> None:
    """Replace a damaged store by one with all of it that is good.

    Args:
        url: the address of the store, which nobody else uses.
        people: how many people answer each item, if the store no longer says.
        items: the rows of the data, if the store no longer has the list that was written.
        dump: a new file for everything that could be read. The file of an SQLite store is set aside next to it, under
            the same name with `.db` at its end.
    """
    database = Database(url)
    with contextlib.closing(database):
        found = _read_file(database.path) if database.path is not None else _read_tables(database)
        lines = (json.dumps({"table": name, **row}, default=repr) for name, rows in found.items() for row in rows)
        create_file(dump, "".join(f"{line}\n" for line in lines).encode())
        noted = None
        if database.path is not None:
            with contextlib.suppress(StoreError):  # a damaged note
                noted = read_heads(database.path, "")
        good = _salvage(found, noted or {}, people, items)
        if database.path is None:
            with database.building() as connection:
                _drop(connection)
                _write(connection, good)
            return
    _replace_file(database.path, good, dump)


# --- reading what there is -------------------------------------------------------------------------------------------


def _read_tables(database: Database) -> dict[str, list[_Row]]:
    with database.reading() as connection:
        found = ((one.name, connection.execute(sql(f"SELECT * FROM {one.name}")).mappings()) for one in _TABLES)
        return {name: [dict(row) for row in rows] for name, rows in found}


def _read_file(path: Path) -> dict[str, list[_Row]]:
    """All rows of an SQLite file that can be read, also where some of its pages cannot."""
    try:
        connection = sqlite3.connect(path, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be opened ({error}); restore it from a backup") from error
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.row_factory = sqlite3.Row
    with contextlib.closing(connection):
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA writable_schema=ON")  # reads tables next to a damaged description
        return {one.name: list(_rows(connection, one)) for one in _TABLES}


def _rows(connection: sqlite3.Connection, table: Table) -> Iterator[_Row]:
    query, seen = f"SELECT rowid AS rowid_, * FROM {table.name} NOT INDEXED", 0
    for end in (" ORDER BY rowid", " WHERE rowid > ? ORDER BY rowid DESC"):  # from both ends up to what is damaged
        try:
            for one in connection.execute(query + end, () if "?" not in end else (seen,)):
                row = dict(one)
                number = row.pop("rowid_")
                seen = max(seen, number) if "?" not in end else seen
                yield row
            return
        except sqlite3.Error:
            continue
    # Rows in between that are on whole pages are found by their numbers.
    with contextlib.suppress(sqlite3.Error):
        last = connection.execute(f"SELECT max(rowid) FROM {table.name}").fetchone()[0]
        for number in range(seen + 1, min(int(last or 0), seen + 10_000_000) + 1):
            with contextlib.suppress(sqlite3.Error):
                one = connection.execute(f"{query} WHERE rowid = ?", (number,)).fetchone()
                if one is not None:
                    yield {name: value for name, value in dict(one).items() if name != "rowid_"}


# --- choosing what is good -------------------------------------------------------------------------------------------


@dataclass
class _Good:
    """The content of the new store. `events` have their numbers; those in between up to `last` are lost."""

    people: int
    items: dict[int, str]
    rounds: list[tuple[_Row, list[_Row]]] = field(default_factory=list)
    events: dict[int, _Row] = field(default_factory=dict)
    last: int = 0


def _salvage(found: Mapping[str, list[_Row]], noted: Mapping[str, Any], people: int, items: Sequence[Item]) -> _Good:
    stored = {str(row.get("name")): row.get("value") for row in found[about.name]}
    if stored.get("checksum") == digest_of(stored.get("people")):
        people = int(str(stored["people"]))
    ends = {
        name: [link for where in (stored, noted) if (link := chains.link_of(where.get(name))) is not None]
        for name in chains.NAMES
    }
    own = sorted({row["row"]: str(row["ref"]) for row in found[item.name] if _fits(item, row)}.items())
    others = sorted((one.row, one.ref) for one in items)
    is_noted = [chains.items_link(some) in ends["items"] for some in (own, others)]
    good = _Good(people, dict(others if is_noted == [False, True] else own))
    picks: dict[int, list[_Row]] = {}
    for row in sorted(_unique(pick, found[pick.name]), key=lambda row: int(row["place"])):
        picks.setdefault(row["round"], []).append(row)
    rounds = [(row, picks.get(row["number"], [])) for row in _unique(round_, found[round_.name])]
    bad = _bad([(row["number"], chains.round_content(row, own), row) for row, own in rounds], ends["rounds"])
    good.rounds = [(row, own) for row, own in rounds if row["number"] not in bad and _places(own)]
    events = _unique(event, found[event.name])
    bad = _bad([(row["seq"], chains.event_content(row), row) for row in events], ends["events"])
    good.events = {row["seq"]: row for row in events if row["seq"] not in bad}
    after = [row["after"] for row, _ in good.rounds]
    good.last = max([0, *good.events, *after, *(end.number for end in ends["events"])])
    used = {row["row"] for row in events if row["row"] is not None and row["seq"] in good.events}
    for number in used | {row["row"] for _, own in good.rounds for row in own}:
        good.items.setdefault(number, f"row {number}")
    return good


def _bad(entries: Sequence[tuple[int, bytes, _Row]], ends: Sequence[Link]) -> set[int]:
    if entries and not any("chain" in row for _, _, row in entries):
        return set()  # of version 1: nothing vouches for them, nothing speaks against them
    chained = [chains.Entry(number, content, row.get("chain", "")) for number, content, row in entries]
    return chains.follow("", chained, ends).bad


def _unique(table: Table, rows: Iterable[_Row]) -> list[_Row]:
    """The rows whose columns have the types that the table asks for, by their number; one for each."""
    key = next(iter(table.primary_key.columns)).name
    found: dict[int, _Row] = {}
    for row in rows:
        if _fits(table, row):
            found.setdefault(row[key], row)
    return [found[number] for number in sorted(found)]


def _fits(table: Table, row: _Row) -> bool:
    for column in table.c:
        value = row.get(column.name)
        if value is None:
            if not column.nullable and column.name != "chain":
                return False
        elif not isinstance(value, (column.type.python_type, *([int] if column.type.python_type is float else []))):
            return False
    return True


def _places(picks: Sequence[_Row]) -> bool:
    return len({row["place"] for row in picks}) == len(picks)


# --- writing the new store -------------------------------------------------------------------------------------------


def _write(connection: Connection, good: _Good) -> None:
    schema.build(connection)
    rows = {"version": str(schema.VERSION), "people": str(good.people)}
    connection.execute(insert(about), [{"name": name, "value": value} for name, value in rows.items()])
    chains.begin(connection, good.people)
    if good.items:
        connection.execute(insert(item), [{"row": row, "ref": ref} for row, ref in sorted(good.items.items())])
    chains.set_items(connection)
    link = Link()
    for values, picks in good.rounds:
        link = link.after(chains.round_content(values, picks))
        connection.execute(insert(round_), {**values, "chain": chains.text_of(link)})
        if picks:
            connection.execute(insert(pick), picks)
    chains.set_head(connection, "rounds", link)
    link, events, now = Link(), [], time.time()
    empty = dict.fromkeys(column.name for column in event.c)
    for seq in range(1, good.last + 1):
        lost = {"seq": seq, "at": now, "who": "labelwise", "kind": "lost", "note": LOST, "token": fresh_token()}
        values = {**empty, **good.events.get(seq, {**lost, "strategy": "", "model": ""})}
        link = link.after(chains.event_content(values))
        events.append({**values, "chain": chains.text_of(link)})
    if events:
        connection.execute(insert(event), events)
    chains.set_head(connection, "events", link)


def _drop(connection: Connection) -> None:
    for table in reversed(_TABLES):
        connection.execute(sql(f"DROP TABLE IF EXISTS {table.name}"))
    connection.execute(sql("DROP FUNCTION IF EXISTS labelwise_refuse()"))


def _replace_file(path: Path, good: _Good, dump: Path) -> None:
    """Write the new SQLite file next to the old one, set that aside with its log, and put the new one there.

    Once the old file has its new name, the new one is whole and on disk: a process that is killed after that leaves a
    repair that `finish_repair` brings to its end.
    """
    fresh = migration.fresh_file(path)
    for name in (fresh, *_logs(fresh)):
        name.unlink(missing_ok=True)
    database = Database(f"sqlite:///{fresh.as_posix()}")
    with contextlib.closing(database), database.building() as connection:
        _write(connection, good)
    moved = dump.with_suffix(".db")
    for log, copy in zip(_logs(path), _logs(moved)):
        if log.exists():
            shutil.copyfile(log, copy)
    sync_folder(path.parent)
    path.rename(moved)
    finish_repair(path)


def finish_repair(path: Path) -> bool:
    """Put the new store in its place if a repair was killed before it did. Returns whether there was one."""
    if path.exists() or not migration.fresh_file(path).exists():
        return False
    for old in (*_logs(path), head_file(path)):  # copies of them are set aside
        old.unlink(missing_ok=True)
    migration.fresh_file(path).rename(path)
    sync_folder(path.parent)
    return True


def _logs(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
