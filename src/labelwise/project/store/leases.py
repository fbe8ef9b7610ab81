"""Leases: who holds which pick, until when.

A lease is kept after it has run out, so that a late answer still finds its row; the answer removes it. One that has not
run out is always good for an answer. One that has is good while the pick is still free.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Row, delete, insert, select, update

from labelwise.project.store.pick_queue import Book
from labelwise.project.store.schema import lease, pick


@dataclass(frozen=True)
class Lease:
    """A row of the table."""

    row: int
    who: str
    token: str
    made: float
    until: float
    redo: bool


def by_token(connection: Connection, token: str) -> Lease | None:
    """The lease with this token, run out or not."""
    found = connection.execute(select(lease).where(lease.c.token == token)).first()
    return None if found is None else _lease(found)


def active(connection: Connection, now: float) -> list[Lease]:
    """Every lease that has not run out."""
    return [_lease(found) for found in connection.execute(select(lease).where(lease.c.until > now))]


def own(leases: Sequence[Lease], who: str, skip: Sequence[int], book: Book) -> list[Lease]:
    """This person's leases that still need them: first what they took back, last taken back first; then by age."""
    mine = [held for held in leases if held.who == who and held.row not in skip]
    mine = [held for held in mine if held.redo or not (book.is_closed(held.row) or book.fold.ballot(held.row, who))]
    return sorted(mine, key=lambda held: (not held.redo, -held.made if held.redo else held.made))


def holders(leases: Sequence[Lease], book: Book) -> dict[int, set[str]]:
    """Row -> who holds it and has not answered it."""
    found: dict[int, set[str]] = {}
    for held in leases:
        if book.fold.ballot(held.row, held.who) is None:
            found.setdefault(held.row, set()).add(held.who)
    return found


def is_free(book: Book, row: int, who: str, holding: set[str]) -> bool:
    """Whether the pick needs one more person than those who answered it or hold it, not counting `who`."""
    ballots = book.fold.ballots(row)
    given = sum(ballot.kind != "skip" for person, ballot in ballots.items() if person != who)
    return not book.is_closed(row) and given + len(holding - {who}) < book.people


def lock_pick(connection: Connection, row: int, wait: bool) -> bool:
    """Lock the pick until the transaction ends; without waiting, whether that was possible."""
    wanted = select(pick.c.row).where(pick.c.row == row).with_for_update(skip_locked=not wait)
    return connection.execute(wanted).first() is not None


def grant(connection: Connection, row: int, who: str, now: float, until: float, redo: bool) -> Lease:
    """Give the pick to the person. One they had before is renewed with its token, so an old window goes on working."""
    found = connection.execute(select(lease).where(lease.c.row == row, lease.c.who == who)).first()
    if found is None:
        made = Lease(row, who, secrets.token_urlsafe(16), now, until, redo)
        values = {name: getattr(made, name) for name in ("row", "who", "token", "made", "until", "redo")}
        connection.execute(insert(lease).values(values))
        return made
    made = Lease(row, who, found.token, now, until, redo or bool(found.redo))
    changes = {"made": now, "until": until, "redo": made.redo}
    connection.execute(update(lease).where(lease.c.row == row, lease.c.who == who).values(changes))
    return made


def extend(connection: Connection, held: Lease, until: float) -> Lease:
    """The same lease for longer; its place among the others stays."""
    connection.execute(update(lease).where(lease.c.token == held.token).values(until=until))
    return Lease(held.row, held.who, held.token, held.made, until, held.redo)


def drop(connection: Connection, row: int, who: str) -> None:
    """The person has answered."""
    connection.execute(delete(lease).where(lease.c.row == row, lease.c.who == who))


def expire(connection: Connection, who: str, now: float) -> None:
    """Let go of everything the person holds."""
    connection.execute(update(lease).where(lease.c.who == who, lease.c.until > now).values(until=now))


def _lease(found: Row[tuple[object, ...]]) -> Lease:
    return Lease(found.row, found.who, found.token, found.made, found.until, bool(found.redo))
