"""Parts of a pool that are made where they will live: by slicing arrays, or by reading the pool with a model."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ModelError
from labelwise.io.files import sync_file, write_text
from labelwise.pool import Pool
from labelwise.pool.sources.arrays import Mapped
from labelwise.shards.devices import CPU, from_raw, raw
from labelwise.shards.placement import Placement, apply_placement, column_file, place_by
from labelwise.shards.ray.spill import own_folder
from labelwise.shards.shard import Shard
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features, LossJvp, Signal, stored

MADE = "made"  # the file that says that a part is whole


def split_rows(rows: int, parts: int, batch: int = 1) -> list[slice]:
    """So many rows in parts of about equal size, in order; cut only between batches, so there may be fewer parts.

    >>> [(part.start, part.stop) for part in split_rows(10, 2, batch=4)]
    [(0, 4), (4, 10)]
    """
    batches = -(-rows // batch)
    parts = max(1, min(parts, batches))
    cuts = [min(rows, batches * i // parts * batch) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


@dataclass(frozen=True)
class ArrayPart:
    """Makes a shard of some rows of arrays, which are views until it travels.

    It goes to an accelerator, `device`, if `policy`, called there, finds room for it.
    """

    ids: Tensor
    columns: tuple[tuple[Signal, Tensor | Mapped], ...]
    dtype: torch.dtype
    device: str = "cpu"
    policy: Callable[[Rows], Placement] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # By its bytes: torch would send all of the storage behind a view, and keep Ray from sharing them.
        columns = tuple((signal, one if isinstance(one, Mapped) else _sent(one)) for signal, one in self.columns)
        return {**self.__dict__, "ids": _sent(self.ids), "columns": columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        columns = ((signal, one if isinstance(one, Mapped) else from_raw(*one)) for signal, one in state["columns"])
        self.__dict__.update(state, ids=from_raw(*state["ids"]), columns=tuple(columns))

    def __call__(self) -> Shard:
        opened = {signal: one.open() if isinstance(one, Mapped) else one for signal, one in self.columns}
        if self.policy is None or self.device == "cpu":
            return Shard(self.ids, opened, self.dtype)
        first = Rows(self.ids[:1], {signal: one[:1].to(self.device) for signal, one in opened.items()})
        placement = self.policy(first)
        try:
            return self._placed(opened, placement)
        except torch.cuda.OutOfMemoryError:
            note = f"selected on cpu: no room on {placement.device}"
        # Out of the `except`, which holds what was placed so far.
        return self._placed(opened, replace(self.policy(first.to(CPU)), note=note))

    def _placed(self, columns: Mapping[Signal, Tensor], placement: Placement) -> Shard:
        moved = {signal: one.to(placement.device) for signal, one in columns.items()}  # nothing to the CPU: it is there
        shard = Shard(self.ids.to(placement.device), moved, self.dtype)
        apply_placement(shard, placement)
        return shard


def _sent(values: Tensor) -> tuple[np.ndarray, torch.dtype, tuple[int, ...]]:
    return raw(values), values.dtype, tuple(values.shape)


def array_parts(
    ids: Tensor,
    columns: Mapping[Signal, Tensor],
    files: Mapping[Signal, Mapped],
    dtype: torch.dtype,
    parts: int,
    device: str = "cpu",
    policy: Callable[[Rows], Placement] | None = None,
) -> list[ArrayPart]:
    """Makers of so many parts; columns in `files` travel by name."""
    made = []
    for where in split_rows(len(ids), parts):
        part = tuple(
            (signal, files[signal].rows(where) if signal in files else column[where])
            for signal, column in columns.items()
        )
        made.append(ArrayPart(ids[where], part, dtype, device, policy))
    return made


class PackedModel:
    """A model as bytes that a process without its device can read, here or in Ray's store."""

    def __init__(self, data: Any):
        self.data = data

    def unpacked(self) -> Reader:
        """The model, on the CPU."""
        data = self.data
        if not isinstance(data, bytes):
            import ray

            data = ray.get(data)
        found: Reader = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return found


class Luggage:
    """What all parts of one reading take with them: the model, packed once, and in Ray's store once."""

    def __init__(self) -> None:
        self._packed: PackedModel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_packed": None}  # a part that has arrived has its own

    def packed(self, reader: Reader | PackedModel | None) -> PackedModel | None:
        """The model as it travels."""
        if reader is None or isinstance(reader, PackedModel):
            return reader
        if self._packed is None:
            import ray

            data = _bytes(reader)
            self._packed = PackedModel(ray.put(data) if ray.is_initialized() else data)
        return self._packed


def _bytes(reader: Reader) -> bytes:
    from ray import cloudpickle  # a network may be of a class that no module holds

    stream = io.BytesIO()
    try:
        torch.save(reader, stream, pickle_module=cloudpickle)
    except Exception as error:  # whatever a part of the model says to being pickled
        raise ModelError(
            f"each worker gets a copy of the model by pickle, and this one cannot be pickled ({error}); take out what "
            "cannot travel (open files, locks, hooks that hold such), or select with engine=None"
        ) from error
    return stream.getvalue()


@dataclass(frozen=True)
class ReadPart:
    """Makes a shard by reading some rows of a pool with a copy of the model.

    Its columns go where `policy` says, called in the process that makes it. Those of the CPU are in files: in `folder`
    if there is one, else where temporary files go (`ray/spill.py`) if there is a `token`, which tells its files from
    those of another reading. Made again after a loss, on the same machine, it maps the files that it had finished.

    Sent elsewhere, it takes with it what its own rows need of the pool, see `Pool.to_read`. The model travels as one of
    the CPU: there may be no accelerator where it arrives, or another one. It stays there unless the process was given a
    `gpu`: Ray lets a worker that was given none see them all.
    """

    reader: Reader | PackedModel | None
    pool: Pool
    ids: Tensor
    signals: tuple[Signal, ...]
    batch: int
    labelled: Labelled
    folder: Path | None
    policy: Callable[[Rows], Placement] | None = None
    token: str = ""
    gpu: bool = True
    half: bool = False
    luggage: Luggage = field(default_factory=Luggage)

    def __getstate__(self) -> dict[str, Any]:
        wanted = stored(self.signals)
        looked_back = self.labelled.ids if any(isinstance(one, LossJvp) for one in wanted) else self.ids[:0]
        features = any(isinstance(one, Features) for one in wanted)
        pool = self.pool.to_read(torch.cat([self.ids, looked_back]), features)
        return {**self.__dict__, "reader": self.luggage.packed(self.reader), "pool": pool, "ids": len(self.ids)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, ids=state["pool"].ids[: state["ids"]])

    def __call__(self) -> Shard:
        wanted = stored(self.signals)
        folder = own_folder(self.token, MADE) if self.folder is None and self.token and wanted else self.folder
        placement = _made(folder, self.token)
        if folder is not None and placement is not None:
            shard = Shard(self.ids, {signal: _opened(column_file(folder, signal)) for signal in wanted})
            apply_placement(shard, placement)
            return shard
        placed, placement = place_by(self.policy or _in_memory, self._stream(), len(self.ids), folder)
        if folder is not None and self.token and folder.exists():
            _finish(folder, self.token, placement)
        (shard,) = placed.map(lambda one: one)
        return shard

    def _stream(self) -> Callable[[], Iterator[Rows]]:
        reader = self.reader.unpacked() if isinstance(self.reader, PackedModel) else self.reader
        for model in _models(reader) if self.gpu else ():
            _to_device(model)
        asked = (reader, self.pool, self.ids, self.signals, self.batch, self.labelled)
        return functools.partial(read, *asked, device=None, half=self.half)


def _in_memory(first: Rows) -> Placement:
    return Placement()


def _opened(file: Path) -> Tensor:
    return torch.from_numpy(np.lib.format.open_memmap(file, mode="r+"))


def _made(folder: Path | None, token: str) -> Placement | None:
    """How the part in a folder was placed, if all of it is there; one that a worker was lost with does not count."""
    if folder is None or not token or not (folder / MADE).exists():
        return None
    made = json.loads((folder / MADE).read_text())
    return Placement(files=True, block=made["block"], note=made["said"]) if made["token"] == token else None


def _finish(folder: Path, token: str, placement: Placement) -> None:
    """Note, once every column is on the disk, that the part is made."""
    for file in folder.glob("*.npy"):
        with open(file, "rb") as column:
            sync_file(column)
    write_text(folder / MADE, json.dumps({"token": token, "block": placement.block, "said": placement.note}))


def _models(reader: Any) -> Iterator[Any]:
    """The networks that a reader reads with."""
    yield getattr(reader, "model", None)
    for member in getattr(reader, "members", ()):
        yield from _models(member)


def _to_device(model: Any) -> None:
    """A model that came without a GPU goes to this process's GPU, if it was given one."""
    if isinstance(model, torch.nn.Module) and torch.cuda.is_available():
        model.to("cuda")
