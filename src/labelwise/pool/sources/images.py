"""Rows of image files, or of encoded images in memory: decoded on read to float32 (3, H, W), or by a transform."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, RowError, SourceError, extra
from labelwise.pool.ahead import in_threads
from labelwise.pool.source import Faults, OnError, Read

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
SIZE = 32  # pixels of a side, by default
IMAGES_PER_THREAD = 8  # fewer are decoded sooner than a thread has started
Size = int | tuple[int, int]
Transform = Callable[[Any], Any]


class Decoder:
    """Decodes images: to uint8 (H, W, 3) of one size, or to what a transform makes of them.

    Attributes:
        size: (height, width) that images are resized to; None leaves that to the transform.
        transform: function of an image (PIL, RGB, upright) that returns a tensor or an array, or None.
    """

    def __init__(self, size: Size | None = None, transform: Transform | None = None):
        if transform is not None and not callable(transform):
            raise ArgumentError(f"transform is a function of a PIL image that returns a tensor, not {transform!r:.60}.")
        self.size = None if size is None and transform is not None else checked_size(SIZE if size is None else size)
        self.transform = transform
        self._shape: tuple[int, ...] = ()  # of what the transform returns, once it was checked

    @property
    def settings(self) -> tuple[Any, ...]:
        """What decides about the result, for fingerprints; a transform counts by its name and its shape."""
        if self.transform is None:
            return self.size or ()
        name = getattr(self.transform, "__qualname__", type(self.transform).__qualname__)
        return (self.size, name, self._shape)

    def __call__(self, image: Path | bytes | Image) -> Any:
        """An image as uint8 (H, W, 3), or as a tensor if there is a transform."""
        if not isinstance(image, Path | bytes):
            return self._opened(image)
        with _open(image) as opened:
            if self.size is not None:
                # Decode JPEG files at a fraction of their size where that is still twice the wanted size.
                opened.draft(None, (2 * self.size[1], 2 * self.size[0]))
            return self._opened(opened)

    def _opened(self, image: Image) -> Any:
        if self.transform is None:
            assert self.size is not None, "without a transform there is a size"
            return shaped(image, *self.size)
        return self._transformed(upright(image, self.size))

    def _transformed(self, image: Image) -> Tensor:
        assert self.transform is not None, "called where there is one"
        try:
            found = self.transform(image)
            if isinstance(found, Mapping) and "pixel_values" in found:  # of an image processor of transformers
                found = found["pixel_values"][0]
            tensor = found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
        except Exception as error:
            raise ArgumentError(
                f"transform= failed: {type(error).__name__}: {error}. It is called with a PIL image and returns a "
                "tensor or an array."
            ) from error
        if self._shape and tuple(tensor.shape) != self._shape:
            raise ArgumentError(
                f"transform= returns shape {tuple(tensor.shape)}, and {self._shape} for the first image. Give size=, "
                "or resize to one size in the transform."
            )
        return tensor

    def check(self, image: Path | bytes | Image) -> None:
        """Raise ArgumentError if the transform fails on an image or returns something else each time."""
        if self.transform is None:
            return
        one, other = self(image), self(image)
        if one.shape != other.shape or not torch.equal(one, other):
            raise ArgumentError(
                "transform= returns something else each time it is called, so a row would have no signals of its own. "
                "Leave random augmentation out of it; TorchLearner(augment=...) has it in training."
            )
        self._shape = tuple(one.shape)

    def batch(self, read: Callable[[int], Any], count: int, threads: bool = False) -> Tensor:
        """The images that `read` returns for 0 .. count-1, each decoded by this, as one float tensor.

        With `threads`, `read` may be called by several threads at once; a transform is always called by one.
        """
        if self.transform is not None:
            return torch.stack([read(place) for place in range(count)]) if count else torch.empty(0, *self._shape)
        assert self.size is not None, "without a transform there is a size"
        batch = np.empty((count, 3, *self.size), np.float32)

        def put(place: int) -> None:
            batch[place] = read(place).transpose(2, 0, 1)

        in_threads(put, count, IMAGES_PER_THREAD if threads else count + 1)
        return torch.from_numpy(batch).div_(255)


class ImageSource:
    """Encoded images: paths of files, or their bytes. Every read decodes them, so the pool may exceed memory."""

    kind = "images"
    whole = True

    def __init__(self, images: Sequence[Path | bytes], names: Sequence[str], size: Size | Decoder = SIZE):
        self.images = images
        self.names = names
        self.decoder = size if isinstance(size, Decoder) else Decoder(size)

    def __len__(self) -> int:
        return len(self.images)

    def inputs(self, positions: np.ndarray) -> Tensor:
        rows = positions.tolist()
        return self.decoder.batch(lambda place: self.pixels(rows[place]), len(rows), threads=True)

    @property
    def reads_ahead(self) -> bool:
        """Whether a thread may read; a transform of the user's is called by the thread that it was given in."""
        return self.decoder.transform is None

    def pixels(self, position: int) -> Any:
        """One image as the decoder gives it."""
        try:
            return self.decoder(self.images[position])
        except ImportError:
            raise
        except ArgumentError as error:
            raise ArgumentError(f"{self.where(position)}: {error}") from error
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
        return repr((*self.decoder.settings, parts)).encode("utf-8", "backslashreplace")

    def part(self, positions: np.ndarray) -> tuple[ImageSource, None]:
        some = positions.tolist()
        images = [self.images[p] for p in some]
        # Another process may have another working folder.
        images = [image.absolute() if isinstance(image, Path) else image for image in images]
        return ImageSource(images, [self.names[p] for p in some], self.decoder), None


def read_images(
    where: str | Path | Sequence[str | Path],
    decoder: Decoder,
    labels: Any,
    classes: Sequence[str] | None,
    on_error: OnError,
) -> Read:
    """The images under a folder in sorted order of their paths, or those of a list in its order.

    Hidden files and other kinds of file in a folder are left out.
    """
    by_word = isinstance(labels, str)
    if by_word and labels not in ("auto", "folders", "none"):
        raise ArgumentError(f'labels is "auto", "folders", "none", or one label for each image, not {labels!r}')
    paths, names, place = _listed(where)
    if by_word and classes is not None:
        raise ArgumentError("classes names the classes of labels= that are numbers; give labels too.")
    if not by_word and labels is not None and len(labels) != len(paths):
        raise RowError(f"labels: one for each of {len(paths)} images was expected, {len(labels)} were found.")
    faults = Faults(on_error)
    source = ImageSource(paths, names, decoder)
    readable = usable(source, faults)
    skipped = faults.close(place, len(readable))
    if len(readable):
        try:
            decoder.check(paths[readable[0]])
        except ArgumentError as error:
            raise ArgumentError(f"{paths[readable[0]]}: {error}") from error
    if not by_word:
        found = None if labels is None else np.asarray(labels)[readable]
        return Read(source, readable, readable, found, None if classes is None else tuple(classes), skipped)
    # The classes come from every image, so that one broken file does not renumber them.
    tops = _class_names(names, labels, paths, is_list=not isinstance(where, str | Path))
    known = tuple(sorted(set(tops))) if tops else None
    return Read(source, readable, readable, [tops[number] for number in readable] if tops else None, known, skipped)


def _listed(where: str | Path | Sequence[str | Path]) -> tuple[list[Path], list[str], str]:
    """The paths of images, their names, and what to call the place in an error."""
    if not isinstance(where, str | Path):
        paths = list(where)
        wrong = next((path for path in paths if not isinstance(path, str | Path)), None)
        if wrong is not None or not paths:
            found = f"the list holds {wrong!r:.60}" if paths else "the list is empty"
            raise ArgumentError(f"a folder of images or a list of their paths was expected; {found}.")
        return [Path(path) for path in paths], [str(path) for path in paths], f"list of {len(paths)} images"
    root = Path(where)
    if not root.is_dir():
        found = "a file is there; pass a list for single images" if root.exists() else "there is nothing of that name"
        raise SourceError(f"{root}: a folder of images was expected; {found}.")
    names = image_names(root)
    if not names:
        raise SourceError(f"{root}: no images there; files ending in {', '.join(SUFFIXES)} were looked for.")
    return [root / name for name in names], names, str(root)


def usable(source: ImageSource, faults: Faults) -> np.ndarray:
    """Positions of the images that can be read.

    To stop at a bad file, its header is checked now; decoding may still fail later. To skip bad files, each image is
    decoded now, since the rows must be known before they get ids.
    """
    readable = []
    for position in range(len(source)):
        try:
            if faults.on_error == "skip":
                source.decoder(source.images[position])
            else:
                _open(source.images[position]).close()
        except (ImportError, ArgumentError):
            raise
        except Exception as error:
            faults.add(f"{source.where(position)}: {_reason(error)}")
        else:
            readable.append(position)
    return np.array(readable, np.int64)


def decode(image: Path | bytes, height: int, width: int) -> np.ndarray:
    """An encoded image as (height, width, 3) uint8."""
    found: np.ndarray = Decoder((height, width))(image)
    return found


def opened_rgb(image: Path | bytes, size: int) -> Image:
    """An encoded image as RGB, upright, on white where transparent; a JPEG at a fraction of its size, if large."""
    with _open(image) as opened:
        opened.draft(None, (2 * size, 2 * size))
        return upright(opened)


def shaped(image: Image, height: int, width: int) -> np.ndarray:
    """An opened image as (height, width, 3) uint8: upright, on white where transparent, resized."""
    return np.array(upright(image, (height, width)))


def upright(image: Image, size: tuple[int, int] | None = None) -> Image:
    """An opened image as RGB, upright, on white where transparent, resized to (height, width)."""
    from PIL import Image, ImageOps

    turned = _rgb(ImageOps.exif_transpose(image))
    if size is None or turned.size == (size[1], size[0]):
        return turned
    return turned.resize((size[1], size[0]), Image.Resampling.BILINEAR)


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


def _class_names(names: list[str], labels: str, paths: list[Path], is_list: bool) -> list[str] | None:
    """The class of each image: its first sub-folder, in a list its folder. None if they are not sorted into folders."""
    if labels == "none" or (labels == "auto" and is_list):
        return None
    if is_list:
        return [path.absolute().parent.name for path in paths]
    loose = next((place for place, name in enumerate(names) if "/" not in name), None)
    if loose is None:
        return [name.split("/", 1)[0] for name in names]
    if labels == "auto":
        return None
    raise SourceError(f'{paths[loose]}: labels="folders" expects every image in the sub-folder of its class.')


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
