"""Embeddings: features that come from a file, one vector for each row of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import SourceError, extra
from labelwise.io.files import DAMAGED
from labelwise.project.data.encoders import EMBEDDINGS, Encoder, encoder_of
from labelwise.project.data.source import Data
from labelwise.project.settings import Kind

ENDINGS = (".npy", ".parquet", ".pq")


@dataclass(frozen=True)
class Positions:
    """The rows of `data`, of which an encoder sees only where they are."""

    data: Data

    @property
    def ids(self) -> np.ndarray:
        return self.data.ids

    @property
    def refs(self) -> list[str]:
        return self.data.refs

    @property
    def faults(self) -> tuple[str, ...]:
        return self.data.faults

    def __len__(self) -> int:
        return len(self.data)

    def take(self, positions: Sequence[int], size: int) -> list[Any]:
        return list(positions)

    def checksums(self) -> np.ndarray:
        return self.data.checksums()


@dataclass(frozen=True)
class Embeddings:
    """Vectors of a file as an encoder; `at_N` is the row of the file for each row of the data."""

    name: str
    x_FD: np.ndarray
    at_N: np.ndarray
    size: int = 0
    batch: int = 4096
    better: str = ""

    @property
    def width(self) -> int:
        return int(self.x_FD.shape[1])

    @property
    def blocks(self) -> tuple[int, ...]:
        return (self.width,)

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        return np.asarray(self.x_FD[self.at_N[np.asarray(rows, np.int64)]], np.float32)


def encoder_for(name: str, kind: Kind, folder: Path, data: Data, trusted: bool = True) -> tuple[Encoder, Data]:
    """The encoder `name`, and the rows as it takes them. See `encoder_of` and `read_embeddings`."""
    if name.startswith(EMBEDDINGS):
        return read_embeddings(name, folder, data), Positions(data)
    return encoder_of(name, kind, data, trusted), data


def read_embeddings(name: str, folder: Path, data: Data) -> Embeddings:
    """The vectors for the rows of `data`.

    A Parquet file with a column `path` is matched by it. Otherwise row i of the file belongs to row i of the data: of
    the table, or of the images of a folder in the order of their names.

    Args:
        name: "embeddings:" and the path of a .npy file with an array (N, D), or of a Parquet file with one column of
            lists of numbers.
        folder: the project folder, to which the path is relative.
        data: the rows.

    Raises:
        SourceError: the file cannot be read, or does not have a vector for each row.
    """
    path = folder / name.removeprefix(EMBEDDINGS)
    if not path.is_file() or path.suffix.lower() not in ENDINGS:
        found = f"a file that ends in {path.suffix!r}" if path.is_file() else "no file"
        raise SourceError(f"--embeddings {path}: expected a file that ends in .npy or .parquet, found {found}")
    paths, x_FD = (None, _npy(path)) if path.suffix.lower() == ".npy" else parquet_vectors(path)
    if x_FD.ndim != 2 or not x_FD.shape[1] or x_FD.dtype.kind not in "fiu":
        raise SourceError(
            f"--embeddings {path}: expected numbers of shape (rows, width), found {x_FD.dtype} {x_FD.shape}"
        )
    if paths is None:
        if len(x_FD) <= int(data.ids.max()):
            raise SourceError(
                f"--embeddings {path}: it has {len(x_FD)} vectors, but the data has {int(data.ids.max()) + 1} rows. "
                "Row i of the file must belong to row i of the data; a Parquet file can have a column `path` instead"
            )
        return Embeddings(name, x_FD, data.ids.astype(np.int64))
    place = {ref: at for at, ref in enumerate(paths)}
    missing = [ref for ref in data.refs if ref not in place]
    if missing:
        raise SourceError(f"--embeddings {path}: {len(missing)} rows have no vector there, such as {missing[0]!r}")
    return Embeddings(name, x_FD, np.array([place[ref] for ref in data.refs], np.int64))


def _npy(path: Path) -> np.ndarray:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGED as error:
        raise SourceError(f"--embeddings {path}: it cannot be read ({error})") from error
    if not isinstance(found, np.ndarray):
        raise SourceError(f"--embeddings {path}: expected one array as `numpy.save` writes it, found an archive (.npz)")
    return found


def parquet_vectors(path: Path) -> tuple[list[str] | None, np.ndarray]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "app") from None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"--embeddings {path}: it cannot be read ({error})") from error
    lists = [name for name in table.column_names if _is_list(pa, table.schema.field(name).type)]
    if len(lists) != 1:
        raise SourceError(
            f"--embeddings {path}: expected one column of lists of numbers, found {len(lists)}; its columns are "
            f"{', '.join(table.column_names)}"
        )
    values = table.column(lists[0]).to_pylist()
    widths = {None if value is None else len(value) for value in values}
    if len(widths) != 1 or None in widths:
        raise SourceError(f"--embeddings {path}: the lists in column {lists[0]!r} are not all of one length")
    paths = table.column("path").to_pylist() if "path" in table.column_names else None
    return paths, np.asarray(values, np.float32)


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
