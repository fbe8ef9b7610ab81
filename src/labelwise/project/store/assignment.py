"""Whose turn it is: which pick a person gets next, and which after that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection

from labelwise.errors import StoreError
from labelwise.project.store import leases
from labelwise.project.store.leases import Lease
from labelwise.project.store.pick_queue import Book


def take(connection: Connection, book: Book, who: str, until: float, skip: Sequence[int]) -> Lease | None:
    """The lease this person holds already, for longer, or a new one on the first free pick. Hold the book's lock."""
    now = time.time()
    active = leases.active(connection, now)
    book.refresh(connection)
    mine = leases.own(active, who, skip, book)
    if mine:
        return leases.extend(connection, mine[0], until)
    holding, passed = leases.holders(active, book), set(skip)
    for row in book.open_for(who):
        if row in passed or not leases.is_free(book, row, who, holding.get(row, set())):
            continue
        # On PostgreSQL others look for a pick at the same moment: pass over what they have just locked, and look again
        # once nobody else can take this one.
        if leases.lock_pick(connection, row, wait=False) and _is_still_free(connection, book, row, who, now):
            return leases.grant(connection, row, who, now, until, redo=False)
    return None


def ahead(connection: Connection, book: Book, who: str, n: int) -> tuple[list[int], dict[int, Lease]]:
    """The rows after the one this person holds now, and the leases among them. Hold the book's lock."""
    active = leases.active(connection, time.time())
    book.refresh(connection)
    mine = leases.own(active, who, (), book)
    holding, taken = leases.holders(active, book), {held.row for held in mine}
    rows = [held.row for held in mine[1:]][:n]
    for row in book.open_for(who):
        if len(rows) >= n:
            break
        if row not in taken and leases.is_free(book, row, who, holding.get(row, set())):
            rows.append(row)
    return rows, {held.row: held for held in mine[1:]}


def check(connection: Connection, book: Book, held: Lease) -> None:
    """Whether an answer on this lease is still wanted; the book is fresh and the pick locked."""
    now = time.time()
    if held.until > now:
        return
    holding = leases.holders(leases.active(connection, now), book).get(held.row, set())
    if not leases.is_free(book, held.row, held.who, holding):
        others = sorted((set(book.fold.ballots(held.row)) | holding) - {held.who})
        raise StoreError(
            f"the time for this task had run out and it went to {', '.join(others)}; nothing was written. "
            "Ask for the next task, or change the answer in the list of what was labelled"
        )


def _is_still_free(connection: Connection, book: Book, row: int, who: str, now: float) -> bool:
    book.refresh(connection)
    holding = leases.holders(leases.active(connection, now), book)
    return book.fold.ballot(row, who) is None and leases.is_free(book, row, who, holding.get(row, set()))
