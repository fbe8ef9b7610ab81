"""Training on a CUDA device: images a second of the papers' networks, step by step and captured in a graph.

    python benchmarks/training_device.py [--out docs/results/training.md] [--networks lenet5,vgg16] [--processes 1,4]

What is timed is TorchLearner.fit on random images, as a round of the benchmark does it: epochs over 40 batches of
labelled rows that are on the device, order drawn on the CPU, a loss for each epoch. A rate is the images of the further
epochs of a long training over the seconds it took longer than a short one, so that start and recording do not count.
float32 is what torch does by itself: convolutions in TF32. "Repeatable" is captured too, with kernels that give the
same bits each time, as the benchmark trains. With several processes each trains a network of its own on the same
device, and the rate is that of all of them together.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing as mp
import time
from pathlib import Path
from typing import Any

import torch

import labelwise as lw
from called import called
from labelwise.bench.models.networks import NETWORKS as FACTORIES
from labelwise.bench.suite.job import repeatable
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train.torch.step import Step

BATCHES, SHORT, LONG = 40, 2, 10  # of an epoch; epochs
# Batch, and what was reached elsewhere with bfloat16 and channels last: images a second, eager and captured.
NETWORKS: dict[str, tuple[int, int, int]] = {
    "lenet5": (32, 10_000, 117_000),
    "tutorial_cnn": (128, 0, 0),
    "vgg11": (128, 31_000, 110_000),
    "vgg16": (128, 15_000, 53_000),
    "resnet18": (128, 13_000, 42_000),
}
# Of the forward pass, and whether channels are the last axis in memory.
PRECISIONS: dict[str, tuple[torch.dtype | None, bool]] = {
    "float32": (None, False),
    "float32 channels-last": (None, True),
    "bfloat16": (torch.bfloat16, False),
    "bfloat16 channels-last": (torch.bfloat16, True),
}


def rate(name: str, precision: str, captured: bool, device: str, batches: int = BATCHES) -> float:
    """Images a second."""
    batch, grey = NETWORKS[name][0], name == "lenet5"
    chance = torch.Generator().manual_seed(0)
    n, shape = batch * batches, (1, 28, 28) if grey else (3, 32, 32)
    x = torch.randn(n, *shape, generator=chance)
    y = torch.randint(10, (n,), generator=chance)
    autocast, last = PRECISIONS[precision]
    form = torch.channels_last if last else torch.contiguous_format
    pool, make = Pool.of(x.to(device, memory_format=form)), FACTORIES[name](outputs=10)
    able = Step._can_be_captured
    if not captured:
        Step._can_be_captured = lambda self: False  # type: ignore[method-assign]

    def seconds(epochs: int) -> float:
        learner = lw.TorchLearner(
            lambda: make().to(device, memory_format=form),  # type: ignore[call-overload]
            epochs=epochs,
            batch=batch,
            optimiser="sgd",
            patience=None,
            holdout=0,
            autocast=autocast,
        )
        began = time.perf_counter()
        learner.fit(pool, torch.arange(n), y, classes=10, key=Key(0))
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    try:
        seconds(1)
        return n * (LONG - SHORT) / (seconds(LONG) - seconds(SHORT))
    finally:
        Step._can_be_captured = able  # type: ignore[method-assign]


def _one(job: tuple[str, str, str]) -> float:
    name, precision, device = job
    torch.set_num_threads(1)
    return rate(name, precision, True, device)


def together(name: str, precision: str, device: str, processes: int) -> float:
    """Images a second of several processes that train at the same time."""
    with mp.get_context("spawn").Pool(processes) as pool:
        return sum(pool.map(_one, [(name, precision, device)] * processes))


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--processes", default="", help="such as 2,4: several processes on one device as well")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args(given)
    what = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    torch.set_num_threads(1)
    lines: list[str] = []

    def say(*more: str) -> None:
        print(*more, sep="\n", flush=True)
        lines.extend(more)
        if asked.out is not None:
            asked.out.write_text("\n".join(lines) + "\n")

    say(
        "# Training on an accelerator",
        "",
        "<!-- Written by benchmarks/training_device.py; a change by hand is lost at the next run. -->",
        "",
        f"- Device: {what}; torch {torch.__version__}, numpy {importlib.metadata.version('numpy')}",
        f"- Command: `{called('training_device', given)}`, whose docstring says what is timed",
        "",
        "| network | batch | precision | images a second, step by step | captured | times | repeatable "
        "| target, captured |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    )
    several: list[Any] = [int(count) for count in asked.processes.split(",") if count]
    for name in asked.networks.split(","):
        batch, _, target = NETWORKS[name]
        for precision in asked.precisions.split(","):
            plain, captured = (rate(name, precision, one, asked.device) for one in (False, True))
            with repeatable(asked.device):
                same = rate(name, precision, True, asked.device)
            rates = [f"{plain:,.0f}", f"{captured:,.0f}", f"{captured / plain:.1f}", f"{same:,.0f}"]
            cells = [name, str(batch), precision, *rates]
            say(f"| {' | '.join([*cells, f'{target:,}' if target else ''])} |")
    if several:
        say(
            "", "Several processes, each with a network of its own, captured, float32: images a second of all together."
        )
        say(
            "",
            f"| network | {' | '.join(f'{count} processes' for count in several)} |",
            "|---" * (1 + len(several)) + "|",
        )
        for name in asked.networks.split(","):
            rates = [f"{together(name, 'float32', asked.device, count):,.0f}" for count in several]
            say(f"| {name} | {' | '.join(rates)} |")


if __name__ == "__main__":
    main()
