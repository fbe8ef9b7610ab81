"""Strategies with other tuning values, so that small problems reach every path."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeVar

T = TypeVar("T")


def tuned(strategy: T, **values: Any) -> T:
    """A copy of the strategy with these values of its `tuning`."""
    changed: Any = copy.copy(strategy)
    object.__setattr__(changed, "tuning", replace(changed.tuning, **values))
    return changed
