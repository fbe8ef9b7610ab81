"""Items, rounds and picks in the database, and the task a person sees."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select
from sqlalchemy.exc import IntegrityError

from labelwise.errors import StoreError
from labelwise.project.store.checks import plain
from labelwise.project.store.leases import Lease
from labelwise.project.store.records import SLICES, Item, Pick, Round, Task
from labelwise.project.store.schema import item, pick, round_

_PIECE = 500  # values in one statement: SQLite takes no more than 999 in old builds


def add_items(connection: Connection, items: Iterable[Item]) -> None:
    """Insert the items."""
    rows = [{"row": int(one.row), "ref": plain("the ref of an item", one.ref)} for one in items]
    if not rows:
        return
    try:
        connection.execute(insert(item), rows)
    except IntegrityError as error:
        raise StoreError("some of these rows are in the store already, or twice in what was given") from error


def read_items(connection: Connection, rows: Sequence[int] | None) -> list[Item]:
    """All items by row, or those asked for in the order asked for."""
    if rows is None:
        return [Item(row, ref) for row, ref in connection.execute(select(item.c.row, item.c.ref).order_by(item.c.row))]
    wanted = [int(row) for row in rows]
    found: dict[int, str] = {}
    for piece in _pieces(wanted):
        found.update({one.row: one.ref for one in connection.execute(select(item).where(item.c.row.in_(piece)))})
    missing = sorted(set(wanted) - found.keys())
    if missing:
        raise StoreError(f"rows {missing[:5]} are not in the store; it has {count_items(connection)} items")
    return [Item(row, found[row]) for row in wanted]


def count_items(connection: Connection) -> int:
    """How many items there are."""
    return connection.execute(select(func.count()).select_from(item)).scalar_one()


def add_round(connection: Connection, made: Round, picks: Sequence[Pick]) -> None:
    """Insert a round with its picks."""
    last = connection.execute(select(func.max(round_.c.number))).scalar_one()
    if last is not None and made.number <= last:
        raise StoreError(f"the next round has to have a number above {last}, found {made.number}")
    values = {
        "number": int(made.number),
        "strategy": plain("the strategy of a round", made.strategy),
        "model": plain("the model of a round", made.model),
        "seed": str(int(made.seed)),
        "after": int(made.after),
        "notes": json.dumps(made.notes),
        "at": time.time(),
    }
    connection.execute(insert(round_).values(values))
    rows = [_pick_values(made.number, place, one) for place, one in enumerate(picks)]
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
    """The picks of a round in the order given."""
    if connection.execute(select(round_.c.number).where(round_.c.number == int(number))).first() is None:
        raise StoreError(f"there is no round {number}")
    wanted = select(pick).where(pick.c.round == int(number)).order_by(pick.c.place)
    return [Pick(one.row, one.slice, _score(one.score), json.loads(one.why)) for one in connection.execute(wanted)]


def provenance(connection: Connection, row: int) -> dict[str, Any]:
    """What chose the row, as an event records it: nothing where it was never picked."""
    wanted = select(pick.c.round, pick.c.score, round_.c.strategy, round_.c.model).join(round_)
    found = connection.execute(wanted.where(pick.c.row == row)).first()
    if found is None:
        return {"round": None, "score": None, "strategy": "", "model": ""}
    return {"round": found.round, "score": found.score, "strategy": found.strategy, "model": found.model}


def tasks(connection: Connection, rows: Sequence[int], held: dict[int, Lease]) -> list[Task]:
    """The tasks of these picks, in this order; `held` has the leases of those that are leased."""
    wanted = select(pick, item.c.ref, round_.c.strategy, round_.c.model)
    wanted = wanted.join(item, item.c.row == pick.c.row).join(round_, round_.c.number == pick.c.round)
    found: dict[int, Row[Any]] = {}
    for piece in _pieces(rows):
        found.update({one.row: one for one in connection.execute(wanted.where(pick.c.row.in_(piece)))})
    return [_task(found[row], held.get(row)) for row in rows]


def _task(one: Row[Any], held: Lease | None) -> Task:
    return Task(
        token=held.token if held else "",
        row=one.row,
        ref=one.ref,
        round=one.round,
        slice=one.slice,
        score=_score(one.score),
        why=json.loads(one.why),
        strategy=one.strategy,
        model=one.model,
        until=held.until if held else 0.0,
        redo=held.redo if held else False,
    )


def _pick_values(number: int, place: int, one: Pick) -> dict[str, Any]:
    if one.slice not in SLICES:
        raise StoreError(f"the slice of a pick is one of {SLICES}, found {one.slice!r}")
    score = float(one.score)
    kept = None if math.isnan(score) else score
    why = json.dumps(one.why)
    return {"row": int(one.row), "round": number, "place": place, "slice": one.slice, "score": kept, "why": why}


def _check_rows(connection: Connection, rows: list[int]) -> None:
    if len(set(rows)) != len(rows):
        twice = sorted({row for row in rows if rows.count(row) > 1}) if len(rows) < 5000 else []
        raise StoreError(f"a round picks each row once; found some twice {twice[:5]}")
    read_items(connection, rows)
    for piece in _pieces(rows):
        found = connection.execute(select(pick.c.row, pick.c.round).where(pick.c.row.in_(piece))).first()
        if found is not None:
            raise StoreError(f"row {found.row} was picked in round {found.round} already; a row is picked once")


def _score(stored: float | None) -> float:
    return math.nan if stored is None else stored


def _pieces(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(rows), _PIECE):
        yield rows[start : start + _PIECE]
