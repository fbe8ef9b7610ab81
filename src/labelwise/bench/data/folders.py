"""Data sets that are folders of images: Caltech-101 and Tiny ImageNet, as they come out of their archives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from labelwise.errors import SourceError
from labelwise.pool.sources.images import ImageSource, image_names

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
