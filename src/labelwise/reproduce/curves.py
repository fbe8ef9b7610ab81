"""Learning curves of a study: stored one by one so that a stopped study continues, run in processes, and as numbers."""

from __future__ import annotations

import concurrent.futures
import hashlib
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labelwise.bench.suite.checkpoint import read_run_records
from labelwise.bench.suite.suite import slug
from labelwise.stats.curves import learning_curves
from labelwise.stats.paired import name_of_test
from labelwise.stats.record import Record, write
from labelwise.stats.summary import summarise

AGAIN = "the same command then runs its curve again, and all other curves stay"


class CurveStore:
    """Curves in a folder, named by strategy, seed and a digest of all settings; without a folder, nothing is stored."""

    def __init__(self, folder: Path | None, settings: str):
        self.folder = folder
        self.settings = settings

    def read(self, name: str, seed: int, more: str) -> list[Record]:
        """The records of a curve; none if it is not stored."""
        path = self._path(name, seed, more)
        return read_run_records(path, f"/{name}/{seed}", AGAIN) if path is not None and path.exists() else []

    def write(self, name: str, seed: int, more: str, records: Sequence[Record]) -> None:
        """Store a complete curve atomically."""
        path = self._path(name, seed, more)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, records)

    def _path(self, name: str, seed: int, more: str) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.blake2b(f"{self.settings} {more}".encode(), digest_size=6).hexdigest()
        return self.folder / f"{slug(name)}--{seed}--{digest}.jsonl"


def in_processes(run: Callable[[Any], Any], jobs: Sequence[Any], processes: int) -> Iterator[Any]:
    """Run jobs in processes with one thread each; yield results in the order in which jobs end."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, _one_thread) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, job) for job in jobs]):
            yield done.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def numbers_of(records: list[Record], metric: str) -> dict[str, dict[str, Any]]:
    """For each name: label counts, mean and standard deviation over seeds, and labels to 97 % of the best end."""
    curves = learning_curves(records, metric)
    numbers: dict[str, dict[str, Any]] = {}
    ends = [float(lines.values_ST.mean(0)[-1]) for lines in curves.values()]
    for name, lines in curves.items():
        mean_T = lines.values_ST.mean(0)
        labels = [int(count) for count in lines.labels_T]
        numbers[name] = {"labels": labels, "mean": mean_T.tolist(), "sd": lines.values_ST.std(0).tolist()}
        if metric == "accuracy":
            numbers[name]["labels_to_97"] = labels_to(labels, mean_T.tolist(), 0.97 * max(ends))
    return numbers


def labels_to(labels: list[int], values: list[float], level: float) -> float | None:
    """The number of labels at which a curve first reaches a level, by straight lines between its points.

    >>> labels_to([100, 200, 300], [0.5, 0.7, 0.9], 0.8)
    250.0
    """
    if values[0] >= level:
        return float(labels[0])
    for (a, low), (b, high) in zip(zip(labels, values), zip(labels[1:], values[1:])):
        if high >= level:
            return round(a + (b - a) * (level - low) / (high - low), 6)
    return None


def saved_numbers(records: list[Record], metric: str) -> dict[str, dict[str, Any]]:
    """For each name but random: the share of labels saved, its interval (None where open), and the paired test."""
    numbers = {}
    for row in summarise(records, metric).rows:
        if row.saved is not None and row.found is not None:
            ends = (row.saved.share, row.saved.low, row.saved.high, row.found.test.p, row.found.p)
            share, low, high, p, holm = (value if math.isfinite(value) else None for value in ends)
            numbers[row.strategy] = {"saved": share, "low": low, "high": high, "verdict": row.verdict}
            numbers[row.strategy] |= {"area_gain": row.found.test.difference, "area_p": p, "area_p_holm": holm}
    return numbers


def against_random(records: list[Record], metric: str) -> str:
    """Which strategies are measurably better than random, worse, not different, or cannot be compared yet."""
    found = {row.strategy: row.found for row in summarise(records, metric).rows if row.found is not None}
    if not found:
        return "Nothing was run next to random."
    first = next(iter(found.values()))
    parts = {
        "better": "better",
        "worse": "worse",
        "same": "no measurable difference",
        "open": f"cannot be compared yet, {first.needed} seeds or more are needed",
    }
    groups = {what: [name for name in found if found[name].outcome == what] for what in parts}
    listed = "; ".join(f"{parts[what]}: {', '.join(names)}" for what, names in groups.items() if names)
    holm = f", Holm's correction for {first.compared} strategies" if first.compared > 1 else ""
    by = name_of_test(one.test.seeds for one in found.values())
    text = f"Area under the curve against random ({by} by seed, 5 %{holm}): {listed}."
    if "ally" in found and found["ally"].outcome in ("same", "worse"):
        text += " ALLY does not measurably beat random here."
    return text
