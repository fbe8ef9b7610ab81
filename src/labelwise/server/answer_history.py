"""Said: who answered a row with what, and the notes they left; what was taken back is not among it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.project.store import Event

WORDS = {"skip": "skipped", "unsure": "unsure"}


@dataclass
class Said:
    """What people said of one row."""

    answers: dict[str, str] = field(default_factory=dict)  # by person: the label, "unsure" or "skipped"
    unclear: set[str] = field(default_factory=set)  # who gave no label
    notes: list[tuple[str, str]] = field(default_factory=list)  # person and note, the oldest first


def said(events: Iterable[Event]) -> dict[int, Said]:
    """What was said of each row, from the whole history.

    The last answer of a person counts; their notes stay when they answer again, since a change from the gallery comes
    without one.
    """
    history = list(events)
    undone = {event.undoes for event in history if event.undoes is not None}
    found: dict[int, Said] = {}
    for event in history:
        if event.row is None or event.kind in ("undo", "class") or event.seq in undone:
            continue
        one = found.setdefault(event.row, Said())
        if event.kind != "note":
            _answer(one, event)
        if event.note and (event.who, event.note) not in one.notes:
            one.notes.append((event.who, event.note))
    return found


def _answer(one: Said, event: Event) -> None:
    one.answers[event.who] = WORDS.get(event.kind, event.value or "")
    if event.kind in WORDS:
        one.unclear.add(event.who)
    else:
        one.unclear.discard(event.who)
