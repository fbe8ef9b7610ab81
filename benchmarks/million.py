"""A million rows on one machine: `python benchmarks/million.py --only kcenter,badge` makes a pool and selects from it.

The pool is mapped files in float16, 1,000,000 rows of 512 features and 1,000 classes (5 GB). Each strategy runs in a
process of its own; seconds of the processor and of the clock, reads of the pool, memory above the mapped files, and
what plain, one pass over the rows for each pick (benchmarks/plain.py, sabal.py), would take: seconds of some of its
picks on PART rows in memory in float32, times rows, times picks.

Embeddings of a trained network have a spectrum that falls as a power: rows are a centre of one of the classes and
noise of the same size, both with variances 1, 1/2, 1/3, ... along the 512 axes of a random rotation. Probabilities are
a softmax of distances to the centres, `label_probs` the same at a higher temperature. With `--flat` the variance is the
same along all axes and probabilities do not come from the features: all distances are then equal but for a few per
cent, the worst there is for a bound. Strategies that want draws (bald, batchbald, acs-fw) get 100 draws of 10 classes,
ally random duals. `--iterations 2` lets sabal-iht make so many of its at most 1,000, which all cost the same.

`--scored`: 10,000,000 rows of 128 probabilities for the strategies that look at each row once; bald gets 16 draws of 8
classes, dynamical the squared norm and the cross term of each row's gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROWS_AT_ONCE = 20_000  # rows made at a time
GREEDY = "badge,kcenter,bss,leverage,volume,sabal-iht,sabal-greedy,typiclust,probcover,acs-fw,bald,batchbald,ally"
SCORED = "random,confidence,margin,entropy,bald,dynamical"
DRAWS, DRAW_CLASSES = 100, 10
SCORED_DRAWS = 16  # of the classes that make as many numbers as there are probabilities
SHARP, WARM = 1.6, 1.5  # of the softmax: about 0.8 for the most probable class; and the temperature of label_probs
PART = 50_000  # rows of the pool that plain is timed on
PLAIN_PICKS = {"kcenter": (2, 12), "badge": (2, 12), "sabal-greedy": (1, 3)}
WITH_DRAWS = {"bald", "batchbald", "acs-fw"}
ABOUT = """# A million rows on one machine

Written by `python benchmarks/million.py --out docs/results/million.md`, one process for each strategy; its docstring
says how the pools are made. Pools are mapped files in float16. CPU s are seconds of the processor; other work was on
the machine, so seconds of the clock say little. Reads are rows read over rows of the pool. Extra MB is memory of the
process above the mapped files, declared MB what `Strategy.memory` and blocks come to without a limit. Plain is one
pass over the rows for each pick, from the seconds of some picks on 50,000 rows. Ratios by the clock are of runs that
had the machine to themselves."""
HEAD = (
    "| strategy | CPU s | clock s | reads | extra MB | declared MB | plain, CPU s | plain / ours | plain, clock s "
    "| plain / ours, clock |"
)
RULE = "|---|---|---|---|---|---|---|---|---|---|"


def make(folder: Path, rows: int, width: int, classes: int, flat: bool) -> None:
    """Write features h, probabilities p and label_probs q into `folder`, if they are not there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    h, p, q = (_file(folder, name, (rows, columns)) for name, columns in (("h", width), ("p", classes), ("q", classes)))
    rng = np.random.default_rng(0)
    spectrum = np.ones(width) if flat else np.arange(1, width + 1) ** -0.5
    axes = np.linalg.qr(rng.normal(size=(width, width)))[0] * spectrum[:, None]  # rotated: no column is special
    axes = axes.astype(np.float32)
    centres = rng.standard_normal((classes, width), dtype=np.float32) @ axes
    for start in range(0, rows, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, rows)
        own = rng.integers(classes, size=stop - start)
        x = centres[own] + rng.standard_normal((stop - start, width), dtype=np.float32) @ axes
        if flat:
            logits = rng.standard_normal((stop - start, classes), dtype=np.float32)
            logits[np.arange(len(own)), own] += rng.exponential(6, len(own)).astype(np.float32)
        else:
            logits = SHARP * (x @ centres.T - (centres * centres).sum(1) / 2)
        h[start:stop], p[start:stop], q[start:stop] = x, _softmax(logits), _softmax(logits / WARM)
    (folder / "done").touch()


def make_draws(folder: Path, rows: int) -> None:
    """Write log probabilities under DRAWS draws of a head's weights, if they are not there."""
    if (folder / "drawn").exists():
        return
    log = _file(folder, "log", (rows, DRAWS, DRAW_CLASSES))
    h = np.load(folder / "h.npy", mmap_mode="r")
    rng = np.random.default_rng(1)
    size = np.sqrt((h[:1000].astype(np.float32) ** 2).sum(1).mean())
    heads = rng.standard_normal((h.shape[1], DRAWS * DRAW_CLASSES), dtype=np.float32) + np.tile(
        2 * rng.standard_normal((h.shape[1], DRAW_CLASSES), dtype=np.float32), DRAWS
    )
    for start in range(0, rows, ROWS_AT_ONCE):
        x = h[start : start + ROWS_AT_ONCE].astype(np.float32) / size
        logits = (x @ heads).reshape(len(x), DRAWS, DRAW_CLASSES)
        logits -= logits.max(2, keepdims=True)
        log[start : start + ROWS_AT_ONCE] = logits - np.log(np.exp(logits).sum(2, keepdims=True))
    (folder / "drawn").touch()


def make_scored(folder: Path, rows: int, classes: int) -> None:
    """Write probabilities of `rows` rows, if they are not there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    p, rng = _file(folder, "p", (rows, classes)), np.random.default_rng(0)
    for start in range(0, rows, ROWS_AT_ONCE):
        logits = 2 * rng.standard_normal((min(ROWS_AT_ONCE, rows - start), classes), dtype=np.float32)
        p[start : start + ROWS_AT_ONCE] = _softmax(logits)
    (folder / "done").touch()


def make_scored_draws(folder: Path) -> None:
    """Write log probabilities under draws and the two numbers of a gradient, if they are not there."""
    if (folder / "drawn").exists():
        return
    rows, columns = np.load(folder / "p.npy", mmap_mode="r").shape
    log, rng = _file(folder, "log", (rows, SCORED_DRAWS, columns // SCORED_DRAWS)), np.random.default_rng(1)
    norm, cross = _file(folder, "norm", (rows,)), _file(folder, "cross", (rows,))
    for start in range(0, rows, ROWS_AT_ONCE):
        logits = 2 * rng.standard_normal((min(ROWS_AT_ONCE, rows - start), *log.shape[1:]), dtype=np.float32)
        logits -= logits.max(2, keepdims=True)
        log[start : start + ROWS_AT_ONCE] = logits - np.log(np.exp(logits).sum(2, keepdims=True))
        norm[start : start + ROWS_AT_ONCE] = rng.exponential(size=len(logits))
        cross[start : start + ROWS_AT_ONCE] = rng.standard_normal(len(logits))
    (folder / "drawn").touch()


def _file(folder: Path, name: str, shape: tuple[int, ...]) -> Any:
    return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float16, shape)


def _softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def arrays_of(folder: Path, name: str) -> dict[str, Any]:
    """The arrays that a strategy asks for, mapped."""
    import labelwise as lw

    files = {"probs": "p", "label_probs": "q", "embedding": "h", "log_probs": "log"}
    files |= {"grad_sqnorm": "norm", "grad_dot": "cross"}
    needs = {"random": {"probs"}, "ally": {"embedding"}, "sabal-iht": {"probs", "label_probs", "embedding"}}
    needs["sabal-greedy"] = needs["sabal-iht"]
    stored = {part.array for signal in lw.strategies.get(name).needs.pool for part in signal.stored()}
    arrays = {one: np.load(folder / f"{files[one]}.npy", mmap_mode="r") for one in needs.get(name, stored)}
    if name == "ally":
        arrays["duals"] = np.random.default_rng(2).exponential(size=len(arrays["embedding"])).astype(np.float32)
    return arrays


def worker(folder: Path, name: str, k: int, iterations: int | None) -> dict[str, Any]:
    """Select once; with counts of what was read, in units of the pool."""
    import labelwise as lw
    from labelwise.selection.memory import needed_bytes
    from labelwise.selection.strategy import Size
    from labelwise.shards import Shard

    arrays, strategy = arrays_of(folder, name), lw.strategies.get(name)
    if name == "sabal-iht" and iterations is not None:
        strategy = lw.strategies.Sabal("iht", iterations=iterations, tolerance=0.0)
    rows, read, rows_of = len(next(iter(arrays.values()))), [0], Shard.rows

    def counting(self: Shard, where: Any) -> Any:
        found = rows_of(self, where)
        read[0] += len(found) if found.columns else 0
        return found

    Shard.rows = counting  # type: ignore[method-assign]
    with _peak() as peak:
        clock, began = time.perf_counter(), time.process_time()
        picks = lw.select(strategy, k, **arrays, seed=0)
        spent = {"cpu": time.process_time() - began, "clock": time.perf_counter() - clock}
    assert len(set(picks.ids.tolist())) == k
    declared = needed_bytes(strategy, Size.of(rows, k, _columns(strategy, arrays))) / 1e6
    notes = {key: value for key, value in picks.notes.items() if isinstance(value, int | float | str)}
    return {**spent, "reads": read[0] / rows, "extra_mb": peak[0], "declared_mb": declared, "notes": notes}


def _columns(strategy: Any, arrays: dict[str, Any]) -> dict[Any, Any]:
    """The arrays as the columns of a selection."""
    import torch

    stored = {part for signal in strategy.needs.pool + strategy.needs.instead for part in signal.stored()}
    return {signal: torch.from_numpy(arrays[signal.array]) for signal in stored if signal.array in arrays}


def plain_worker(folder: Path, name: str, k: int, _: int | None) -> dict[str, Any]:
    """CPU seconds that plain would take for all rows and picks."""
    import torch

    import plain
    import sabal

    arrays = {one: torch.from_numpy(array[:PART].astype(np.float32)) for one, array in arrays_of(folder, name).items()}
    rows = len(np.load(folder / "p.npy", mmap_mode="r"))
    few, many = PLAIN_PICKS[name]

    def run(picks: int) -> np.ndarray:
        began = time.process_time(), time.perf_counter()
        if name == "sabal-greedy":
            sabal.plain_greedy(picks, 1e-2, 1e-1, **arrays)
        else:
            plain.ALL[name](picks, 0, **arrays)
        return np.array([time.process_time(), time.perf_counter()]) - began

    each_2 = np.min([(run(many) - run(few)) / (many - few) for _ in range(2)], axis=0)
    cpu, clock = each_2 * k * rows / min(PART, rows)
    return {"plain": cpu, "plain_clock": clock}


@contextmanager
def _peak() -> Iterator[list[float]]:
    """The most memory, without pages of mapped files, that the process had within above the start, in MB."""
    own_mb, found, over = _own_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            found[0] = max(found[0], _own_mb() - own_mb)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


def _own_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon"))


def measured(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """What the processes of a strategy say, or why they say nothing."""
    found: dict[str, Any] = {"threads": asked.threads, "alone": asked.alone}
    for kind in ["worker", *(["plain-worker"] if name in PLAIN_PICKS and not asked.scored else [])]:
        process = [sys.executable, __file__, f"--{kind}", name, "--pool", str(asked.pool), "-k", str(asked.k)]
        process += [] if asked.iterations is None else ["--iterations", str(asked.iterations)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(asked.threads)}
        try:
            done = subprocess.run(process, capture_output=True, text=True, timeout=asked.limit, env=environment)
        except subprocess.TimeoutExpired:
            return found | {"stopped": f"not done after {asked.limit:.0f} s by the clock"}
        if done.returncode:
            return found | {"stopped": (done.stderr.strip().splitlines() or ["killed"])[-1][:160]}
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def line(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    if "cpu" not in found:
        return f"| {name} | {found['stopped']} | | | | | | | | |"
    beside = f"{found['plain']:,.0f} | {found['plain'] / found['cpu']:.0f}" if "plain" in found else "|"
    if found.get("alone") and "plain_clock" in found:
        beside += f" | {found['plain_clock']:,.0f} | {found['plain_clock'] / found['clock']:.0f}"
    else:
        beside += " | |"
    return (
        f"| {name} | {found['cpu']:,.0f} | {found['clock']:,.0f} | {found['reads']:.1f} | {found['extra_mb']:,.0f} "
        f"| {found['declared_mb']:,.0f} | {beside} |"
    )


def page(tables: dict[str, dict[str, Any]]) -> str:
    """All tables measured so far, as a page."""
    parts = [ABOUT]
    for title, found in tables.items():
        threads = sorted({one["threads"] for one in found["rows"].values()})
        parts.append(f"## {title}\n\n`{found['command']}`, threads: {', '.join(map(str, threads))}.\n\n{HEAD}\n{RULE}")
        parts[-1] += "".join("\n" + line(name, one) for name, one in found["rows"].items())
    return "\n\n".join(parts) + "\n"


def command(asked: argparse.Namespace) -> str:
    """What makes this table."""
    given = [f"--{one}" for one in ("scored", "flat", "alone") if getattr(asked, one)]
    given += [f"--{one} {getattr(asked, one)}" for one in ("rows", "classes") if getattr(asked, one)]
    return " ".join(["python benchmarks/million.py", *given, f"-k {asked.k}"])


def report(asked: argparse.Namespace, names: list[str], title: str) -> bool:
    """Measure, print the table and keep it on the page; whether every strategy finished."""
    print(f"{title}\n{HEAD}\n{RULE}", flush=True)
    fine = True
    for name in names:
        found = measured(asked, name)
        name += f", {asked.iterations} iterations" if name == "sabal-iht" and asked.iterations is not None else ""
        fine = fine and "cpu" in found
        print(line(name, found), json.dumps(found.get("notes", {})), flush=True)
        if asked.out is not None:
            stored = asked.out.with_suffix(".json")
            tables = json.loads(stored.read_text()) if stored.exists() else {}
            tables.setdefault(title, {"command": command(asked), "rows": {}})["rows"][name] = found
            stored.write_text(json.dumps(tables, indent=1) + "\n")
            asked.out.write_text(page(tables))
    return fine


def main() -> int:
    """Make the pool and measure."""
    asked = arguments()
    if asked.worker or asked.plain_worker:
        run = worker if asked.worker else plain_worker
        print(json.dumps(run(asked.pool, asked.worker or asked.plain_worker, asked.k, asked.iterations)))
        return 0
    rows = asked.rows or (10_000_000 if asked.scored else 1_000_000)
    classes = asked.classes or (128 if asked.scored else 1000)
    kind = "scored" if asked.scored else "flat" if asked.flat else "falling"
    asked.pool = asked.pool or Path(tempfile.gettempdir()) / f"labelwise-million-{kind}-{rows}-{asked.width}-{classes}"
    names = (asked.only or (SCORED if asked.scored else GREEDY)).split(",")
    if asked.scored:
        make_scored(asked.pool, rows, classes)
        if {"bald", "dynamical"} & set(names):
            make_scored_draws(asked.pool)
        return 0 if report(asked, names, f"{rows:,} rows, {classes} classes, k = {asked.k:,}") else 1
    make(asked.pool, rows, asked.width, classes, asked.flat)
    if set(names) & WITH_DRAWS:
        make_draws(asked.pool, rows)
    what = "equal variances" if asked.flat else "falling variances"
    title = f"{rows:,} rows, {asked.width} features of {what}, {classes:,} classes, k = {asked.k:,}"
    title += ", the machine to itself" if asked.alone else ""
    return 0 if report(asked, names, title) else 1


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"strategies, with commas; {GREEDY}, or with --scored {SCORED}")
    parser.add_argument("--scored", action="store_true", help="10,000,000 rows of 128 probabilities")
    parser.add_argument("--flat", action="store_true", help="features of equal variance along all axes")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int)
    parser.add_argument("-k", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pool", type=Path, help="where the files are kept; among temporary files if not given")
    parser.add_argument("--iterations", type=int, help="of sabal-iht; as many as it takes if not given")
    parser.add_argument("--alone", action="store_true", help="nothing else runs: show ratios by the clock as well")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each strategy")
    parser.add_argument("--out", type=Path, help="a page to keep the table on, with a .json beside it")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--plain-worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
