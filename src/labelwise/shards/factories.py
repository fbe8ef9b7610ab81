"""Factories of shards, which run where the shard will live: from arrays, or by reading the pool with a model."""

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
from labelwise.io.values import from_raw, raw
from labelwise.pool import Pool
from labelwise.pool.sources.arrays import Mapped
from labelwise.shards.devices import CPU
from labelwise.shards.placement import Placement, apply_placement, column_file, place_by
from labelwise.shards.ray.spill import claim_folder
from labelwise.shards.shard import Shard
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features, LossJvp, Signal, stored

MADE = "made"  # the file that marks a folder of columns as complete


def split_rows(rows: int, parts: int, batch: int = 1) -> list[slice]:
    """Split rows into parts of about equal size, in order. A batch is never split, so there may be fewer parts.

    >>> [(part.start, part.stop) for part in split_rows(10, 2, batch=4)]
    [(0, 4), (4, 10)]
    """
    batches = -(-rows // batch)
    parts = max(1, min(parts, batches))
    cuts = [min(rows, batches * i // parts * batch) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


@dataclass(frozen=True)
class ArrayPart:
    """Makes a shard of some rows of arrays. They are views until it is sent to another process.

    The shard goes to the accelerator `device` if `policy`, called there, finds space for it.
    """

    ids: Tensor
    columns: tuple[tuple[Signal, Tensor | Mapped], ...]
    dtype: torch.dtype
    device: str = "cpu"
    policy: Callable[[Rows], Placement] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # As bytes: torch would send the whole storage behind a view, and Ray could not share it.
        columns = tuple((signal, one if isinstance(one, Mapped) else _as_bytes(one)) for signal, one in self.columns)
        return {**self.__dict__, "ids": _as_bytes(self.ids), "columns": columns}

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
        # After the `except`, which holds what was placed so far.
        return self._placed(opened, replace(self.policy(first.to(CPU)), note=note))

    def _placed(self, columns: Mapping[Signal, Tensor], placement: Placement) -> Shard:
        moved = {signal: one.to(placement.device) for signal, one in columns.items()}  # no copy on the CPU
        shard = Shard(self.ids.to(placement.device), moved, self.dtype)
        apply_placement(shard, placement)
        return shard


def _as_bytes(values: Tensor) -> tuple[np.ndarray, torch.dtype, tuple[int, ...]]:
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
    """Factories of `parts` shards. Columns in `files` are sent by the name of their file."""
    made = []
    for where in split_rows(len(ids), parts):
        part = tuple(
            (signal, files[signal].rows(where) if signal in files else column[where])
            for signal, column in columns.items()
        )
        made.append(ArrayPart(ids[where], part, dtype, device, policy))
    return made


class SerializedModel:
    """A model as bytes that a process without its device can read; the bytes may be in Ray's store."""

    def __init__(self, data: Any):
        self.data = data

    def load(self) -> Reader:
        """The model, on the CPU."""
        data = self.data
        if not isinstance(data, bytes):
            import ray

            data = ray.get(data)
        found: Reader = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return found


class ModelCache:
    """Serializes the model that the parts of one reading share, once, and puts it into Ray's store once."""

    def __init__(self) -> None:
        self._model: SerializedModel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_model": None}  # a part in another process has a model of its own

    def serialize(self, reader: Reader | SerializedModel | None) -> SerializedModel | None:
        """The model as it is sent to another process."""
        if reader is None or isinstance(reader, SerializedModel):
            return reader
        if self._model is None:
            import ray

            data = _to_bytes(reader)
            self._model = SerializedModel(ray.put(data) if ray.is_initialized() else data)
        return self._model


def _to_bytes(reader: Reader) -> bytes:
    from ray import cloudpickle  # the class of a network may be in no module

    stream = io.BytesIO()
    try:
        torch.save(reader, stream, pickle_module=cloudpickle)
    except Exception as error:  # a part of the model may raise anything
        raise ModelError(
            f"each worker gets a copy of the model by pickle, and this one cannot be pickled ({error}); take out what "
            "cannot travel (open files, locks, hooks that hold such), or select with engine=None"
        ) from error
    return stream.getvalue()


@dataclass(frozen=True)
class ReadPart:
    """Makes a shard by reading some rows of a pool with a copy of the model.

    `policy`, called in the process that makes the shard, decides where its columns go. Those of the CPU are in files:
    in `folder` if there is one, else among the temporary files (`ray/spill.py`) if there is a `token`, which tells them
    from those of another reading. Restarted after a loss on the same machine, it maps the files that were complete.

    It is sent to another process with the part of the pool that its own rows need, see `Pool.to_read`. The model is
    sent as one of the CPU: the other process may have no accelerator, or another one. It stays there unless the process
    was given a `gpu`: Ray lets a worker without one see them all.
    """

    reader: Reader | SerializedModel | None
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
    cache: ModelCache = field(default_factory=ModelCache)

    def __getstate__(self) -> dict[str, Any]:
        wanted = stored(self.signals)
        labelled = self.labelled.ids if any(isinstance(one, LossJvp) for one in wanted) else self.ids[:0]
        features = any(isinstance(one, Features) for one in wanted)
        pool = self.pool.to_read(torch.cat([self.ids, labelled]), features)
        return {**self.__dict__, "reader": self.cache.serialize(self.reader), "pool": pool, "ids": len(self.ids)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, ids=state["pool"].ids[: state["ids"]])

    def __call__(self) -> Shard:
        wanted = stored(self.signals)
        folder = claim_folder(self.token, MADE) if self.folder is None and self.token and wanted else self.folder
        placement = _read_placement(folder, self.token)
        if folder is not None and placement is not None:
            shard = Shard(self.ids, {signal: _opened(column_file(folder, signal)) for signal in wanted})
            apply_placement(shard, placement)
            return shard
        placed, placement = place_by(self.policy or _in_memory, self._stream(), len(self.ids), folder)
        if folder is not None and self.token and folder.exists():
            _mark_complete(folder, self.token, placement)
        (shard,) = placed.map(lambda one: one)
        return shard

    def _stream(self) -> Callable[[], Iterator[Rows]]:
        reader = self.reader.load() if isinstance(self.reader, SerializedModel) else self.reader
        for model in _models(reader) if self.gpu else ():
            _to_device(model)
        arguments = (reader, self.pool, self.ids, self.signals, self.batch, self.labelled)
        return functools.partial(read, *arguments, device=None, half=self.half)


def _in_memory(first: Rows) -> Placement:
    return Placement()


def _opened(file: Path) -> Tensor:
    return torch.from_numpy(np.lib.format.open_memmap(file, mode="r+"))


def _read_placement(folder: Path | None, token: str) -> Placement | None:
    """The placement of the part in a folder; None if it is not complete."""
    if folder is None or not token or not (folder / MADE).exists():
        return None
    made = json.loads((folder / MADE).read_text())
    return Placement(files=True, block=made["block"], note=made["note"]) if made["token"] == token else None


def _mark_complete(folder: Path, token: str, placement: Placement) -> None:
    """Put every column on disk, then mark the part as complete."""
    for file in folder.glob("*.npy"):
        with open(file, "rb") as column:
            sync_file(column)
    write_text(folder / MADE, json.dumps({"token": token, "block": placement.block, "note": placement.note}))


def _models(reader: Any) -> Iterator[Any]:
    """The networks of a reader."""
    yield getattr(reader, "model", None)
    for member in getattr(reader, "members", ()):
        yield from _models(member)


def _to_device(model: Any) -> None:
    """Move a model to the GPU of this process, if it has one."""
    if isinstance(model, torch.nn.Module) and torch.cuda.is_available():
        model.to("cuda")
