"""What goes into the store and comes out of it: plain frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Slice = Literal["chosen", "test"]
Kind = Literal["label", "skip", "unsure", "undo", "note", "class", "import"]

ANSWERS = ("label", "skip", "unsure")
SLICES = ("chosen", "test")


@dataclass(frozen=True)
class Item:
    """A row of the pool; `ref` is its path, or its position in the table, as text."""

    row: int
    ref: str


@dataclass(frozen=True)
class Pick:
    """A row that a round asks for; `test`: drawn uniformly at random and kept out of training."""

    row: int
    slice: Slice
    score: float
    why: dict[str, Any]


@dataclass(frozen=True)
class Round:
    """A batch of picks and what chose them; `after` is the seq of the last event the model was trained on."""

    number: int
    strategy: str
    model: str
    seed: int
    after: int
    notes: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A pick given to one person until `until` (seconds since 1970).

    `redo`: the person took their answer back. From `peek`, token is "" and until is 0 where nothing is leased yet.
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
    """One line of the history, never changed. seq counts 1, 2, 3 ... without gaps, in the order of the commits."""

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
    """Where a row stands: what most of its ballots say.

    Each person has one ballot a row, their last answer that was not taken back. `label` and `unsure` are ballots,
    `skip` is none. `votes` holds the labels by person. `split`: two or more have equally many ballots. `seq` is the
    last event that made it so. value is None unless kind is "label".
    """

    row: int
    value: str | None
    votes: dict[str, str]
    kind: Literal["label", "unsure", "skip", "split"]
    slice: Slice | None
    seq: int


@dataclass(frozen=True)
class Progress:
    """Where the project stands.

    round, picks, answered: the last round (0 where there is none), its picks, and how many of them need nobody more.
    leased: tasks in people's hands now. labels: rows with an agreed label. people: persons who have answered anything.
    median_seconds: of all labels given on the page.
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
    """How far people agree on rows labelled by two or more.

    pairs: pairs of labels compared; share: of them that are equal; alpha: Krippendorff's, for names without order
    (1 is perfect, 0 is what chance gives). None where there is nothing to tell.
    """

    rows: int
    pairs: int
    share: float | None
    alpha: float | None
