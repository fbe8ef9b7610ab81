"""The fixed cost of a selection: `python benchmarks/fixed_cost.py --out docs/results/fixed-cost.md`.

Sessions ask small questions: ten rows of a thousand. Then the time of `lw.select` is mostly that of calling functions
and operators, not of arithmetic. For each strategy this measures CPU seconds with one thread, and subtracts what its
arithmetic and its bytes take at the rates of this machine, measured in the same run (`regress.py` counts both). What is
left should be below 3 ms.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labelwise as lw
from called import called
from regress import Case, Work, measure

ROWS, WIDTH, CLASSES, PICKS, DRAWS = 1_000, 32, 5, 10, 20
MOST_MS = 3.0
REPEATS = 30


def arrays(strategy: str) -> dict[str, np.ndarray]:
    """What the strategy needs, for a thousand rows."""
    chance = np.random.default_rng(0)
    if strategy in ("bald", "batchbald", "acs-fw"):
        return Case(strategy, ROWS, WIDTH, CLASSES, PICKS, draws=DRAWS).arrays()
    found = Case(strategy, ROWS, WIDTH, CLASSES, PICKS).arrays()
    if strategy == "ally":
        return {"embedding": found["embedding"], "duals": chance.random(ROWS)}
    if strategy == "dynamical":
        return {**found, "grad_sqnorm": chance.random(ROWS), "grad_dot": chance.normal(size=ROWS)}
    return found


def cpu_seconds(run: Callable[[], Any]) -> float:
    """The least CPU seconds of a run."""
    run()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return best


def rates() -> tuple[float, float]:
    """Operations a second of a matrix product, and bytes a second of a copy that fits the cache, with one thread."""
    a, x = torch.randn(512, 512), torch.randn(1 << 18)
    y = torch.empty_like(x)
    return 2 * 512**3 / cpu_seconds(lambda: a @ a), 2 * x.nbytes / cpu_seconds(lambda: y.copy_(x))


def line(strategy: str, product: float, copy: float) -> tuple[str, bool]:
    """A row of the table, and whether the fixed cost is low enough."""
    inputs: dict[str, Any] = dict(arrays(strategy))
    work: Work = measure(lambda: lw.select(strategy, PICKS, seed=0, **inputs))
    total = 1e3 * cpu_seconds(lambda: lw.select(strategy, PICKS, seed=0, **inputs))
    limit = 1e3 * (work.products_gflop * 1e9 / product + work.moved_mb * 1e6 / copy)
    fixed = total - limit
    good = fixed < MOST_MS
    verdict = "met" if good else "not met"
    counts = f"{work.calls:,.0f} | {work.operations:,.0f}"
    return f"| {strategy} | {total:.2f} | {limit:.2f} | {fixed:.2f} | {counts} | {verdict} |", good


def main(words: list[str] | None = None) -> None:
    """Measure every strategy and print or write the page."""
    parser = argparse.ArgumentParser(description="The fixed cost of a selection.")
    parser.add_argument("--only", default="", help="strategies, separated by commas")
    parser.add_argument("--out", type=Path, help="the page; printed if it is left out")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    product, copy = rates()
    names = [name for name in options.only.split(",") if name] or list(lw.strategies.names())
    lines = []
    for name in names:
        text, _ = line(name, product, copy)
        lines.append(text)
        print(text, flush=True)
    page = "\n".join(
        [
            "# Fixed cost of a selection",
            "",
            "<!-- Written by benchmarks/fixed_cost.py; a change by hand is lost at the next run. -->",
            "",
            f"- Command: `{called('fixed_cost', words)}`",
            f"- `lw.select` of {PICKS} rows of {ROWS:,}, {WIDTH} columns, {CLASSES} classes, {DRAWS} draws",
            f"- CPU seconds with one thread, the best of {REPEATS}",
            f"- In this run: matrix product {product / 1e9:.0f} GFLOP/s, copy in the cache {copy / 1e9:.0f} GB/s",
            f"- Versions: Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}",
            "",
            "Arithmetic is what the products and the bytes of all operators take at these rates; fixed is the rest, "
            f"which should be below {MOST_MS:g} ms.",
            "",
            "| strategy | ms | arithmetic ms | fixed ms | calls | operators | below 3 ms |",
            "|---|---:|---:|---:|---:|---:|---|",
            *lines,
            "",
        ]
    )
    if options.out:
        options.out.write_text(page)


if __name__ == "__main__":
    main()
