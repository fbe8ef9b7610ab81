"""Rows of Parquet files that another process reads: it is sent the names of the files and the numbers of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.errors import SourceError
from labelwise.pool.ids import as_runs, from_runs
from labelwise.pool.source import Source
from labelwise.pool.sources.images import Size
from labelwise.pool.sources.parquet_file import names_of, values_of
from labelwise.pool.sources.table import Part, Wanted, joined


@dataclass(frozen=True)
class File:
    """A Parquet file: what was read of it, and the numbers of its rows among those of all files."""

    path: Path
    wanted: Wanted
    start: int
    rows: int


@dataclass(frozen=True)
class TableFiles:
    """Where the rows of a source came from: `numbers` are their places among all rows of the files."""

    files: tuple[File, ...]
    numbers: np.ndarray
    size: Size
    dtype: torch.dtype

    def part(self, positions: np.ndarray) -> tuple[ParquetSource, None]:
        """See `Source`."""
        return ParquetSource(self.files, self.numbers[positions], self.size, self.dtype), None


def table_files(
    paths: Sequence[Path], parts: Sequence[Part], numbers: np.ndarray, size: Size, dtype: torch.dtype
) -> TableFiles | None:
    """Of these files; None where one of them cannot be read in pieces (CSV)."""
    files, start = [], 0
    for path, part in zip(paths, parts):
        if part.wanted is None:
            return None
        wanted = replace(part.wanted, label=None, id=None)
        files.append(File(path.resolve(), wanted, start, part.rows))
        start += part.rows
    return TableFiles(tuple(files), numbers, size, dtype)


class ParquetSource:
    """Some rows of Parquet files. Their row groups are read when the first row is asked for; these rows are kept."""

    def __init__(self, files: tuple[File, ...], numbers: np.ndarray, size: Size, dtype: torch.dtype):
        self.files, self.numbers, self.size, self.dtype = files, numbers, size, dtype
        self._held: tuple[Source, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "numbers": as_runs(self.numbers), "_held": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, numbers=from_runs(state["numbers"]))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def kind(self) -> str:
        return self._read()[0].kind

    def inputs(self, positions: np.ndarray) -> Any:
        source, at = self._read()
        return source.inputs(at[positions])

    def name(self, position: int) -> str | None:
        source, at = self._read()
        return source.name(int(at[position]))

    def sample(self, positions: np.ndarray) -> bytes:
        source, at = self._read()
        return source.sample(at[positions])

    def _read(self) -> tuple[Source, np.ndarray]:
        """The rows in memory, and where in it each of them is."""
        if self._held is None:
            in_order = np.unique(self.numbers)
            parts = [part for file in self.files for part in _groups(file, in_order, self.dtype)]
            self._held = joined(parts, self.size, self.dtype), np.searchsorted(in_order, self.numbers)
        return self._held


def _groups(file: File, numbers: np.ndarray, dtype: torch.dtype) -> Iterator[Part]:
    """Those of the rows, in order, that are in this file, one row group after the other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = numbers[np.searchsorted(numbers, file.start) : np.searchsorted(numbers, file.start + file.rows)] - file.start
    if not len(rows):
        return
    try:
        with pq.ParquetFile(file.path) as opened:
            if opened.metadata.num_rows != file.rows:
                raise _changed(file, f"it has {opened.metadata.num_rows} rows, and had {file.rows}")
            stop = 0
            for group in range(opened.num_row_groups):
                start, stop = stop, stop + opened.metadata.row_group(group).num_rows
                some = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
                if len(some):
                    yield _rows(file, opened.read_row_group(group, columns=file.wanted.names()), some, start, dtype)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file.path}: a worker cannot read the file ({error}).") from error


def _rows(file: File, table: Any, rows: np.ndarray, start: int, dtype: torch.dtype) -> Part:
    """These rows of the file from the table of their row group, whose first is row `start`."""
    at = rows - start
    values, bad = values_of(file.path, table, file.wanted)
    wrong = next((row for row in rows.tolist() if row - start in bad), None)
    if wrong is not None:
        raise _changed(file, f"row {wrong}: {bad[wrong - start]}")
    if isinstance(values, np.ndarray):
        kept: Any = torch.from_numpy(values[at]).to(dtype).numpy()  # now: in float64 it may be twice as large
    else:
        kept = [values[place] for place in at.tolist()]
    image = file.wanted.image
    names = None if image is None else names_of(file.path, table, image, at, rows)
    return Part(len(rows), rows, kept, names, [], None, None, None)


def _changed(file: File, how: str) -> SourceError:
    return SourceError(f"{file.path}: the file has changed since the pool was made ({how}); make the pool again.")
