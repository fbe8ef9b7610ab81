"""Entries: the rows of a project for export, each with its label and its origin."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from labelwise.project.project import Project
from labelwise.project.store import Answer, Event, Round, Slice

Include = Literal["test", "unsure", "all"]
INCLUDE: tuple[Include, ...] = ("test", "unsure", "all")
LabelStatus = Literal["label", "unsure", "split", "skip", "none"]


@dataclass(frozen=True)
class Entry:
    """A row with its label.

    `ballots` are the answers that count, by person. `slice` is "test" for every reserved row. `value` is None unless
    `kind` is "label". `round` is None for a row that was never picked. `decided_by`: who decided the row.
    """

    row: int
    ref: str
    kind: LabelStatus
    value: str | None
    slice: Slice
    ballots: dict[str, Event]
    round: int | None
    strategy: str
    score: float | None
    model: str
    note: str
    decided_by: str = ""

    @property
    def seconds(self) -> float | None:
        """The time all people took together; None if it was not measured."""
        seconds = [one.seconds for one in self.ballots.values() if one.seconds is not None]
        return sum(seconds) if seconds else None

    @property
    def at(self) -> float | None:
        """The time of the last answer that counts, in seconds since 1970."""
        return max((one.at for one in self.ballots.values()), default=None)


@dataclass(frozen=True)
class Entries:
    """The rows to write, and how many answered rows were omitted: test rows, and rows without an agreed label."""

    rows: list[Entry]
    omitted_test: int
    omitted_unsure: int
    classes: tuple[str, ...]


def entries(project: Project, include: Collection[Include] = ()) -> Entries:
    """The labelled rows outside the test slice, in order. `include` adds test rows, unsure rows, or all rows."""
    store = project.store
    answers, counted, notes = store.answers(), ballots(store.events()), _notes(store.events())
    rounds = {one.number: one for one in store.rounds()}
    picked = {pick.row: (rounds[number], pick.score) for number in rounds for pick in store.picks(number)}
    reserved = set(project.reserve.tolist())
    found: list[Entry] = []
    omitted = {"test": 0, "unsure": 0}
    for item in store.items():
        answer = answers.get(item.row)
        if answer is None and "all" not in include:
            continue
        slice: Slice = "test" if item.row in reserved else "chosen"
        if slice == "test" and not {"test", "all"} & set(include):
            omitted["test"] += 1
        elif answer is not None and answer.value is None and not {"unsure", "all"} & set(include):
            omitted["unsure"] += 1
        else:
            by = counted.get(item.row, {})
            found.append(_entry(item.row, item.ref, answer, slice, by, picked.get(item.row), notes.get(item.row, "")))
    return Entries(found, omitted["test"], omitted["unsure"], classes_of(project))


def _entry(
    row: int,
    ref: str,
    answer: Answer | None,
    slice: Slice,
    by: dict[str, Event],
    pick: tuple[Round, float] | None,
    note: str,
) -> Entry:
    kind: LabelStatus = "none" if answer is None else answer.kind
    value = None if answer is None else answer.value
    decided_by = "" if answer is None else answer.decided_by
    if pick is None:
        return Entry(row, ref, kind, value, slice, by, None, "", None, "", note, decided_by)
    made, score = pick
    return Entry(row, ref, kind, value, slice, by, made.number, made.strategy, score, made.model, note, decided_by)


def classes_of(project: Project) -> tuple[str, ...]:
    """The classes in the order they were added, then other values that were used as labels."""
    if project.settings.task == "regress":
        return ()
    named = project.store.classes()
    if project.settings.task == "multi":
        return tuple(named)
    values = {one.value for one in project.store.answers().values() if one.value is not None}
    return (*named, *sorted(values - set(named)))


def ballots(events: Iterable[Event]) -> dict[int, dict[str, Event]]:
    """By row and person, the last answer that was not undone."""
    found: dict[int, dict[str, list[Event]]] = {}
    for event in events:
        if event.row is None:
            continue
        stack = found.setdefault(event.row, {}).setdefault(event.who, [])
        if event.kind == "undo":
            stack[:] = [one for one in stack if one.seq != event.undoes]
        elif event.kind in ("label", "skip", "unsure", "import"):
            stack.append(event)
    last = {row: {who: stack[-1] for who, stack in people.items() if stack} for row, people in found.items()}
    return {row: people for row, people in last.items() if people}


def _notes(events: Iterable[Event]) -> dict[int, str]:
    """The notes on each row, one per line."""
    found: dict[int, list[str]] = {}
    for event in events:
        if event.row is not None and event.note:
            found.setdefault(event.row, []).append(event.note)
    return {row: "\n".join(lines) for row, lines in found.items()}
