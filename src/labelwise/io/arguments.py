"""Arguments that are numbers or flags: checked once, where a user gives them, with NumPy's taken as Python's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError


def check_whole(name: str, value: Any, least: int) -> int:
    """`value`, an integer of any library, as one of Python. ArgumentError unless it is one of at least `least`."""
    is_flag = isinstance(value, bool | np.bool_)
    try:
        found = None if is_flag or isinstance(value, np.ndarray) else operator.index(value)
    except TypeError:  # no integer
        found = None
    if found is None or not least <= found < 2**63:
        limit = "of at least " + str(least) if found is None or found < least else "below 2**63"
        raise ArgumentError(f"{name} is a whole number {limit}, not {value!r:.80}.")
    return found


def check_real(name: str, value: Any, least: float = -math.inf, above: float = -math.inf) -> float:
    """`value` as a finite float. ArgumentError unless it is a number of at least `least`, and above `above`."""
    fits = isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)
    try:
        found = float(value) if fits else math.nan
    except OverflowError:
        found = math.inf
    if not (math.isfinite(found) and found >= least and found > above):
        limit = f" of at least {least:g}" if least > -math.inf else f" above {above:g}" if above > -math.inf else ""
        raise ArgumentError(f"{name} is a finite number{limit}, not {value!r:.80}.")
    return found


def check_flag(name: str, value: Any) -> bool:
    """`value` as a bool. ArgumentError unless it is True or False; 0 and 1 are refused."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{name} is True or False, not {value!r:.80}.")
    return bool(value)


def check_fields(owner: object, check: Callable[..., object], *names: str, least: float | None = None) -> None:
    """Check fields of a frozen dataclass. None passes where it is the default.

    Args:
        owner: the dataclass, whose fields become what `check` returns.
        check: one of the functions above.
        names: of the fields.
        least: the least value allowed, of numbers.
    """
    kind, limits = type(owner), {} if least is None else {"least": least}
    for name in names:
        value = getattr(owner, name)
        if value is not None or getattr(kind, name, ...) is not None:
            object.__setattr__(owner, name, check(f"{kind.__name__}({name}=...)", value, **limits))


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse matrix or array of scipy, which is not imported here."""
    return type(value).__module__.startswith("scipy.sparse")
