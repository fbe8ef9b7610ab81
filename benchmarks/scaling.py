"""How time and memory grow with rows, classes, dimensions and picks, for every strategy; writes a page and a picture.

    python benchmarks/scaling.py [--quick] [--only badge,kcenter] [--out docs/results/scaling.md]
    python benchmarks/scaling.py --workers 1,2 --rows 200000       # the same selection on Ray, with so many workers
    python benchmarks/scaling.py --driver --rows 5000000           # what the driver of a cluster holds, and kept states
    python benchmarks/scaling.py --declared                        # what each strategy says it needs

One axis is doubled at a time around a base point, each run in a forked process of one thread. Time is that of the
processor (of the thread that selects, so that a busy machine does not count); memory is the most that was held above
what was held before, as the system counts it, in a run of its own. The slope of an axis is the least-squares line
through the logarithms. What it is compared with is `growth` in the file of each strategy.
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
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import labelwise as lw
from called import called
from labelwise.selection.memory import ROW, needed_bytes, smallest_limit
from labelwise.selection.strategy import Size
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
LEAST_BYTES = 1_000_000  # memory below this is the noise of an allocator
COLOURS = {"N": "#0072b2", "C": "#d55e00", "D": "#009e73", "k": "#b5529c"}  # apart for colour-blind readers too
MARKERS = {"N": "o", "C": "s", "D": "^", "k": "D"}


def stated(name: str, axis: str) -> float:
    """The power that a strategy states for an axis, in its own file: `growth`, beside `cost`."""
    growth = lw.strategies.get(name).growth
    assert growth is not None, name
    return float(getattr(growth, axis))


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
    found = {"seconds": timed(name, given, picks, repeats)}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the most that was held counts from here on
    base = peak_bytes()
    # With a limit large tensors go back to the system at once, so that what is held is what is used.
    lw.select(name, picks, **given, max_memory="100GB")  # type: ignore[arg-type]
    strategy = lw.strategies.get(name)
    shapes: dict[Signal, tuple[int, ...]] = {
        signal: given[signal.array].shape[1:] or (1,)
        for signal in stored(strategy.needs.pool + strategy.needs.instead)
        if signal.array in given
    }
    size = Size(at["N"], picks, shapes)
    return {**found, "bytes": max(0, peak_bytes() - base), "declared": needed_bytes(strategy, size)}


def timed(name: str, given: dict[str, np.ndarray], picks: int, repeats: int) -> float:
    """Seconds of the processor, the least of some runs."""
    lw.select(name, 5, **_first(given))  # type: ignore[arg-type]
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < LONG:
        began = time.thread_time()
        lw.select(name, picks, **given)  # type: ignore[arg-type]
        seconds.append(time.thread_time() - began)
    return min(seconds)


def _first(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {one: array[:300] for one, array in given.items()}


def peak_bytes() -> int:
    """The most bytes that this process has held in memory (Linux)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


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
        start = measured(name, base, repeats)  # of every axis
        for axis in axes_of(name):
            sizes = [base[axis] * 2**step for step in range(points)]
            runs = [start, *(measured(name, {**base, axis: size}, repeats) for size in sizes[1:])]
            line: dict[str, Any] = {"strategy": name, "axis": axis, "sizes": sizes}
            line |= {what: [run[what] for run in runs] for what in ("seconds", "bytes", "declared")}
            line["slope"] = slope(sizes, line["seconds"])
            line["memory_slope"] = slope(sizes, [max(one, LEAST_BYTES) for one in line["bytes"]])
            found.append(line)
            print(f"{name:14} {axis}  {line['slope']:5.2f} of {_power(line)}", flush=True)
    return found


def _power(line: dict[str, Any]) -> str:
    power = stated(line["strategy"], line["axis"])
    return f"{power:g}" if math.isfinite(power) else "any"


def above(line: dict[str, Any]) -> bool:
    """Whether time grows faster than is stated."""
    return bool(line["slope"] > stated(line["strategy"], line["axis"]) + SLACK)


def page(lines: Sequence[dict[str, Any]], command: str, spent: float, pictures: Sequence[str]) -> str:
    """The page of results."""
    worse = sum(above(line) for line in lines)
    verdict = f"**{worse} slopes are above what is stated.**" if worse else "No slope is above what is stated."
    fuller = [line for line in lines if any(used > most for used, most in zip(line["bytes"], line["declared"]))]
    exceptions = "" if not fuller else f" **{len(fuller)} lines used more memory than is declared.**"
    return f"""# Growth

Measured by `{command}`; {spent:.0f} seconds of the processor in all. {verdict}{exceptions}
Base point: {_words(BASE)}; {", ".join(sorted(SLOW))}: {_words(SMALL)}; {DRAWS} draws. {_machine()}

## Time

A cell is the power of growth of the processor's time along that axis and, after "of", the power that the strategy
states in its own file (`growth`, beside `cost`); up to {SLACK} above it is within what so few sizes can tell. Most are
below: fixed costs hide growth at these sizes. "Longest" is in seconds. batchbald looks at rows again, and by which
power of C these grow is not known ("any").

{_table(lines, _time_cell, "longest", lambda own: f"{max(second for line in own for second in line['seconds']):.2f}")}

![seconds against each axis, for every strategy]({pictures[0]})

## Memory

The power of growth of the most memory that was held above the inputs, below {LEAST_BYTES / 1e6:g} MB counted as that.
What is promised is not a power but bytes: `Strategy.memory` and blocks ([scale](../scale.md)); "used" is the largest
share of them.

{_table(lines, lambda line: f"{line['memory_slope']:.2f}", "used", _used)}

![MB against each axis, for every strategy]({pictures[1]})
"""


def _table(
    lines: Sequence[dict[str, Any]],
    cell: Callable[[dict[str, Any]], str],
    last: str,
    of_all: Callable[[list[dict[str, Any]]], str],
) -> str:
    """A row for each strategy, a column for each axis, and one of all axes together."""
    rows = [f"| strategy | {' | '.join(AXES)} | {last} |", "|---" * (len(AXES) + 2) + "|"]
    for name in dict.fromkeys(line["strategy"] for line in lines):
        own = {line["axis"]: line for line in lines if line["strategy"] == name}
        cells = [cell(own[axis]) if axis in own else "" for axis in AXES]
        rows.append(f"| {name} | {' | '.join(cells)} | {of_all(list(own.values()))} |")
    return "\n".join(rows)


def _time_cell(line: dict[str, Any]) -> str:
    return f"{line['slope']:.2f} of {_power(line)}" + (" **above**" if above(line) else "")


def _used(own: list[dict[str, Any]]) -> str:
    return f"{max(used / most for line in own for used, most in zip(line['bytes'], line['declared'])):.0%}".replace(
        "%", " %"
    )


def _words(point: dict[str, int]) -> str:
    return ", ".join(f"{axis} = {size:,}" for axis, size in point.items())


def _machine() -> str:
    return f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, one thread."


def draw(lines: Sequence[dict[str, Any]], what: str, label: str, unit: float, path: Path) -> None:
    """A panel for each strategy, a line for each axis, the same logarithmic axes in all; grey grows as the axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullLocator

    names = list(dict.fromkeys(line["strategy"] for line in lines))
    across = min(5, len(names))
    down = -(-len(names) // across)
    figure, panels = plt.subplots(
        down, across, figsize=(2.3 * across, 1.9 * down + 0.7), sharex=True, sharey=True, squeeze=False,
        constrained_layout=True,
    )  # fmt: skip
    for panel, name in zip(panels.flat, names):
        own = [line for line in lines if line["strategy"] == name]
        times = [size / own[0]["sizes"][0] for size in own[0]["sizes"]]
        start = max(own[0][what][0] / unit, 1e-4)
        panel.plot(times, [start * one for one in times], color="#bbbbbb", linewidth=1, zorder=1)
        for line in own:
            values = [max(one / unit, 1e-4) for one in line[what]]
            panel.plot(times, values, marker=MARKERS[line["axis"]], markersize=4, color=COLOURS[line["axis"]], zorder=2)
        panel.set_title(name, fontsize=10)
        panel.set(xscale="log", yscale="log", xticks=times, xticklabels=[f"{one:g}x" for one in times])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.grid(axis="y", color="#eeeeee", zorder=0)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    handles = [Line2D([], [], marker=MARKERS[axis], color=COLOURS[axis], label=axis) for axis in AXES]
    handles.append(Line2D([], [], color="#bbbbbb", label="as the axis"))
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    figure.supylabel(label, fontsize=10)
    figure.supxlabel("size along one axis, in units of the base point", fontsize=10)
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
        limits = [smallest_limit(strategy, size(*point)) for point in DECLARED]
        lines.append(f"| {name} | {row:.0f} | " + " | ".join(f"{limit / 1e6:,.0f}" for limit in limits) + " |")
    return lines


def workers(counts: Sequence[int], rows: int, picks: int, name: str) -> list[str]:
    """A selection on Ray with so many workers: seconds of the clock, and of the processor in the busiest worker."""
    from labelwise.rng import Key
    from labelwise.selection.validate import ARRAYS
    from labelwise.shards import Shards
    from labelwise.shards.factories import array_parts
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


def driver(rows: int) -> list[str]:
    """Bytes a row of k-center on two workers: what the driver holds at most, and the state that is kept of a part."""
    from labelwise.shards.ray import engine as module

    strategy, sizes, keep = "kcenter", [0], module.RemoteShard._save_snapshot

    def measured_keep(self: Any) -> None:
        keep(self)
        snapshot = self._ray.get(self._remote_snapshot)["shard"]
        sizes.append(sum(one.nbytes for part in snapshot.values() for one in part.values()) / len(self))

    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/embedding.npy", np.random.default_rng(0).normal(size=(rows, 2)).astype("float32"))
        given = np.load(f"{folder}/embedding.npy", mmap_mode="r")
        engine, ids = module.Ray(workers=2), np.arange(rows)
        lw.select(strategy, 3, embedding=given[:1000], engine=engine)  # all is loaded
        most = []
        for asked in (None, ids):
            ctypes.CDLL(None).malloc_trim(0)  # what is held, not what is kept for later
            Path("/proc/self/clear_refs").write_text("5")
            before = peak_bytes()
            lw.select(strategy, 30, embedding=given, ids=asked, engine=engine)
            most.append((peak_bytes() - before) / rows)
        module.Ray.tuning = module.Tuning(every=3)
        module.RemoteShard._save_snapshot = measured_keep  # type: ignore[method-assign]
        lw.select(strategy, 30, embedding=given, engine=engine)
    return [
        f"| driver, for each row of the pool | {most[0]:.0f} |",
        f"| driver, with ids= | {most[1]:.0f} |",
        f"| a kept state, for each row of a part | {max(sizes):.0f} |",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes of each axis, one run each")
    parser.add_argument("--points", type=int, default=4, help="sizes of each axis, each twice the one before")
    parser.add_argument("--only", default="", help="these strategies, with commas; printed, not written")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--workers", default="", help="numbers of Ray workers, with commas")
    parser.add_argument("--driver", action="store_true", help="what the driver of a cluster holds for each row")
    parser.add_argument("--declared", action="store_true", help="print what each strategy says it needs")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--picks", type=int, default=200)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.declared:
        print("\n".join(declared()))
        return 0
    if options.driver:
        print("\n".join(["| what | bytes a row |", "|---|---|", *driver(options.rows)]))
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
    unknown = [name for name in names if name not in lw.strategies.names()]
    if unknown:
        print(f"there is no strategy {', '.join(unknown)}; there are: {', '.join(lw.strategies.names())}")
        return 2
    points, repeats = (2, 1) if options.quick else (options.points, 3)
    began = time.process_time() + sum(os.times()[2:4])
    lines = sweep(names, points, repeats)
    spent = time.process_time() + sum(os.times()[2:4]) - began
    out = options.out or (None if options.only or options.quick else RESULTS)
    words = called("scaling", arguments)
    pictures = ["scaling.png", "scaling-memory.png"]
    if out is None:
        print(page(lines, words, spent, pictures))
        return 0
    pictures = [f"{out.stem}.png", f"{out.stem}-memory.png"]
    draw(lines, "seconds", "seconds of the processor", 1.0, out.with_name(pictures[0]))
    draw(lines, "bytes", "MB above the inputs", 1e6, out.with_name(pictures[1]))
    out.write_text(page(lines, words, spent, pictures))
    print(f"-> {out}, {', '.join(pictures)}")
    return 0 if all(math.isfinite(line["slope"]) for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
