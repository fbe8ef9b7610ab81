"""The file of a shard's state in a journal, with its checksum: a damaged one is refused."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from labelwise.errors import StoreError
from labelwise.io.files import atomic_file
from labelwise.shards.checkpoint.log import checksum_of
from labelwise.shards.shard import Shard


def save(folder: Path, generation: int, shard: Shard) -> tuple[str, int]:
    """Write the state of a shard. Returns the shard's name in the journal and the checksum of the file."""
    path = _path(folder, generation, shard)
    try:
        # The temporary file has a name of its own: a worker that was given up may still be writing.
        with atomic_file(path) as file:
            checked = _Checked(file)
            try:
                torch.save(shard.snapshot(), cast(IO[bytes], checked))  # of a file torch asks for `write` alone
            except RuntimeError as error:  # torch has an error of its own where a file takes no more
                raise checked.error or OSError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error})") from error
    return _name(shard), checked.sum


def restore(folder: Path, generation: int, sums: Mapping[str, Any], shard: Shard) -> None:
    """Continue from a saved state."""
    path = _path(folder, generation, shard)
    remedy = f"remove {folder} and start the selection again"
    if not path.exists():
        raise StoreError(f"{path} is missing; {remedy}")
    try:
        with open(path, "rb") as file:
            whole = checksum_of(file, path.stat().st_size) == sums.get(_name(shard))
        stored = torch.load(path, map_location=shard.device, weights_only=False) if whole else None
    except Exception as error:  # a damaged pickle may raise anything
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
    if stored is None:
        raise StoreError(f"{path} is damaged: its checksum is not the expected one; {remedy}")
    shard.restore(stored)


def _path(folder: Path, generation: int, shard: Shard) -> Path:
    return folder / f"state-{generation}-{_name(shard)}.pt"


def _name(shard: Shard) -> str:
    return str(int(shard.ids[0]))


class _Checked:
    """A file with the checksum of what was written, and the error of a write."""

    def __init__(self, file: BinaryIO):
        self._file, self.sum = file, 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.sum = zlib.crc32(data, self.sum)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()
