"""Images for the page: decoded and re-encoded, never the bytes of a file. The last ones are cached."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

from labelwise.errors import SourceError, extra
from labelwise.pool.sources.images import opened_rgb
from labelwise.project.data.source import Images, broken

_CACHE_BYTES = 64 << 20
_LOSSLESS = 96  # pixels of a side up to which an image becomes a PNG


class Pictures:
    """The images of a project in the size the page needs. Safe to use from many threads."""

    def __init__(self, images: Images, positions: dict[int, int]):
        self._images = images
        self._positions = positions
        self._cache: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, row: int, size: int) -> bytes:
        """The image of `row` with at most `size` pixels a side, as PNG (small ones) or JPEG."""
        with self._lock:
            if (row, size) in self._cache:
                self._cache.move_to_end((row, size))
                return self._cache[row, size]
        made = self._encode(row, size)
        with self._lock:
            if (row, size) not in self._cache:
                self._cache[row, size] = made
                self._bytes += len(made)
            while self._bytes > _CACHE_BYTES and len(self._cache) > 1:
                self._bytes -= len(self._cache.popitem(last=False)[1])
        return made

    def _encode(self, row: int, size: int) -> bytes:
        if row not in self._positions:
            raise SourceError(f"row {row} is not an image of this project")
        if size < 1:
            raise SourceError(f"the size of an image is at least 1 pixel, found {size}")
        try:
            return encoded(self._images.at(self._positions[row]), size)
        except ImportError:
            raise
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self._images.refs[self._positions[row]]}: {broken(error)}") from error


def encoded(image: Path | bytes, size: int) -> bytes:
    """An image re-encoded: upright, at most `size` pixels a side, and without the metadata of the file."""
    try:
        from PIL import Image
    except ImportError:
        raise extra("PIL", "app") from None
    seen = opened_rgb(image, size)
    if max(seen.size) > size:
        seen.thumbnail((size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    if max(seen.size) <= _LOSSLESS:
        seen.save(out, "PNG")
    else:
        seen.save(out, "JPEG", quality=88)
    return out.getvalue()
