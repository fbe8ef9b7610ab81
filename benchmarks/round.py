"""A whole round, stage by stage: `python benchmarks/round.py --out docs/results/round.md`.

A session on a folder of JPEG images with a convolutional network, on tokenised texts with a small transformer, and on a
Parquet table with a logistic regression labels some rows, trains, and asks for a batch. Each stage is timed on its own:

- inputs: rows are read and decoded, nothing else;
- forward: the model computes signals from inputs that are in memory already;
- reading: both, as a session does them;
- selection: the batch is chosen from signals in memory;
- training: the fit before.

The limit of a stage is what this machine cannot beat, measured in the same run: decoding by all cores at the rate of
one, products at the rate of a large product, a plain read of the table's columns. `ask` is the time that people see.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import labelwise as lw
from called import called
from labelwise.selection.strategy import Strategy
from labelwise.signals.read import read
from labelwise.signals.spec import stored

PICKS, LABELS, BATCH = 100, 200, 256
VOCABULARY, LENGTH, WIDTH = 5_000, 64, 128


@dataclass(frozen=True)
class Task:
    """A pool, its labels and a learner, and what its stages cannot beat.

    Args:
        name: what it is, for the table.
        pool: the rows.
        labels: (N,) classes.
        learner: what is trained.
        strategy: how the batch is chosen.
        input_limit: seconds to read all inputs at the rates of this machine.
        flops: floating-point operations of one row in the model; 0 where they take no time.
    """

    name: str
    pool: lw.Pool
    labels: np.ndarray
    learner: Any
    strategy: str
    input_limit: float
    flops: float


def seconds(run: Callable[[], Any]) -> float:
    """Wall seconds of one run."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def product_rate(device: str) -> float:
    """Operations a second of a large matrix product."""
    a = torch.randn(2048, 2048, device=device)
    seconds(lambda: a @ a)
    return 2 * 2048**3 / min(seconds(lambda: a @ a) for _ in range(5))


class Cnn(nn.Module):
    """Three convolutions and a linear layer on (3, 64, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))

    flops = 2.0 * 9 * (3 * 32 * 64**2 + 32 * 64 * 32**2 + 64 * 64 * 16**2)


class Reader(nn.Module):
    """A transformer of two layers over token ids, called with a batch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        hidden = self.layers(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head(hidden[:, 0])

    flops = 2.0 * 2 * LENGTH * (12 * WIDTH**2 + 2 * LENGTH * WIDTH)


class Tokens(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Made-up texts as token ids of 16 to 64 tokens; the class is in the tokens."""

    def __init__(self, rows: int, labels: np.ndarray) -> None:
        chance = np.random.default_rng(1)
        lengths = chance.integers(16, LENGTH + 1, rows)
        self.rows = [
            (chance.integers(0, VOCABULARY // 10, n) + VOCABULARY // 10 * label * (chance.random(n) < 0.5)).tolist()
            for n, label in zip(lengths, labels)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[row]}


def collate(items: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """A padded batch of texts."""
    longest = max(len(item["input_ids"]) for item in items)
    ids = torch.zeros(len(items), longest, dtype=torch.int64)
    for row, item in enumerate(items):
        ids[row, : len(item["input_ids"])] = torch.tensor(item["input_ids"])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def images(folder: Path, scale: float, device: str) -> Task:
    """JPEG files of 320 x 240 pixels."""
    from PIL import Image

    count = max(300, int(6_000 * scale))
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 10, count)
    where = folder / "images"
    where.mkdir()
    for number, label in enumerate(labels):
        small = (chance.random((6, 8, 3)) * 120 + 12 * label).astype(np.uint8)
        Image.fromarray(small).resize((320, 240)).save(where / f"{number:06}.jpg", quality=90)
    pool = lw.Pool.images(where, size=64)
    one = seconds(lambda: [pool.inputs([row]) for row in range(200)]) / 200
    learner = lw.TorchLearner(lambda: Cnn().to(device), epochs=20)
    return Task(f"{count:,} JPEG files", pool, labels, learner, "badge", one * count / cores(), Cnn.flops)


def texts(folder: Path, scale: float, device: str) -> Task:
    """Token ids that a function makes batches of."""
    count = max(300, int(10_000 * scale))
    labels = np.random.default_rng(0).integers(0, 10, count)
    rows = Tokens(count, labels)
    pool = lw.Pool.of(rows, collate=collate)
    items = [rows[row % count] for row in range(1_000)]
    one = seconds(lambda: [collate(items[start : start + BATCH]) for start in range(0, 1_000, BATCH)]) / 1_000
    learner = lw.TorchLearner(lambda: Reader().to(device), epochs=20)
    return Task(f"{count:,} tokenised texts", pool, labels, learner, "badge", one * count, Reader.flops)


def table(folder: Path, scale: float, device: str) -> Task:
    """Eight columns of numbers in Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.linear_model import LogisticRegression

    count, parts = max(10_000, int(10_000_000 * scale)), 10
    chance = np.random.default_rng(0)
    labels = np.empty(count, np.int64)
    files = []
    for part in range(parts):
        where = slice(part * count // parts, (part + 1) * count // parts)
        x = chance.normal(size=(where.stop - where.start, 8)).astype(np.float32)
        labels[where] = x[:, :3].argmax(1)
        files.append(folder / f"part-{part}.parquet")
        pq.write_table(pa.table({f"x{column}": x[:, column] for column in range(8)}), files[-1])
    limit = seconds(lambda: [pq.read_table(file) for file in files])
    pool = lw.Pool.table(files)
    return Task(f"{count:,} rows of Parquet", pool, labels, LogisticRegression(), "margin", limit, 2.0 * 8 * 3)


TASKS: dict[str, Callable[[Path, float, str], Task]] = {"images": images, "texts": texts, "table": table}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure(task: Task, rate: float) -> list[str]:
    """The rows of the table for one task."""
    session = lw.Session(task.pool, task.learner, task.strategy, classes=10, seed=0, batch=BATCH)
    first = torch.randperm(len(task.labels), generator=torch.Generator().manual_seed(0))[:LABELS]
    session.tell(first, task.labels[first.numpy()])
    training = seconds(session.fit)
    strategy = lw.strategies.get(task.strategy)
    assert isinstance(strategy, Strategy)
    signals = stored(strategy.needs.pool)
    reader = session.fit().reader
    ids = task.pool.ids
    inputs = seconds(lambda: [None for _ in task.pool.batches(ids, BATCH)])
    some = [batch for _, batch in task.pool.batches(ids[: 8 * BATCH], BATCH)]
    forward = seconds(lambda: [reader.read(batch, signals) for batch in some]) / (8 * BATCH) * len(ids)
    rows = list(read(reader, task.pool, ids, signals, BATCH, device=None))
    reading = seconds(lambda: [None for _ in read(reader, task.pool, ids, signals, BATCH, device=None)])
    del rows
    ask = seconds(lambda: session.ask(PICKS))
    limit_forward = task.flops * len(ids) / rate
    limit_reading = max(task.input_limit, limit_forward)
    return [
        _row(task.name, "training", training, None),
        _row("", "inputs", inputs, task.input_limit),
        _row("", "forward", forward, limit_forward),
        _row("", "reading", reading, limit_reading),
        _row("", "ask", ask, limit_reading),
    ]


def _row(name: str, stage: str, took: float, limit: float | None) -> str:
    share = "" if limit is None else f"{limit:.2f} | {min(1.0, limit / took):.0%}"
    return f"| {name} | {stage} | {took:.2f} | {share or ' | '} |"


def main(words: list[str] | None = None) -> None:
    """Measure the tasks and print or write the page."""
    parser = argparse.ArgumentParser(description="A whole round, stage by stage.")
    parser.add_argument("--only", default="", help="images, texts, table, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="the page; printed if it is left out")
    options = parser.parse_args(words)
    names = [name for name in options.only.split(",") if name] or list(TASKS)
    if unknown := sorted(set(names) - set(TASKS)):
        parser.error(f"--only names images, texts and table, found {', '.join(unknown)}")
    rate = product_rate(options.device)
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(TASKS[name](Path(folder), options.scale, options.device), rate)
        print("\n".join(found), flush=True)
        lines += found
    page = "\n".join(
        [
            "# A whole round, stage by stage",
            "",
            "<!-- Written by benchmarks/round.py; a change by hand is lost at the next run. -->",
            "",
            f"- Command: `{called('round', words)}`, whose docstring says what the stages are",
            f"- Device {options.device}, {cores()} cores, {torch.get_num_threads()} threads",
            f"- In this run: matrix product {rate / 1e9:.0f} GFLOP/s",
            f"- Versions: Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}",
            f"- {LABELS} labels, then a batch of {PICKS}",
            "",
            "| pool | stage | seconds | limit | share of the limit |",
            "|---|---|---:|---:|---:|",
            *lines,
            "",
        ]
    )
    if options.out:
        options.out.write_text(page)


if __name__ == "__main__":
    main()
