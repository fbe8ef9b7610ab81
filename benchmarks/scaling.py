"""How time and memory grow with rows, classes, dimensions and picks, for every strategy; writes a page and a picture.

    python benchmarks/scaling.py [--quick] [--only badge,kcenter] [--out docs/results/scaling.md]
    python benchmarks/scaling.py --workers 1,2 --rows 200000       # the same selection on Ray, with so many workers
    python benchmarks/scaling.py --declared                        # what each strategy says it needs

One axis is doubled at a time around a base point, each run in a forked process of one thread. Time is that of the
processor (of the thread that selects, so that a busy machine does not count); memory is the most private memory above
what was held before, sampled each millisecond in a run of its own. The slope of an axis is the least-squares line
through the logarithms.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import labelwise as lw
from labelwise.choose.memory import ROW, Size, needed, smallest
from labelwise.signals.spec import Features, LogProbs, Signal, stored

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results" / "scaling.md"
AXES = ("N", "C", "D", "k")
BASE = {"N": 50_000, "C": 8, "D": 32, "k": 32}
SMALL = {"N": 4_000, "C": 6, "D": 16, "k": 16}
SLOW = {"bait", "batchbald", "probcover", "typiclust", "sabal-iht"}
DECLARED = ((200_000, 64, 10, 100), (1_000_000, 512, 1000, 10_000), (10_000_000, 128, 10, 1000))  # N, D, C, k
DRAWS = 8
LONG = 1.5  # seconds after which a run is not repeated
SLACK = 0.25  # a slope measured over a few small sizes is not known better than this

# What the docstring of each strategy states, as the largest power of each axis; one that is not there costs nothing.
# typiclust: squared cluster sizes. bss, volume: d is k/12. bait: (C D)^3 for the design. sabal: k steps of k weights.
STATED: dict[str, dict[str, float]] = {
    "random": {"N": 1, "k": 1},
    "confidence": {"N": 1, "C": 1, "k": 1},
    "margin": {"N": 1, "C": 1, "k": 1},
    "entropy": {"N": 1, "C": 1, "k": 1},
    "kcenter": {"N": 1, "D": 1, "k": 1},
    "badge": {"N": 1, "C": 1, "D": 1, "k": 1},
    "typiclust": {"N": 2, "D": 1, "k": 1},
    "probcover": {"N": 2, "D": 1, "k": 1},
    "dynamical": {"N": 1, "k": 1},
    "bss": {"N": 1, "D": 2, "k": 3},
    "leverage": {"N": 1, "D": 2, "k": 1},
    "volume": {"N": 1, "D": 2, "k": 3},
    "bald": {"N": 1, "C": 1, "k": 1},
    "batchbald": {"N": 1, "C": 1, "k": 2},
    "acs-fw": {"N": 1, "C": 1, "k": 1},
    "sabal-greedy": {"N": 1, "C": 1, "D": 1, "k": 2},
    "sabal-iht": {"N": 1, "C": 1, "D": 1, "k": 1},
    "ally": {"N": 1, "D": 1, "k": 1},
    "bait": {"N": 1, "C": 3, "D": 3, "k": 1},
    "albl": {"N": 1, "C": 1, "D": 1, "k": 1},
}


def axes_of(name: str) -> list[str]:
    """The axes that the inputs of a strategy have."""
    asked = {signal.array for signal in stored(lw.strategies.get(name).needs.pool)}
    has = {"N": True, "C": bool(asked & {"probs", "label_probs", "log_probs"}), "D": "embedding" in asked, "k": True}
    return [axis for axis in AXES if has[axis]]


def inputs(name: str, at: dict[str, int]) -> dict[str, np.ndarray]:
    """Random inputs of a strategy at a point."""
    rng, n, c = np.random.default_rng(0), at["N"], at["C"]
    needs = lw.strategies.get(name).needs
    asked = {signal.array for signal in stored(needs.pool + needs.instead)} or {"duals"}
    probs = rng.gamma(1.0, size=(n, c)).astype("float32") + 1e-4
    probs /= probs.sum(1, keepdims=True)
    made: dict[str, Callable[[], np.ndarray]] = {
        "probs": lambda: probs,
        "label_probs": lambda: np.sqrt(probs) / np.sqrt(probs).sum(1, keepdims=True),
        "embedding": lambda: rng.normal(size=(n, at["D"])).astype("float32") + 2 * rng.integers(0, 3, (n, 1)),
        "log_probs": lambda: np.log(rng.dirichlet(np.ones(c), (n, DRAWS)) + 1e-9),
        "duals": lambda: rng.exponential(size=n),
        "grad_sqnorm": lambda: rng.exponential(size=n),
        "grad_dot": lambda: rng.normal(size=n),
    }
    return {one: made[one]().astype("float32") for one in sorted(asked)}


def measured(name: str, at: dict[str, int], repeats: int) -> dict[str, float]:
    """Seconds of the processor and bytes of a selection, in a forked process."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answer: Any = _selected(name, at, repeats)
        except BaseException as error:  # the parent says so
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    found = json.loads(os.read(read, 65536) or b'{"error": "killed"}')
    os.close(read)
    os.waitpid(pid, 0)
    if "error" in found:
        raise RuntimeError(f"{name} at {at}: {found['error']}")
    return dict(found)


def _selected(name: str, at: dict[str, int], repeats: int) -> dict[str, float]:
    given, picks = inputs(name, at), at["k"]
    lw.select(name, 5, **_first(given))  # type: ignore[arg-type]
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < LONG:
        began = time.thread_time()
        lw.select(name, picks, **given)  # type: ignore[arg-type]
        seconds.append(time.thread_time() - began)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    peak, begun, done = [0], threading.Event(), threading.Event()

    def watch() -> None:
        begun.set()
        while not done.wait(0.001):
            peak[0] = max(peak[0], held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun.wait()
    base = held()  # with the stack of the watcher
    # With a limit large tensors go back to the system at once, so that what is held is what is used.
    lw.select(name, picks, **given, max_memory="100GB")  # type: ignore[arg-type]
    done.set()
    watcher.join()
    strategy = lw.strategies.get(name)
    shapes: dict[Signal, tuple[int, ...]] = {
        signal: given[signal.array].shape[1:] or (1,)
        for signal in stored(strategy.needs.pool + strategy.needs.instead)
        if signal.array in given
    }
    return {
        "seconds": min(seconds),
        "bytes": max(0, peak[0] - base),
        "declared": needed(strategy, Size(at["N"], picks, shapes)),
    }


def _first(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {one: array[:300] for one, array in given.items()}


def held() -> int:
    """Bytes of private memory of this process (Linux)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of growth: the least-squares line through logarithms."""
    x, y = np.log(np.asarray(sizes)), np.log(np.maximum(np.asarray(values), 1e-9))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def sweep(names: Sequence[str], points: int, repeats: int) -> list[dict[str, Any]]:
    """One line of results for each strategy and axis."""
    found: list[dict[str, Any]] = []
    lw.select("random", 1, ids=np.arange(3))  # imported here once, not in every child
    for name in names:
        base = SMALL if name in SLOW else BASE
        for axis in axes_of(name):
            sizes = [base[axis] * 2**step for step in range(points)]
            runs = [measured(name, {**base, axis: size}, repeats) for size in sizes]
            line: dict[str, Any] = {
                "strategy": name,
                "axis": axis,
                "sizes": sizes,
                "seconds": [run["seconds"] for run in runs],
                "bytes": [run["bytes"] for run in runs],
                "declared": [run["declared"] for run in runs],
            }
            line["slope"] = slope(sizes, line["seconds"])
            line["memory_slope"] = slope(sizes, [max(one, 1e5) for one in line["bytes"]])
            found.append(line)
            print(f"{name:14} {axis}  {line['slope']:5.2f} of {STATED[name].get(axis, 0):g}", flush=True)
    return found


def page(lines: Sequence[dict[str, Any]], command: str, spent: float, picture: str) -> str:
    """The page of results."""
    rows = []
    for name in dict.fromkeys(line["strategy"] for line in lines):
        cells, seconds, share = {}, 0.0, 0.0
        for line in (one for one in lines if one["strategy"] == name):
            stated = STATED[name].get(line["axis"], 0.0)
            mark = "" if line["slope"] <= stated + SLACK else " **above**"
            cells[line["axis"]] = f"{line['slope']:.2f} of {stated:g}{mark}"
            share = max(share, *(used / said for used, said in zip(line["bytes"], line["declared"])))
            seconds = max(seconds, *line["seconds"])
        inside = " | ".join(cells.get(axis, "") for axis in AXES)
        rows.append(f"| {name} | {inside} | {seconds:.2f} | {100 * share:.0f} % |")
    worst = [line for line in lines if line["slope"] > STATED[line["strategy"]].get(line["axis"], 0.0) + SLACK]
    verdict = "No slope is above what is stated." if not worst else f"{len(worst)} slopes are above what is stated."
    head = " | ".join(AXES)
    return f"""# Growth

Measured by `{command}`; {spent:.0f} seconds of the processor in all. {verdict}
Base point: {_words(BASE)}; {", ".join(sorted(SLOW))}: {_words(SMALL)}; {DRAWS} draws. {_machine()}

A cell is the power of growth of the processor's time along that axis and, after "of", the power that the strategy's
docstring states; a power up to {SLACK} above it is within what so few sizes can tell. "Memory" is the largest share of
what `Strategy.memory` and blocks declare ([scale](../scale.md)) that was used. "Longest" is in seconds.
batchbald states its cost in rows looked at again, and no power of C bounds those: it may be above on that axis.

| strategy | {head} | longest | memory |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

![time and memory against rows]({picture})
"""


def _words(point: dict[str, int]) -> str:
    return ", ".join(f"{axis} = {size:,}" for axis, size in point.items())


def _machine() -> str:
    return f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, one thread."


def draw(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Time and memory against the rows, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    for line in (one for one in lines if one["axis"] == "N"):
        axes[0].plot(line["sizes"], line["seconds"], marker="o", markersize=3, label=line["strategy"])
        axes[1].plot(line["sizes"], [one / 1e6 for one in line["bytes"]], marker="o", markersize=3)
    for one, title in zip(axes, ("seconds of the processor", "MB above the inputs")):
        one.set(xscale="log", yscale="log", xlabel="rows", title=title)
    figure.legend(loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def declared() -> list[str]:
    """Lines of the table of what each strategy needs: bytes of a row, and the smallest limit at three sizes, in MB."""
    lines = []
    for name in lw.strategies.names():
        strategy = lw.strategies.get(name)
        asked = stored(strategy.needs.pool + strategy.needs.instead)

        def size(rows: int, dim: int, classes: int, k: int, asked: Any = asked) -> Size:
            of = {"embedding": (dim,), "log_probs": (10, 10), "probs": (classes,), "label_probs": (classes,)}
            return Size(rows, k, {signal: of.get(signal.array, (1,)) for signal in asked})

        one, two = (strategy.memory(size(millions * 10**6, 128, 10, 1000)) for millions in (1, 2))
        row = max(ROW, (two - one) / 10**6)
        limits = [smallest(strategy, size(*point)) for point in DECLARED]
        lines.append(f"| {name} | {row:.0f} | " + " | ".join(f"{limit / 1e6:,.0f}" for limit in limits) + " |")
    return lines


def workers(counts: Sequence[int], rows: int, picks: int, name: str) -> list[str]:
    """A selection on Ray with so many workers: seconds of the clock, and of the processor in the busiest worker."""
    from labelwise.choose.door import ARRAYS
    from labelwise.keys import Key
    from labelwise.shards import Shards
    from labelwise.shards.parts import array_parts
    from labelwise.shards.ray import Ray

    given = inputs(name, {"N": rows, "C": 10, "D": 64, "k": picks})
    signals = {s: array for array in given for s in ARRAYS[array][0] if not isinstance(s, Features | LogProbs)}
    columns: dict[Signal, torch.Tensor] = {signal: torch.from_numpy(given[one]) for signal, one in signals.items()}
    lines, picked, wide = [], [], sum(column.shape[1] for column in columns.values())
    for count in counts:
        engine = Ray(workers=count)
        makers = array_parts(torch.arange(rows), columns, {}, torch.float32, count)
        with engine.shards(makers, [len(maker.ids) for maker in makers]) as shards:
            lw.strategies.get(name).select(shards, Shards([]), 2, Key(1))  # all is made and loaded
            before, clock = shards.map(lambda shard: time.process_time()), time.perf_counter()
            own = time.process_time()
            picked.append(lw.strategies.get(name).select(shards, Shards([]), picks, Key(0)).ids.tolist())
            clock, own = time.perf_counter() - clock, time.process_time() - own
            busy = max(b - a for a, b in zip(before, shards.map(lambda shard: time.process_time())))
        lines.append(f"| {name} | {rows:,} x {wide}, k = {picks} | {count} | {busy:.2f} | {own:.2f} | {clock:.2f} |")
    assert all(one == picked[0] for one in picked), "picks differ with the number of workers"
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes of each axis, one run each")
    parser.add_argument("--points", type=int, default=4, help="sizes of each axis, each twice the one before")
    parser.add_argument("--only", default="", help="these strategies, with commas; printed, not written")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--workers", default="", help="numbers of Ray workers, with commas")
    parser.add_argument("--declared", action="store_true", help="print what each strategy says it needs")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--picks", type=int, default=200)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.declared:
        print("\n".join(declared()))
        return 0
    if options.workers:
        names = options.only.split(",") if options.only else ["badge", "kcenter"]
        print("| strategy | shape | workers | busiest worker, CPU s | driver, CPU s | clock s |")
        print("|---|---|---|---|---|---|")
        for name in names:
            print(
                "\n".join(workers([int(one) for one in options.workers.split(",")], options.rows, options.picks, name))
            )
        return 0
    names = options.only.split(",") if options.only else lw.strategies.names()
    unknown = [name for name in names if name not in STATED]
    if unknown:
        print(f"no growth is stated for {', '.join(unknown)}; there are: {', '.join(STATED)}")
        return 2
    points, repeats = (2, 1) if options.quick else (options.points, 3)
    began = time.process_time() + sum(os.times()[2:4])
    lines = sweep(names, points, repeats)
    spent = time.process_time() + sum(os.times()[2:4]) - began
    out = options.out or (None if options.only or options.quick else RESULTS)
    words = " ".join(["python benchmarks/scaling.py", *(sys.argv[1:] if arguments is None else arguments)])
    if out is None:
        print(page(lines, words, spent, "scaling.png"))
        return 0
    picture = out.with_suffix(".png")
    draw(lines, picture)
    out.write_text(page(lines, words, spent, picture.name))
    print(f"-> {out}, {picture}")
    return 0 if all(math.isfinite(line["slope"]) for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
