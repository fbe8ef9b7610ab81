"""The chains of a store: events and rounds each hold the digest of the one before, and the items one digest together.

`labelwise_about` has the count and the digest of the last of each, written in the same transaction. For SQLite the file
`store.db.head` repeats them, so that a file that lost its end (as with its write-ahead log) is found as well. A chain
finds damage and slips; who changes a store on purpose can compute it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from labelwise.errors import StoreError
from labelwise.io.chain import Link
from labelwise.io.checked import digest_of
from labelwise.project.store.schema import about, event, item, pick, round_

NAMES = ("items", "rounds", "events")

_EVENT = tuple(column for column in event.c if column.name != "chain")
_ROUND = tuple(column for column in round_.c if column.name != "chain")
_ENCODER = json.JSONEncoder(default=repr)  # bytes in place of a text are damage, and differ from every text
_TRIED = 4  # links that an entry behind damaged ones may follow
_PICK = (pick.c.row, pick.c.place, pick.c.slice, pick.c.score, pick.c.why)


def text_of(link: Link) -> str:
    """A link as a column has it: the number, a space and the digest."""
    return f"{link.number} {link.digest}"


def link_of(text: Any) -> Link | None:
    """The link of a text; None if it is none."""
    number, _, digest = text.partition(" ") if isinstance(text, str) else ("", "", "")
    return Link(int(number), digest) if number.isascii() and number.isdigit() and len(number) < 16 else None


def event_content(values: Mapping[Any, Any]) -> bytes:
    """What the digest of an event is taken of: all its columns."""
    return _content([values[column.name] for column in _EVENT])


def round_content(values: Mapping[Any, Any], picks: Sequence[Mapping[Any, Any]]) -> bytes:
    """What the digest of a round is taken of: its columns and those of its picks, in order."""
    own = [values[column.name] for column in _ROUND]
    return _content([*own, [[_plain(one[column.name]) for column in _PICK] for one in picks]])


def _content(values: list[Any]) -> bytes:
    return _ENCODER.encode([_plain(value) for value in values]).encode()


def _plain(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value  # SQLite stores -0.0 as 0.0


# --- the heads -------------------------------------------------------------------------------------------------------


def begin(connection: Connection, people: int) -> None:
    """Write the heads of a store without entries, or of one whose entries have no links yet."""
    rows = {"checksum": digest_of(str(people)), **dict.fromkeys(NAMES, text_of(Link()))}
    connection.execute(insert(about), [{"name": name, "value": value} for name, value in rows.items()])


def link_all(connection: Connection) -> None:
    """Give every event and round its link, for a store of an early version."""
    set_items(connection)
    for table, key, entries in ((event, event.c.seq, _events), (round_, round_.c.number, _rounds)):
        last, links = Link(), []
        for one in list(entries(connection)):
            last = last.after(one.content)
            links.append({"of": one.number, "link": text_of(last)})
        if links:
            query = update(table).where(key == bindparam("of")).values(chain=bindparam("link"))
            connection.execute(query, links)
        set_head(connection, "events" if table is event else "rounds", last)


def head(connection: Connection, name: str) -> Link:
    """The last link of a chain, for a transaction that adds to it."""
    found = link_of(connection.execute(select(about.c.value).where(about.c.name == name)).scalar_one())
    if found is None:
        raise StoreError(f"the count of the {name} is damaged; run `labelwise doctor PROJECT`")
    return found


def set_head(connection: Connection, name: str, last: Link) -> None:
    """Note the last link of a chain, in the transaction that wrote it."""
    connection.execute(update(about).where(about.c.name == name).values(value=text_of(last)))


def heads(connection: Connection) -> dict[str, str]:
    """The heads of all chains, as text."""
    found = connection.exec_driver_sql(
        "SELECT name, value FROM labelwise_about WHERE name IN ('items', 'rounds', 'events')"
    )
    return {one[0]: one[1] for one in found}


def set_items(connection: Connection) -> None:
    """Note the digest of all items, in the transaction that added some."""
    set_head(connection, "items", items_link(_items(connection)))


def items_link(items: Iterable[tuple[int, str]]) -> Link:
    """The number of items and their digest, from (row, ref) in the order of the rows."""
    sum_, count = hashlib.sha256(), 0
    for row, ref in items:
        text = ref if isinstance(ref, str) else repr(ref)
        sum_.update(f"{row} {len(text)} {text}\n".encode("utf-8", "surrogatepass"))
        count += 1
    return Link(count, sum_.hexdigest()[:32]) if count else Link()


def _items(connection: Connection) -> Iterator[tuple[int, str]]:
    for one in connection.execute(select(item.c.row, item.c.ref).order_by(item.c.row)):
        yield one.row, one.ref


# --- checking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """An event or a round as it was read: its number, what its digest is taken of, and its link as text."""

    number: int
    content: bytes
    link: str


@dataclass
class Followed:
    """What was found along a chain.

    Attributes:
        faults: what is wrong, in words.
        bad: the numbers of entries that are not what was written.
        last: the number of the last link.
    """

    faults: list[str] = field(default_factory=list)
    bad: set[int] = field(default_factory=set)
    last: int = 0


def check(connection: Connection, noted: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong with a store, in words; empty if every item, round, pick and event is as it was written.

    Args:
        connection: a transaction that reads.
        noted: the heads that stood in a file before the transaction began.
    """
    stored = {one.name: one.value for one in connection.execute(select(about))}
    if stored.get("checksum") != digest_of(stored.get("people")):
        return ["the number of people who answer each item was changed"]
    found = {name: link_of(str(stored.get(name))) for name in NAMES}
    if None in found.values():
        return [f"the count of its {name} is damaged" for name, link in found.items() if link is None]
    noted = noted or {}
    faults = []
    last = items_link(_items(connection))
    note = link_of(str(noted.get("items", "0 ")))
    if (
        last != found["items"]
        or note is None
        or note.number > last.number
        or (note.number == last.number and note != last)
    ):
        faults.append(f"the list of its {last.number} items is not the one that was written")
    for name, entries in (("rounds", _rounds(connection)), ("events", _events(connection))):
        ends = [link for link in (found[name], link_of(str(noted.get(name, "0 ")))) if link is not None]
        faults += follow(name.removesuffix("s"), entries, ends).faults
    picks = connection.execute(select(func.count()).select_from(pick)).scalar_one()
    listed = connection.execute(select(func.count()).select_from(pick.join(round_))).scalar_one()
    if picks != listed:
        faults.append(f"{picks - listed} picks belong to no round")
    return faults


def follow(what: str, entries: Iterable[Entry], ends: Sequence[Link]) -> Followed:
    """Follow a chain.

    An entry is good if its link follows from its content and the entry before. Behind a damaged one, either the link
    that stands there or the one that follows from its content may be right; the next entry decides.

    Args:
        what: what an entry is called.
        entries: in their order.
        ends: links that were noted as the last one, now or before.
    """
    found, fault = Followed(), dict[int, str]()
    before = [Link()]  # links that the entry before may have, what stands there first
    doubtful: tuple[int, list[Link]] = (0, [])  # an entry that does not fit, and the links that fit its content
    noted = {end.number: Link() for end in ends}

    def clear(link: Link) -> None:
        """What follows fits the content of the doubtful entry, so its link was damaged and not its content."""
        number, fitting = doubtful
        if link in fitting:
            found.bad.discard(number)
            fault[number] = f"the digest of {what} {number} was changed, its content was not"

    for entry in entries:
        stored, fitting = link_of(entry.link), [one.after(entry.content) for one in before]
        if stored is not None and stored in fitting:
            clear(before[fitting.index(stored)])
            before = [stored]
        else:
            missing = 0 if stored is None else stored.number - before[0].number - 1
            if missing > 0:
                fault[entry.number] = f"{_missing(missing, what, f'before {what} {entry.number}')}"
            else:
                fault[entry.number] = f"{what} {entry.number} was changed after it was written"
                found.bad.add(entry.number)
            doubtful = entry.number, fitting
            before = [*([] if stored is None else [stored]), *fitting][:_TRIED]
        found.last = before[0].number
        if found.last in noted and stored is not None:
            noted[found.last] = stored
    for end in ends:
        if end in before:
            clear(end)
            found.last = end.number
        elif end.number > found.last:
            fault[-1] = f"the last {_missing(end.number - found.last, what, f'of {end.number}')}"
        elif end != noted[end.number] and not fault:
            fault[-1] = f"the {what}s up to number {end.number} are not those that were written"
    if ends and found.last > ends[0].number and not fault:
        fault[-1] = f"{_many(found.last - ends[0].number, what)} were added by another program"
    found.faults = list(fault.values())
    return found


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _missing(count: int, what: str, where: str) -> str:
    return f"{_many(count, what)} {where} {'is' if count == 1 else 'are'} missing"


def _events(connection: Connection) -> Iterator[Entry]:
    for one in connection.execute(select(*_EVENT, event.c.chain).order_by(event.c.seq)):
        yield Entry(one.seq, _content(list(one[:-1])), one.chain)


def _rounds(connection: Connection) -> Iterator[Entry]:
    for one in connection.execute(select(round_).order_by(round_.c.number)).all():
        picks = connection.execute(select(*_PICK).where(pick.c.round == one.number).order_by(pick.c.place))
        content = round_content(dict(one._mapping), [dict(row._mapping) for row in picks])
        yield Entry(one.number, content, one.chain)
