"""IDX files, plain or gzipped: the format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from labelwise.errors import SourceError

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
