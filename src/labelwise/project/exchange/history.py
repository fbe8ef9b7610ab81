"""The history of a project in words and as a table: who did what, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from labelwise.project.store import Event
from labelwise.project.store.projection import annotator_of

_WORDS = {
    "label": "labelled",
    "skip": "skipped",
    "unsure": "was unsure about",
    "undo": "took back the answer to",
    "note": "wrote a note on",
    "import": "imported a label of",
    "decision": "decided",
    "reopen": "reopened",
}
# The token of a task is no secret once it is answered, yet says nothing to anybody.
COLUMNS = ("seq", "at", "who", "kind", "row", "value", "seconds", "note", "round", "strategy", "model", "undoes")


def event_line(event: Event) -> dict[str, Any]:
    """An event for people: its number, time, person, and what was done."""
    at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return {"seq": event.seq, "at": at, "who": event.who, "words": _words(event), "note": event.note}


def _words(event: Event) -> str:
    if event.kind == "class":
        return f"added the class {event.value}"
    if event.kind == "lost":
        return "an event was damaged or missing"
    if event.kind == "annotator":
        found = annotator_of(event.value)
        if found.role is None:
            return f"revoked the link of {found.name}"
        return f"gave {found.name} the role {found.role} (link {found.link})"
    value = f": {event.value}" if event.value is not None else ": unsure" if event.kind == "decision" else ""
    return f"{_WORDS[event.kind]} row {event.row}{value}"


def history_columns(events: Iterable[Event]) -> Mapping[str, list[Any]]:
    """The events as columns, for a table; the name and role of an annotator are the value of their event."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for event in events:
        values = asdict(event)
        values["at"] = datetime.fromtimestamp(event.at, UTC)
        if event.kind == "annotator":
            found = annotator_of(event.value)
            values["value"] = json.dumps({"name": found.name, "role": found.role}, ensure_ascii=False)
        for name in COLUMNS:
            columns[name].append(values[name])
    return columns
