"""Text of reports: counts with their nouns, percentages, and tables in Markdown."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence


def many(count: int, noun: str) -> str:
    """A count with its noun.

    >>> many(1, "seed"), many(3, "batch"), many(1200, "strategy")
    ('1 seed', '3 batches', '1,200 strategies')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def percent(share: float) -> str:
    """A share as a whole percentage.

    >>> percent(0.312), percent(-0.05)
    ('31 %', '−5 %')
    """
    if not math.isfinite(share):
        return "–"
    whole = round(100 * share)
    return f"{'−' if whole < 0 else ''}{abs(whole)} %"


def shortened(text: str, most: int = 80) -> str:
    """A text on one line, at most `most` characters long.

    >>> shortened("one  two three", 8)
    'one two…'
    """
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1] + "…"


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest to what was found; empty if none is near.

    >>> did_you_mean("bagde", ["badge", "bait"])
    "; did you mean 'badge'?"
    >>> did_you_mean("BAIT", ["badge", "bait"])
    "; did you mean 'bait'?"
    """
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(found.lower(), list(by_lower), 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0) -> str:
    """A table in Markdown, whatever is in its cells; all columns are numbers but the first and the last `texts`."""
    rule = ["---"] + ["---:"] * (len(titles) - 1 - texts) + ["---"] * texts
    lines = [[_plain(title) for title in titles], rule, *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(cell: str) -> str:
    """A cell that Markdown shows as it is."""
    return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", " ".join(cell.split()))
