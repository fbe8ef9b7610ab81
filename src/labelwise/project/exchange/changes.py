"""Import: what labels from a file would change in a project, and writing these changes as events."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from labelwise.errors import SourceError
from labelwise.project.exchange.entries import ballots
from labelwise.project.exchange.read_labels import FoundFile, FoundLabel
from labelwise.project.label_sets import names_of, value_of
from labelwise.project.project import Project
from labelwise.project.store import Answer, Event


@dataclass(frozen=True)
class Change:
    """A label for a row. `before` is its label now, None if it has none; `voters` are the people who gave another."""

    row: int
    ref: str
    value: str
    who: str
    location: str
    before: str | None = None
    voters: tuple[str, ...] = ()


@dataclass
class Changes:
    """What an import would do. `different` labels are written only if the caller agrees."""

    new: list[Change] = field(default_factory=list)
    same: list[Change] = field(default_factory=list)
    different: list[Change] = field(default_factory=list)
    unknown_rows: list[str] = field(default_factory=list)
    unknown_classes: dict[str, int] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    unlabelled: int = 0
    predictions: int = 0


def plan(
    project: Project, found: FoundFile, who: str = "import", *, predictions: bool = False, add_classes: bool = False
) -> Changes:
    """Compare the labels of a file with the project; nothing is written.

    Args:
        project: the project.
        found: the result of `read_labels`.
        who: the person for labels without a name.
        predictions: also take labels of models, for rows without a label of a person in the file.
        add_classes: add classes that the project does not have.
    """
    changes = Changes(unlabelled=found.unlabelled)
    changes.predictions = sum(one.predicted for one in found.labels)
    by_row = _by_row(RowFinder(project), found.labels, predictions, changes)
    classes, answers = project.store.classes(), project.store.answers()
    refs = {item.row: item.ref for item in project.store.items()}
    if project.settings.task != "regress" and not classes:
        add_classes = True  # a project without classes takes those of the file
    for row, (value, one) in sorted(_unambiguous(by_row, changes).items()):
        if project.settings.task == "regress":
            if not _is_number(value):
                changes.unusable.append(f"{one.location}: {value!r:.40} is not a number")
                continue
        elif project.settings.task == "multi":
            names = names_of(value)
            unknown = [name for name in names if name not in classes]
            for name in unknown:
                changes.unknown_classes[name] = changes.unknown_classes.get(name, 0) + (not add_classes)
            if unknown and not add_classes:
                continue
            value = value_of(names, [*classes, *changes.unknown_classes])
        elif value not in classes and not add_classes:
            changes.unknown_classes[value] = changes.unknown_classes.get(value, 0) + 1
            continue
        elif value not in classes:
            changes.unknown_classes.setdefault(value, 0)
        made = Change(row, refs[row], value, one.who or who, one.location)
        _add(changes, answers.get(row), project.settings.task == "regress", made)
    counted = ballots(project.store.events()) if changes.different else {}
    changes.different = [replace(one, voters=_voters(counted.get(one.row, {}), one.value)) for one in changes.different]
    return changes


def apply(project: Project, changes: Changes, *, replacing: bool = False, who: str = "import") -> int:
    """Write the new labels, and with `replacing` the different ones. Returns the number of events.

    An answer is replaced by an event of kind "import" in the name of each person who gave another label, and a
    decision by one of `who`. The history keeps the earlier answer.
    """
    store = project.store
    wanted = [*changes.new, *(changes.different if replacing else [])]
    if project.settings.task != "regress":
        known, multi = set(store.classes()), project.settings.task == "multi"
        for name in changes.unknown_classes:
            if name not in known and any(name in (names_of(one.value) if multi else (one.value,)) for one in wanted):
                store.add_class(name, who)
    by: dict[str, dict[int, str]] = {}
    for one in changes.new:
        by.setdefault(one.who, {})[one.row] = one.value
    if replacing:
        for one in changes.different:
            for voter in one.voters:
                by.setdefault(voter, {})[one.row] = one.value
    written = sum(store.import_labels(labels.items(), name) for name, labels in by.items())
    decided = {row for row, answer in store.answers().items() if answer.decided_by}
    for one in changes.different if replacing else ():
        if one.row in decided:  # which stands, whatever the ballots are
            store.decide(who, one.row, "label", one.value, secrets.token_urlsafe(16))
            written += 1
    return written


def _by_row(
    finder: RowFinder, labels: Iterable[FoundLabel], predictions: bool, changes: Changes
) -> dict[int, list[FoundLabel]]:
    """The labels by row; labels of models only for rows without one of a person."""
    people: dict[int, list[FoundLabel]] = {}
    models: dict[int, list[FoundLabel]] = {}
    for one in labels:
        if one.predicted and not predictions:
            continue
        row = finder.find(one)
        if isinstance(row, str):
            changes.unknown_rows.append(f"{one.location}: {row}")
        else:
            (models if one.predicted else people).setdefault(row, []).append(one)
    return {**{row: [found[-1]] for row, found in models.items()}, **people}


def _unambiguous(by_row: dict[int, list[FoundLabel]], changes: Changes) -> dict[int, tuple[str, FoundLabel]]:
    """One label for each row. A row with two different labels in the file is left out."""
    found = {}
    for row, labels in by_row.items():
        values = {one.label for one in labels}
        if len(values) == 1:
            found[row] = labels[0].label, labels[0]
        else:
            both = " and ".join(repr(one) for one in sorted(values)[:3])
            changes.unusable.append(f"{labels[-1].location}: the file has {both} for row {row}")
    return found


def _add(changes: Changes, answer: Answer | None, numbers: bool, one: Change) -> None:
    if answer is None or answer.kind == "skip":
        changes.new.append(one)
    elif answer.value is not None and _equal(answer.value, one.value, numbers):
        changes.same.append(replace(one, before=answer.value))
    else:
        changes.different.append(replace(one, before=answer.value or answer.kind))


def _voters(counted: Mapping[str, Event], value: str) -> tuple[str, ...]:
    """The people who gave another answer."""
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


class RowFinder:
    """Finds the row of a label by its text, path or id.

    The text decides if there is one, then the path, then the id: in a project made from a changed file, ids alone could
    mean other rows. An uncertain match is not used.
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
        """The row, or the reason why it cannot be found."""
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
            return f"the project has no {label.path!r:.80}"
        if label.id is None:
            return "the label has no id, path or text"
        return row if row is not None else f"the project has no row {label.id!r:.40}"

    def _id(self, text: str | None) -> int | None:
        try:
            row = int(text) if text is not None else None
        except ValueError:
            return None
        return row if row in self._refs else None

    def _path(self, text: str) -> int | None:
        """The row of a path: relative, inside the folder of the data, or at the end of an address."""
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
        names = parse_qs(parts.query).get("d", [unquote(parts.path)])[0].split("/")
        ends = ("/".join(names[start:]) for start in range(1, len(names)))
        return next((self._by_ref[end] for end in ends if end in self._by_ref), None)
