"""Store: the answers of a project, as one process sees them. Each call is one transaction.

What the answers mean:

- label: a ballot for a value. A pick is closed when `people` people have given a ballot.
- unsure: also a ballot, for "not clear". Such a row is not used for training.
- skip: no ballot. The pick is offered to others, and closed when everyone who has answered anything in its round has
  skipped or answered it. Someone new in the round opens it again.
- undo: takes back the person's last answer (not an import). Their earlier answer to that row counts again.
- change: a new answer to a row, in place of the person's earlier one. On a row of others it is one more ballot.
- import: a ballot in the name of the given person.
- decision: what a reviewer says about a row on which people disagree. It stands, whatever the ballots are, until it is
  changed, or taken away by reopen.
- annotator: a person gets a link of their own and a role, or loses them. The first one closes the page to all others.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from labelwise.errors import ArgumentError, StoreError
from labelwise.project import label_sets
from labelwise.project.store import checks, event_log, leases, migration, queries
from labelwise.project.store.agreement import agreement
from labelwise.project.store.database import Database, lock_person
from labelwise.project.store.pick_queue import PickQueue, event_rows
from labelwise.project.store.projection import EventRow, Projection
from labelwise.project.store.records import (
    ROLES,
    Agreement,
    Annotator,
    Answer,
    Event,
    Item,
    Kind,
    Pick,
    Progress,
    Role,
    Round,
    Task,
)

LEASE_SECONDS = 600.0


class Store:
    """Answers, picks and leases of a project. Safe to use from many threads; other processes open their own."""

    def __init__(self, database: Database, people: int) -> None:
        self.people = people
        self._database = database
        self._queue = PickQueue(people)

    @staticmethod
    def create(url: str, people: int = 1) -> Store:
        """A new store, in which each item is answered by `people` people.

        Args:
            url: `sqlite:///PATH` or `postgresql://USER@HOST/DATABASE`.
            people: how many people answer each item.

        Raises:
            StoreError: there is a store already, or the database cannot be written.
            ArgumentError: the address or `people` cannot be used.
        """
        if people < 1:
            raise ArgumentError(f"people must be at least 1, found {people}")
        database = Database(url)
        with database.closed_on_error():
            migration.create(database, people)
        return Store(database, people)

    @staticmethod
    def open(url: str) -> Store:
        """The store at `url`, upgraded to this version if it is older. StoreError if there is none."""
        database = Database(url)
        with database.closed_on_error():
            return Store(database, migration.migrate(database))

    @staticmethod
    def check_address(url: str) -> None:
        """Raise StoreError if a server of PostgreSQL cannot be reached, ArgumentError if the address cannot be used."""
        database = Database(url)
        with contextlib.closing(database):
            if not database.is_sqlite:
                with database.reading():
                    pass

    def use_sets(self) -> None:
        """From now on a label is a set of classes, see `label_sets.py`. Call it before anything is read."""
        self._queue.use_sets()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def closed_on_error(self) -> contextlib.AbstractContextManager[None]:
        """Close the connections if the block fails."""
        return self._database.closed_on_error()

    # --- items, classes, rounds --------------------------------------------------------------------------------------

    def add_items(self, items: Iterable[Item]) -> None:
        """Add items, all or none."""
        with self._database.writing() as connection:
            queries.add_items(connection, items)
        self._database.checkpoint()

    def items(self, rows: Sequence[int] | None = None) -> list[Item]:
        """All items in order of their rows, or the given rows in the given order."""
        with self._database.reading() as connection:
            return queries.read_items(connection, rows)

    def classes(self) -> list[str]:
        """The classes, in the order they were added."""
        with self._database.reading() as connection, self._queue.lock:
            self._queue.refresh(connection)
            return list(self._queue.projection.classes)

    def add_class(self, name: str, who: str) -> Event:
        """Add a class. For one that exists already, returns the event that added it."""
        name, who = checks.named("the name of a class", name).strip(), checks.named("the name of a person", who)
        if self._queue.sets:
            label_sets.check_name(name)
        with self._database.writing() as connection:
            found = event_log.class_event(connection, name)
            return found or event_log.append(connection, [{"who": who, "kind": "class", "value": name}])[0]

    def add_round(self, round: Round, picks: Sequence[Pick]) -> None:
        """Add a round with its picks, in the order they are to be asked; all or nothing."""
        with self._database.writing() as connection:
            queries.add_round(connection, round, picks)
        self._database.checkpoint()

    def rounds(self) -> list[Round]:
        """All rounds, in order."""
        with self._database.reading() as connection:
            return queries.read_rounds(connection)

    def picks(self, round: int) -> list[Pick]:
        """The picks of a round, in order."""
        with self._database.reading() as connection:
            return queries.read_picks(connection, round)

    # --- tasks -------------------------------------------------------------------------------------------------------

    def next_task(self, who: str, lease_seconds: float = LEASE_SECONDS, skip: Sequence[int] = ()) -> Task | None:
        """Lease the next task of this person, so that nobody else gets it meanwhile.

        The task they already have comes first (an undone one before others), then the first free pick.

        Args:
            who: the person.
            lease_seconds: how long the task is reserved, an hour at most.
            skip: rows to leave out.

        Returns:
            The task; None if there is nothing for this person now.
        """
        checks.named("the name of a person", who)
        checks.lease_seconds(lease_seconds)
        with self._database.leasing() as connection:
            lock_person(connection, who)
            with self._queue.lock:
                found = leases.next_lease(connection, self._queue, who, lease_seconds, skip)
            return None if found is None else queries.tasks(connection, [found.row], {found.row: found})[0]

    def peek(self, who: str, n: int) -> list[Task]:
        """The next `n` tasks after the current one of this person, without leasing them."""
        with self._database.reading() as connection:
            with self._queue.lock:
                rows, leased = leases.upcoming(connection, self._queue, who, n)
            return queries.tasks(connection, rows, leased)

    def release(self, who: str) -> None:
        """Free this person's tasks for others. A late answer is accepted until somebody else takes the item."""
        with self._database.leasing() as connection:
            leases.expire(connection, who)

    # --- answers -----------------------------------------------------------------------------------------------------

    def answer(
        self, token: str, who: str, kind: Kind, value: str | None, seconds: float | None, note: str = ""
    ) -> Event:
        """Answer a task. The answer is on disk when this returns.

        Args:
            token: of the task. The same token again returns the first event, so a request may be repeated.
            who: the person.
            kind: "label", "skip" or "unsure".
            value: the label; None for other kinds.
            seconds: time taken, if it was measured.
            note: a remark to save with the answer.

        Raises:
            StoreError: the task is unknown or somebody else has it; nothing was written.
            LabelError: the label is not a class of the project.
        """
        seconds = checks.seconds(seconds)
        checks.plain("a token", token)
        checks.plain("a note", note)
        with self._database.writing() as connection, self._queue.lock:
            done = event_log.repeated(connection, token, who)
            if done is not None:
                return done
            current = leases.by_token(connection, token)
            if current is None:
                raise StoreError("This task is unknown (it may be from another project). Continue with the next item.")
            if current.who != who:
                raise StoreError("This task was given to someone else. Continue with the next item.")
            leases.lock_pick(connection, current.row, wait=True)
            self._queue.refresh(connection)
            checks.answer(kind, value, self._queue.projection.classes, self._queue.sets)
            leases.check_wanted(connection, self._queue, current)
            leases.remove(connection, current.row, who)
            values = {"who": who, "kind": kind, "row": current.row, "value": value, "seconds": seconds, "note": note}
            values |= {"token": token, **queries.provenance(connection, current.row)}
            return event_log.append(connection, [values])[0]

    def undo(self, who: str, token: str | None = None, lease_seconds: float = LEASE_SECONDS) -> Event | None:
        """Take back this person's last answer and lease them the row again; None if there is nothing to take back.

        With a `token` chosen by the caller, a request that is sent twice takes back one answer only.
        """
        checks.lease_seconds(lease_seconds)
        checks.plain("a token", token or "")
        with self._database.writing() as connection, self._queue.lock:
            done = event_log.repeated(connection, token, who) if token else None
            if done is not None:
                return done
            self._queue.refresh(connection)
            given = self._queue.projection.given.get(who)
            if not given:
                return None
            seq, row = given[-1]
            if leases.lock_pick(connection, row, wait=True):
                now = leases.clock(connection)
                leases.grant(connection, row, who, now, now + lease_seconds, redo=True)
            values = {"who": who, "kind": "undo", "row": row, "undoes": seq, **queries.provenance(connection, row)}
            return event_log.append(connection, [values | ({"token": token} if token else {})])[0]

    def change(
        self,
        who: str,
        row: int,
        kind: Kind,
        value: str | None,
        token: str,
        note: str = "",
        seconds: float | None = None,
    ) -> Event:
        """A new answer of this person to the row, in place of their earlier one. The same token again does nothing."""
        seconds = checks.seconds(seconds)
        checks.plain("a note", note)

        def check(connection: Connection) -> None:
            checks.answer(kind, value, self._queue.projection.classes, self._queue.sets)
            leases.remove(connection, row, who)

        values = {"kind": kind, "value": value, "seconds": seconds, "note": note}
        return self._append_for(who, row, token, None, check, values)

    def note(self, who: str, row: int, text: str, token: str) -> Event:
        """Add a note to a row, without changing an answer."""
        checks.named("the name of a person", who)
        checks.named("a note", text)
        checks.named("a token", token)
        with self._database.writing() as connection:
            done = event_log.repeated(connection, token, who)
            if done is not None:
                return done
            queries.read_items(connection, [row])
            values = {"who": who, "kind": "note", "row": int(row), "note": text, "token": token}
            return event_log.append(connection, [values])[0]

    def import_labels(self, labels: Iterable[tuple[int, str]], who: str) -> int:
        """Add labels from elsewhere in the name of `who`, all or none.

        Returns:
            How many were new; a label that this person has given already is not written again.
        """
        checks.named("the name of a person", who)
        given = checks.once(labels)
        with self._database.writing() as connection, self._queue.lock:
            self._queue.refresh(connection)
            queries.read_items(connection, list(given))
            values = []
            for row, value in given.items():
                checks.label(value, self._queue.projection.classes, self._queue.sets)
                ballot = self._queue.projection.ballot(row, who)
                if ballot is None or (ballot.kind, ballot.value) != ("label", value):
                    values.append({"who": who, "kind": "import", "row": row, "value": value})
            return len(event_log.append(connection, values))

    # --- decisions ---------------------------------------------------------------------------------------------------

    def decide(
        self, who: str, row: int, kind: Kind, value: str | None, token: str, note: str = "", seen: int | None = None
    ) -> Event:
        """Decide a row that people have answered. The same token again does nothing.

        Args:
            who: the reviewer.
            row: the row.
            kind: "label" or "unsure".
            value: the label; None for "unsure".
            token: of the request.
            note: a remark to save with the decision.
            seen: number of the last event on the row that the reviewer has seen.

        Raises:
            StoreError: the row has no answer, or it was changed after `seen`; nothing was written.
            LabelError: the label is not a class of the project.
        """
        if kind not in ("label", "unsure"):
            raise ArgumentError(f"a decision is 'label' or 'unsure', found {kind!r}")
        checks.plain("a note", note)

        def check(_: Connection) -> None:
            checks.answer(kind, value, self._queue.projection.classes, self._queue.sets)
            if not (self._queue.projection.ballots(row) or row in self._queue.projection.decisions):
                raise StoreError(f"row {row} has no answer yet, so there is nothing to decide")

        return self._append_for(who, row, token, seen, check, {"kind": "decision", "value": value, "note": note})

    def reopen(self, who: str, row: int, token: str, seen: int | None = None) -> Event:
        """Take the decision on a row away, so that the ballots count again. The same token again does nothing."""

        def check(_: Connection) -> None:
            if row not in self._queue.projection.decisions:
                raise StoreError(f"row {row} is not decided, so it cannot be reopened")

        return self._append_for(who, row, token, seen, check, {"kind": "reopen"})

    def _append_for(
        self,
        who: str,
        row: int,
        token: str,
        seen: int | None,
        check: Callable[[Connection], None],
        values: dict[str, Any],
    ) -> Event:
        """Append an event on a row that `check` allows, if its last event is `seen`; once for each token."""
        checks.named("the name of a person", who)
        checks.named("a token", token)
        with self._database.writing() as connection, self._queue.lock:
            done = event_log.repeated(connection, token, who)
            if done is not None:
                return done
            row = queries.read_items(connection, [row])[0].row
            leases.lock_pick(connection, row, wait=True)
            self._queue.refresh(connection)
            check(connection)
            if seen is not None and self._queue.projection.touched(row) != seen:
                raise StoreError("Somebody has changed this item since you opened it. Look at it again.")
            values |= {"who": who, "row": row, "token": token, **queries.provenance(connection, row)}
            return event_log.append(connection, [values])[0]

    # --- annotators --------------------------------------------------------------------------------------------------

    def annotators(self) -> dict[str, Annotator]:
        """Everyone who has or had a link of their own, by name. Empty: the page is open to all with its link."""
        with self._database.reading() as connection, self._queue.lock:
            self._queue.refresh(connection)
            return dict(self._queue.projection.annotators)

    def set_annotator(self, name: str, role: Role | None, by: str, new_link: bool = False) -> Annotator:
        """Give a person a role and a link, or revoke both.

        Args:
            name: the person. Answers they gave under this name before are theirs.
            role: "label", "review" or "own"; None revokes the link.
            by: who does this.
            new_link: replace the link; the old one is not valid any more.

        Raises:
            ArgumentError: the name or the role cannot be used, or differs from another only by case.
            StoreError: nobody would be left with the role "own".
        """
        name, by = checks.named("the name of a person", name).strip(), checks.named("the name of a person", by)
        if role is not None and role not in ROLES:
            raise ArgumentError(f"a role is one of {', '.join(ROLES)}; found {role!r}")
        with self._database.writing() as connection, self._queue.lock:
            self._queue.refresh(connection)
            known = self._queue.projection.annotators
            before = known.get(name)
            if before is None and role is None:
                raise ArgumentError(f"{name!r} has no link. These have one: {', '.join(known) or 'nobody'}")
            alike = [other for other in known if other != name and other.casefold() == name.casefold()]
            if alike and before is None:
                raise ArgumentError(f"{name!r} and {alike[0]!r} differ only by case and would be confused")
            if role != "own" and not any(one.role == "own" for one in known.values() if one.name != name):
                raise StoreError(
                    f"{name!r} cannot be {'revoked' if role is None else f'given the role {role!r}'}: one person at "
                    "least has the role 'own'. Give it to somebody else first"
                )
            link = 1 if before is None else before.link + (role is not None and (new_link or before.role is None))
            made = Annotator(name, role, link)
            if made != before:
                values = {"who": by, "kind": "annotator", "value": json.dumps(vars(made), ensure_ascii=False)}
                event_log.append(connection, [values])
            return made

    # --- views -------------------------------------------------------------------------------------------------------

    def events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """The events after event `after`, oldest first."""
        with self._database.reading() as connection:
            return event_log.read(connection, after, limit)

    def last_seq(self) -> int:
        """The number of the last event; 0 if there is none."""
        with self._database.reading() as connection:
            return event_log.last(connection)

    def answers(self, upto: int | None = None) -> dict[int, Answer]:
        """The agreed answer of each answered row, now or after event `upto`."""
        with self._database.reading() as connection, self._queue.lock:
            self._queue.refresh(connection)
            if upto is None or upto >= self._queue.projection.last:
                return dict(self._queue.answers)
            projection = Projection(self.people, self._queue.sets)
            projection.apply(EventRow._make(line) for line in connection.execute(event_rows(0, upto)))
            found = ((row, projection.answer(row, self._queue.slice(row))) for row in projection.rows())
            return {row: answer for row, answer in found if answer is not None}

    def agreement(self) -> Agreement:
        """How well people agree on the rows that two or more have labelled."""
        votes = [list(answer.votes.values()) for answer in self.answers().values()]
        try:
            return agreement(votes, numbers=not self.classes())
        except ValueError:  # names, in a store without a list of classes
            return agreement(votes)

    def progress(self) -> Progress:
        """Counts of the project and of its last round."""
        with self._database.reading() as connection, self._queue.lock:
            items = queries.count_items(connection)
            leased = leases.count(connection)
            self._queue.refresh(connection)
            picks, closed = self._queue.counts.get(self._queue.round, [0, 0])
            people = {who for persons in self._queue.projection.participants.values() for who in persons}
            seconds = self._queue.projection.seconds
            median = statistics.median(seconds) if seconds else None
            return Progress(self._queue.round, picks, closed, leased, self._queue.labels, items, len(people), median)
