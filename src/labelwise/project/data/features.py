"""Features of all rows in a memory-mapped file, computed once, in batches. An interrupted computation continues.

`features/features.npy` has the output of the encoder (n, D), `features/ids.npy` the rows, and `features/scale.npy` the
mean and the scale that are applied when rows are read: each block of columns then has mean zero and the same total
variance, and a row has length 1 on average. `features/about.json` has the encoder, the fingerprint of the source, the
rows that could not be read, and a checksum for each block of rows, which is compared when a row of it is first read.
"""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import SourceError, StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.io.encode_table import block_scale
from labelwise.io.files import DAMAGED, write_bytes
from labelwise.pool import Pool
from labelwise.pool.ahead import ahead
from labelwise.pool.source import content
from labelwise.project.data.encoders import Encoder
from labelwise.project.data.source import Data

OnProgress = Callable[[str, int, int], None]  # (text, rows done, rows in total); 0, 0: not counted
FLUSH_SECONDS = 2.0  # of work lost at most when the process is killed
_BLOCK_BYTES = 1 << 18
_REMEDY = "remove the folder; `labelwise resume` computes it again, or the same command if it is no project"


@dataclass(frozen=True)
class FeatureInfo:
    """Where the features come from: the encoder, the source, and how far the computation is."""

    encoder: str
    better: str
    width: int
    blocks: tuple[int, ...]
    fingerprint: str
    rows: int
    done: int = 0
    broken: tuple[tuple[int, str], ...] = ()  # (row id, reason)
    sums: tuple[int, ...] = ()  # CRC-32 of ids.npy, scale.npy, the header of features.npy, and each block of its rows

    def matches(self, other: FeatureInfo) -> bool:
        """Whether both describe the same rows and the same encoder."""
        first, second = (
            (one.encoder, one.width, tuple(one.blocks), one.fingerprint, one.rows) for one in (self, other)
        )
        return first == second


class FeatureSource:
    """Rows of the memory-mapped file, scaled when they are read."""

    kind = "features"

    def __init__(
        self, features_ND: np.ndarray, mean_D: np.ndarray, scale_D: np.ndarray, names: list[str], blocks: Blocks
    ):
        self.features_ND = features_ND
        self.mean_D = mean_D
        self.scale_D = scale_D
        self.names = names
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self.features_ND)

    def inputs(self, positions: np.ndarray) -> Tensor:
        self._blocks.check(positions)
        rows = np.asarray(self.features_ND[positions], np.float32)
        return torch.from_numpy((rows - self.mean_D) / self.scale_D)

    def name(self, position: int) -> str | None:
        return self.names[position]

    def sample(self, positions: np.ndarray) -> bytes:
        self._blocks.check(positions)
        return content(np.asarray(self.features_ND[positions]))


class Blocks:
    """Blocks of rows of `features.npy`, each compared with its checksum when a row of it is first read."""

    def __init__(self, path: Path, features_ND: np.ndarray, sums: Sequence[int]):
        self._path, self._features_ND, self._sums = path, features_ND, sums
        self._rows = _block_rows(features_ND.shape[1])
        self._checked = np.zeros(len(sums), bool)  # none in features of an early version

    def check(self, positions: Any) -> None:
        """Raise StoreError if a block with one of these rows was changed."""
        if not len(self._sums):
            return
        for block in np.unique(np.asarray(positions, np.int64) // self._rows).tolist():
            if not self._checked[block]:
                first = block * self._rows
                if _crc(self._features_ND[first : first + self._rows]) != self._sums[block]:
                    raise StoreError(
                        f"{self._path}: its rows from {first} on were changed after they were written; {_REMEDY}"
                    )
                self._checked[block] = True

    def check_all(self) -> None:
        """Check every block."""
        self.check(np.arange(len(self._features_ND)))


def _crc(rows_BD: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(rows_BD).data)


def _block_rows(width: int) -> int:
    return max(1, _BLOCK_BYTES // (4 * max(width, 1)))


def seal(folder: Path) -> FeatureInfo:
    """Write the checksums of complete features that have none, of an early version. Returns their description."""
    info = read_feature_info(folder)
    if info.sums or info.done != info.rows or not (folder / "scale.npy").is_file():
        return info
    info = replace(info, sums=_sums(folder, info.width))
    _write(folder, info)
    return info


def _sums(folder: Path, width: int) -> tuple[int, ...]:
    features_ND, rows = _mapped(folder), _block_rows(width)
    firsts = range(0, len(features_ND), rows)
    blocks = [_crc(features_ND[first : first + rows]) for first in firsts]
    own = [zlib.crc32((folder / name).read_bytes()) for name in ("ids.npy", "scale.npy")]
    return (*own, zlib.crc32(_header(folder)), *blocks)


def _header(folder: Path) -> bytes:
    with open(folder / "features.npy", "rb") as file:
        return file.read(_mapped(folder).offset)


def compute(
    folder: Path,
    data: Data,
    encoder: Encoder,
    fingerprint: str,
    on_progress: OnProgress,
    flush_seconds: float = FLUSH_SECONDS,
) -> FeatureInfo:
    """Compute the features of every row into `folder`, or the part that is missing.

    Args:
        folder: the folder `features` of the project.
        data: the rows.
        encoder: turns rows into features.
        fingerprint: of the source; other features in the folder are discarded.
        on_progress: called with a text, the rows done and the rows in total.
        flush_seconds: of work that is lost at most when the process is killed.

    Raises:
        SourceError: no row can be read, or the encoder returns something unexpected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = FeatureInfo(encoder.name, encoder.better, encoder.width, tuple(encoder.blocks), fingerprint, len(data))
    before = read_feature_info(folder) if (folder / "about.json").is_file() else None
    if before is not None and before.matches(info) and (folder / "features.npy").is_file():
        info = before
    else:
        _clear(folder)
        np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (len(data), encoder.width)).flush()
        _write(folder, info)
    info = _encode_rows(folder, data, encoder, info, on_progress, flush_seconds)
    if len(info.broken) == len(data):
        _clear(folder)
        raise SourceError(f"none of the {len(data)} rows can be read. The first: {info.broken[0][1]}.")
    if not (folder / "scale.npy").is_file():
        on_progress("scaling the features", 0, 0)
        good = np.setdiff1d(np.arange(len(data)), np.searchsorted(data.ids, [row for row, _ in info.broken]))
        _save(folder / "ids.npy", data.ids)
        _save(folder / "scale.npy", block_scale(_mapped(folder), good, info.blocks))
    return seal(folder)


def _clear(folder: Path) -> None:
    for old in ("about.json", "scale.npy", "ids.npy", "features.npy"):
        (folder / old).unlink(missing_ok=True)


def read_feature_info(folder: Path) -> FeatureInfo:
    """The `about.json` of a features folder. StoreError if it cannot be read."""
    try:
        found = read_checked(folder / "about.json", _REMEDY, early=None)
        found["blocks"], found["sums"] = tuple(found["blocks"]), tuple(found.get("sums", ()))
        found["broken"] = tuple((int(row), str(why)) for row, why in found["broken"])
        return FeatureInfo(**found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{folder / 'about.json'} cannot be read ({error}). Remove {folder}; `labelwise resume` computes it again"
        ) from error


def pool_of(folder: Path, refs: dict[int, str]) -> Pool:
    """A pool of the features of all readable rows, under their own ids. `refs` gives their names."""
    info = read_feature_info(folder)
    try:
        features_ND, ids = _mapped(folder), _load(folder, "ids.npy", info)
        mean_D, scale_D = read_scale(folder)
        if info.sums and zlib.crc32(_header(folder)) != info.sums[2]:
            raise StoreError(f"{folder / 'features.npy'} was changed after it was written; {_REMEDY}")
    except (OSError, ValueError, SyntaxError, TypeError, EOFError) as error:
        raise StoreError(f"{folder}: the features cannot be read ({error}); {_REMEDY}") from error
    if features_ND.shape != (info.rows, info.width) or len(ids) != info.rows or info.done != info.rows:
        raise StoreError(f"{folder}: the features are not complete. `labelwise resume` completes them")
    broken = {row for row, _ in info.broken}
    good = np.array([i for i, row in enumerate(ids.tolist()) if row not in broken], np.int64)
    names = [refs.get(row, f"row {row}") for row in ids.tolist()]
    blocks = Blocks(folder / "features.npy", features_ND, info.sums[3:])
    source = FeatureSource(features_ND, mean_D, scale_D, names, blocks)
    return Pool(source, ids=ids[good], positions=good)


def pool_of_width(ids: np.ndarray, width: int) -> Pool:
    """A pool of the size that features of these rows will have, all of them zero."""
    zeros_ND = np.broadcast_to(np.zeros((1, width), np.float32), (len(ids), width))
    source = FeatureSource(zeros_ND, zeros_ND[0], zeros_ND[0] + 1, [""] * len(ids), Blocks(Path(), zeros_ND, ()))
    return Pool(source, ids=ids)


def check(folder: Path) -> None:
    """Raise StoreError if one of the features was changed, or cannot be read."""
    info = read_feature_info(folder)
    pool_of(folder, {})
    Blocks(folder / "features.npy", _mapped(folder), info.sums[3:]).check_all()


def read_scale(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from the output of the encoder (D,), and what it is divided by (D,)."""
    mean_D, scale_D = _load(folder, "scale.npy", read_feature_info(folder))
    return mean_D, scale_D


def _load(folder: Path, name: Literal["ids.npy", "scale.npy"], info: FeatureInfo) -> np.ndarray:
    data = (folder / name).read_bytes()
    if info.sums and zlib.crc32(data) != info.sums[name == "scale.npy"]:
        raise StoreError(f"{folder / name} was changed after it was written; {_REMEDY}")
    try:
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except DAMAGED as error:
        raise StoreError(f"{folder / name} cannot be read ({error}); {_REMEDY}") from error


def _encode_rows(
    folder: Path, data: Data, encoder: Encoder, info: FeatureInfo, on_progress: OnProgress, flush_seconds: float
) -> FeatureInfo:
    """Encode the rows from `info.done` on, in the same batches as without an interruption.

    A thread decodes the next batch while one is encoded.
    """
    features_ND = _mapped(folder, "r+")
    done, broken, flushed = info.done, list(info.broken), time.monotonic()
    parts = [range(start, min(start + encoder.batch, len(data))) for start in range(done, len(data), encoder.batch)]
    try:
        on_progress(f"computing features ({encoder.name})", done, len(data))
        for positions, rows in zip(parts, ahead(lambda part: data.take(part, encoder.size), parts)):
            good = [i for i, row in enumerate(rows) if not isinstance(row, SourceError)]
            if good:
                features_ND[done + np.array(good)] = checked_features(encoder, [rows[i] for i in good])
            broken += [
                (int(data.ids[positions[i]]), str(row)) for i, row in enumerate(rows) if isinstance(row, SourceError)
            ]
            done = positions.stop
            on_progress(f"computing features ({encoder.name})", done, len(data))
            if time.monotonic() - flushed > flush_seconds or done == len(data):
                features_ND.flush()
                info = replace(info, done=done, broken=tuple(broken))
                _write(folder, info)
                flushed = time.monotonic()
    finally:
        del features_ND
    return info


def checked_features(encoder: Encoder, rows: list[Any]) -> np.ndarray:
    """The features of rows. SourceError if the encoder returns another shape, or a number that is not finite."""
    found = encoder.encode(rows)
    if found.shape != (len(rows), encoder.width) or not np.isfinite(found).all():
        raise SourceError(
            f"the encoder {encoder.name} returned {found.shape} with {int((~np.isfinite(found)).sum())} numbers that "
            f"are not finite; expected ({len(rows)}, {encoder.width}) finite numbers"
        )
    return found


def _mapped(folder: Path, mode: Literal["r", "r+"] = "r") -> np.memmap:
    return np.lib.format.open_memmap(folder / "features.npy", mode)


def _write(folder: Path, info: FeatureInfo) -> None:
    write_checked(folder / "about.json", asdict(info), indent=None if info.sums else 1)


def _save(path: Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_bytes(path, buffer.getvalue())
