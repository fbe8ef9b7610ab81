"""CIFAR-10 as small files: its PNG sheets (139 MB) as six lossless WebP mosaics (107 MB), to carry to another machine.

    python benchmarks/pack_cifar.py pack SHEETS FOLDER      SHEETS: the folder with data_batch_1.png and so on
    python benchmarks/pack_cifar.py unpack FOLDER SHEETS    the same sheets again, with the labels

A mosaic has the 10,000 images of a sheet in 100 lines of 100. `unpack` takes the mosaics that are there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image

Image.MAX_IMAGE_PIXELS = None
SIDE, ACROSS = 32, 100
LABELS = ("train_lables.json", "test_lables.json")


def pack(sheets: Path, folder: Path) -> None:
    """Write a mosaic for each sheet."""
    folder.mkdir(parents=True, exist_ok=True)
    for sheet in sorted(sheets.glob("*_batch*.png")):
        with Image.open(sheet) as opened:
            lines = np.asarray(opened.convert("RGB"))
        tiles = lines.reshape(-1, ACROSS, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
        mosaic = Image.fromarray(tiles.reshape(-1, ACROSS * SIDE, 3))
        mosaic.save(folder / f"{sheet.stem}.webp", lossless=True, quality=100, method=4)
    for name in LABELS:
        shutil.copy(sheets / name, folder / name)


def unpack(folder: Path, sheets: Path) -> None:
    """Write a sheet for each mosaic."""
    sheets.mkdir(parents=True, exist_ok=True)
    for mosaic in sorted(folder.glob("*_batch*.webp")):
        with Image.open(mosaic) as opened:
            tiles = np.asarray(opened.convert("RGB"))
        lines = tiles.reshape(-1, SIDE, ACROSS, SIDE, 3).transpose(0, 2, 1, 3, 4)
        sheet = Image.fromarray(lines.reshape(-1, SIDE * SIDE, 3))
        sheet.save(sheets / f"{mosaic.stem}.png", compress_level=1)
    for name in LABELS:
        if (folder / name).exists():
            shutil.copy(folder / name, sheets / name)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("pack", "unpack"):
        sys.exit(__doc__)
    {"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
