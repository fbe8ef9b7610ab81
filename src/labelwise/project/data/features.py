"""Features of all rows in a memory-mapped file, computed once, in batches. An interrupted computation continues.

`features/features.npy` has the output of the encoder (n, D), `features/ids.npy` the rows, and `features/scale.npy` the
mean and the scale that are applied when rows are read: each block of columns then has mean zero and the same total
variance, and a row has length 1 on average. `features/about.json` has the encoder, the fingerprint of the source, and
the rows that could not be read.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import SourceError, StoreError
from labelwise.io.encode_table import block_scale
from labelwise.io.files import write_bytes, write_text
from labelwise.pool import Pool
from labelwise.pool.source import content
from labelwise.project.data.encoders import Encoder
from labelwise.project.data.source import Data

OnProgress = Callable[[str, int, int], None]  # (text, rows done, rows in total); 0, 0: not counted
_FLUSH_SECONDS = 2.0  # of work lost at most when the process is killed


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

    def matches(self, other: FeatureInfo) -> bool:
        """Whether both describe the same rows and the same encoder."""
        first, second = (
            (one.encoder, one.width, tuple(one.blocks), one.fingerprint, one.rows) for one in (self, other)
        )
        return first == second


class FeatureSource:
    """Rows of the memory-mapped file, scaled when they are read."""

    kind = "features"

    def __init__(self, features_ND: np.ndarray, mean_D: np.ndarray, scale_D: np.ndarray, names: list[str]):
        self.features_ND = features_ND
        self.mean_D = mean_D
        self.scale_D = scale_D
        self.names = names

    def __len__(self) -> int:
        return len(self.features_ND)

    def inputs(self, positions: np.ndarray) -> Tensor:
        rows = np.asarray(self.features_ND[positions], np.float32)
        return torch.from_numpy((rows - self.mean_D) / self.scale_D)

    def name(self, position: int) -> str | None:
        return self.names[position]

    def sample(self, positions: np.ndarray) -> bytes:
        return content(np.asarray(self.features_ND[positions]))


def compute(folder: Path, data: Data, encoder: Encoder, fingerprint: str, on_progress: OnProgress) -> FeatureInfo:
    """Compute the features of every row into `folder`, or the part that is missing.

    Args:
        folder: the folder `features` of the project.
        data: the rows.
        encoder: turns rows into features.
        fingerprint: of the source; other features in the folder are discarded.
        on_progress: called with a text, the rows done and the rows in total.

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
    info = _encode_rows(folder, data, encoder, info, on_progress)
    if len(info.broken) == len(data):
        _clear(folder)
        raise SourceError(f"none of the {len(data)} rows can be read. The first: {info.broken[0][1]}.")
    if not (folder / "scale.npy").is_file():
        on_progress("scaling the features", 0, 0)
        good = np.setdiff1d(np.arange(len(data)), np.searchsorted(data.ids, [row for row, _ in info.broken]))
        _save(folder / "ids.npy", data.ids)
        _save(folder / "scale.npy", block_scale(_mapped(folder), good, info.blocks))
    return info


def _clear(folder: Path) -> None:
    for old in ("about.json", "scale.npy", "ids.npy", "features.npy"):
        (folder / old).unlink(missing_ok=True)


def read_feature_info(folder: Path) -> FeatureInfo:
    """The `about.json` of a features folder. StoreError if it cannot be read."""
    try:
        found = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        found["blocks"] = tuple(found["blocks"])
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
        features_ND, ids = _mapped(folder), np.load(folder / "ids.npy")
        mean_D, scale_D = np.load(folder / "scale.npy")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder}: the features cannot be read ({error}). Remove the folder; `labelwise resume` computes it again"
        ) from error
    if features_ND.shape != (info.rows, info.width) or len(ids) != info.rows or info.done != info.rows:
        raise StoreError(f"{folder}: the features are not complete. `labelwise resume` completes them")
    broken = {row for row, _ in info.broken}
    good = np.array([i for i, row in enumerate(ids.tolist()) if row not in broken], np.int64)
    source = FeatureSource(features_ND, mean_D, scale_D, [refs.get(row, f"row {row}") for row in ids.tolist()])
    return Pool(source, ids=ids[good], positions=good)


def _encode_rows(folder: Path, data: Data, encoder: Encoder, info: FeatureInfo, on_progress: OnProgress) -> FeatureInfo:
    """Encode the rows from `info.done` on, in the same batches as without an interruption."""
    features_ND = _mapped(folder, "r+")
    done, broken, flushed = info.done, list(info.broken), time.monotonic()
    try:
        while done < len(data):
            on_progress(f"computing features ({encoder.name})", done, len(data))
            positions = range(done, min(done + encoder.batch, len(data)))
            rows = data.take(positions, encoder.size)
            good = [i for i, row in enumerate(rows) if not isinstance(row, SourceError)]
            if good:
                features_ND[done + np.array(good)] = _checked(encoder, [rows[i] for i in good])
            broken += [
                (int(data.ids[positions[i]]), str(row)) for i, row in enumerate(rows) if isinstance(row, SourceError)
            ]
            done = positions.stop
            if time.monotonic() - flushed > _FLUSH_SECONDS or done == len(data):
                features_ND.flush()
                info = replace(info, done=done, broken=tuple(broken))
                _write(folder, info)
                flushed = time.monotonic()
    finally:
        del features_ND
    return info


def _checked(encoder: Encoder, rows: list[Any]) -> np.ndarray:
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
    write_text(folder / "about.json", json.dumps(asdict(info), indent=1, ensure_ascii=True) + "\n")


def _save(path: Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_bytes(path, buffer.getvalue())
