"""What may be written: checked before the database sees it, so that both databases take and refuse the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

from labelwise.errors import ArgumentError, LabelError
from labelwise.project.store.records import ANSWERS


def plain(what: str, text: str) -> str:
    """Text that both databases can keep."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what} has to be text, found {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} is no valid Unicode: {text!r}; rename the file or mend the text") from None
    if "\x00" in text:
        raise ArgumentError(f"{what} holds a NUL character, which a database cannot keep: {text[:80]!r}")
    return text


def named(what: str, text: str) -> str:
    """Text that is not empty."""
    if not plain(what, text).strip():
        raise ArgumentError(f"{what} must not be empty")
    return text


def answer(kind: str, value: str | None, classes: list[str]) -> None:
    """An answer of a kind a person can give, with a value where it needs one."""
    if kind not in ANSWERS:
        raise ArgumentError(f"an answer is one of {ANSWERS}, found {kind!r}")
    if kind != "label":
        if value is not None:
            raise ArgumentError(f"an answer {kind!r} has no value, found {value!r}")
        return
    if value is None:
        raise ArgumentError("a label needs a value, found None")
    label(value, classes)


def label(value: str, classes: list[str]) -> None:
    """A label of the project's classes, where it has any (numbers have none)."""
    named("a label", value)
    if classes and value not in classes:
        raise LabelError(f"{value!r} is no class of this project; it has {classes}. Add it with add_class first")


def seconds(value: float | None) -> float | None:
    """How long someone took, if it was measured."""
    if value is None:
        return None
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentError(f"seconds have to be a number of at least 0, found {value!r}")
    return float(value)


def once(labels: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Labels by row; a row must not have two."""
    found: dict[int, str] = {}
    for row, value in labels:
        if found.setdefault(int(row), value) != value:
            raise LabelError(f"row {row} has two labels, {found[int(row)]!r} and {value!r}; give it one")
    return found
