"""Pictures for the page: decoded and encoded anew, never the bytes of a file; the last ones are kept in memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

from labelwise.errors import SourceError, extra
from labelwise.pool.sources.images import opened_rgb
from labelwise.project.data.source import Images, broken

_KEPT = 64 << 20  # bytes of encoded pictures
_SMALL = 96  # pixels of a side up to which a picture is kept exact


class Pictures:
    """The images of a project in the size the page asks for. Safe to use from many threads."""

    def __init__(self, images: Images, places: dict[int, int]):
        self._images = images
        self._places = places
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, row: int, size: int) -> bytes:
        """The image of `row` with at most `size` pixels a side, as PNG (small ones) or JPEG."""
        with self._lock:
            if (row, size) in self._kept:
                self._kept.move_to_end((row, size))
                return self._kept[row, size]
        made = self._made(row, size)
        with self._lock:
            if (row, size) not in self._kept:
                self._kept[row, size] = made
                self._bytes += len(made)
            while self._bytes > _KEPT and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return made

    def _made(self, row: int, size: int) -> bytes:
        if row not in self._places:
            raise SourceError(f"row {row} is no image of this project")
        if size < 1:
            raise SourceError(f"a picture has at least one pixel, found size {size}")
        try:
            return encoded(self._images.at(self._places[row]), size)
        except ImportError:
            raise
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self._images.refs[self._places[row]]}: {broken(error)}") from error


def encoded(image: Path | bytes, size: int) -> bytes:
    """An encoded image again, upright, at most `size` pixels a side, with nothing of the file but its pixels."""
    try:
        from PIL import Image
    except ImportError:
        raise extra("PIL", "app") from None
    seen = opened_rgb(image, size)
    if max(seen.size) > size:
        seen.thumbnail((size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    if max(seen.size) <= _SMALL:
        seen.save(out, "PNG")
    else:
        seen.save(out, "JPEG", quality=88)
    return out.getvalue()
