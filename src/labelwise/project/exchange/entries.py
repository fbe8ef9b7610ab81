"""Entries: the rows of a project as they leave it, each with its label and where that came from."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from labelwise.project.project import Project
from labelwise.project.store import Answer, Event, Round, Slice

Include = Literal["test", "unsure", "all"]
INCLUDE: tuple[Include, ...] = ("test", "unsure", "all")
Snapshot = Literal["label", "unsure", "split", "skip", "none"]


@dataclass(frozen=True)
class Entry:
    """A row with its label. `ballots` are the events that count, by person; `slice` is test for every reserved row.

    value is None unless kind is "label"; round is None for a row that was never picked.
    """

    row: int
    ref: str
    kind: Snapshot
    value: str | None
    slice: Slice
    ballots: dict[str, Event]
    round: int | None
    strategy: str
    score: float | None
    model: str
    note: str

    @property
    def seconds(self) -> float | None:
        """What the people took together; None where it was not measured."""
        taken = [one.seconds for one in self.ballots.values() if one.seconds is not None]
        return sum(taken) if taken else None

    @property
    def at(self) -> float | None:
        """When the last answer that counts was given, in seconds since 1970."""
        return max((one.at for one in self.ballots.values()), default=None)


@dataclass(frozen=True)
class Entries:
    """What is to be written, and how many rows with an answer were left out: test rows, and rows without a label."""

    rows: list[Entry]
    left_test: int
    left_unsure: int
    classes: tuple[str, ...]


def entries(project: Project, include: Collection[Include] = ()) -> Entries:
    """The labelled rows outside the test slice, in order; `include` adds the test slice, unsure rows, or every row."""
    store = project.store
    answers, counted, notes = store.answers(), ballots(store.events()), _notes(store.events())
    rounds = {one.number: one for one in store.rounds()}
    picked = {pick.row: (rounds[number], pick.score) for number in rounds for pick in store.picks(number)}
    reserved = set(project.reserve.tolist())
    found: list[Entry] = []
    left = {"test": 0, "unsure": 0}
    for item in store.items():
        answer = answers.get(item.row)
        if answer is None and "all" not in include:
            continue
        slice_: Slice = "test" if item.row in reserved else "chosen"
        if slice_ == "test" and not {"test", "all"} & set(include):
            left["test"] += 1
        elif answer is not None and answer.value is None and not {"unsure", "all"} & set(include):
            left["unsure"] += 1
        else:
            by = counted.get(item.row, {})
            found.append(_entry(item.row, item.ref, answer, slice_, by, picked.get(item.row), notes.get(item.row, "")))
    return Entries(found, left["test"], left["unsure"], classes_of(project))


def _entry(
    row: int,
    ref: str,
    answer: Answer | None,
    slice_: Slice,
    by: dict[str, Event],
    pick: tuple[Round, float] | None,
    note: str,
) -> Entry:
    kind: Snapshot = "none" if answer is None else answer.kind
    value = None if answer is None else answer.value
    if pick is None:
        return Entry(row, ref, kind, value, slice_, by, None, "", None, "", note)
    made, score = pick
    return Entry(row, ref, kind, value, slice_, by, made.number, made.strategy, score, made.model, note)


def classes_of(project: Project) -> tuple[str, ...]:
    """The classes in the order they were added; in a project that never named any, those of its labels."""
    if project.settings.task == "regress":
        return ()
    named = project.store.classes()
    values = {one.value for one in project.store.answers().values() if one.value is not None}
    return (*named, *sorted(values - set(named)))


def ballots(events: Iterable[Event]) -> dict[int, dict[str, Event]]:
    """The last answer of each person to each row that was not taken back."""
    found: dict[int, dict[str, list[Event]]] = {}
    for event in events:
        if event.row is None:
            continue
        pile = found.setdefault(event.row, {}).setdefault(event.who, [])
        if event.kind == "undo":
            pile[:] = [one for one in pile if one.seq != event.undoes]
        elif event.kind in ("label", "skip", "unsure", "import"):
            pile.append(event)
    tops = {row: {who: pile[-1] for who, pile in people.items() if pile} for row, people in found.items()}
    return {row: people for row, people in tops.items() if people}


def _notes(events: Iterable[Event]) -> dict[int, str]:
    """All notes on a row, a line each."""
    found: dict[int, list[str]] = {}
    for event in events:
        if event.row is not None and event.note:
            found.setdefault(event.row, []).append(event.note)
    return {row: "\n".join(lines) for row, lines in found.items()}
