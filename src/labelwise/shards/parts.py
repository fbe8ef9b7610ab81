"""Parts of a pool that are made where they will live: by slicing arrays, or by reading the pool with a model."""

from __future__ import annotations

import functools
import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.pool import Pool
from labelwise.shards.place import Home, column_file, place_by
from labelwise.shards.shards import Shard
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
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

    Its columns go where `rule` says, asked in the process that makes it, files into `folder` if there is one. Made
    again after a loss, it maps the files that it had finished; `token` tells them from those of another model.

    The model travels as one of the CPU: there may be no accelerator where it arrives, or another one. It stays there
    unless the process was given a `gpu`: Ray lets a worker that was given none see them all.
    """

    reader: Reader | None
    pool: Pool
    ids: Tensor
    signals: tuple[Signal, ...]
    batch: int
    labelled: Labelled
    folder: Path | None
    rule: Callable[[Rows], Home] | None = None
    token: str = ""
    gpu: bool = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "reader": _packed(self.reader)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, reader=_unpacked(state["reader"]))

    def __call__(self) -> Shard:
        if self.folder is not None and self.token and _read(self.folder / MADE) == self.token:
            files = {signal: column_file(self.folder, signal) for signal in stored(self.signals)}
            return Shard(self.ids, {signal: _opened(file) for signal, file in files.items()})
        for model in _models(self.reader) if self.gpu else ():
            _to_device(model)
        asked = (self.reader, self.pool, self.ids, self.signals, self.batch, self.labelled)
        stream = functools.partial(read, *asked, device=None)
        placed, _ = place_by(self.rule or _in_memory, stream, len(self.ids), self.folder)
        if self.folder is not None and self.token:
            _finish(self.folder, self.token)
        (shard,) = placed.map(lambda one: one)
        return shard


def _in_memory(first: Rows) -> Home:
    return Home()


def _packed(reader: Reader | None) -> bytes | None:
    """A model as bytes that a process without its device can read."""
    if reader is None:
        return None
    from ray import cloudpickle  # a network may be of a class that no module holds

    stream = io.BytesIO()
    torch.save(reader, stream, pickle_module=cloudpickle)
    return stream.getvalue()


def _unpacked(packed: bytes | None) -> Reader | None:
    if packed is None:
        return None
    found: Reader = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=False)
    return found


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


def _models(reader: Any) -> Iterator[Any]:
    """The networks that a reader reads with."""
    yield getattr(reader, "model", None)
    for member in getattr(reader, "members", ()):
        yield from _models(member)


def _to_device(model: Any) -> None:
    """A model that came without a GPU goes to this process's GPU, if it was given one."""
    if isinstance(model, torch.nn.Module) and torch.cuda.is_available():
        model.to("cuda")
