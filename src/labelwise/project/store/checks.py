"""Checks of everything that is written, before the database sees it, so that both databases accept the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

from labelwise.errors import ArgumentError, LabelError
from labelwise.project import label_sets
from labelwise.project.store.leases import MAX_SECONDS
from labelwise.project.store.records import ANSWERS


def plain(what: str, text: str) -> str:
    """The text, if both databases can store it. ArgumentError otherwise."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what} must be text, found {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} is not valid Unicode: {text!r}. Rename the file or correct the text") from None
    if "\x00" in text:
        raise ArgumentError(f"{what} contains a NUL character, which a database cannot store: {text[:80]!r}")
    return text


def named(what: str, text: str) -> str:
    """The text, if it is not empty. ArgumentError otherwise."""
    if not plain(what, text).strip():
        raise ArgumentError(f"{what} must not be empty")
    return text


def answer(kind: str, value: str | None, classes: list[str], sets: bool = False) -> None:
    """Check an answer of a person: its kind, and a value where the kind needs one, with `sets` several classes."""
    if kind not in ANSWERS:
        raise ArgumentError(f"an answer is one of {ANSWERS}, found {kind!r}")
    if kind != "label":
        if value is not None:
            raise ArgumentError(f"an answer of kind {kind!r} has no value, found {value!r}")
        return
    if value is None:
        raise ArgumentError("a label needs a value, found None")
    label(value, classes, sets)


def label(value: str, classes: list[str], sets: bool = False) -> None:
    """Check that a label is a class of the project, if it has classes (a project of numbers has none)."""
    named("a label", value)
    if sets:
        if label_sets.checked(value, classes) != value:
            raise LabelError(f"a set of classes is stored as {label_sets.checked(value, classes)!r}, found {value!r}")
        return
    if classes and value not in classes:
        raise LabelError(f"{value!r} is not a class of this project, which has {classes}. Add it with add_class first")


def seconds(value: float | None) -> float | None:
    """The time someone took, if it was measured."""
    if value is None:
        return None
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentError(f"seconds must be a number of at least 0, found {value!r}")
    return float(value)


def lease_seconds(value: float) -> None:
    """Check how long a task is to be reserved."""
    if not value <= MAX_SECONDS:
        raise ArgumentError(f"a task is reserved for at most {MAX_SECONDS:g} seconds, found {value!r}")


def once(labels: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Labels by row. LabelError if a row has two different ones."""
    found: dict[int, str] = {}
    for row, value in labels:
        if found.setdefault(int(row), value) != value:
            raise LabelError(f"row {row} has two labels, {found[int(row)]!r} and {value!r}; give it one")
    return found
