"""Fold: what the events say, taken in one after the other. Everything here can be computed again from the events."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from labelwise.project.store.records import ANSWERS, Answer, Slice

UNSURE = None  # the ballot of someone who looked and could not tell


class Line(NamedTuple):
    """The columns of an event that decide where a row stands."""

    seq: int
    who: str
    kind: str
    row: int | None
    round: int | None
    value: str | None
    seconds: float | None
    undoes: int | None


class Ballot(NamedTuple):
    """A live answer."""

    seq: int
    kind: str
    value: str | None


class Fold:
    """The state after the event `last`.

    A person's answers to a row lie on a pile: the top one counts, and `undo` takes it off, so that undoing a change
    brings back what was there before. Undoing never reaches imports. Where one person answers each row (`people` is
    1) the latest ballot counts alone: whoever corrects a label means it.
    """

    def __init__(self, people: int) -> None:
        self.people = people
        self.last = 0
        self.classes: list[str] = []
        self.seconds: list[float] = []  # of labels, in order of size
        self.given: dict[str, list[tuple[int, int]]] = {}  # person -> (seq, row) of live answers, oldest first
        self.known: dict[int, set[str]] = {}  # round -> who has answered anything in it
        self.skipped: dict[int, set[int]] = {}  # round -> rows someone has skipped
        self._piles: dict[int, dict[str, list[Ballot]]] = {}
        self._touched: dict[int, int] = {}  # row -> seq of the last event on it

    def take(self, lines: Iterable[Line]) -> set[int]:
        """Take in events in order; the rows they touch."""
        touched: set[int] = set()
        for line in lines:
            self.last = line.seq
            if line.kind == "class" and line.value is not None:
                self.classes.append(line.value)
            elif line.kind == "undo":
                self._undo(line)
            elif line.kind in ANSWERS or line.kind == "import":
                self._answer(line)
            if line.row is not None and line.kind != "note":
                self._touched[line.row] = line.seq
                touched.add(line.row)
        return touched

    def ballot(self, row: int, who: str) -> Ballot | None:
        """What this person's answer to the row is now."""
        pile = self._piles.get(row, {}).get(who)
        return pile[-1] if pile else None

    def ballots(self, row: int) -> dict[str, Ballot]:
        """The answers to a row that count, by person."""
        return {who: pile[-1] for who, pile in self._piles.get(row, {}).items()}

    def rows(self) -> Iterable[int]:
        """The rows with an answer."""
        return self._piles.keys()

    def answer(self, row: int, slice_: Slice | None) -> Answer | None:
        """What most ballots say, or the latest one; None for a row nobody has answered."""
        ballots = self.ballots(row)
        if not ballots:
            return None
        seq = self._touched[row]
        votes = {who: b.value for who, b in sorted(ballots.items()) if b.kind == "label" and b.value is not None}
        counted = [ballot for ballot in ballots.values() if ballot.kind != "skip"]
        if self.people == 1:
            counted = sorted(counted)[-1:]  # by seq
        counts = Counter(b.value if b.kind == "label" else UNSURE for b in counted)
        if not counts:
            return Answer(row, None, votes, "skip", slice_, seq)
        most = max(counts.values())
        top = [value for value, count in counts.items() if count == most]
        kind: Literal["label", "unsure", "split"] = "split"
        if len(top) == 1:
            kind = "unsure" if top[0] is UNSURE else "label"
        return Answer(row, top[0] if kind == "label" else None, votes, kind, slice_, seq)

    def _answer(self, line: Line) -> None:
        assert line.row is not None
        kind = "label" if line.kind == "import" else line.kind
        pile = self._piles.setdefault(line.row, {}).setdefault(line.who, [])
        pile.append(Ballot(line.seq, kind, line.value))
        if line.kind == "import":
            return
        self.given.setdefault(line.who, []).append((line.seq, line.row))
        if line.seconds is not None and kind == "label":
            bisect.insort(self.seconds, line.seconds)
        if line.round is not None:
            self.known.setdefault(line.round, set()).add(line.who)
            if kind == "skip":
                self.skipped.setdefault(line.round, set()).add(line.row)

    def _undo(self, line: Line) -> None:
        assert line.row is not None
        assert line.undoes is not None
        self.given[line.who].pop()  # undo always takes back the last one
        piles = self._piles[line.row]
        left = [ballot for ballot in piles[line.who] if ballot.seq != line.undoes]
        if left:
            piles[line.who] = left
            return
        del piles[line.who]
        if not piles:
            del self._piles[line.row]


def is_closed(ballots: Mapping[str, Ballot], people: int, known: Iterable[str]) -> bool:
    """Whether a pick needs nobody more.

    It has as many ballots as people are wanted, or someone has skipped it and so has, or has answered it, everyone who
    has answered anything in its round.
    """
    given = sum(ballot.kind != "skip" for ballot in ballots.values())
    if given >= people:
        return True
    return given < len(ballots) and all(who in ballots for who in known)
