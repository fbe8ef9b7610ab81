"""Draw what every strategy picks on one toy data set, side by side and one by one.

Writes docs/pictures/strategies.png, and docs/pictures/toy/NAME.png for the pages of the methods.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from torch import nn

import labelwise as lw
from labelwise import strategies
from labelwise.report.style import COLOURS, INK, MUTED, PAPER

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "strategies.png"
TOYS = ROOT / "docs" / "pictures" / "toy"
FIRST, PICKS, COLUMNS = 15, 12, 4
SHADES = ("#dcebf5", "#f8e3d3", "#d8efe7")  # of the classes that the model predicts
MESH_X, MESH_Y = np.meshgrid(np.linspace(-1.5, 2.8, 90), np.linspace(-1.2, 1.7, 90))
GRID = MESH_X.shape
MESH = np.c_[MESH_X.ravel(), MESH_Y.ravel()].astype("float32")


def toy() -> tuple[np.ndarray, np.ndarray]:
    """Three classes in two dimensions: two moons, and a small far cluster."""
    rng = np.random.default_rng(3)
    angle = rng.uniform(0, np.pi, 420)
    upper = np.c_[np.cos(angle[:210]), np.sin(angle[:210])]
    lower = np.c_[1 - np.cos(angle[210:]), 0.35 - np.sin(angle[210:])]
    small = rng.normal([2.3, 1.1], 0.13, (40, 2))
    rows = np.r_[upper, lower, small] + rng.normal(0, 0.13, (460, 2)) * np.r_[np.ones(420), np.zeros(40)][:, None]
    return rows.astype("float32"), np.repeat([0, 1, 2], [210, 210, 40])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def learner(name: str) -> object:
    """The same network for all; several of them for strategies that ask for draws of the weights."""
    plain = lw.TorchLearner(network, epochs=150, lr=0.02, weight_decay=1e-4)
    needs = {signal.array for signal in strategies.get(name).needs.pool}
    return lw.ensemble(plain, 10) if "log_probs" in needs else plain


def main() -> int:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, labels = toy()
    first = np.random.default_rng(0).permutation(len(rows))[:FIRST]
    names = strategies.names()
    high = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(high, COLUMNS, figsize=(2.4 * COLUMNS, 1.9 * high), facecolor=PAPER)
    TOYS.mkdir(exist_ok=True)
    for axis, name in zip(axes.flat, names):
        print(name, flush=True)
        session = lw.Session(rows, learner(name), name, classes=3, seed=1)
        session.tell(first, labels[first])
        picks = session.ask(PICKS)
        shade = session.predict(MESH).reshape(GRID)
        alone, single = plt.subplots(figsize=(3.6, 2.7), facecolor=PAPER)
        for one in (axis, single):
            draw(one, rows, first, picks, shade)
        axis.set_title(name, fontsize=9.5, color=INK, pad=3)
        single.set_title(f"{PICKS} picks of {name}", fontsize=9.5, color=INK, pad=3)
        save(alone, TOYS / f"{name}.png")
        plt.close(alone)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    save(figure, PICTURE)
    return 0


def draw(axis: Any, rows: np.ndarray, first: np.ndarray, picks: lw.Selection, shade: np.ndarray) -> None:
    """One strategy: the pool, the labelled rows, what the model predicts, and the picks with their weights."""
    axis.contourf(MESH_X, MESH_Y, shade, levels=[-0.5, 0.5, 1.5, 2.5], colors=SHADES)
    axis.scatter(*rows.T, s=3, c=MUTED, alpha=0.45, linewidths=0)
    axis.scatter(*rows[first].T, s=26, c=INK, marker="x", linewidths=1.1)
    size = 34 * np.clip(np.asarray(picks.weights), 0.25, 3)
    axis.scatter(*rows[picks.ids].T, s=size, c=COLOURS[1], edgecolors=PAPER, linewidths=0.7)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def save(figure: Any, path: Path) -> None:
    """A PNG with a palette: a third of the size."""
    from PIL import Image

    figure.tight_layout(pad=0.6)
    figure.savefig(path, dpi=110)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
