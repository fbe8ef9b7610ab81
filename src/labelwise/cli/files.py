"""Read arrays from .npy, .npz and Parquet files, memory-mapped where the format allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError, LabelwiseError, SourceError, extra
from labelwise.io.files import DAMAGED


def read_array(name: str, spec: str) -> np.ndarray:
    """The array that `spec` names: FILE, or FILE:NAME for one array of a .npz or one column of a Parquet file."""
    path, part = _split(spec)
    if not path.exists():
        raise SourceError(f"--{name} {spec}: {path} does not exist")
    try:
        if path.suffix == ".npy":
            with np.errstate(over="ignore"):  # of a shape that no file can have
                return np.load(path, mmap_mode="r", allow_pickle=False)
        if path.suffix == ".npz":
            return _from_npz(name, path, part)
        if path.suffix in (".parquet", ".pq"):
            return _from_parquet(name, path, part)
    except LabelwiseError:
        raise
    except DAMAGED as error:
        raise SourceError(f"--{name} {spec}: the file cannot be read: {error}") from error
    raise ArgumentError(
        f"--{name} {spec}: expected a .npy, .npz or .parquet file, found {path.suffix or 'no ending'!r}"
    )


def file_of(spec: str) -> Path:
    """The file of `spec`."""
    return _split(spec)[0]


def _split(spec: str) -> tuple[Path, str | None]:
    """Split FILE:NAME, unless a file has the whole name (a Windows drive, or a colon in a name)."""
    if Path(spec).exists() or ":" not in spec:
        return Path(spec), None
    path, _, part = spec.rpartition(":")
    return Path(path), part


def _from_npz(name: str, path: Path, part: str | None) -> np.ndarray:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        wanted = part or (name.replace("-", "_") if name.replace("-", "_") in names else None)
        if wanted is None and len(names) == 1:
            wanted = names[0]
        if wanted is None or wanted not in names:
            raise SourceError(
                f"--{name} {path}: the file has several arrays: {', '.join(names)}. Choose one with {path}:NAME"
            )
        found = archive[wanted]
        if not isinstance(found, np.ndarray):
            raise SourceError(f"--{name} {path}: {wanted!r} is no array. Write the file again with numpy.savez")
        return found


def _from_parquet(name: str, path: Path, part: str | None) -> np.ndarray:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise extra("pyarrow", "bench") from error
    schema = pq.read_schema(path)
    if part is not None and part not in schema.names:
        raise SourceError(f"--{name} {path}: there is no column {part!r}; the columns are {', '.join(schema.names)}")
    own = name.replace("-", "_")
    columns = [part] if part else [own] if own in schema.names else schema.names
    table = pq.read_table(path, columns=columns, memory_map=True)
    blocks = [_column(pa, name, path, title, table.column(title).combine_chunks()) for title in columns]
    if len(blocks) == 1:
        return blocks[0]
    return np.column_stack(blocks)


def _column(pa: Any, name: str, path: Path, title: str, column: Any) -> np.ndarray:
    """One column as an array: numbers (N,), or lists of one length (N, D)."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = column.flatten()
        rows = len(column)
        if column.null_count or values.null_count or rows == 0 or len(values) % rows:
            raise SourceError(f"--{name} {path}: the lists in column {title!r} are not all of one length")
        lengths = {len(column[i]) for i in (0, rows - 1)}
        if lengths != {len(values) // rows}:
            raise SourceError(f"--{name} {path}: the lists in column {title!r} are not all of one length")
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(rows, -1)
    if column.null_count:
        raise SourceError(f"--{name} {path}: column {title!r} has {column.null_count} missing values")
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise SourceError(
            f"--{name} {path}: column {title!r} has type {kind}; expected numbers. Choose a column with {path}:COLUMN"
        )
    return np.asarray(column.to_numpy(zero_copy_only=False))
