"""Pick queue: the picks in order and which of them are open, cached in the memory of one process.

The database is the truth. Before each use the queue reads what is new there. Events have numbers without gaps, in the
order of their commits, and round numbers only go up, so one number for each says what is new, whoever wrote it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, select

from labelwise.project.store.projection import EventRow, Projection, is_closed
from labelwise.project.store.records import Answer, Slice
from labelwise.project.store.schema import event, pick

_COLUMNS = (
    event.c.seq,
    event.c.who,
    event.c.kind,
    event.c.row,
    event.c.round,
    event.c.value,
    event.c.seconds,
    event.c.undoes,
)


def event_rows(after: int, upto: int | None = None) -> Select[Any]:
    """A query for the events in (after, upto], as `Projection.apply` takes them."""
    query = select(*_COLUMNS).where(event.c.seq > after).order_by(event.c.seq)
    return query if upto is None else query.where(event.c.seq <= upto)


@dataclass
class _QueuedPick:
    """A pick. `closed`: it needs no more answers."""

    row: int
    round: int
    slice: Slice
    closed: bool


class PickQueue:
    """The picks, the projection of the events, and the answers. Hold `lock` and call `refresh` before each use."""

    def __init__(self, people: int) -> None:
        self.lock = threading.RLock()
        self.people = people
        self.sets = False
        self._clear()

    def use_sets(self) -> None:
        """Labels are sets of classes."""
        with self.lock:
            self.sets = True
            self._clear()

    def _clear(self) -> None:
        self.projection = Projection(self.people, self.sets)
        self.answers: dict[int, Answer] = {}
        self.labels = 0
        self.round = 0
        self.counts: dict[int, list[int]] = {}  # round -> [picks, closed picks]
        self._picks: list[_QueuedPick] = []
        self._index_of: dict[int, int] = {}
        self._starts: dict[str, int] = {}  # person -> index of their first open pick
        self._round_seen: int | None = None

    def refresh(self, connection: Connection) -> None:
        """Read what was committed since the last call. Never call it with uncommitted events of this process."""
        picks = connection.execute(self._new_picks()).all()
        events = connection.execute(event_rows(self.projection.last)).all()
        try:
            self._apply(picks, events)
        except BaseException:  # also on Ctrl-C: start again rather than keep half of it
            self._clear()
            raise

    def _apply(self, picks: Sequence[Any], events: Sequence[Any]) -> None:
        for number, row, slice_ in picks:
            self._index_of[row] = len(self._picks)
            self._picks.append(_QueuedPick(row, number, slice_, False))
            self.counts.setdefault(number, [0, 0])[0] += 1
            self.round = self._round_seen = number
        before = {number: len(people) for number, people in self.projection.participants.items()}
        touched = self.projection.apply(EventRow._make(line) for line in events)
        for number, people in self.projection.participants.items():
            if len(people) != before.get(number, 0):
                touched |= self.projection.skipped.get(number, set())
        touched.update(
            row for _, row, _ in picks if self.projection.ballots(row)
        )  # labels imported before the row was picked
        for row in touched:
            self._update(row)

    def slice(self, row: int) -> Slice | None:
        """The slice a row was picked for; None if it was not picked."""
        index = self._index_of.get(row)
        return None if index is None else self._picks[index].slice

    def is_closed(self, row: int) -> bool:
        """Whether the pick needs no more answers."""
        return self._picks[self._index_of[row]].closed

    def open_for(self, who: str) -> Iterator[int]:
        """The open picks that this person has not answered, in order."""
        start = self._starts.get(who, 0)
        while start < len(self._picks) and not self._is_for(who, self._picks[start]):
            start += 1
        self._starts[who] = start
        for index in range(start, len(self._picks)):
            if self._is_for(who, self._picks[index]):
                yield self._picks[index].row

    def _is_for(self, who: str, pick: _QueuedPick) -> bool:
        return not pick.closed and self.projection.ballot(pick.row, who) is None

    def _new_picks(self) -> Select[Any]:
        query = select(pick.c.round, pick.c.row, pick.c.slice).order_by(pick.c.round, pick.c.place)
        return query if self._round_seen is None else query.where(pick.c.round > self._round_seen)

    def _update(self, row: int) -> None:
        """Bring the answer and the pick of a row up to date."""
        before, now = self.answers.get(row), self.projection.answer(row, self.slice(row))
        self.labels += (now is not None and now.kind == "label") - (before is not None and before.kind == "label")
        if now is None:
            self.answers.pop(row, None)
        else:
            self.answers[row] = now
        index = self._index_of.get(row)
        if index is None:
            return
        found = self._picks[index]
        ballots, participants = self.projection.ballots(row), self.projection.participants.get(found.round, ())
        closed = row in self.projection.decisions or is_closed(ballots, self.people, participants)
        self.counts[found.round][1] += closed - found.closed
        found.closed = closed
        for who, start in self._starts.items():
            if index < start and self._is_for(who, found):
                self._starts[who] = index
