"""IDX files, plain or gzipped: the format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import SourceError, extra
from labelwise.pool.source import content
from labelwise.pool.sources.images import ImageSource, image_names

# The third byte of a file says what its numbers are; all are stored with the high byte first.
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: the file cannot be read ({error}).") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise SourceError(f"{path}: not an IDX file; it begins with {data[:4].hex(' ')}.")
    kind, axes = np.dtype(_TYPES[data[2]]), data[3]
    start = 4 + 4 * axes
    shape = [int(side) for side in np.frombuffer(data[4:start], ">u4")]
    expected = start + math.prod(shape) * kind.itemsize
    if len(shape) != axes or len(data) != expected:
        raise SourceError(f"{path}: {expected} bytes were expected for shape {tuple(shape)}, {len(data)} were found.")
    return np.frombuffer(data, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


CALTECH_SIDE, TINY_SIDE = 64, 64
BACKGROUND = "BACKGROUND_Google"  # of Caltech-101: pictures of no class


def caltech101(folder: Path) -> tuple[ImageSource, np.ndarray, tuple[str, ...]]:
    """The images of 101 classes, a folder each, and their labels."""
    names = [name for name in image_names(folder) if not name.startswith(BACKGROUND)]
    tops = [name.split("/", 1)[0] for name in names]
    return _labelled(folder, names, tops, tuple(sorted(set(tops))), CALTECH_SIDE)


def tiny_train(folder: Path) -> tuple[ImageSource, np.ndarray, tuple[str, ...]]:
    """The training images of Tiny ImageNet: train/CLASS/images/*.JPEG."""
    names = image_names(folder)
    tops = [name.split("/", 1)[0] for name in names]
    return _labelled(folder, names, tops, tuple(sorted(set(tops))), TINY_SIDE)


def tiny_test(folder: Path, classes: tuple[str, ...]) -> tuple[ImageSource, np.ndarray, tuple[str, ...]]:
    """The validation images, whose classes are in val_annotations.txt; those of the test set are not public."""
    path = folder / "val_annotations.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SourceError(f"{path}: the classes of the validation images were expected there ({error}).") from error
    by_file = {cells[0]: cells[1] for cells in (re.split(r"\t", line) for line in lines) if len(cells) >= 2}
    names = image_names(folder)
    tops = []
    for name in names:
        file = name.rsplit("/", 1)[-1]
        if by_file.get(file) not in classes:
            raise SourceError(f"{path}: a class of train/ was expected for {file}, found {by_file.get(file)!r}.")
        tops.append(by_file[file])
    return _labelled(folder, names, tops, classes, TINY_SIDE)


def _labelled(
    folder: Path, names: list[str], tops: list[str], classes: tuple[str, ...], side: int
) -> tuple[ImageSource, np.ndarray, tuple[str, ...]]:
    if len(classes) < 2:
        raise SourceError(f"{folder}: images in a folder for each class were expected, {len(classes)} were found.")
    number = {name: place for place, name in enumerate(classes)}
    source = ImageSource([folder / name for name in names], names, side)
    return source, np.array([number[top] for top in tops]), classes


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
    pixels = np.empty((len(positions), 3, *(source.decoder.size or ())), np.uint8)
    for place, position in enumerate(positions.tolist()):
        pixels[place] = source.pixels(position).transpose(2, 0, 1)
    return pixels


def read_cifar100(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-100 in its binary form: (n, 3, 32, 32) uint8, and the fine labels.

    A record is a coarse label, a fine label, and the red, green and blue places line by line.
    """
    records = _records(path, 2 + 3 * 32 * 32)
    return records[:, 2:].reshape(-1, 3, 32, 32), _below(records[:, 1], 100, path)


def read_stl10(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """STL-10 in its binary form: (n, 3, 96, 96) uint8, and the labels from 0 on.

    The places of an image are stored column by column; labels count from 1.
    """
    pixels = _records(images, 3 * 96 * 96).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
    answers = _records(labels, 1)[:, 0].astype(np.int64) - 1
    if answers.shape != (len(pixels),):
        raise SourceError(f"{labels}: {len(pixels)} labels were expected, {len(answers)} were found.")
    return np.ascontiguousarray(pixels), _below(answers, 10, labels)


def _records(path: Path, size: int) -> np.ndarray:
    """The records (n, size) of a file of bytes."""
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise SourceError(f"{path}: the file cannot be read ({error}).") from error
    if not len(data) or len(data) % size:
        raise SourceError(f"{path}: records of {size} bytes were expected, the file has {len(data)} bytes.")
    return data.reshape(-1, size)


def _below(labels: np.ndarray, classes: int, path: Path) -> np.ndarray:
    answers = labels.astype(np.int64)
    if answers.min() < 0 or answers.max() >= classes:
        wrong = int((~((answers >= 0) & (answers < classes))).argmax())
        raise SourceError(f"{path}: {classes} classes were expected; record {wrong} has class {answers[wrong]}.")
    return answers


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
