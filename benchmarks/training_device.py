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
from functools import partial
from pathlib import Path
from typing import Any

import torch

import labelwise as lw
from called import called
from labelwise.bench.models.networks import NETWORKS as FACTORIES
from labelwise.bench.models.registry import DEEP
from labelwise.bench.suite.job import repeatable
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train.torch import together as groups
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


# Networks at once, and the precision and epochs of their measurement. Small ones first: they matter most.
STACKS: dict[str, tuple[tuple[int, ...], str]] = {
    "lenet5": ((10, 35, 70), "float32"),
    "tutorial_cnn": ((10, 70), "float32"),
    "vgg16": ((4, 8), "bfloat16"),
    "resnet18": ((4, 8), "bfloat16"),
    "vgg11": ((4, 8), "bfloat16"),
}
HEAD = "## Many networks at once"


def fits(name: str, count: int, precision: str, device: str, epochs: int, rows: int) -> tuple[list[Any], float]:
    """Networks of different seeds trained at once, and the seconds it took."""
    batch, grey = NETWORKS[name][0], name == "lenet5"
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(rows, *((1, 28, 28) if grey else (3, 32, 32)), generator=chance)
    y = torch.randint(10, (rows,), generator=chance)
    form = torch.channels_last if name in DEEP and device == "cuda" else torch.contiguous_format
    pool, make = Pool.of(x.to(device)), FACTORIES[name](outputs=10)
    how: dict[str, Any] = {"epochs": epochs, "batch": batch, "optimiser": "sgd", "lr": 0.01, "patience": None}
    learner = lw.TorchLearner(
        lambda: make().to(device, memory_format=form),  # type: ignore[call-overload]
        autocast=PRECISIONS[precision][0],
        **how,
    )

    def one(seed: int) -> Any:
        return learner.fit(pool, torch.arange(rows), y, classes=10, key=Key(seed))

    began = time.perf_counter()
    outcomes = [o for o in groups.run_together([partial(one, seed) for seed in range(count)], count) if o is not None]
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in sorted(outcomes, key=lambda one: one.number)], seconds


def apart(one: Any, other: Any) -> float:
    """The difference between the weights of two fits, as a share of their length."""
    a, b = (torch.cat([value.detach().double().flatten() for value in fit.model.parameters()]) for fit in (one, other))
    return float((a - b).norm() / b.norm())


def stack_lines(device: str, seconds: float, batches: int, say: Any) -> None:
    """The section on stacks: images a second, and whether the results are those of one network alone."""
    began = time.perf_counter()
    say(
        *("", HEAD, ""),
        "Networks of different seeds are trained at once in one process (`labelwise.train.torch.together`): images a",
        "second of all together. The difference is that of the weights from those of the same network trained alone,",
        "after six steps in float32 (on a GPU one network alone convolves in TF32), as a share of their length;",
        "equal means to the bit: the same again, and the same with other networks in the stack.",
        *("", "| network | precision | networks | images a second | alone | times | difference | equal |"),
        "|---|---|---:|---:|---:|---:|---:|---|",
    )
    for name, (counts, precision) in STACKS.items():
        batch, alone, rows = NETWORKS[name][0], 0.0, NETWORKS[name][0] * batches
        for count in (1, *counts):
            if time.perf_counter() - began > seconds:
                say(f"| {name} | {precision} | {count} | not measured: the time was over | | | | |")
                continue
            groups.WIDE = -1 if count == 1 else 1 << 40  # one network alone is trained by the loop of one
            try:
                with repeatable(device):
                    fits(name, count, precision, device, 1, rows)  # libraries set themselves up
                    short, long = (fits(name, count, precision, device, e, rows)[1] for e in (SHORT, LONG))
                    found = count * rows * (LONG - SHORT) / (long - short)
                    if count == 1:
                        alone = found
                        say(f"| {name} | {precision} | 1 | {found:,.0f} | {found:,.0f} | 1.0 | | |")
                        continue
                    checks = _checks(name, count, device, batch)
                say(
                    f"| {name} | {precision} | {count} | {found:,.0f} | {alone:,.0f} | {found / alone:.1f} | {checks} |"
                )
            except Exception as error:
                say(f"| {name} | {precision} | {count} | failed: {type(error).__name__}: {str(error)[:200]} | | | | |")
                if device == "cuda":
                    torch.cuda.empty_cache()


def _checks(name: str, count: int, device: str, batch: int) -> str:
    groups.WIDE = 1 << 40
    first = fits(name, count, "float32", device, 1, 6 * batch)[0]
    again = fits(name, count, "float32", device, 1, 6 * batch)[0]
    more = _rest(name, count, device, 6 * batch)
    groups.WIDE = -1
    alone = fits(name, 1, "float32", device, 1, 6 * batch)[0]
    equal = apart(first[0], again[0]) == 0 and apart(first[0], more[0]) == 0
    stacked = "stacked" in first[0].notes
    return f"{apart(first[0], alone[0]):.1e} | {('yes' if equal else 'no') if stacked else 'was not stacked'}"


def _rest(name: str, count: int, device: str, rows: int) -> list[Any]:
    """The first network in a stack that is filled up, as after a stop."""
    make, run = fits, groups.run_together
    try:
        groups.run_together = lambda functions, slots=0, most=groups.MOST: run(functions, count, most)
        return make(name, 1, "float32", device, 1, rows)[0]
    finally:
        groups.run_together = run


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--processes", default="", help="such as 2,4: several processes on one device as well")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only-stacks", action="store_true", help="measure many networks at once, and nothing else")
    parser.add_argument("--seconds", type=float, default=120.0, help="no stack is begun after so many seconds")
    parser.add_argument("--batches", type=int, default=BATCHES, help="of an epoch of a stack")
    asked = parser.parse_args(given)
    what = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    torch.set_num_threads(1)
    lines: list[str] = []

    def say(*more: str) -> None:
        print(*more, sep="\n", flush=True)
        lines.extend(more)
        if asked.out is not None:
            asked.out.write_text("\n".join(lines) + "\n")

    if asked.only_stacks:  # the other sections stay
        earlier = Path("docs/results/training.md")
        if earlier.exists():
            lines.extend(earlier.read_text().split(HEAD)[0].rstrip().splitlines())
        say("", f"Many networks: {what}; torch {torch.__version__}; `{called('training_device', given)}`.")
        stack_lines(asked.device, asked.seconds, asked.batches, say)
        return
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
