"""Learning curves that are kept one by one, so that a study that was stopped goes on; and processes that run them."""

from __future__ import annotations

import concurrent.futures
import hashlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labelwise.bench.suite.checkpoint import records_of_run
from labelwise.bench.suite.suite import slug
from labelwise.stats.record import Record, write

AGAIN = "its curve is run again by the same command, and all other curves are kept"


class Kept:
    """Curves in a folder, by name, seed and `mark`: all that decides them, in words. Without a folder none is kept."""

    def __init__(self, folder: Path | None, mark: str):
        self.folder = folder
        self.mark = mark

    def read(self, name: str, seed: int, more: str) -> list[Record]:
        """The records of a curve; none where it is not there."""
        path = self._path(name, seed, more)
        return records_of_run(path, f"/{name}/{seed}", AGAIN) if path is not None and path.exists() else []

    def write(self, name: str, seed: int, more: str, records: Sequence[Record]) -> None:
        """Keep a curve that is complete; the file is there whole or not at all."""
        path = self._path(name, seed, more)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, records)

    def _path(self, name: str, seed: int, more: str) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.blake2b(f"{self.mark} {more}".encode(), digest_size=6).hexdigest()
        return self.folder / f"{slug(name)}--{seed}--{digest}.jsonl"


def in_processes(run: Callable[[Any], Any], jobs: Sequence[Any], processes: int) -> Iterator[Any]:
    """What `run` gives for each job, in the order in which they end, each in one of several processes of one thread."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, _one_thread) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, job) for job in jobs]):
            yield done.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
