"""Placement: a stream of rows, or whole arrays, become shards in memory, on an accelerator or in mapped files."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import StoreError
from labelwise.shards.devices import CPU, wait_for
from labelwise.shards.shard import Shard, Shards, shards_of
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Signal

RESERVED_PART = 4  # one of 4 free bytes is left to other users of the memory or disk


@dataclass(frozen=True)
class Placement:
    """Where rows are stored.

    Attributes:
        device: whose memory, unless `files` is set.
        files: whether in mapped files.
        block: bytes of the blocks they are read in; None means what suits the device.
        note: what notes["place"] of a selection says about it; "" for the CPU alone.
    """

    device: torch.device = CPU
    files: bool = False
    block: int | None = None
    note: str = ""


def place_by(
    policy: Callable[[Rows], Placement], stream: Callable[[], Iterable[Rows]], n: int, folder: Path | None = None
) -> tuple[Shards, Placement]:
    """Place a stream of rows where a policy says.

    Rows of the CPU's memory go to files too if there is a `folder` on a disk with space, because another process can
    map them. If an accelerator has too little memory after all (others use it too), the rows are read again and placed
    in the CPU's memory or in files.

    Args:
        policy: chooses the placement by the first rows of the stream.
        stream: starts the stream.
        n: the number of rows.
        folder: for the files; without one they have no name.

    Returns:
        The shards and their placement.
    """
    coming = iter(stream())
    first = list(itertools.islice(coming, 1))
    placement = policy(first[0]) if first else Placement()
    try:
        return _placed(itertools.chain(first, coming), n, _files_of(placement, folder, first, n), placement), placement
    except torch.cuda.OutOfMemoryError:
        if placement.device == CPU:
            raise
    # After the `except`, which holds what was placed so far.
    del coming
    placement = replace(policy(first[0].to(CPU)), note=f"selected on cpu: no room on {placement.device}")
    return _placed(stream(), n, _files_of(placement, folder, first, n), placement), placement


def _files_of(placement: Placement, folder: Path | None, first: list[Rows], n: int) -> Path | None:
    """The folder for the rows; None for memory."""
    if folder is None or placement.files or not first:
        return folder
    disk = next(one for one in (folder, *folder.parents) if one.exists())
    free, row = shutil.disk_usage(disk).free, sum(one[:1].nbytes for one in first[0].columns.values())
    # A mapped file on a full disk ends the process, so some space is left to others.
    return folder if placement.device == CPU and n * row <= free - free // RESERVED_PART else None


def _placed(stream: Iterable[Rows], n: int, folder: Path | None, placement: Placement) -> Shards:
    is_unnamed = placement.files and folder is None
    shards = place_unnamed(stream, n) if is_unnamed else place(stream, n, folder, placement.device)
    shards.map(lambda shard: apply_placement(shard, placement))
    return shards


def apply_placement(shard: Shard, placement: Placement) -> None:
    """Set a shard's blocks and its note as the placement says."""
    shard.block_bytes, shard.placement_note = placement.block, placement.note


def place(stream: Iterable[Rows], n: int, folder: Path | None = None, device: torch.device = CPU) -> Shards:
    """Shards from a stream of rows, in the memory of `device`, or in mapped files in `folder` if there is one.

    The columns are written batch by batch, so that the pool is never in memory twice. A batch that was computed on the
    device is copied inside it, and nothing waits for the host.

    Args:
        stream: the rows, in batches with the same columns.
        n: the number of rows.

    Raises:
        StoreError: the stream has another number of rows, or its columns change.
    """
    ids_N = torch.empty(n, dtype=torch.int64)
    columns: dict[Signal, Tensor] = {}
    start = 0
    for rows in stream:
        stop = start + len(rows)
        if stop > n:
            raise StoreError(f"expected {n} rows from the stream, found more; the pool changed while it was read")
        ids_N[start:stop] = rows.ids
        if start == 0:
            columns = {signal: _column(signal, n, values, folder, device) for signal, values in rows.columns.items()}
        _check_form(columns, rows)
        for signal, values in rows.columns.items():
            columns[signal][start:stop].copy_(values)
        start = stop
    if start != n:
        raise StoreError(f"expected {n} rows from the stream, found {start}; the pool changed while it was read")
    return shards_of(ids_N.to(device), columns)


def place_unnamed(stream: Iterable[Rows], n: int) -> Shards:
    """Shards in mapped files without a name, which are gone after their last use, even when the process is killed.

    They are among the temporary files (TMPDIR), which should be on a disk and not in memory.
    """
    with tempfile.TemporaryDirectory(prefix="labelwise-", ignore_cleanup_errors=True) as folder:
        return place(stream, n, Path(folder))


def _check_form(columns: Mapping[Signal, Tensor], rows: Rows) -> None:
    """Raise unless a batch has the columns of the first, with the same shapes."""
    expected = {signal: tuple(column.shape[1:]) for signal, column in columns.items()}
    found = {signal: tuple(values.shape[1:]) for signal, values in rows.columns.items()}
    if expected != found:
        raise StoreError(
            f"the rows changed their form while they were read: expected {expected} for each row, found {found} from "
            f"row id {int(rows.ids[0])} on"
        )


def column_file(folder: Path, signal: Signal) -> Path:
    """The file of the column of a signal."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", repr(signal).lower()).strip("-") + ".npy")


def _column(signal: Signal, n: int, first: Tensor, folder: Path | None, device: torch.device) -> Tensor:
    """An empty column for n rows shaped like those of `first`."""
    shape = (n, *first.shape[1:])
    if folder is None:
        return torch.empty(shape, dtype=first.dtype, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    path = column_file(folder, signal)
    # NumPy has no bfloat16; float32 stores its values exactly.
    first = first.float() if first.dtype == torch.bfloat16 else first
    dtype = first.new_empty(0, device="cpu").numpy().dtype
    return torch.from_numpy(np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape))


def placement_note(pool: Shards) -> str:
    """Where the rows were chosen from, for notes["place"], once all work on them is done; "" on the CPU alone."""
    return "; ".join(dict.fromkeys(note for note in pool.map(_finished_note) if note))


def _finished_note(shard: Shard) -> str:
    wait_for(shard.device)
    return shard.placement_note
