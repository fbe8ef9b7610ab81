"""Check the parameters of strategies: NumPy's numbers become Python's, and a flag is True or False only."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError


def number(owner: str, name: str, value: Any) -> float:
    """A finite number of at least 0."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise ArgumentError(f"{owner}({name}=...) must be a number of at least 0, found {value!r}")
    return float(value)


def whole(owner: str, name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or int(value) < least:
        raise ArgumentError(f"{owner}({name}=...) must be a whole number of at least {least}, found {value!r}")
    return int(value)


def flag(owner: str, name: str, value: Any) -> bool:
    """True or False; 0 and 1 are refused."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{owner}({name}=...) is True or False, found {value!r}")
    return bool(value)
