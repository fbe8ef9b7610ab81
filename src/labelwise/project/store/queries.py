"""Queries on items, rounds and picks, and the tasks people see."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select
from sqlalchemy.exc import IntegrityError

from labelwise.errors import StoreError
from labelwise.project.store import chains
from labelwise.project.store.checks import plain
from labelwise.project.store.leases import Lease
from labelwise.project.store.records import SLICES, Item, Pick, Round, Task
from labelwise.project.store.schema import item, pick, round_

_CHUNK = 500  # values in one statement; old builds of SQLite accept 999


def add_items(connection: Connection, items: Iterable[Item]) -> None:
    """Insert the items."""
    rows = [{"row": int(one.row), "ref": plain("the ref of an item", one.ref)} for one in items]
    if not rows:
        return
    try:
        connection.execute(insert(item), rows)
    except IntegrityError as error:
        raise StoreError("some of these rows are in the store already, or were given twice") from error
    chains.set_items(connection)


def read_items(connection: Connection, rows: Sequence[int] | None) -> list[Item]:
    """All items by row, or the given rows in the given order."""
    if rows is None:
        return [Item(row, ref) for row, ref in connection.execute(select(item.c.row, item.c.ref).order_by(item.c.row))]
    ids = [int(row) for row in rows]
    if any(not -(2**63) <= row < 2**63 for row in ids):
        raise StoreError(
            f"a row is a number of 64 bits; found {next(row for row in ids if not -(2**63) <= row < 2**63)}"
        )
    found: dict[int, str] = {}
    for chunk in _chunks(ids):
        found.update({one.row: one.ref for one in connection.execute(select(item).where(item.c.row.in_(chunk)))})
    missing = sorted(set(ids) - found.keys())
    if missing:
        raise StoreError(f"rows {missing[:5]} are not in the store; it has {count_items(connection)} items")
    return [Item(row, found[row]) for row in ids]


def count_items(connection: Connection) -> int:
    """How many items there are."""
    return connection.execute(select(func.count()).select_from(item)).scalar_one()


def add_round(connection: Connection, made: Round, picks: Sequence[Pick]) -> None:
    """Insert a round with its picks."""
    last = connection.execute(select(func.max(round_.c.number))).scalar_one()
    if last is not None and made.number <= last:
        raise StoreError(f"the next round must have a number above {last}, found {made.number}")
    values = {
        "number": int(made.number),
        "strategy": plain("the strategy of a round", made.strategy),
        "model": plain("the model of a round", made.model),
        "seed": str(int(made.seed)),
        "after": int(made.after),
        "notes": json.dumps(made.notes),
        "at": time.time(),
    }
    rows = [_pick_values(made.number, place, one) for place, one in enumerate(picks)]
    link = chains.head(connection, "rounds").after(chains.round_content(values, rows))
    connection.execute(insert(round_).values({**values, "chain": chains.text_of(link)}))
    chains.set_head(connection, "rounds", link)
    _check_rows(connection, [row["row"] for row in rows])
    if rows:
        connection.execute(insert(pick), rows)


def read_rounds(connection: Connection) -> list[Round]:
    """All rounds in order."""
    return [
        Round(one.number, one.strategy, one.model, int(one.seed), one.after, json.loads(one.notes))
        for one in connection.execute(select(round_).order_by(round_.c.number))
    ]


def read_picks(connection: Connection, number: int) -> list[Pick]:
    """The picks of a round, in order."""
    if connection.execute(select(round_.c.number).where(round_.c.number == int(number))).first() is None:
        raise StoreError(f"there is no round {number}")
    query = select(pick).where(pick.c.round == int(number)).order_by(pick.c.place)
    return [Pick(one.row, one.slice, _score(one.score), json.loads(one.why)) for one in connection.execute(query)]


def provenance(connection: Connection, row: int) -> dict[str, Any]:
    """Round, score, strategy and model of a pick, as an event records them; empty if the row was never picked."""
    query = select(pick.c.round, pick.c.score, round_.c.strategy, round_.c.model).join(round_)
    found = connection.execute(query.where(pick.c.row == row)).first()
    if found is None:
        return {"round": None, "score": None, "strategy": "", "model": ""}
    return {"round": found.round, "score": found.score, "strategy": found.strategy, "model": found.model}


def tasks(connection: Connection, rows: Sequence[int], leases: dict[int, Lease]) -> list[Task]:
    """The tasks of these picks, in this order. `leases` has the leases by row, where there are any."""
    query = select(pick, item.c.ref, round_.c.strategy, round_.c.model)
    query = query.join(item, item.c.row == pick.c.row).join(round_, round_.c.number == pick.c.round)
    found: dict[int, Row[Any]] = {}
    for chunk in _chunks(rows):
        found.update({one.row: one for one in connection.execute(query.where(pick.c.row.in_(chunk)))})
    return [_task(found[row], leases.get(row)) for row in rows]


def _task(one: Row[Any], lease: Lease | None) -> Task:
    return Task(
        token=lease.token if lease else "",
        row=one.row,
        ref=one.ref,
        round=one.round,
        slice=one.slice,
        score=_score(one.score),
        why=json.loads(one.why),
        strategy=one.strategy,
        model=one.model,
        until=lease.until if lease else 0.0,
        redo=lease.redo if lease else False,
    )


def _pick_values(number: int, place: int, one: Pick) -> dict[str, Any]:
    if one.slice not in SLICES:
        raise StoreError(f"the slice of a pick is one of {SLICES}, found {one.slice!r}")
    score = float(one.score)
    stored = None if math.isnan(score) else score
    why = json.dumps(one.why)
    return {"row": int(one.row), "round": number, "place": place, "slice": one.slice, "score": stored, "why": why}


def _check_rows(connection: Connection, rows: list[int]) -> None:
    if len(set(rows)) != len(rows):
        twice = sorted({row for row in rows if rows.count(row) > 1}) if len(rows) < 5000 else []
        raise StoreError(f"a round picks each row once; found rows twice: {twice[:5]}")
    read_items(connection, rows)
    for chunk in _chunks(rows):
        found = connection.execute(select(pick.c.row, pick.c.round).where(pick.c.row.in_(chunk))).first()
        if found is not None:
            raise StoreError(f"row {found.row} was already picked in round {found.round}; a row is picked once")


def _score(stored: float | None) -> float:
    return math.nan if stored is None else stored


def _chunks(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]
