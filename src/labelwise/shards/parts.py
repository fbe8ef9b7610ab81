"""Parts of a pool that are made where they will live: by slicing arrays, or by reading the pool with a model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.pool import Pool
from labelwise.shards.place import column_file, place, place_aside
from labelwise.shards.shards import Shard
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.spec import Signal, stored

MADE = "made"  # the file that says that a part is whole


@dataclass(frozen=True)
class Mapped:
    """Rows start..stop of an array in a file: what travels is its name, not its numbers."""

    path: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    start: int
    stop: int

    def open(self) -> Tensor:
        """The rows, mapped."""
        whole = np.memmap(self.path, self.dtype, "c", self.offset, self.shape)  # "c": torch wants writable memory
        return torch.from_numpy(whole[self.start : self.stop])


def mapped_file(array: Any) -> np.memmap | None:
    """The array, if it is a whole mapped file in row order that another process can open by name."""
    whole = isinstance(array, np.memmap) and array.filename is not None and array.flags.c_contiguous
    # A view of a mapped array keeps the offset of the whole: its own rows may start elsewhere.
    if not whole or not isinstance(array.base, type(array._mmap)) or not Path(str(array.filename)).is_file():
        return None
    return array


def edges(rows: int, parts: int) -> list[slice]:
    """So many rows in parts of about equal size, in order."""
    cuts = [rows * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


@dataclass(frozen=True)
class ArrayPart:
    """Makes a shard of some rows of arrays."""

    ids: Tensor
    columns: tuple[tuple[Signal, Tensor | Mapped], ...]
    dtype: torch.dtype
    device: str

    def __call__(self) -> Shard:
        opened = {signal: one.open() if isinstance(one, Mapped) else one for signal, one in self.columns}
        where = torch.device(self.device)
        if where.type == "cpu":
            return Shard(self.ids, opened, self.dtype)
        return Shard(self.ids.to(where), {signal: one.to(where) for signal, one in opened.items()}, self.dtype)


def array_parts(
    ids: Tensor,
    columns: Mapping[Signal, Tensor],
    files: Mapping[Signal, np.memmap],
    dtype: torch.dtype,
    parts: int,
    device: str = "cpu",
) -> list[ArrayPart]:
    """Makers of so many parts; columns in `files` travel by name."""
    made = []
    for where in edges(len(ids), parts):
        part: list[tuple[Signal, Tensor | Mapped]] = []
        for signal, column in columns.items():
            file = files.get(signal)
            # A slice would travel with the whole storage behind it: cloned.
            part.append((signal, column[where].cpu().clone() if file is None else _mapped(file, where)))
        made.append(ArrayPart(ids[where].cpu().clone(), tuple(part), dtype, device))
    return made


def _mapped(file: np.memmap, where: slice) -> Mapped:
    path = str(Path(str(file.filename)).resolve())
    return Mapped(path, file.dtype.str, file.offset, tuple(file.shape), where.start, where.stop)


@dataclass(frozen=True)
class ReadPart:
    """Makes a shard by reading some rows of a pool with a copy of the model.

    Its columns are in mapped files in `folder`, in temporary ones if `aside`, else in memory. Made again after a loss,
    it maps the files that it had finished; `token` tells them from those of another model.
    """

    reader: Reader | None
    pool: Pool
    ids: Tensor
    signals: tuple[Signal, ...]
    batch: int
    labelled: Labelled
    folder: Path | None
    aside: bool = False
    token: str = ""

    def __call__(self) -> Shard:
        if self.folder is not None and self.token and _read(self.folder / MADE) == self.token:
            files = {signal: column_file(self.folder, signal) for signal in stored(self.signals)}
            return Shard(self.ids, {signal: _opened(file) for signal, file in files.items()})
        _to_device(getattr(self.reader, "model", None))
        stream = read(self.reader, self.pool, self.ids, self.signals, self.batch, self.labelled)
        if self.aside and self.folder is None:
            placed = place_aside(stream, len(self.ids))
        else:
            placed = place(stream, len(self.ids), self.folder)
            if self.folder is not None and self.token:
                _finish(self.folder, self.token)
        (shard,) = placed.map(lambda one: one)
        return shard


def _opened(file: Path) -> Tensor:
    return torch.from_numpy(np.lib.format.open_memmap(file, mode="r+"))


def _read(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def _finish(folder: Path, token: str) -> None:
    """Note, once every column is on the disk, that the part is made."""
    for file in folder.glob("*.npy"):
        with open(file, "rb") as column:
            os.fsync(column.fileno())
    folder.mkdir(parents=True, exist_ok=True)  # there is none yet where no column was asked for
    fresh = folder / f"{MADE}.new"
    fresh.write_text(token)
    os.replace(fresh, folder / MADE)


def _to_device(model: Any) -> None:
    """A model that came without a GPU goes to this process's GPU, if it was given one."""
    if isinstance(model, torch.nn.Module) and torch.cuda.is_available():
        model.to("cuda")
