"""Changes: what labels from a file would change in a project, and making them so, as events."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from labelwise.errors import SourceError
from labelwise.project.exchange.entries import ballots
from labelwise.project.exchange.read_labels import FoundFile, FoundLabel
from labelwise.project.project import Project
from labelwise.project.store import Answer, Event


@dataclass(frozen=True)
class Change:
    """A label for a row; `before` is what the row says now, None for nothing; `voters` are those who said otherwise."""

    row: int
    ref: str
    value: str
    who: str
    place: str
    before: str | None = None
    voters: tuple[str, ...] = ()


@dataclass
class Changes:
    """What an import would do. `new` and `same` need nothing more; `different` needs a yes."""

    new: list[Change] = field(default_factory=list)
    same: list[Change] = field(default_factory=list)
    different: list[Change] = field(default_factory=list)
    unknown_rows: list[str] = field(default_factory=list)
    unknown_classes: dict[str, int] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    without: int = 0
    predictions: int = 0


def plan(
    project: Project, found: FoundFile, who: str = "import", *, predictions: bool = False, add_classes: bool = False
) -> Changes:
    """Compare the labels of a file with the project; nothing is written.

    Args:
        project: what they are for.
        found: what `read_labels` gave.
        who: in whose name labels are taken that have no name with them.
        predictions: whether labels of models are taken too, for rows that no person has labelled in the file.
        add_classes: whether classes the project does not have are added to it.
    """
    changes = Changes(without=found.without)
    changes.predictions = sum(one.predicted for one in found.labels)
    taken = _taken(Finder(project), found.labels, predictions, changes)
    classes, answers = project.store.classes(), project.store.answers()
    refs = {item.row: item.ref for item in project.store.items()}
    if project.settings.task == "classify" and not classes:
        add_classes = True  # a project that has named none takes what comes
    for row, (value, one) in sorted(_one_each(taken, changes).items()):
        if project.settings.task == "regress":
            if not _is_number(value):
                changes.unusable.append(f"{one.place}: {value!r:.40} is not a number")
                continue
        elif value not in classes and not add_classes:
            changes.unknown_classes[value] = changes.unknown_classes.get(value, 0) + 1
            continue
        elif value not in classes:
            changes.unknown_classes.setdefault(value, 0)
        made = Change(row, refs[row], value, one.who or who, one.place)
        _sort_in(changes, answers.get(row), project.settings.task == "regress", made)
    counted = ballots(project.store.events()) if changes.different else {}
    changes.different = [replace(one, voters=_voters(counted[one.row], one.value)) for one in changes.different]
    return changes


def apply(project: Project, changes: Changes, *, replacing: bool = False, who: str = "import") -> int:
    """Write the new labels, and with `replacing` the different ones; how many events.

    An answer is replaced by an event of kind "import" in the name of each person who had said otherwise: the history
    keeps what they said, and that it was replaced.
    """
    store = project.store
    wanted = [*changes.new, *(changes.different if replacing else [])]
    if project.settings.task == "classify":
        known = set(store.classes())
        for name in changes.unknown_classes:
            if name not in known and any(one.value == name for one in wanted):
                store.add_class(name, who)
    by: dict[str, dict[int, str]] = {}
    for one in changes.new:
        by.setdefault(one.who, {})[one.row] = one.value
    if replacing:
        for one in changes.different:
            for voter in one.voters:
                by.setdefault(voter, {})[one.row] = one.value
    return sum(store.import_labels(labels.items(), name) for name, labels in by.items())


def _taken(
    finder: Finder, labels: Iterable[FoundLabel], predictions: bool, changes: Changes
) -> dict[int, list[FoundLabel]]:
    """The labels by row; those of models only where there is none of a person."""
    people: dict[int, list[FoundLabel]] = {}
    models: dict[int, list[FoundLabel]] = {}
    for one in labels:
        if one.predicted and not predictions:
            continue
        row = finder.find(one)
        if isinstance(row, str):
            changes.unknown_rows.append(f"{one.place}: {row}")
        else:
            (models if one.predicted else people).setdefault(row, []).append(one)
    return {**{row: [found[-1]] for row, found in models.items()}, **people}


def _one_each(taken: dict[int, list[FoundLabel]], changes: Changes) -> dict[int, tuple[str, FoundLabel]]:
    """One label for each row; a row for which the file has two is not taken."""
    found = {}
    for row, labels in taken.items():
        values = {one.label for one in labels}
        if len(values) == 1:
            found[row] = labels[0].label, labels[0]
        else:
            said = " and ".join(repr(one) for one in sorted(values)[:3])
            changes.unusable.append(f"{labels[-1].place}: the file has {said} for row {row}")
    return found


def _sort_in(changes: Changes, answer: Answer | None, numbers: bool, one: Change) -> None:
    if answer is None or answer.kind == "skip":
        changes.new.append(one)
    elif answer.value is not None and _equal(answer.value, one.value, numbers):
        changes.same.append(replace(one, before=answer.value))
    else:
        changes.different.append(replace(one, before=answer.value or answer.kind))


def _voters(counted: Mapping[str, Event], value: str) -> tuple[str, ...]:
    """The people whose answer is another."""
    return tuple(sorted(who for who, event in counted.items() if event.kind != "skip" and event.value != value))


def _equal(one: str, other: str, numbers: bool) -> bool:
    if numbers and _is_number(one) and _is_number(other):
        return float(one) == float(other)
    return one == other


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class Finder:
    """Rows by id, path and text.

    The text decides where there is one, then the path, then the id: numbers alone would point at other rows in a
    project that was made of a changed file. An id with a path or text that is not that row's is not taken.
    """

    def __init__(self, project: Project):
        self._kind = project.settings.kind
        self._root = project.settings.path(project.folder)
        self._refs = {item.row: item.ref for item in project.store.items()}
        self._by_ref = {ref: row for row, ref in self._refs.items()}
        self._by_text: dict[str, list[int]] = {}
        if self._kind == "text":
            for row in self._refs:
                try:
                    text = project.view(row).text
                except SourceError:
                    continue
                self._by_text.setdefault((text or "").strip(), []).append(row)

    def find(self, label: FoundLabel) -> int | str:
        """The row, or why there is none."""
        row = self._id(label.id)
        if label.text is not None and self._kind == "text":
            rows = self._by_text.get(label.text.strip(), [])
            if row in rows and row is not None:
                return row
            if len(rows) == 1:
                return rows[0]
            return f"{len(rows)} rows have this text" if rows else "no row has this text"
        if label.path is not None:
            found = self._path(label.path)
            if found is not None:
                return found
            return f"there is no {label.path!r:.80} in the project"
        if label.id is None:
            return "nothing says which row it is for"
        return row if row is not None else f"there is no row {label.id!r:.40}"

    def _id(self, text: str | None) -> int | None:
        try:
            row = int(text) if text is not None else None
        except ValueError:
            return None
        return row if row in self._refs else None

    def _path(self, text: str) -> int | None:
        """A path as it stands, below the folder of the data, or at the end of an address."""
        for one in (text, text.replace("\\", "/"), os.path.normpath(text).replace("\\", "/")):
            if one in self._by_ref:
                return self._by_ref[one]
        if self._kind != "image":
            return None
        if Path(text).is_absolute():
            inside = os.path.relpath(os.path.realpath(text), os.path.realpath(self._root)).replace("\\", "/")
            if inside in self._by_ref:
                return self._by_ref[inside]
        parts = urlsplit(text)
        told = parse_qs(parts.query).get("d", [unquote(parts.path)])[0].split("/")
        ends = ("/".join(told[start:]) for start in range(1, len(told)))
        return next((self._by_ref[end] for end in ends if end in self._by_ref), None)
