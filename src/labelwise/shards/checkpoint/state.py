"""The file of a shard's state in a journal, with its checksum: a damaged one is refused."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from labelwise.errors import StoreError
from labelwise.io.files import atomic_file
from labelwise.io.values import read_value, write_value
from labelwise.shards.checkpoint.log import checksum_of
from labelwise.shards.shard import Shard


def save(folder: Path, generation: int, shard: Shard) -> tuple[str, int]:
    """Write the state of a shard. Returns the shard's name in the journal and the checksum of the file."""
    path = _path(folder, generation, shard)
    try:
        # The temporary file has a name of its own: a worker that was given up may still be writing.
        with atomic_file(path) as file:
            checked = _Checked(file)
            write_value(shard.snapshot(), checked.write)
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
            size = path.stat().st_size
            if checksum_of(file, size) != sums.get(_name(shard)):
                raise StoreError("its checksum is not the expected one")
            file.seek(0)
            stored = read_value(file, size, shard.device)
        shard.restore(stored)
    except (OSError, StoreError) as error:
        raise StoreError(f"{path} is damaged: {error}; {remedy}") from error


def _path(folder: Path, generation: int, shard: Shard) -> Path:
    return folder / f"state-{generation}-{_name(shard)}.bin"


def _name(shard: Shard) -> str:
    return str(int(shard.ids[0]))


class _Checked:
    """A file with the checksum of what was written."""

    def __init__(self, file: BinaryIO):
        self._file, self.sum = file, 0

    def write(self, data: Any) -> None:
        self.sum = zlib.crc32(data, self.sum)
        self._file.write(data)
