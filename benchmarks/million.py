"""A million rows on one machine: `python benchmarks/million.py --only kcenter,badge` makes a pool and selects from it.

The pool is mapped files (1,000,000 x 512 features, x 1,000 classes; float16, about 3 GB), clustered as embeddings of a
trained network are. Each strategy runs in a process of its own on all cores; seconds of the processor, seconds by the
clock, and memory above the mapped files. One read of the features, in the same process, is the yardstick.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DRAWN = 20_000  # rows made at a time
GREEDY = "kcenter,badge,sabal-greedy,bss,leverage"


def make(folder: Path, rows: int, width: int, classes: int) -> None:
    """Write the pool into `folder`, if it is not there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    h = np.lib.format.open_memmap(folder / "h.npy", "w+", np.float16, (rows, width))
    p = np.lib.format.open_memmap(folder / "p.npy", "w+", np.float16, (rows, classes))
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, width)).astype(np.float32)
    for start in range(0, rows, DRAWN):
        stop = min(start + DRAWN, rows)
        own = rng.integers(classes, size=stop - start)
        h[start:stop] = centres[own] + rng.normal(size=(stop - start, width)).astype(np.float32)
        logits = rng.normal(size=(stop - start, classes)).astype(np.float32)
        logits[np.arange(len(own)), own] += rng.exponential(6, len(own)).astype(np.float32)
        e = np.exp(logits - logits.max(1, keepdims=True))
        p[start:stop] = e / e.sum(1, keepdims=True)
    (folder / "done").touch()


def worker(folder: Path, name: str, k: int) -> dict[str, float]:
    """Select once."""
    import torch

    import labelwise as lw

    h, p = (np.load(folder / f"{one}.npy", mmap_mode="r") for one in "hp")
    began = time.process_time()
    total = sum(float(torch.from_numpy(np.array(h[i : i + 65536])).float().sum()) for i in range(0, len(h), 65536))
    read, held = time.process_time() - began, _own_mb()
    assert np.isfinite(total)
    needs = {signal.array for signal in lw.strategies.get(name).needs.pool}
    arrays = {"embedding": h} if needs <= {"embedding", "basis"} else {"embedding": h, "probs": p}
    clock, began = time.perf_counter(), time.process_time()
    picks = lw.select(name, k, **arrays, seed=0)
    spent = {"cpu": time.process_time() - began, "clock": time.perf_counter() - clock, "read": read}
    assert len(set(picks.ids.tolist())) == k
    return {**spent, "extra_mb": max(0.0, _peak_own_mb() - held)}


def _own_mb() -> float:
    """Memory of the process without the pages of mapped files, in MB."""
    return _status("RssAnon")


def _peak_own_mb() -> float:
    return max(_status("RssAnon"), _status("VmHWM") - _status("RssFile"))


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def main() -> int:
    """Make the pool and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=GREEDY, help="strategies, with commas")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("-k", type=int, default=10_000)
    parser.add_argument("--pool", type=Path, default=Path(tempfile.gettempdir()) / "labelwise-million")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each strategy")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(worker(asked.pool, asked.worker, asked.k)))
        return 0
    make(asked.pool, asked.rows, asked.width, asked.classes)
    print(f"{asked.rows:,} x {asked.width}, {asked.classes:,} classes, k = {asked.k:,}", flush=True)
    print("| strategy | CPU s | clock s | reads of the features | extra MB |\n|---|---|---|---|---|", flush=True)
    for name in asked.only.split(","):
        command = [sys.executable, __file__, "--worker", name, "--pool", str(asked.pool), "-k", str(asked.k)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=asked.limit)
        except subprocess.TimeoutExpired:
            print(f"| {name} | > {asked.limit:.0f} s by the clock | | | |", flush=True)
            continue
        if done.returncode:
            print(f"| {name} | {(done.stderr.strip().splitlines() or ['killed'])[-1][:80]} | | | |", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        reads = found["cpu"] / found["read"]
        print(
            f"| {name} | {found['cpu']:.0f} | {found['clock']:.0f} | {reads:.0f} | {found['extra_mb']:.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
