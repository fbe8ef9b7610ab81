"""On a CUDA device: are the picks those of the CPU, and how long does selection take? Writes a table.

    python benchmarks/accelerator.py [--out docs/results/accelerator.md] [--only badge,kcenter]

Times are of one selection on tensors that are on the device already, after one warm-up, measured with CUDA events; the
best of three. Bandwidth is the bytes that must move, over the time and over the rate of a copy measured in the same
run: one read of the inputs, or one for each pick or iteration where the method as written has it (PASSES). A strategy
that reads less often than that comes out above what it moves.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import labelwise as lw

SHAPES = ((50_000, 512, 10, 1000), (50_000, 512, 10, 3000))
SMALL = (4000, 32, 5, 60)
PASSES = ("sabal-greedy", "sabal-iht")  # as many reads of the inputs as the notes say iterations
SLOW = ("probcover", "typiclust", "bait", "batchbald", "albl", "ally")  # not made for k in the thousands, or cold


def main() -> None:
    """Compare picks with the CPU on float64, then time on float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","))
    options = parser.parse_args()
    names = options.only or lw.strategies.names()
    rate, copy = _read_rate(), _copy_rate()
    lines = [
        "# Selection on an accelerator",
        "",
        "<!-- Written by benchmarks/accelerator.py; a change by hand is lost at the next run. -->",
        "",
        f"- Device: {torch.cuda.get_device_name()}, one read at {rate / 1e12:.2f} TB/s and a copy at "
        f"{copy / 1e12:.2f} TB/s (bytes read and written), measured in this run",
        f"- Versions: torch {torch.__version__}, numpy {importlib.metadata.version('numpy')}",
        "- Command: `python benchmarks/accelerator.py`",
        "",
        "| strategy | N, D, C, k | picks as on the CPU (float64) | seconds, float32 | reads of the input it would be | "
        "bandwidth of a copy reached |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        same = _same_picks(name)
        if name in SLOW or same.startswith("not run"):
            lines.append(f"| {name} | {_shape(SMALL)} | {same} | - | - | - |")
            continue
        for shape in SHAPES:
            seconds, size, passes = _time(name, shape)
            reads, share = seconds * rate / size, passes * size / seconds / copy
            lines.append(f"| {name} | {_shape(shape)} | {same} | {seconds:.4f} | {reads:.0f} | {100 * share:.0f} % |")
            print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


def _shape(shape: tuple[int, int, int, int]) -> str:
    return ", ".join(f"{size:,}" for size in shape)


def _inputs(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    n, d, c, _ = shape
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(n, c, generator=chance, dtype=dtype) * 2
    given = {
        "probs": logits.softmax(1),
        "label_probs": (logits / 1.5).softmax(1),
        "embedding": torch.randn(n, d, generator=chance, dtype=dtype),
    }
    return {name: array.to(device) for name, array in given.items()}


def _select(name: str, arrays: dict[str, Tensor], k: int) -> lw.Selection:
    return lw.select(
        name, k, probs=arrays["probs"], label_probs=arrays["label_probs"], embedding=arrays["embedding"], seed=0
    )


def _same_picks(name: str) -> str:
    """Whether the device picks the rows the CPU picks, in the same order."""
    try:
        here = _select(name, _inputs(SMALL, torch.float64, "cpu"), SMALL[3])
    except lw.errors.NeedError as error:
        return f"not run: {str(error).split(':')[0]}"
    try:
        there = _select(name, _inputs(SMALL, torch.float64, "cuda"), SMALL[3])
    except RuntimeError as error:
        return f"not run: {error}".splitlines()[0]
    agree = int((here.ids == there.ids).sum())
    return "same" if agree == len(here) else f"{agree} of {len(here)}"


def _time(name: str, shape: tuple[int, int, int, int]) -> tuple[float, int, int]:
    """(seconds, bytes of the inputs, how often the method as written reads them)."""
    arrays = _inputs(shape, torch.float32, "cuda")
    passes = int(_select(name, arrays, shape[3]).notes["iterations"]) if name in PASSES else 1
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        _select(name, arrays, shape[3])
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times), sum(array.nbytes for array in arrays.values()), passes


def _read_rate() -> float:
    """Bytes a second of reading 4 GB."""
    x = torch.ones(1 << 30, device="cuda")
    return _rate(x.sum, x.nbytes)


def _copy_rate() -> float:
    """Bytes read and written a second by a copy of 4 GB."""
    x = torch.ones(1 << 30, device="cuda")
    y = torch.empty_like(x)
    return _rate(functools.partial(y.copy_, x), 2 * x.nbytes)


def _rate(run: Callable[[], object], size: int) -> float:
    run()
    rates = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        rates.append(size / (begin.elapsed_time(end) / 1e3))
    return statistics.median(rates)


if __name__ == "__main__":
    main()
