"""Name the selections that do more work than they did: `python benchmarks/regress.py`.

Times on a shared machine vary by more than a few per cent, so this counts work instead, which is the same on every run:

- calls: Python and C functions called, the fixed cost of a selection;
- operations: torch operators run;
- moved: megabytes that those operators read and write, views left out;
- products: GFLOP in matrix products.

A dozen selections are compared with the figures kept in docs/results/regress.json. What grew by more than `--most`
(5 %) is named, and the exit code is 1. `--keep` writes new figures: look at the difference before it is committed.
Counts say nothing of how fast an operator runs: `selection.py` and `accelerator.py` measure that.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import labelwise as lw

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "results" / "regress.json"
SLACK = {"calls": 200.0, "operations": 20.0, "moved_mb": 0.5, "products_gflop": 0.001}  # too little to matter
GATHERS = {"index", "index_select", "gather", "take", "embedding"}  # read as many numbers as they write


@dataclass(frozen=True)
class Work:
    """What one selection does."""

    calls: float
    operations: float
    moved_mb: float
    products_gflop: float


@dataclass(frozen=True)
class Case:
    """A selection: N rows, D columns, C classes, k picks; `draws` of a Bayesian model where the strategy needs them."""

    strategy: str
    n: int
    dim: int
    classes: int
    k: int
    draws: int = 0

    @property
    def name(self) -> str:
        return f"{self.strategy} {self.n} x {self.dim} x {self.classes}, k = {self.k}"

    def arrays(self) -> dict[str, np.ndarray]:
        """Made-up inputs: a mixture of Gaussians, and probabilities that follow from it."""
        chance = np.random.default_rng(0)
        centres = chance.normal(size=(20, self.dim))
        x = (centres[chance.integers(20, size=self.n)] + 0.5 * chance.normal(size=(self.n, self.dim))).astype("float32")
        logits = x @ chance.normal(size=(self.dim, self.classes)) / self.dim**0.5
        if self.draws:
            noisy = logits[:, None] + chance.normal(size=(self.n, self.draws, self.classes))
            return {"log_probs": _log_softmax(noisy)}
        arrays = {"embedding": x, "probs": np.exp(_log_softmax(logits))}
        if self.strategy.startswith("sabal"):
            arrays["label_probs"] = np.exp(_log_softmax(logits / 1.5))
        return arrays


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype("float32")


CASES = (
    Case("margin", 20_000, 16, 10, 50),
    Case("badge", 1_000, 32, 10, 10),
    Case("badge", 10_000, 128, 10, 100),
    Case("kcenter", 1_000, 32, 10, 10),
    Case("kcenter", 10_000, 128, 10, 100),
    Case("typiclust", 3_000, 64, 10, 50),
    Case("probcover", 3_000, 64, 10, 50),
    Case("sabal-greedy", 5_000, 64, 10, 50),
    Case("sabal-iht", 5_000, 64, 10, 50),
    Case("bait", 1_000, 16, 5, 20),
    Case("bss", 3_000, 32, 5, 100),
    Case("leverage", 3_000, 32, 5, 100),
    Case("batchbald", 1_000, 16, 4, 10, draws=20),
    Case("acs-fw", 1_000, 16, 4, 20, draws=20),
)


class _Operations(TorchDispatchMode):
    """Counts operators and the bytes they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(part.alias_info is not None and not part.alias_info.is_write for part in returns):
            return out  # a view: no number moves
        self.operations += 1
        written = _bytes(out)
        is_gather = func._schema.name.split("::")[-1] in GATHERS
        self.bytes += 2 * written if is_gather else written + _bytes((args, kwargs))
        return out


def _bytes(values: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


@contextmanager
def _counted_calls() -> Iterator[list[int]]:
    """Functions called by this thread, counted into the first element."""
    count = [0]

    def hook(frame: FrameType, event: str, arg: object) -> None:
        count[0] += event in ("call", "c_call")

    sys.setprofile(hook)
    try:
        yield count
    finally:
        sys.setprofile(None)


def measure(run: Callable[[], Any]) -> Work:
    """Count the work of a run; it runs three times, once so that nothing is imported while it is counted."""
    run()
    with _counted_calls() as calls:
        run()
    with _Operations() as counted, FlopCounterMode(display=False) as flops:
        run()
    return Work(calls[0], counted.operations, counted.bytes / 1e6, flops.get_total_flops() / 1e9)


def measure_case(case: Case) -> Work:
    """The work of one selection."""
    arrays: dict[str, Any] = dict(case.arrays())
    return measure(lambda: lw.select(case.strategy, case.k, seed=0, **arrays))


def grown(work: Work, earlier: Work, most: float) -> list[str]:
    """What is more than `most` above the kept figures, in words."""
    now, before = asdict(work), asdict(earlier)
    return [
        f"{name} {before[name]:,.4g} -> {now[name]:,.4g} ({now[name] / before[name] - 1:+.0%})"
        if before[name]
        else f"{name} 0 -> {now[name]:,.4g}"
        for name in now
        if now[name] > before[name] * (1 + most) + SLACK[name]
    ]


def versions() -> dict[str, str]:
    """What counts depend on besides the code."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), "torch": torch.__version__.split("+")[0]}


def earlier_figures(file: Path = FIGURES) -> tuple[dict[str, str], dict[str, Work]]:
    """The versions and the figures that were kept."""
    stored = json.loads(file.read_text())
    return stored["versions"], {name: Work(**work) for name, work in stored["work"].items()}


def main(words: list[str] | None = None) -> int:
    """Compare, or keep. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Name the selections that do more work than they did.")
    parser.add_argument("--keep", action="store_true", help="write the figures of this run")
    parser.add_argument("--most", type=float, default=0.05, help="growth that is not named (0.05 is 5 %%)")
    parser.add_argument("--only", default="", help="strategies, separated by commas")
    parser.add_argument("--file", type=Path, default=FIGURES, help="where the figures are")
    options = parser.parse_args(words)
    if options.keep and options.only:
        parser.error("--keep writes the figures of all cases: leave --only out")
    names = {name for name in options.only.split(",") if name}
    unknown = names - {case.strategy for case in CASES}
    if unknown:
        parser.error(f"--only names strategies without a case: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    of_versions, earlier = ({}, {}) if options.keep else earlier_figures(options.file)
    if earlier and of_versions != versions():
        print(
            f"The kept figures are of {of_versions}, this run is of {versions()}: small differences may come from that."
        )
    found: dict[str, Work] = {}
    failed = 0
    for case in CASES:
        if names and case.strategy not in names:
            continue
        found[case.name] = work = measure_case(case)
        more = grown(work, earlier[case.name], options.most) if case.name in earlier else []
        failed += bool(more)
        verdict = "MORE: " + "; ".join(more) if more else "new" if earlier and case.name not in earlier else "ok"
        print(
            f"{case.name:42} {work.calls:9,.0f} calls {work.operations:7,.0f} operations "
            f"{work.moved_mb:9,.1f} MB {work.products_gflop:8.3f} GFLOP  {verdict}",
            flush=True,
        )
    if options.keep:
        stored = {"versions": versions(), "work": {name: asdict(work) for name, work in found.items()}}
        options.file.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"Kept in {options.file.name}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
