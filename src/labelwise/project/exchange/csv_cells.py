"""Cells of a CSV file that a spreadsheet must not take for formulas, and the way back.

A spreadsheet runs a cell that begins with =, +, -, @, a tab or a line end. Such a cell gets an apostrophe before it. So
that nothing is lost, a text that has apostrophes before such a sign gets one more; reading takes one away. Plain
negative numbers are no formulas and stay as they are.
"""

from __future__ import annotations

import re

_RISKY = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also the wide forms of the four signs
_NUMBER = re.compile(r"-(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")


def guarded(cell: str) -> str:
    """The cell as it may be written.

    >>> [guarded(cell) for cell in ("=1+1", "-3.5", "-cmd", "cat", "'=x")]
    ["'=1+1", '-3.5', "'-cmd", 'cat', "''=x"]
    """
    return f"'{cell}" if _RISKY.match(cell) and not _NUMBER.match(cell) else cell


def restored(cell: str) -> str:
    """What was given to `guarded`.

    >>> [restored(guarded(cell)) for cell in ("=1+1", "-3.5", "'=x", "'tis")]
    ['=1+1', '-3.5', "'=x", "'tis"]
    """
    return cell[1:] if cell.startswith("'") and _RISKY.match(cell) else cell
