"""Features of all rows in a mapped file, computed once, some rows at a time; broken off, it goes on where it stopped.

`features/features.npy` holds what the encoder said (n, D), `features/ids.npy` the rows, `features/scale.npy` what is
taken off and divided by when rows are read: each block of columns has mean zero and the same total variance, and a
row has the length 1 on average. `features/about.json` says by which encoder, from which source, and which rows could
not be read.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
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

Say = Callable[[str, int, int], None]  # what is going on, how many rows are done, of how many (0, 0: no count)
_KEEP = 2.0  # seconds of work that a kill may cost


@dataclass(frozen=True)
class About:
    """What the features are of and by."""

    encoder: str
    better: str
    width: int
    blocks: tuple[int, ...]
    fingerprint: str
    rows: int
    done: int = 0
    broken: tuple[tuple[int, str], ...] = ()  # (row id, why)

    def matches(self, other: About) -> bool:
        """Whether both are of the same rows by the same encoder."""
        mine, its = ((one.encoder, one.width, tuple(one.blocks), one.fingerprint, one.rows) for one in (self, other))
        return mine == its


class FeatureSource:
    """Rows of the mapped file, scaled as they are read."""

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


def compute(folder: Path, data: Data, encoder: Encoder, fingerprint: str, say: Say) -> About:
    """Features of every row of `data` into `folder`, or what is missing of them."""
    folder.mkdir(parents=True, exist_ok=True)
    about = About(encoder.name, encoder.better, encoder.width, tuple(encoder.blocks), fingerprint, len(data))
    before = read_about(folder) if (folder / "about.json").is_file() else None
    if before is not None and before.matches(about) and (folder / "features.npy").is_file():
        about = before
    else:
        _clear(folder)
        np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (len(data), encoder.width)).flush()
        _write(folder, about)
    about = _sweep(folder, data, encoder, about, say)
    if len(about.broken) == len(data):
        _clear(folder)
        raise SourceError(f"none of the {len(data)} rows can be read. The first: {about.broken[0][1]}.")
    if not (folder / "scale.npy").is_file():
        say("scaling the features", 0, 0)
        good = np.setdiff1d(np.arange(len(data)), np.searchsorted(data.ids, [row for row, _ in about.broken]))
        _save(folder / "ids.npy", data.ids)
        _save(folder / "scale.npy", block_scale(_mapped(folder), good, about.blocks))
    return about


def _clear(folder: Path) -> None:
    for old in ("about.json", "scale.npy", "ids.npy", "features.npy"):
        (folder / old).unlink(missing_ok=True)


def read_about(folder: Path) -> About:
    """What `compute` wrote."""
    try:
        found = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        found["blocks"] = tuple(found["blocks"])
        found["broken"] = tuple((int(row), str(why)) for row, why in found["broken"])
        return About(**found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{folder / 'about.json'} cannot be read ({error}); remove {folder}: `labelwise resume` makes it again"
        ) from error


def pool_of(folder: Path, refs: dict[int, str]) -> Pool:
    """The rows that could be read, as a pool of their features under their own ids."""
    about = read_about(folder)
    try:
        features_ND, ids = _mapped(folder), np.load(folder / "ids.npy")
        mean_D, scale_D = np.load(folder / "scale.npy")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder}: the features cannot be read ({error}); remove the folder: `labelwise resume` makes it again"
        ) from error
    if features_ND.shape != (about.rows, about.width) or len(ids) != about.rows or about.done != about.rows:
        raise StoreError(f"{folder}: the features are not complete; `labelwise resume` finishes them")
    broken = {row for row, _ in about.broken}
    good = np.array([place for place, row in enumerate(ids.tolist()) if row not in broken], np.int64)
    source = FeatureSource(features_ND, mean_D, scale_D, [refs.get(row, f"row {row}") for row in ids.tolist()])
    return Pool(source, ids=ids[good], positions=good)


def _sweep(folder: Path, data: Data, encoder: Encoder, about: About, say: Say) -> About:
    """Encode the rows from `about.done` on; batches begin where they always do, so that a stop changes nothing."""
    features_ND = _mapped(folder, "r+")
    done, broken, kept = about.done, list(about.broken), time.monotonic()
    try:
        while done < len(data):
            say(f"computing features ({encoder.name})", done, len(data))
            positions = range(done, min(done + encoder.batch, len(data)))
            rows = data.take(positions, encoder.size)
            good = [place for place, row in enumerate(rows) if not isinstance(row, SourceError)]
            if good:
                features_ND[done + np.array(good)] = _checked(encoder, [rows[place] for place in good])
            broken += [
                (int(data.ids[positions[p]]), str(row)) for p, row in enumerate(rows) if isinstance(row, SourceError)
            ]
            done = positions.stop
            if time.monotonic() - kept > _KEEP or done == len(data):
                features_ND.flush()
                about = About(**{**asdict(about), "done": done, "broken": tuple(broken)})
                _write(folder, about)
                kept = time.monotonic()
    finally:
        del features_ND
    return about


def _checked(encoder: Encoder, rows: list[Any]) -> np.ndarray:
    found = encoder.encode(rows)
    if found.shape != (len(rows), encoder.width) or not np.isfinite(found).all():
        raise SourceError(
            f"the encoder {encoder.name} gave {found.shape} with {int((~np.isfinite(found)).sum())} numbers that are "
            f"not finite; ({len(rows)}, {encoder.width}) finite ones were expected"
        )
    return found


def _mapped(folder: Path, mode: Literal["r", "r+"] = "r") -> np.memmap:
    return np.lib.format.open_memmap(folder / "features.npy", mode)


def _write(folder: Path, about: About) -> None:
    write_text(folder / "about.json", json.dumps(asdict(about), indent=1, ensure_ascii=True) + "\n")


def _save(path: Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_bytes(path, buffer.getvalue())
