"""Sizes: how many rows a pool has at most, before it is loaded, so that a plan that asks for more is refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from labelwise.bench.data.catalogue import Known, known, located
from labelwise.bench.suite.suite import DataSpec
from labelwise.errors import BudgetError

BY_PERSON = ("parkinsons",)  # split by person: how many rows the pool has depends on the seed


def check_labels(datasets: Iterable[DataSpec]) -> None:
    """Raise where a data set is asked for more labels than its pool can have; a cell checks the pool it has loaded."""
    found = []
    for spec in datasets:
        wanted, most = spec.start + spec.k * spec.rounds, most_rows(spec)
        if wanted > most:
            found.append(
                f"{spec.label}: {spec.start} first labels and {spec.rounds} rounds of {spec.k} are {wanted} labels; "
                f"the pool has {most} rows at most"
            )
    if found:
        raise BudgetError("; ".join(found) + ". Lower start, k or rounds, or raise limit where there is one")


def most_rows(spec: DataSpec) -> int:
    """The number of rows that the pool of a data set cannot exceed: limit, hard case and rows set aside counted in."""
    most = _most(known(spec.name))
    if spec.limit is not None:
        most = min(most, spec.limit)
    if spec.hard is not None and spec.hard.case in ("duplicates", "near", "outliers"):
        more = max(1, round(spec.hard.share * most))
        most += more if spec.hard.case == "outliers" else more * (spec.hard.times - 1)
    return most - (spec.valid or 0)


def _most(entry: Known) -> int:
    files = located(entry) if entry.files else None
    total = sum(entry.rows)
    if files and all(file.suffix == ".parquet" for file in files):
        there = _rows(files)
        if there is not None and there != total:  # not the files that the catalogue describes: all that is in them
            return there
    return total if entry.name in BY_PERSON else entry.rows[0]


def _rows(files: list[Path]) -> int | None:
    """Rows of Parquet files by their footers; None where that cannot be read, which loading will explain."""
    try:
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(file).num_rows for file in files)
    except (ImportError, OSError, ValueError):
        return None
