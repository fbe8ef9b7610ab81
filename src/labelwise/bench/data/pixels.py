"""Images kept decoded as bytes in memory and given as float32 in [0, 1]: read many times, decoded once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import SourceError, extra
from labelwise.pool.source import content
from labelwise.pool.sources.images import ImageSource


class PixelSource:
    """Images (n, C, H, W) of uint8; inputs are float32 in [0, 1]."""

    kind = "pixels"

    def __init__(self, pixels: np.ndarray):
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def inputs(self, positions: np.ndarray) -> Tensor:
        return torch.from_numpy(self.pixels[positions]).float().div_(255)

    def name(self, position: int) -> str | None:
        return None

    def sample(self, positions: np.ndarray) -> bytes:
        return content(self.pixels[positions])


def decoded(source: ImageSource, positions: np.ndarray) -> np.ndarray:
    """The encoded images at `positions` as (n, 3, H, W) uint8."""
    pixels = np.empty((len(positions), 3, source.height, source.width), np.uint8)
    for place, position in enumerate(positions.tolist()):
        pixels[place] = source.pixels(position).transpose(2, 0, 1)
    return pixels


def read_sheets(sheets: list[Path], labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 from RGB sheets 1024 pixels wide, one 32 x 32 image a line: (n, 3, 32, 32) uint8, and the labels."""
    try:
        from PIL import Image
    except ImportError:
        raise extra("PIL", "bench") from None
    parts = []
    for sheet in sheets:
        try:
            with Image.open(sheet, formats=("PNG",)) as opened:
                lines = np.asarray(opened.convert("RGB"))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise SourceError(f"{sheet}: the sheet of images cannot be read ({error}).") from error
        if lines.ndim != 3 or lines.shape[1:] != (1024, 3):
            raise SourceError(f"{sheet}: RGB lines of 1024 pixels were expected, shape {lines.shape} was found.")
        parts.append(lines.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    pixels = np.concatenate(parts)
    answers = np.array(json.loads(labels.read_text()))
    if answers.shape != (len(pixels),):
        raise SourceError(f"{labels}: {len(pixels)} labels were expected, shape {answers.shape} was found.")
    return pixels, answers
