"""Book: the picks in order and which of them are still open, kept beside the events in the memory of one process.

The database is the truth. Before each use the book reads what is new there: events have numbers without gaps in the
order of their commits and rounds only go up, so "what is new" is a number each, whichever process wrote it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, select

from labelwise.project.store.projection import Fold, Line, is_closed
from labelwise.project.store.records import Answer, Slice
from labelwise.project.store.schema import event, pick

_LINE = (
    event.c.seq,
    event.c.who,
    event.c.kind,
    event.c.row,
    event.c.round,
    event.c.value,
    event.c.seconds,
    event.c.undoes,
)


def lines(after: int, upto: int | None = None) -> Select[Any]:
    """The events in (after, upto], as the fold takes them."""
    wanted = select(*_LINE).where(event.c.seq > after).order_by(event.c.seq)
    return wanted if upto is None else wanted.where(event.c.seq <= upto)


@dataclass
class _Place:
    """A pick, and whether it needs somebody."""

    row: int
    round: int
    slice: Slice
    closed: bool


class Book:
    """Use it under `lock`; `refresh` first."""

    def __init__(self, people: int) -> None:
        self.lock = threading.RLock()
        self.people = people
        self._clear()

    def _clear(self) -> None:
        self.fold = Fold(self.people)
        self.answers: dict[int, Answer] = {}
        self.labels = 0
        self.round = 0
        self.counts: dict[int, list[int]] = {}  # round -> [picks, closed ones]
        self._places: list[_Place] = []
        self._place_of: dict[int, int] = {}
        self._starts: dict[str, int] = {}  # person -> no pick before this place is for them
        self._round_seen: int | None = None

    def refresh(self, connection: Connection) -> None:
        """Take in what was committed since the last time. Never call it with events of its own uncommitted."""
        picks = connection.execute(self._new_picks()).all()
        events = connection.execute(lines(self.fold.last)).all()
        try:
            self._take(picks, events)
        except BaseException:  # also Ctrl-C: half taken in is worse than starting again
            self._clear()
            raise

    def _take(self, picks: Sequence[Any], events: Sequence[Any]) -> None:
        for number, row, slice_ in picks:
            self._place_of[row] = len(self._places)
            self._places.append(_Place(row, number, slice_, False))
            self.counts.setdefault(number, [0, 0])[0] += 1
            self.round = self._round_seen = number
        before = {number: len(people) for number, people in self.fold.known.items()}
        touched = self.fold.take(Line._make(line) for line in events)
        for number, people in self.fold.known.items():
            if len(people) != before.get(number, 0):
                touched |= self.fold.skipped.get(number, set())
        touched.update(row for _, row, _ in picks if self.fold.ballots(row))  # imported before they were picked
        for row in touched:
            self._settle(row)

    def slice(self, row: int) -> Slice | None:
        """Which slice the row was picked for, if it was."""
        place = self._place_of.get(row)
        return None if place is None else self._places[place].slice

    def is_closed(self, row: int) -> bool:
        """Whether the pick needs nobody more."""
        return self._places[self._place_of[row]].closed

    def open_for(self, who: str) -> Iterator[int]:
        """The picks this person has not answered and that need somebody, in order."""
        start = self._starts.get(who, 0)
        while start < len(self._places) and not self._is_for(who, self._places[start]):
            start += 1
        self._starts[who] = start
        for index in range(start, len(self._places)):
            if self._is_for(who, self._places[index]):
                yield self._places[index].row

    def _is_for(self, who: str, place: _Place) -> bool:
        return not place.closed and self.fold.ballot(place.row, who) is None

    def _new_picks(self) -> Select[Any]:
        wanted = select(pick.c.round, pick.c.row, pick.c.slice).order_by(pick.c.round, pick.c.place)
        return wanted if self._round_seen is None else wanted.where(pick.c.round > self._round_seen)

    def _settle(self, row: int) -> None:
        """Bring the row's answer and its place up to date."""
        before, now = self.answers.get(row), self.fold.answer(row, self.slice(row))
        self.labels += (now is not None and now.kind == "label") - (before is not None and before.kind == "label")
        if now is None:
            self.answers.pop(row, None)
        else:
            self.answers[row] = now
        index = self._place_of.get(row)
        if index is None:
            return
        place = self._places[index]
        closed = is_closed(self.fold.ballots(row), self.people, self.fold.known.get(place.round, ()))
        self.counts[place.round][1] += closed - place.closed
        place.closed = closed
        for who, start in self._starts.items():
            if index < start and self._is_for(who, place):
                self._starts[who] = index
