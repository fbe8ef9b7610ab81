"""Leases: who is working on which pick, until when, and which pick a person gets next.

An expired lease stays in the table, so that a late answer still finds its row; the answer removes it. An answer on a
valid lease is always accepted, one on an expired lease while the pick is still free.

Time is that of the database on PostgreSQL, one clock for all pages, and that of the machine for SQLite. No lease is for
longer than MAX_SECONDS; one that seems to end later was given by a clock that was ahead, and does not count.

A token ends with a digest of its row and person, so that a damaged lease gives nobody another row.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Row, delete, insert, select, text, update

from labelwise.errors import StoreError
from labelwise.project.store.pick_queue import PickQueue
from labelwise.project.store.schema import lease, pick

MAX_SECONDS = 3600.0
_RANDOM = 22  # characters of a token that are chance; tokens of early versions have no more


@dataclass(frozen=True)
class Lease:
    """A row of the table. `redo`: the person took their answer back."""

    row: int
    who: str
    token: str
    made: float
    until: float
    redo: bool


def clock(connection: Connection) -> float:
    """The time that leases go by, in seconds since 1970."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    return time.time()


# --- which pick comes next. All of these need the lock of the queue -------------------------------------------------


def next_lease(connection: Connection, queue: PickQueue, who: str, seconds: float, skip: Sequence[int]) -> Lease | None:
    """The lease of this person, extended, or a new one on the first free pick; None if there is none."""
    now = clock(connection)
    until, valid = now + seconds, _valid(connection, now)
    queue.refresh(connection)
    own = _own(valid, who, skip, queue)
    if own:
        return _extend(connection, own[0], until)
    holders, skipped = _holders(valid, queue), set(skip)
    for row in queue.open_for(who):
        if row in skipped or not _is_free(queue, row, who, holders.get(row, set())):
            continue
        # On PostgreSQL others look for a pick at the same moment: skip what they have just locked, and check again
        # when nobody else can take this one.
        if lock_pick(connection, row, wait=False) and _is_still_free(connection, queue, row, who, now):
            return grant(connection, row, who, now, until, redo=False)
    return None


def upcoming(connection: Connection, queue: PickQueue, who: str, n: int) -> tuple[list[int], dict[int, Lease]]:
    """The next `n` rows after the current one of this person, and the leases among them by row."""
    valid = _valid(connection, clock(connection))
    queue.refresh(connection)
    own = _own(valid, who, (), queue)
    holders, leased = _holders(valid, queue), {one.row for one in own}
    rows = [one.row for one in own[1:]][:n]
    for row in queue.open_for(who):
        if len(rows) >= n:
            break
        if row not in leased and _is_free(queue, row, who, holders.get(row, set())):
            rows.append(row)
    return rows, {one.row: one for one in own[1:]}


def check_wanted(connection: Connection, queue: PickQueue, current: Lease) -> None:
    """Raise StoreError if an answer on this lease is too late. The queue is fresh and the pick locked."""
    now = clock(connection)
    if now < current.until <= now + MAX_SECONDS:
        return
    holders = _holders(_valid(connection, now), queue).get(current.row, set())
    if not _is_free(queue, current.row, current.who, holders):
        others = sorted((set(queue.projection.ballots(current.row)) | holders) - {current.who})
        raise StoreError(
            f"The time for this item ran out and it went to {', '.join(others)}. Your answer was not saved. Continue "
            "with the next item, or change the answer in the gallery."
        )


def _own(leases: Sequence[Lease], who: str, skip: Sequence[int], queue: PickQueue) -> list[Lease]:
    """Open leases of this person: undone answers first, the last undone first; then the oldest first."""
    own = [one for one in leases if one.who == who and one.row not in skip]
    own = [one for one in own if one.redo or not (queue.is_closed(one.row) or queue.projection.ballot(one.row, who))]
    return sorted(own, key=lambda one: (not one.redo, -one.made if one.redo else one.made))


def _holders(leases: Sequence[Lease], queue: PickQueue) -> dict[int, set[str]]:
    """The people with a lease and without an answer, by row."""
    found: dict[int, set[str]] = {}
    for one in leases:
        if queue.projection.ballot(one.row, one.who) is None:
            found.setdefault(one.row, set()).add(one.who)
    return found


def _is_free(queue: PickQueue, row: int, who: str, holders: set[str]) -> bool:
    """Whether the pick needs another person besides those who answered or hold it, not counting `who`."""
    ballots = queue.projection.ballots(row)
    given = sum(ballot.kind != "skip" for person, ballot in ballots.items() if person != who)
    return not queue.is_closed(row) and given + len(holders - {who}) < queue.people


def _is_still_free(connection: Connection, queue: PickQueue, row: int, who: str, now: float) -> bool:
    queue.refresh(connection)
    holders = _holders(_valid(connection, now), queue)
    return queue.projection.ballot(row, who) is None and _is_free(queue, row, who, holders.get(row, set()))


# --- the table -------------------------------------------------------------------------------------------------------


def by_token(connection: Connection, token: str) -> Lease | None:
    """The lease with this token, valid or expired."""
    found = connection.execute(select(lease).where(lease.c.token == token)).first()
    return None if found is None else _lease(found)


def count(connection: Connection) -> int:
    """How many leases are valid now."""
    return len(_valid(connection, clock(connection)))


def lock_pick(connection: Connection, row: int, wait: bool) -> bool:
    """Lock the pick until the transaction ends; whether that was possible, if not waiting for it."""
    query = select(pick.c.row).where(pick.c.row == row).with_for_update(skip_locked=not wait)
    return connection.execute(query).first() is not None


def grant(connection: Connection, row: int, who: str, now: float, until: float, redo: bool) -> Lease:
    """Lease the pick to the person. An earlier lease keeps its token, so that an old window continues working."""
    found = connection.execute(select(lease).where(lease.c.row == row, lease.c.who == who)).first()
    if found is not None and _lease(found) is None:
        remove(connection, row, who)
        found = None
    if found is None:
        made = Lease(row, who, _fresh_token(row, who), now, until, redo)
        values = {name: getattr(made, name) for name in ("row", "who", "token", "made", "until", "redo")}
        connection.execute(insert(lease).values(values))
        return made
    made = Lease(row, who, found.token, now, until, redo or bool(found.redo))
    changes = {"made": now, "until": until, "redo": made.redo}
    connection.execute(update(lease).where(lease.c.row == row, lease.c.who == who).values(changes))
    return made


def remove(connection: Connection, row: int, who: str) -> None:
    """Remove the lease of a person who has answered."""
    connection.execute(delete(lease).where(lease.c.row == row, lease.c.who == who))


def expire(connection: Connection, who: str) -> None:
    """Let all leases of the person expire now."""
    now = clock(connection)
    connection.execute(update(lease).where(lease.c.who == who, lease.c.until > now).values(until=now))


def _extend(connection: Connection, current: Lease, until: float) -> Lease:
    connection.execute(update(lease).where(lease.c.token == current.token).values(until=until))
    return replace(current, until=until)


def _valid(connection: Connection, now: float) -> list[Lease]:
    query = select(lease).where(lease.c.until > now, lease.c.until <= now + MAX_SECONDS)
    return [one for found in connection.execute(query) if (one := _lease(found)) is not None]


def _lease(found: Row[tuple[object, ...]]) -> Lease | None:
    """A lease as the table has it; None if it is damaged."""
    token, times = found.token, (found.made, found.until)
    if not isinstance(token, str) or not all(isinstance(one, float) for one in times):
        return None
    if token[_RANDOM:] not in ("", _digest(token[:_RANDOM], found.row, found.who)):
        return None
    return Lease(found.row, found.who, found.token, found.made, found.until, bool(found.redo))


def _fresh_token(row: int, who: str) -> str:
    chance = secrets.token_urlsafe(16)
    return chance + _digest(chance, row, who)


def _digest(chance: str, row: int, who: str) -> str:
    return hashlib.sha256(f"{chance} {row} {who}".encode("utf-8", "surrogatepass")).hexdigest()[:10]
