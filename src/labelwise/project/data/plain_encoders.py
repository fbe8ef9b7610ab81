"""Features without a pretrained model: thumbnails with colours and edges, hashed words, the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import install_command
from labelwise.io.encode_table import TableEncoder, fit_table, mixed_column
from labelwise.io.encode_texts import TextEncoder, fit_texts
from labelwise.io.tables import Table

_PRETRAINED = install_command("encoders")
_THUMB, _CELLS, _TURNS, _BINS = 16, 4, 8, 8


class Pixels:
    """A small grey picture, a smaller one in colour, colour statistics, and edges by place and direction."""

    name = "pixels"
    size = 32
    batch = 256
    blocks: tuple[int, ...] = (_THUMB * _THUMB, 3 * _CELLS * _CELLS, 3 * _BINS, _CELLS * _CELLS * _TURNS)
    width = sum(blocks)
    better = f"For photos, a pretrained encoder gives far better features than raw pixels: {_PRETRAINED}"

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        x_NHWC = np.stack(rows).astype(np.float32) / 255
        grey_NHW = x_NHWC @ np.array([0.299, 0.587, 0.114], np.float32)
        n = len(x_NHWC)
        thumb = _pooled(grey_NHW[..., None], _THUMB).reshape(n, -1)
        colour = _pooled(x_NHWC, _CELLS).reshape(n, -1)
        bins = np.minimum((x_NHWC * _BINS).astype(np.int64), _BINS - 1).reshape(n, -1, 3)
        share = (bins[..., None] == np.arange(_BINS)).mean(1).reshape(n, -1)
        return np.concatenate([thumb, colour, share, _edges(grey_NHW)], axis=1).astype(np.float32)


def _pooled(x_NHWC: np.ndarray, cells: int) -> np.ndarray:
    """Means over cells x cells squares of each image."""
    n, side, _, channels = x_NHWC.shape
    step = side // cells
    return x_NHWC.reshape(n, cells, step, cells, step, channels).mean((2, 4))


def _edges(grey_NHW: np.ndarray) -> np.ndarray:
    """Length of the grey's slope by square of the image and direction, the square's root so that few do not rule."""
    dy, dx = np.gradient(grey_NHW, axis=(1, 2))
    turn = np.minimum((np.mod(np.arctan2(dy, dx), np.pi) / np.pi * _TURNS).astype(np.int64), _TURNS - 1)
    slope = np.hypot(dx, dy)[..., None] * (turn[..., None] == np.arange(_TURNS))
    return np.sqrt(_pooled(slope, _CELLS)).reshape(len(grey_NHW), -1)


@dataclass(frozen=True)
class Words:
    """`io.encode_texts` as an encoder."""

    learnt: TextEncoder
    name: str = "words"
    size: int = 0
    batch: int = 512
    better: str = f"A pretrained sentence encoder gives better features than counted words: {_PRETRAINED}"

    @property
    def width(self) -> int:
        return self.learnt.width

    @property
    def blocks(self) -> tuple[int, ...]:
        return (self.learnt.width,)

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        return self.learnt.encode(rows)


def words(texts: list[str]) -> Words:
    """An encoder learnt from the texts themselves; needs no label."""
    return Words(fit_texts(texts))


@dataclass(frozen=True)
class Columns:
    """The columns of a table: numbers and the steps they are on, categories one by one, what is missing."""

    x_NW: np.ndarray
    width: int
    blocks: tuple[int, ...]
    learnt: TableEncoder
    name: str = "columns"
    size: int = 0
    batch: int = 4096
    better: str = ""

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        return self.x_NW[np.asarray(rows, np.int64)]


def columns(table: Table) -> Columns:
    """An encoder of the columns of a table, learnt from all its rows."""
    encoder = fit_table(table)
    mixed = next(filter(None, (mixed_column(name, values) for name, values in table.columns.items())), "")
    return Columns(encoder.encode(table), encoder.width, encoder.blocks, encoder, better=mixed)
