"""Projection: the state that follows from the events, applied one by one. It can be computed again at any time."""

from __future__ import annotations

import bisect
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from labelwise.project.label_sets import majority
from labelwise.project.store.records import ANSWERS, ROLES, Annotator, Answer, Slice

UNSURE = None  # the ballot of someone who could not tell


class EventRow(NamedTuple):
    """The columns of an event that decide the answer of a row."""

    seq: int
    who: str
    kind: str
    row: int | None
    round: int | None
    value: str | None
    seconds: float | None
    undoes: int | None


class Ballot(NamedTuple):
    """An answer that was not taken back."""

    seq: int
    kind: str
    value: str | None


class Decision(NamedTuple):
    """What a reviewer has decided for a row: a label, or None for "not clear"."""

    who: str
    value: str | None


class Projection:
    """The state after event `last`.

    A person's answers to a row form a stack. The top one counts, and `undo` removes it, so that undoing a change brings
    back the answer before it. Imports cannot be undone. If one person answers each row (`people` is 1), only the latest
    ballot counts: it corrects the others.
    """

    def __init__(self, people: int, sets: bool = False) -> None:
        self.people = people
        self.sets = sets
        self.last = 0
        self.classes: list[str] = []
        self.seconds: list[float] = []  # of labels, in order of size
        self.given: dict[
            str, list[tuple[int, int]]
        ] = {}  # person -> (seq, row) of answers that can be undone, oldest first
        self.participants: dict[int, set[str]] = {}  # round -> people who have answered anything in it
        self.skipped: dict[int, set[int]] = {}  # round -> rows someone has skipped
        self.annotators: dict[str, Annotator] = {}
        self.decisions: dict[int, Decision] = {}
        self._stacks: dict[int, dict[str, list[Ballot]]] = {}
        self._touched: dict[int, int] = {}  # row -> seq of the last event on it

    def apply(self, events: Iterable[EventRow]) -> set[int]:
        """Apply events in order. Returns the rows they touch."""
        touched: set[int] = set()
        for event in events:
            self.last = event.seq
            if event.kind == "class" and event.value is not None:
                self.classes.append(event.value)
            elif event.kind == "undo":
                self._undo(event)
            elif event.kind in ANSWERS or event.kind == "import":
                self._answer(event)
            elif event.kind == "decision" and event.row is not None:
                self.decisions[event.row] = Decision(event.who, event.value)
            elif event.kind == "reopen" and event.row is not None:
                self.decisions.pop(event.row, None)
            elif event.kind == "annotator":
                found = annotator_of(event.value)
                self.annotators[found.name] = found
            elif event.kind == "lost":  # it may have revoked a link, so that none from before is good any more
                self.annotators = {name: replace(one, role=None) for name, one in self.annotators.items()}
            if event.row is not None and event.kind != "note":
                self._touched[event.row] = event.seq
                touched.add(event.row)
        return touched

    def ballot(self, row: int, who: str) -> Ballot | None:
        """The answer of this person to the row that counts now; None if there is none."""
        stack = self._stacks.get(row, {}).get(who)
        return stack[-1] if stack else None

    def ballots(self, row: int) -> dict[str, Ballot]:
        """The answers to a row that count, by person."""
        return {who: stack[-1] for who, stack in self._stacks.get(row, {}).items()}

    def rows(self) -> Iterable[int]:
        """The rows with an answer or a decision."""
        return self._stacks.keys() | self.decisions.keys()

    def touched(self, row: int) -> int:
        """The number of the last event on the row, notes aside; 0 if there is none."""
        return self._touched.get(row, 0)

    def answer(self, row: int, slice_: Slice | None) -> Answer | None:
        """The value with the most ballots (the latest ballot if `people` is 1); None for a row without an answer.

        In a project without classes labels are numbers, and the value is their median. Where labels are sets, it has
        the classes that more than half of the people gave.
        """
        ballots, decided = self.ballots(row), self.decisions.get(row)
        if not ballots and decided is None:
            return None
        seq = self._touched[row]
        votes = {who: b.value for who, b in sorted(ballots.items()) if b.kind == "label" and b.value is not None}
        if decided is not None:
            decision: Literal["label", "unsure"] = "unsure" if decided.value is UNSURE else "label"
            return Answer(row, decided.value, votes, decision, slice_, seq, decided.who)
        counted = [ballot for ballot in ballots.values() if ballot.kind != "skip"]
        if self.people == 1:
            counted = sorted(counted)[-1:]  # by seq
        counts = Counter(b.value if b.kind == "label" else UNSURE for b in counted)
        if not counts:
            return Answer(row, None, votes, "skip", slice_, seq)
        if not self.classes and not self.sets and len(counts) > 1:
            counts = _of_numbers(counts)
        if self.sets and len(counts) > 1:
            counts = majority(counts, self.classes)
        most = max(counts.values())
        top = [value for value, count in counts.items() if count == most]
        kind: Literal["label", "unsure", "split"] = "split"
        if len(top) == 1:
            kind = "unsure" if top[0] is UNSURE else "label"
        return Answer(row, top[0] if kind == "label" else None, votes, kind, slice_, seq)

    def _answer(self, event: EventRow) -> None:
        assert event.row is not None
        kind = "label" if event.kind == "import" else event.kind
        stack = self._stacks.setdefault(event.row, {}).setdefault(event.who, [])
        stack.append(Ballot(event.seq, kind, event.value))
        if event.kind == "import":
            return
        self.given.setdefault(event.who, []).append((event.seq, event.row))
        if event.seconds is not None and kind == "label":
            bisect.insort(self.seconds, event.seconds)
        if event.round is not None:
            self.participants.setdefault(event.round, set()).add(event.who)
            if kind == "skip":
                self.skipped.setdefault(event.round, set()).add(event.row)

    def _undo(self, event: EventRow) -> None:
        assert event.row is not None
        given, stacks = self.given.get(event.who), self._stacks.get(event.row, {})
        if not given or given[-1][0] != event.undoes or event.who not in stacks:
            return  # what it took back was lost, see `repair.py`; it is always the last answer
        given.pop()
        left = [ballot for ballot in stacks[event.who] if ballot.seq != event.undoes]
        if left:
            stacks[event.who] = left
            return
        del stacks[event.who]
        if not stacks:
            del self._stacks[event.row]


def _of_numbers(counts: Counter[str | None]) -> Counter[str | None]:
    """Where labels are numbers, people rarely give the same one: all of them count for their median."""
    labels = Counter({value: count for value, count in counts.items() if value is not UNSURE})
    try:
        middle = statistics.median(float(str(value)) for value in labels.elements())
    except ValueError:
        return counts
    found: dict[str | None, int] = {repr(middle): labels.total()}
    return Counter(found | ({UNSURE: counts[UNSURE]} if counts[UNSURE] else {}))


def annotator_of(text: str | None) -> Annotator:
    """The annotator that an event names. Whatever is odd in it gives nobody a role."""
    try:
        found = json.loads(text or "")
        name, role, link = found["name"], found["role"], found["link"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Annotator("", None, 0)
    return Annotator(str(name), role if role in ROLES else None, link if isinstance(link, int) else 0)


def is_closed(ballots: Mapping[str, Ballot], people: int, participants: Iterable[str]) -> bool:
    """Whether a pick needs no more answers.

    Either it has `people` ballots, or someone has skipped it and everyone who has answered anything in its round has
    skipped or answered it.
    """
    given = sum(ballot.kind != "skip" for ballot in ballots.values())
    if given >= people:
        return True
    return given < len(ballots) and all(who in ballots for who in participants)
