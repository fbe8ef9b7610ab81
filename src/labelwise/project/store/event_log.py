"""The event log in the database: append, find and read events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select

from labelwise.errors import StoreError
from labelwise.project.store import chains
from labelwise.project.store.records import Event
from labelwise.project.store.schema import event

_EMPTY: dict[str, Any] = {
    "row": None,
    "round": None,
    "value": None,
    "seconds": None,
    "note": "",
    "strategy": "",
    "score": None,
    "model": "",
    "undoes": None,
}


def fresh_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(16)


def append(connection: Connection, events: Sequence[dict[str, Any]]) -> list[Event]:
    """Append events, in a `writing` transaction, which has the numbers for itself."""
    if not events:
        return []
    link, now, rows = chains.head(connection, "events"), time.time(), []
    for values in events:
        row = {**_EMPTY, "at": now, "token": fresh_token(), **values, "seq": link.number + 1}
        link = link.after(chains.event_content(row))
        rows.append({**row, "chain": chains.text_of(link)})
    connection.execute(insert(event), rows)
    chains.set_head(connection, "events", link)
    return [_event(row) for row in rows]


def repeated(connection: Connection, token: str, who: str) -> Event | None:
    """The event that this token has made already, for a request that is sent again; None if there is none."""
    found = connection.execute(select(event).where(event.c.token == token)).first()
    if found is None:
        return None
    if found.who != who:
        raise StoreError("This task was given to someone else. Continue with the next item.")
    return _event(found._mapping)


def read(connection: Connection, after: int, limit: int | None) -> list[Event]:
    """The events after number `after`, in order."""
    query = select(event).where(event.c.seq > after).order_by(event.c.seq).limit(limit)
    return [_event(found._mapping) for found in connection.execute(query)]


def last(connection: Connection) -> int:
    """The number of the last event; 0 if there is none."""
    return connection.execute(select(func.max(event.c.seq))).scalar_one() or 0


def _event(values: Mapping[Any, Any]) -> Event:
    return Event(**{name: value for name, value in values.items() if name != "chain"})


def class_event(connection: Connection, name: str) -> Event | None:
    """The event that added a class."""
    found = connection.execute(select(event).where(event.c.kind == "class", event.c.value == name)).first()
    return None if found is None else _event(found._mapping)
