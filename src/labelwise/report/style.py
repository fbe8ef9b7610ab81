"""Style: what all figures share. Colours and strokes, captions, the width of texts, and writing a small PNG.

Needs matplotlib (extra "bench") where something is drawn or measured.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from labelwise.errors import extra
from labelwise.io.text import many
from labelwise.stats.curves import SPREADS, Curves, Spread
from labelwise.stats.verdict import ORACLE

INK, MUTED, RULE, PAPER = "#1d2126", "#5c6570", "#e3e6ea", "#ffffff"
# Three of Okabe and Ito's colours and three more as far from them as the ink allows, also for people with any common
# colour blindness (a test measures that); strokes and markers say the same again.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c76aa0", "#7a4a00", "#6622aa")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# One more each time the colours start again.
STROKES: tuple[Any, ...] = ("-", (0, (1.2, 0.9)), (0, (6, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
AGAINST: Any = (0, (4, 2))  # the stroke of the baseline


def is_reference(name: str, against: str = "random") -> bool:
    """Whether a line is a reference for the others: the baseline or the oracle."""
    return name in (against, ORACLE)


def line_styles(names: Iterable[str], against: str = "random") -> dict[str, dict[str, Any]]:
    """Colour, stroke and marker of each name, all different.

    The baseline is dashed and the oracle solid, both in the text colour without markers. Up to twenty-four other names
    differ in colour or stroke.
    """
    found: dict[str, dict[str, Any]] = {}
    position = 0
    for name in names:
        if is_reference(name, against):
            stroke = AGAINST if name == against else "-"
            found[name] = {"color": INK, "linestyle": stroke, "marker": "", "markeredgewidth": 0}
            continue
        found[name] = {
            "color": COLOURS[position % len(COLOURS)],
            "linestyle": STROKES[position // len(COLOURS) % len(STROKES)],
            "marker": MARKERS[position % len(MARKERS)],
            "markeredgewidth": 0,
        }
        position += 1
    return found


FONT = "DejaVu Sans"  # it comes with matplotlib, so that pictures are the same everywhere
PALETTE = 64  # colours of a PNG: enough for lines, bands and smooth letters, at a fifth of the bytes


def import_matplotlib() -> Any:
    """The package matplotlib, or an error that names the extra to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise extra("matplotlib", "bench") from error
    return matplotlib


def text_style(points: float) -> Any:
    """A context that sets font and size of texts. Names are texts, never mathematics: "$x$" stays as it is."""
    style = {"font.family": FONT, "font.size": points, "text.parse_math": False}
    return import_matplotlib().rc_context(style)


def new_figure(width: float, height: float, layout: Any = None) -> Any:
    """A matplotlib figure of this size in inches, which is drawn without a window."""
    import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: Any, dpi: int, palette: bool = True) -> bytes:
    """The figure as PNG; with `palette` in few colours, without when it holds photographs."""
    from PIL import Image  # matplotlib needs it, so it is there

    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi, facecolor=PAPER, metadata={"Software": None})
    if not palette:
        return out.getvalue()
    small = io.BytesIO()
    with Image.open(out) as picture:
        reduced = picture.convert("RGB").quantize(PALETTE, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        reduced.save(small, "png", optimize=True)
    return small.getvalue()


def caption(curves: Sequence[Curves], spread: Spread, shaded: Sequence[str] = ()) -> str:
    """The caption of curves: number of seeds and what the bands are; `shaded` names those with a band, if not all."""
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


def text_width(text: str, points: float) -> float:
    """The width of a text in inches, measured in the font of the figures."""
    if not text.strip():
        return 0.0
    context = import_matplotlib().rc_context({"text.parse_math": False})
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with context:
        path = TextPath((0, 0), text, size=points, prop=FontProperties(family=FONT))
    # Letters are rounded up to pixels, and each end has a small margin.
    return 1.02 * float(path.get_extents().width) / 72 + 0.1 * points / 72


def wrap_text(text: str, width: float, points: float) -> str:
    """The text with line breaks so that it is at most `width` inches wide; a single word may be wider."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, points) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def shorten(name: str, length: int) -> str:
    """The name, shortened to `length` characters."""
    return name if len(name) <= length else name[: length - 1] + "…"
