"""Sizes in bytes as people write them: 4GB, 512 MiB, 2_000_000_000."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Integral
from typing import Any

from labelwise.errors import ArgumentError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(size: Any) -> int | None:
    """The bytes of `max_memory=` as the public functions take it; None means no limit.

    Raises:
        ArgumentError: if it is neither a size such as "4GB" nor a whole number above 0.

    >>> parse_size("4GB"), parse_size("1.5 GiB"), parse_size(1000)
    (4000000000, 1610612736, 1000)
    """
    if size is None:
        return None
    if isinstance(size, Integral) and not isinstance(size, bool) and int(size) > 0:
        return int(size)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if found is None or found[2].upper() not in UNITS or not Decimal(found[1]) > 0:
        raise ArgumentError(
            f"max_memory is a size such as 4GB, 512MB or 2GiB, or a whole number of bytes, found {size!r}"
        )
    return int(Decimal(found[1]) * UNITS[found[2].upper()])  # Decimal: exact, however many digits


def format_size(size: int) -> str:
    """A size in MB, rounded up: `parse_size` of it is not smaller.

    >>> format_size(1), format_size(36_000_001), format_size(2_000_000_000)
    ('1MB', '37MB', '2000MB')
    """
    return f"{-(-size // 10**6)}MB"


def format_exactly(size: int) -> str:
    """A size in MB with all its digits, so that one just below a limit does not read as the limit.

    >>> format_exactly(36_000_001)
    '36.000001MB'
    """
    return f"{Decimal(size) / 10**6:f}MB"
