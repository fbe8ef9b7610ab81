"""Rows of small images under each other, as PNG. Needs matplotlib."""

from __future__ import annotations

import io

from torch import Tensor

from labelwise.errors import ArgumentError, extra


def image_rows(images: Tensor, titles: list[str], values: Tensor, meaning: str) -> bytes:
    """A row for each state (S) and a column for each image (B) of `images` (S, B, channels, H, W), values beneath.

    `meaning` is what the values are.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise extra("matplotlib", "bench") from error
    if images.ndim != 5 or images.shape[2] not in (1, 3):
        raise ArgumentError(f"images are (states, images, 1 or 3, height, width), found shape {tuple(images.shape)}.")
    states, count = images.shape[:2]
    figure = Figure(figsize=(1.1 * count + 1.0, 1.25 * states), layout="constrained")
    FigureCanvasAgg(figure)
    for state in range(states):
        for column in range(count):
            axes = figure.add_subplot(states, count, state * count + column + 1)
            axes.imshow(images[state, column].movedim(0, -1).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_xlabel(f"{float(values[state, column]):.2f}", fontsize=8)
            if column == 0:
                axes.set_ylabel(titles[state], fontsize=8)
    figure.supxlabel(f"under each image: {meaning}", fontsize=9)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=130, metadata={"Software": None})
    return out.getvalue()
