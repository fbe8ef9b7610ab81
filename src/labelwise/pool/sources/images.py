"""Rows of a folder of images, or of encoded images in memory: decoded on read to float32 (3, H, W) in [0, 1]."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, SourceError, extra
from labelwise.pool.source import Faults, OnError, Read

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
Size = int | tuple[int, int]


class ImageSource:
    """Encoded images: paths of files, or their bytes. Every read decodes them, so the pool may exceed memory."""

    kind = "images"
    whole = True

    def __init__(self, images: Sequence[Path | bytes], names: Sequence[str], size: Size):
        self.images = images
        self.names = names
        self.height, self.width = checked_size(size)

    def __len__(self) -> int:
        return len(self.images)

    def inputs(self, positions: np.ndarray) -> Tensor:
        batch = np.empty((len(positions), 3, self.height, self.width), np.float32)
        for place, position in enumerate(positions.tolist()):
            batch[place] = self.pixels(position).transpose(2, 0, 1)
        return torch.from_numpy(batch).div_(255)

    def pixels(self, position: int) -> np.ndarray:
        """One image as (H, W, 3) uint8."""
        try:
            return decode(self.images[position], self.height, self.width)
        except ImportError:
            raise
        except Exception as error:
            raise SourceError(f"{self.where(position)}: {_reason(error)}") from error

    def where(self, position: int) -> str:
        """The location of an image, for error texts."""
        image = self.images[position]
        return str(image) if isinstance(image, Path) else self.names[position]

    def name(self, position: int) -> str | None:
        return self.names[position]

    def sample(self, positions: np.ndarray) -> bytes:
        # Names and encoded images (of files: their sizes), not pixels: decoders may differ in the last bit from
        # version to version.
        parts = [(self.names[p], _fingerprint(self.images[p])) for p in positions.tolist()]
        return repr((self.height, self.width, parts)).encode("utf-8", "backslashreplace")

    def part(self, positions: np.ndarray) -> tuple[ImageSource, None]:
        some, size = positions.tolist(), (self.height, self.width)
        images = [self.images[p] for p in some]
        # Another process may have another working folder.
        images = [image.absolute() if isinstance(image, Path) else image for image in images]
        return ImageSource(images, [self.names[p] for p in some], size), None


def read_folder(folder: str | Path, size: Size, labels: Literal["auto", "folders", "none"], on_error: OnError) -> Read:
    """The images under `folder` in sorted order of their paths; hidden files and other kinds of file are left out."""
    if labels not in ("auto", "folders", "none"):
        raise ArgumentError(f'labels is "auto", "folders" or "none", not {labels!r}')
    root = Path(folder)
    if not root.is_dir():
        found = "a file is there" if root.exists() else "there is nothing of that name"
        raise SourceError(f"{root}: a folder of images was expected; {found}.")
    names = image_names(root)
    if not names:
        raise SourceError(f"{root}: no images there; files ending in {', '.join(SUFFIXES)} were looked for.")
    faults = Faults(on_error)
    source = ImageSource([root / name for name in names], names, size)
    readable = usable(source, faults)
    skipped = faults.close(str(root), len(readable))
    # The classes come from every image, so that one broken file does not renumber them.
    tops = _class_names(root, names, labels)
    classes = tuple(sorted(set(tops))) if tops else None
    return Read(source, readable, readable, [tops[number] for number in readable] if tops else None, classes, skipped)


def usable(source: ImageSource, faults: Faults) -> np.ndarray:
    """Positions of the images that can be read.

    To stop at a bad file, its header is checked now; decoding may still fail later. To skip bad files, each image is
    decoded now, since the rows must be known before they get ids.
    """
    readable = []
    for position in range(len(source)):
        try:
            if faults.on_error == "skip":
                decode(source.images[position], source.height, source.width)
            else:
                _open(source.images[position]).close()
        except ImportError:
            raise
        except Exception as error:
            faults.add(f"{source.where(position)}: {_reason(error)}")
        else:
            readable.append(position)
    return np.array(readable, np.int64)


def decode(image: Path | bytes, height: int, width: int) -> np.ndarray:
    """An encoded image as (height, width, 3) uint8."""
    with _open(image) as opened:
        # Decode JPEG files at a fraction of their size where that is still twice the wanted size.
        opened.draft(None, (2 * width, 2 * height))
        return shaped(opened, height, width)


def opened_rgb(image: Path | bytes, size: int) -> Image:
    """An encoded image as RGB, upright, on white where transparent; a JPEG at a fraction of its size, if large."""
    from PIL import ImageOps

    with _open(image) as opened:
        opened.draft(None, (2 * size, 2 * size))
        return _rgb(ImageOps.exif_transpose(opened))


def shaped(image: Image, height: int, width: int) -> np.ndarray:
    """An opened image as (height, width, 3) uint8: upright, on white where transparent, resized."""
    from PIL import Image, ImageOps

    upright = _rgb(ImageOps.exif_transpose(image))
    if upright.size != (width, height):
        upright = upright.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(upright)


def _rgb(image: Image) -> Image:
    """RGB as a browser would show it on a white page."""
    from PIL import Image as images

    if image.mode.startswith("I"):  # 16-bit grey; PIL would cut it off at 255
        values = np.clip(np.asarray(image), 0, 65535) / 257.0
        return images.fromarray(np.round(values).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        seen = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image.convert("RGB")


def _open(image: Path | bytes) -> Image:
    try:
        from PIL import Image
    except ImportError:
        raise extra("PIL", "bench") from None
    if isinstance(image, Path) and not stat.S_ISREG(image.stat().st_mode):
        raise OSError("not a plain file")  # reading a pipe or a device may never end
    # Only the formats of SUFFIXES: faster, and no rare decoder ever sees a file from outside.
    return Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=_FORMATS)


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image that can be read"
    return f"the image cannot be read ({type(error).__name__}: {error})"


def image_names(root: Path) -> list[str]:
    """Paths below `root`, with /, of its images; links to folders are followed once."""
    names, seen = [], set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        folders[:] = [] if real in seen else sorted(name for name in folders if not name.startswith("."))
        if real in seen:
            continue
        seen.add(real)
        inside = Path(folder).relative_to(root)
        names += [
            (inside / name).as_posix() for name in files if not name.startswith(".") and name.lower().endswith(SUFFIXES)
        ]
    return sorted(names)


def _class_names(root: Path, names: list[str], labels: str) -> list[str] | None:
    """The first sub-folder of each image: its class. None when the images are not sorted into folders."""
    loose = next((name for name in names if "/" not in name), None)
    if labels == "none" or (labels == "auto" and loose is not None):
        return None
    if loose is not None:
        raise SourceError(f'{root / loose}: labels="folders" expects every image in the sub-folder of its class.')
    return [name.split("/", 1)[0] for name in names]


def _fingerprint(image: Path | bytes) -> int | str:
    """A cheap fingerprint of an encoded image: the hash of one in memory, the size of a file."""
    if isinstance(image, bytes):
        return hashlib.blake2b(image, digest_size=8).hexdigest()
    return image.stat().st_size


def checked_size(size: Size) -> tuple[int, int]:
    """(height, width) of a size that can be used."""
    pair = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ArgumentError(f"size is a number of pixels or a pair (height, width), each at least 1, not {size!r}.")
    return pair[0], pair[1]
