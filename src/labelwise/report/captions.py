"""Captions: what the lines and bands of a figure are, and how much room a text takes. Needs matplotlib for the room."""

from __future__ import annotations

from collections.abc import Sequence

from labelwise.io.text import many
from labelwise.stats.curves import SPREADS, Curves, Spread

FONT = "DejaVu Sans"  # it comes with matplotlib, so that pictures are the same everywhere


def caption(curves: Sequence[Curves], spread: Spread, shaded: Sequence[str] = ()) -> str:
    """What is drawn, over how many seeds; `shaded` names those that have a band, where not all have one.

    A band that is not explained is taken for whatever the reader is used to.
    """
    counts = sorted({len(lines.seeds) for lines in curves})
    if counts[-1] == 1:
        return "One seed: no band can be drawn."
    whose = f" (of {', '.join(shaded)})" if shaded else ""
    none = "; a line of one seed has no band" if counts[0] == 1 else ""
    return f"Mean over {seeds_text(curves)}; shaded{whose}: {SPREADS[spread]}{none}."


def seeds_text(curves: Sequence[Curves]) -> str:
    """The seeds of these curves in words: "5 seeds", or "3 to 5 seeds"."""
    counts = sorted({len(lines.seeds) for lines in curves})
    return many(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def inches(text: str, points: float) -> float:
    """How wide a text is, in inches, in the font of the figures: counting letters is wrong by half."""
    if not text.strip():
        return 0.0
    import matplotlib
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with matplotlib.rc_context({"text.parse_math": False}):
        path = TextPath((0, 0), text, size=points, prop=FontProperties(family=FONT))
    # Pixels round letters up, and each end has a little room of its own.
    return 1.02 * float(path.get_extents().width) / 72 + 0.1 * points / 72


def wrapped(text: str, room: float, points: float) -> str:
    """The text on as many lines as it takes to keep to a room in inches; a word alone may be wider."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and inches(longer, points) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def cut(name: str, length: int) -> str:
    """The name, or so much of its beginning as fits."""
    return name if len(name) <= length else name[: length - 1] + "…"
