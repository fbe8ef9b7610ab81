"""The records of the store: plain frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Slice = Literal["chosen", "test"]
Kind = Literal["label", "skip", "unsure", "undo", "note", "class", "import", "lost", "decision", "reopen", "annotator"]
Role = Literal["label", "review", "own"]  # each may do what the ones before it may

ANSWERS = ("label", "skip", "unsure")
ROLES: tuple[Role, ...] = ("label", "review", "own")
SLICES = ("chosen", "test")


@dataclass(frozen=True)
class Item:
    """A row of the pool. `ref` is its path, or its place in the table, as text."""

    row: int
    ref: str


@dataclass(frozen=True)
class Pick:
    """A row that a round asks for. Slice "test" is drawn uniformly at random and never trained on."""

    row: int
    slice: Slice
    score: float
    why: dict[str, Any]


@dataclass(frozen=True)
class Round:
    """A round: what chose its picks, and `after`, the seq of the last event its model was trained on."""

    number: int
    strategy: str
    model: str
    seed: int
    after: int
    notes: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A pick that is leased to one person until `until` (seconds since 1970).

    `redo`: the person took their answer back. From `peek`, token is "" and until is 0 if it is not leased yet.
    """

    token: str
    row: int
    ref: str
    round: int
    slice: Slice
    score: float
    why: dict[str, Any]
    strategy: str
    model: str
    until: float
    redo: bool


@dataclass(frozen=True)
class Event:
    """One entry of the history, never changed. seq is 1, 2, 3 ... without gaps, in the order of the commits."""

    seq: int
    at: float
    who: str
    kind: Kind
    row: int | None
    round: int | None
    value: str | None
    seconds: float | None
    note: str
    strategy: str
    score: float | None
    model: str
    undoes: int | None
    token: str


@dataclass(frozen=True)
class Answer:
    """The agreed answer of a row: the one with the most ballots.

    Each person has one ballot per row, their last answer that was not undone. `label` and `unsure` are ballots, `skip`
    is not. `votes` has the labels by person. `split`: two or more answers have equally many ballots. `seq` is the last
    event on the row. value is None unless kind is "label". `decided_by` is who decided the row after people disagreed;
    a decision stands, whatever the ballots are.
    """

    row: int
    value: str | None
    votes: dict[str, str]
    kind: Literal["label", "unsure", "skip", "split"]
    slice: Slice | None
    seq: int
    decided_by: str = ""


@dataclass(frozen=True)
class Annotator:
    """A person with a link of their own. `role` is None once it is revoked; a new link has the next number."""

    name: str
    role: Role | None
    link: int


@dataclass(frozen=True)
class Progress:
    """Counts of a project.

    round, picks, answered: the last round (0 if there is none), its picks, and how many of them are closed. leased:
    tasks people are working on now. labels: rows with an agreed label. items: rows. people: people who have answered
    anything. median_seconds: time per label on the page.
    """

    round: int
    picks: int
    answered: int
    leased: int
    labels: int
    items: int
    people: int
    median_seconds: float | None


@dataclass(frozen=True)
class Agreement:
    """How well people agree on rows labelled by two or more.

    pairs: pairs of labels compared. share: the share of them that are equal. alpha: Krippendorff's alpha for nominal
    data (1 is perfect, 0 is chance). None if it is not defined.
    """

    rows: int
    pairs: int
    share: float | None
    alpha: float | None
