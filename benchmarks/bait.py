"""BAIT compared with the form its authors wrote: every candidate's trace from the full C D x C D matrices.

    python benchmarks/bait.py                    10,000 rows, 128 columns, 10 classes, 100 picks
    python benchmarks/bait.py --rows 1000 --columns 32 --classes 5 --picks 20 --whole
    python benchmarks/bait.py --out docs/results/bait.md        the page: two sizes to the end, the full size in part

The straightforward form takes most of an hour at the full size, so part of a step is measured and extrapolated; --whole
runs all steps, forward and backward, and compares the picks. Times are CPU seconds of one thread, which a busy machine
hardly changes; ours is the best of two runs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import labelwise as lw
from labelwise.io.files import write_text
from labelwise.stats.environment import environment

CASES = ((1000, 32, 5, 20, True), (2000, 64, 10, 50, True), (10_000, 128, 10, 100, False))  # last: --whole
CHUNK = 100  # rows of a step whose C x C D factors are in memory at once


def factors(p_NC: Tensor, h_ND: Tensor) -> Tensor:
    """sqrt(p_y) (e_y - p) x h for each class y: (N, C, C D)."""
    eye_CC = torch.eye(p_NC.shape[1], dtype=p_NC.dtype)
    over_NCC = p_NC.sqrt()[:, :, None] * (eye_CC - p_NC[:, None, :])
    return (over_NCC[:, :, :, None] * h_ND[:, None, None, :]).flatten(2)


class Straightforward:
    """The authors' form: a forward step costs N C (C D)^2."""

    def __init__(self, p_NC: Tensor, h_ND: Tensor, k: int, lambda_: float = 1.0):
        self.p_NC, self.h_ND, self.k = p_NC.double(), h_ND.double(), k
        size = p_NC.shape[1] * h_ND.shape[1]
        self.target = torch.zeros(size, size, dtype=torch.float64)
        for start in range(0, len(p_NC), CHUNK):
            v = self._factors(start).flatten(0, 1)
            self.target += v.T @ v / len(p_NC)
        self.inverse = torch.eye(size, dtype=torch.float64) / lambda_
        self.selected: list[int] = []

    def _factors(self, start: int) -> Tensor:
        return factors(self.p_NC[start : start + CHUNK], self.h_ND[start : start + CHUNK])

    def gains(self, start: int, sign: float = 1.0) -> Tensor:
        """The change of the trace for each row of a chunk: tr[ V M^-1 F M^-1 V^T (I + V M^-1 V^T)^-1 ]."""
        return self._change(self._factors(start), sign)

    def _change(self, v: Tensor, sign: float) -> Tensor:
        x = v @ self.inverse
        inner = torch.linalg.inv(torch.eye(v.shape[1], dtype=v.dtype) + sign * x @ v.transpose(1, 2))
        return (x @ self.target @ x.transpose(1, 2) @ inner).diagonal(dim1=1, dim2=2).sum(1)

    def move(self, row: int, sign: float = 1.0) -> None:
        """Add a row to M, or remove it."""
        v = factors(self.p_NC[row : row + 1], self.h_ND[row : row + 1])[0]
        x = v @ self.inverse
        inner = torch.linalg.inv(torch.eye(len(v), dtype=v.dtype) + sign * x @ v.T)
        self.inverse -= sign * x.T @ inner @ x

    def step(self) -> None:
        """Add the row that lowers the trace most."""
        gain = torch.cat([self.gains(start) for start in range(0, len(self.p_NC), CHUNK)])
        gain[self.selected] = -torch.inf
        self.selected.append(int(gain.argmax()))
        self.move(self.selected[-1])

    def prune(self) -> None:
        """Remove the row that raises the trace least."""
        v = factors(self.p_NC[self.selected], self.h_ND[self.selected])
        rise = self._change(v, -1.0)
        self.move(self.selected.pop(int(rise.argmin())), -1.0)


def measure(rows: int, columns: int, classes: int, picks: int, whole: bool, chunks: int) -> dict[str, Any]:
    """Ours and the straightforward form on the same random rows."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(classes, 0.3), rows)
    embedding = np.maximum(rng.normal(size=(rows, columns)), 0)
    times = []
    for _ in range(2):
        began = time.process_time()
        ours = lw.select("bait", picks, probs=probs, embedding=embedding)
        times.append(time.process_time() - began)
    seconds = min(times)
    steps = min(rows, 2 * picks)
    form = Straightforward(torch.from_numpy(probs), torch.from_numpy(embedding), picks)
    began = time.process_time()
    if whole:
        for _ in range(steps):
            form.step()
        for _ in range(steps - picks):
            form.prune()
        plain = time.process_time() - began
    else:
        for number in range(chunks):
            form.gains(number * CHUNK)
        plain = (time.process_time() - began) * steps * rows / (chunks * CHUNK)
    found = {
        "shape": [rows, columns, classes, picks],
        "threads": torch.get_num_threads(),
        "cpu_seconds": round(seconds, 2),
        "straightforward_cpu_seconds": round(plain, 1),
        "straightforward_is": "measured" if whole else f"{chunks} chunks of {CHUNK} rows, extrapolated",
        "times_faster": round(plain / seconds, 1),
    }
    if whole:
        found["same_picks"] = sorted(form.selected) == sorted(ours.ids.tolist())
    return found


def page(cases: list[dict[str, Any]], command: str) -> str:
    """The measurements as Markdown."""
    titles = ["rows, columns, classes, picks", "ours, s", "straightforward, s", "that is", "times as fast", "picks"]
    lines = [titles, ["---"] + ["---:"] * 2 + ["---", "---:", "---"]]
    for one in cases:
        same = {True: "the same", False: "others", None: "not compared"}[one.get("same_picks")]
        shape = ", ".join(f"{size:,}" for size in one["shape"])
        seconds = [f"{one['cpu_seconds']:,}", f"{one['straightforward_cpu_seconds']:,}"]
        lines.append([shape, *seconds, one["straightforward_is"], str(one["times_faster"]), same])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    ran = ", ".join(f"{name} {value}" for name, value in environment().items())
    return (
        "# BAIT and the straightforward form\n\n"
        f"CPU seconds of one thread. Written by `{command}`.\n\n{table}\n\n"
        "The straightforward form computes every candidate's trace from the full matrices at every step, as the "
        "authors' programme does. Its last row is extrapolated: the time of a part of one step is multiplied by "
        f"the number of parts and steps, without the backward steps.\n\n{ran}\n"
    )


def main() -> None:
    """Measure and print a JSON object for each case."""
    reader = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 10_000), ("columns", 128), ("classes", 10), ("picks", 100), ("threads", 1)):
        reader.add_argument(f"--{name}", type=int, default=default)
    reader.add_argument("--chunks", type=int, default=4, help="chunks of a step of the straightforward form to measure")
    reader.add_argument("--whole", action="store_true", help="run the straightforward form to the end")
    reader.add_argument("--out", type=Path, help="measure all cases and write the page there")
    args = reader.parse_args()
    torch.set_num_threads(args.threads)
    from_arguments = ((args.rows, args.columns, args.classes, args.picks, args.whole),)
    found = []
    for rows, columns, classes, picks, whole in CASES if args.out else from_arguments:
        found.append(measure(rows, columns, classes, picks, whole, args.chunks))
        print(json.dumps(found[-1]), flush=True)
    if args.out:
        write_text(args.out, page(found, shlex.join(["python", *sys.argv])))


if __name__ == "__main__":
    main()
