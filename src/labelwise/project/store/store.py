"""Store: the one object through which a process sees the answers of a project. Each call is one transaction.

What the people's answers mean:

- label: a ballot for a value. A pick is closed when `people` persons have given a ballot.
- unsure: a ballot too, for "cannot be told"; such a row is not used for training.
- skip: not for me. No ballot: the pick is offered to others, and closed when everyone who has answered anything in its
  round has skipped or answered it. Someone new in the round opens it again.
- undo: takes back the person's last answer (not an import). What they had said before on that row counts again.
- change: a new answer to a row; the person's former one no longer counts. On a row of others it is one more ballot.
- import: a ballot in the name given.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence

from sqlalchemy import func, select

from labelwise.errors import ArgumentError, StoreError
from labelwise.project.store import assignment, checks, event_log, leases, migration
from labelwise.project.store import picks as shelf
from labelwise.project.store.agreement import agreement
from labelwise.project.store.database import Database, lock_person
from labelwise.project.store.pick_queue import Book, lines
from labelwise.project.store.projection import Fold, Line
from labelwise.project.store.records import Agreement, Answer, Event, Item, Kind, Pick, Progress, Round, Task
from labelwise.project.store.schema import lease

LEASE_SECONDS = 600.0


class Store:
    """Answers, picks and leases of a project. Safe to use from many threads; other processes open their own."""

    def __init__(self, database: Database, people: int) -> None:
        self.people = people
        self._database = database
        self._book = Book(people)

    @staticmethod
    def create(url: str, people: int = 1) -> Store:
        """A new store; each item is answered by `people` persons."""
        if people < 1:
            raise ArgumentError(f"people has to be at least 1, found {people}")
        database = Database(url)
        with database.closed_on_error():
            migration.create(database, people)
        return Store(database, people)

    @staticmethod
    def open(url: str) -> Store:
        """The store that `create` made, brought to this version if it is older."""
        database = Database(url)
        with database.closed_on_error():
            return Store(database, migration.migrate(database))

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    # --- items, classes, rounds --------------------------------------------------------------------------------------

    def add_items(self, items: Iterable[Item]) -> None:
        """Add rows of the pool, all or none."""
        with self._database.writing() as connection:
            shelf.add_items(connection, items)

    def items(self, rows: Sequence[int] | None = None) -> list[Item]:
        """All items in order of their rows, or those of `rows` in that order."""
        with self._database.reading() as connection:
            return shelf.read_items(connection, rows)

    def classes(self) -> list[str]:
        """The classes in the order they were added."""
        with self._database.reading() as connection, self._book.lock:
            self._book.refresh(connection)
            return list(self._book.fold.classes)

    def add_class(self, name: str, who: str) -> Event:
        """Add a class; one that is there already gives the event that added it."""
        name, who = checks.named("the name of a class", name).strip(), checks.named("the name of a person", who)
        with self._database.writing() as connection:
            found = event_log.class_event(connection, name)
            return found or event_log.append(connection, [{"who": who, "kind": "class", "value": name}])[0]

    def add_round(self, round: Round, picks: Sequence[Pick]) -> None:
        """Add a round with its picks in the order they are to be asked, all or nothing."""
        with self._database.writing() as connection:
            shelf.add_round(connection, round, picks)

    def rounds(self) -> list[Round]:
        """All rounds in order."""
        with self._database.reading() as connection:
            return shelf.read_rounds(connection)

    def picks(self, round: int) -> list[Pick]:
        """The picks of a round in order."""
        with self._database.reading() as connection:
            return shelf.read_picks(connection, round)

    # --- tasks -------------------------------------------------------------------------------------------------------

    def next_task(self, who: str, lease_seconds: float = LEASE_SECONDS, skip: Sequence[int] = ()) -> Task | None:
        """What this person is to answer now, and nobody else meanwhile; None when there is nothing for them.

        First the task they hold already (`redo`: one they took back), then the first free pick. Rows in `skip` are
        passed over.
        """
        checks.named("the name of a person", who)
        with self._database.leasing() as connection:
            lock_person(connection, who)
            with self._book.lock:
                held = assignment.take(connection, self._book, who, time.time() + lease_seconds, skip)
            return None if held is None else shelf.tasks(connection, [held.row], {held.row: held})[0]

    def peek(self, who: str, n: int) -> list[Task]:
        """What comes after the task this person holds now; nothing is leased."""
        with self._database.reading() as connection:
            with self._book.lock:
                rows, held = assignment.ahead(connection, self._book, who, n)
            return shelf.tasks(connection, rows, held)

    def release(self, who: str) -> None:
        """Let go of this person's tasks, so that others get them; a late answer is taken while nobody has."""
        with self._database.leasing() as connection:
            leases.expire(connection, who, time.time())

    # --- answers -----------------------------------------------------------------------------------------------------

    def answer(
        self, token: str, who: str, kind: Kind, value: str | None, seconds: float | None, note: str = ""
    ) -> Event:
        """Answer a task; on disk when this returns. The same token again returns the first event."""
        seconds = checks.seconds(seconds)
        checks.plain("a note", note)
        with self._database.writing() as connection, self._book.lock:
            done = event_log.repeated(connection, token, who)
            if done is not None:
                return done
            held = leases.by_token(connection, token)
            if held is None:
                raise StoreError("no task has this token (it may be from another project); ask for the next task")
            if held.who != who:
                raise StoreError("this task was given to someone else; ask for a task of your own")
            leases.lock_pick(connection, held.row, wait=True)
            self._book.refresh(connection)
            checks.answer(kind, value, self._book.fold.classes)
            assignment.check(connection, self._book, held)
            leases.drop(connection, held.row, who)
            values = {"who": who, "kind": kind, "row": held.row, "value": value, "seconds": seconds, "note": note}
            values |= {"token": token, **shelf.provenance(connection, held.row)}
            return event_log.append(connection, [values])[0]

    def undo(self, who: str, token: str | None = None, lease_seconds: float = LEASE_SECONDS) -> Event | None:
        """Take back this person's last answer and give them the row again; None when there is nothing to take back.

        With a token of the caller's, a request sent twice takes back one answer.
        """
        with self._database.writing() as connection, self._book.lock:
            done = event_log.repeated(connection, token, who) if token else None
            if done is not None:
                return done
            self._book.refresh(connection)
            given = self._book.fold.given.get(who)
            if not given:
                return None
            seq, row = given[-1]
            if leases.lock_pick(connection, row, wait=True):
                now = time.time()
                leases.grant(connection, row, who, now, now + lease_seconds, redo=True)
            values = {"who": who, "kind": "undo", "row": row, "undoes": seq, **shelf.provenance(connection, row)}
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
        """A later answer of this person to the row, in place of their former one; the same token again does nothing."""
        seconds = checks.seconds(seconds)
        checks.named("the name of a person", who)
        checks.named("a token", token)
        checks.plain("a note", note)
        with self._database.writing() as connection, self._book.lock:
            done = event_log.repeated(connection, token, who)
            if done is not None:
                return done
            row = shelf.read_items(connection, [row])[0].row
            leases.lock_pick(connection, row, wait=True)
            self._book.refresh(connection)
            checks.answer(kind, value, self._book.fold.classes)
            leases.drop(connection, row, who)
            values = {"who": who, "kind": kind, "row": row, "value": value, "seconds": seconds, "note": note}
            return event_log.append(connection, [values | {"token": token} | shelf.provenance(connection, row)])[0]

    def note(self, who: str, row: int, text: str, token: str) -> Event:
        """A note on a row, which changes no answer."""
        checks.named("the name of a person", who)
        checks.named("a note", text)
        with self._database.writing() as connection:
            done = event_log.repeated(connection, token, who)
            if done is not None:
                return done
            shelf.read_items(connection, [row])
            values = {"who": who, "kind": "note", "row": int(row), "note": text, "token": token}
            return event_log.append(connection, [values])[0]

    def import_labels(self, labels: Iterable[tuple[int, str]], who: str) -> int:
        """Labels from elsewhere, all or none; how many were new. What this name says already is not written again."""
        checks.named("the name of a person", who)
        given = checks.once(labels)
        with self._database.writing() as connection, self._book.lock:
            self._book.refresh(connection)
            shelf.read_items(connection, list(given))
            values = []
            for row, value in given.items():
                checks.label(value, self._book.fold.classes)
                ballot = self._book.fold.ballot(row, who)
                if ballot is None or (ballot.kind, ballot.value) != ("label", value):
                    values.append({"who": who, "kind": "import", "row": row, "value": value})
            return len(event_log.append(connection, values))

    # --- views -------------------------------------------------------------------------------------------------------

    def events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """The history after event `after`, oldest first."""
        with self._database.reading() as connection:
            return event_log.read(connection, after, limit)

    def answers(self, upto: int | None = None) -> dict[int, Answer]:
        """Where each answered row stands, now or after event `upto`."""
        with self._database.reading() as connection, self._book.lock:
            self._book.refresh(connection)
            if upto is None or upto >= self._book.fold.last:
                return dict(self._book.answers)
            fold = Fold(self.people)
            fold.take(Line._make(line) for line in connection.execute(lines(0, upto)))
            found = ((row, fold.answer(row, self._book.slice(row))) for row in fold.rows())
            return {row: answer for row, answer in found if answer is not None}

    def agreement(self) -> Agreement:
        """How far people agree on the rows that two or more have labelled."""
        return agreement(answer.votes.values() for answer in self.answers().values())

    def progress(self) -> Progress:
        """Where the project stands."""
        with self._database.reading() as connection, self._book.lock:
            items = shelf.count_items(connection)
            leased = select(func.count()).select_from(lease).where(lease.c.until > time.time())
            held = connection.execute(leased).scalar_one()
            self._book.refresh(connection)
            picks, closed = self._book.counts.get(self._book.round, [0, 0])
            people = {who for persons in self._book.fold.known.values() for who in persons}
            seconds = self._book.fold.seconds
            median = statistics.median(seconds) if seconds else None
            return Progress(self._book.round, picks, closed, held, self._book.labels, items, len(people), median)
