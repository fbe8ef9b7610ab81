"""Other tuning values, so that small problems reach every path."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeVar

from labelwise.shards.checkpoint.journal import Tuning

T = TypeVar("T")
AFTER_EVERY_ANSWER = Tuning(every=0.0, share=float("inf"))  # of FolderJournal


def changed(what: T, **attributes: Any) -> T:
    """A copy of an object, also of a frozen one, with other attributes."""
    other = copy.copy(what)
    for name, value in attributes.items():
        object.__setattr__(other, name, value)
    return other


def tuned(what: T, **values: Any) -> T:
    """A copy of a strategy, or of a `Ray`, with these values of its `tuning`."""
    return changed(what, tuning=replace(what.tuning, **values))  # type: ignore[attr-defined]
