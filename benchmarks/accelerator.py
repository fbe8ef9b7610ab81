"""On a CUDA device: are the picks those of the CPU, and how long does selection take? Writes a page, in five minutes.

    python benchmarks/accelerator.py [--out docs/results/accelerator.md] [--parts targets,large,...]
    python benchmarks/accelerator.py --device cpu --tiny        # a dry run of the same program

Needs torch and NumPy alone, and Triton, which comes with torch for CUDA. Times are of one selection on tensors that
are on the device already, the best of three after a warm-up, measured with CUDA events. "Reads" is how often the rows
were read in one selection: blocks that were asked for, and a read for each pick or iteration where fused kernels have
it; times the bytes of the inputs, over the time, over the rate of a copy in the same run, that is the bandwidth
reached. "Waits" is how often the host waited for the device (torch.cuda.set_sync_debug_mode). The page is written
after every part; parts for which --seconds do not suffice are left out.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import labelwise as lw
from called import called
from labelwise.bench.models.networks import vgg16
from labelwise.shards import Shard
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, LabelProbs, Probs
from labelwise.strategies import Sabal

Shape = tuple[int, int, int, int]
SLOW = ("probcover", "typiclust", "bait", "batchbald", "albl", "ally")  # not made for k in the thousands, or cold
NEEDED: dict[str, tuple[str, ...]] = dict.fromkeys(("kcenter", "bss", "typiclust", "probcover"), ("embedding",))
NEEDED |= dict.fromkeys(("badge", "bait", "albl"), ("probs", "embedding")) | {"random": ()}
NEEDED |= dict.fromkeys(("confidence", "margin", "entropy"), ("probs",))
MORE: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("bald", "batchbald", "acs-fw"), ("log_probs",)
)  # arrays that others are not given
MORE |= {"dynamical": ("grad_sqnorm", "grad_dot"), "ally": ("duals",)}
NEEDED |= {**MORE, "ally": ("embedding", "duals")}
DRAWS, SMALL = 8, 10_000
TARGETS = {"sabal-greedy": 0.25, "sabal-iht": 0.10, "badge": 0.05, "kcenter": 0.10}
LARGE_TARGET, WHOLE_TARGET = 5.0, 1.0
PAPER = {"badge": 1207, "sabal-greedy": 334, "sabal-iht": 174, "kcenter": 258, "entropy": 12}  # seconds, on a V100
ITERATIONS = 200


@dataclass(frozen=True)
class Sizes:
    """Shapes N, D, C, k."""

    target: Shape = (50_000, 512, 10, 3000)
    fewer: Shape = (50_000, 512, 10, 1000)
    large: Shape = (200_000, 2048, 1000, 1000)
    middle: Shape = (20_000, 128, 10, 1000)
    wide: Shape = (4000, 256, 200, 150)
    small: Shape = (4000, 32, 5, 60)
    slow: Shape = (10_000, 64, 5, 200)
    million: Shape = (1_000_000, 512, 1000, 10_000)
    copied: int = 1 << 30  # numbers of the arrays that bandwidth is measured with
    width: int = 64  # of the network
    batch: int = 2048


TINY = Sizes(
    target=(200, 8, 4, 40),
    fewer=(200, 8, 4, 20),
    large=(300, 8, 140, 20),
    middle=(200, 8, 4, 30),
    wide=(200, 8, 130, 15),
    small=(100, 4, 3, 10),
    slow=(120, 4, 3, 12),
    million=(400, 8, 140, 20),
    copied=1 << 10,
    width=2,
    batch=64,
)


def seconds_of(run: Callable[[], Any], repeats: int = 3, device: str = "cuda") -> tuple[float, Any]:
    """The best time after one warm-up, by events of the device where there are some, and the answer."""
    answer, times = run(), []
    for _ in range(repeats):
        if device == "cpu":
            began = time.perf_counter()
            answer = run()
            times.append(time.perf_counter() - began)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        answer = run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times), answer


@dataclass
class Stand:
    """The device, shapes, and the page as it grows."""

    device: str
    sizes: Sizes
    out: Path | None
    until: float
    lines: list[str] = field(default_factory=list)
    copy: float = 1.0

    def say(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)
        self.lines += lines
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text("\n".join(self.lines).rstrip() + "\n")

    def seconds(self, run: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
        """The best time after one warm-up, and the answer."""
        return seconds_of(run, repeats, self.device)

    def waits(self, run: Callable[[], Any]) -> str:
        """How often the host waits for the device."""
        if self.device == "cpu":
            run()
            return "-"
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return str(sum("synchroniz" in str(one.message) for one in seen))

    def rate(self, run: Callable[[], object], size: int) -> float:
        """Bytes a second."""
        run()
        return statistics.median(size / max(self.seconds(run, 1)[0], 1e-9) for _ in range(5))


def inputs_of(shape: Shape, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Random embeddings, softmax of random logits, and the same at temperature 1.5; the same on every device.

    Few rows also come with what the strategies of MORE ask for.
    """
    n, d, c, _ = shape
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(n, c, generator=chance, dtype=dtype) * 2
    given = {
        "probs": logits.softmax(1),
        "label_probs": (logits / 1.5).softmax(1),
        "embedding": torch.randn(n, d, generator=chance, dtype=dtype),
    }
    if n <= SMALL:
        draws_NKC = logits[:, None] + torch.randn(n, DRAWS, c, generator=chance, dtype=dtype)
        given |= {"log_probs": draws_NKC.log_softmax(2), "grad_sqnorm": torch.rand(n, generator=chance, dtype=dtype)}
        given |= {"grad_dot": torch.randn(n, generator=chance, dtype=dtype)}
        given |= {"duals": torch.rand(n, generator=chance, dtype=dtype)}
    return {name: array.to(device) for name, array in given.items()}


def select(name: str, arrays: dict[str, Tensor], k: int, iterations: int | None = None) -> lw.Selection:
    """One selection; IHT with so many iterations, whether it moves or not, where they are given."""
    strategy: Any = name
    if name == "sabal-iht" and iterations is not None:
        strategy = Sabal("iht", iterations=iterations, tolerance=0.0)
    given = ("probs", "label_probs", "embedding", *(one for one in MORE.get(name, ()) if one in arrays))
    named: Any = {one: arrays[one] for one in given}
    return lw.select(strategy, k, **named, seed=0)


def reads_of(run: Callable[[], Any], n: int) -> float:
    """How often all rows are asked for by blocks."""
    counted, blocks = [0], Shard.blocks

    def counting(shard: Shard, scratch: int = 0) -> Iterator[tuple[slice, Rows]]:
        for where, rows in blocks(shard, scratch):
            counted[0] += len(rows)
            yield where, rows

    Shard.blocks = counting  # type: ignore[method-assign, assignment]
    try:
        run()
    finally:
        Shard.blocks = blocks  # type: ignore[method-assign]
    return counted[0] / n


def agreement(name: str, shape: Shape, device: str, iterations: int | None = None) -> str:
    """Whether the device picks the rows the CPU picks on the same float64 inputs, in the same order."""
    try:
        here = select(name, inputs_of(shape, torch.float64, "cpu"), shape[3], iterations)
    except lw.errors.NeedError as error:
        return f"not run: {str(error).split(':')[0]}"
    try:
        there = select(name, inputs_of(shape, torch.float64, device), shape[3], iterations)
    except RuntimeError as error:
        return f"not run: {error}".splitlines()[0]
    agree = int((here.ids == there.ids).sum())
    return "same" if agree == len(here) else f"{agree} of {len(here)}"


def measured(stand: Stand, name: str, shape: Shape, arrays: dict[str, Tensor], repeats: int = 3) -> list[str]:
    """Seconds, microseconds for each pick, waits, reads and bandwidth, as cells; the seconds first."""
    iterations = ITERATIONS if stand.sizes.target == Sizes.target else 5
    run = functools.partial(select, name, arrays, shape[3], iterations)
    seconds, got = stand.seconds(run, repeats)
    reads = reads_of(run, shape[0])
    if stand.device != "cpu" and shape[2] <= 32 and name.startswith("sabal"):
        reads += got.notes["iterations"]  # by kernels; greedy has one for each pick
    size = sum(arrays[one].nbytes for one in NEEDED.get(name, tuple(arrays)))
    share = reads * size / seconds / stand.copy
    each = 1e6 * seconds / shape[3]
    return [f"{seconds:.4f}", f"{each:.1f}", stand.waits(run), f"{reads:.0f}", f"{100 * share:.0f} %"]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    return [row(*cells), row(*["---"] * len(cells))]


def met(stand: Stand, seconds: str, target: float) -> str:
    if stand.device == "cpu":
        return f"{target:g} s, on an accelerator"
    return f"{target:g} s: {'met' if float(seconds) <= target else 'not met'}"


def shape_text(shape: Shape) -> str:
    return ", ".join(f"{size:,}" for size in shape)


COSTS = ("seconds, float32", "us a pick", "waits", "reads", "bandwidth of a copy")


def targets(stand: Stand) -> None:
    """Selection alone, and bss beside it."""
    shape = stand.sizes.target
    arrays = inputs_of(shape, torch.float32, stand.device)
    stand.say("", f"## Selection only, N, D, C, k = {shape_text(shape)}", "")
    stand.say(*head("strategy", *COSTS, "target"))
    for name in ("kcenter", "badge", "sabal-greedy", "sabal-iht", "bss"):
        cells = measured(stand, name, shape, arrays, 1 if name == "bss" else 3)
        stand.say(row(name, *cells, met(stand, cells[0], TARGETS[name]) if name in TARGETS else "-"))


def large(stand: Stand) -> None:
    """A thousand classes."""
    shape = stand.sizes.large
    n, d, c, _ = shape
    chance = torch.Generator(stand.device).manual_seed(0)
    logits = 2 * torch.randn(n, c, generator=chance, device=stand.device)
    arrays = {"probs": logits.softmax(1), "label_probs": (logits / 1.5).softmax(1)}
    arrays["embedding"] = torch.randn(n, d, generator=chance, device=stand.device)
    stand.say("", "## Many classes", "", *head("strategy", "N, D, C, k", *COSTS, "target"))
    cells = measured(stand, "sabal-greedy", shape, arrays, 1)
    stand.say(row("sabal-greedy", shape_text(shape), *cells, met(stand, cells[0], LARGE_TARGET)))


def million(stand: Stand) -> None:
    """The pool of benchmarks/million.py, one selection of each without a warm-up."""
    shape = stand.sizes.million
    n, d, c, k = shape
    chance = torch.Generator(stand.device).manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=chance, device=stand.device)

    axes_DD = torch.linalg.qr(normal(d, d))[0] * torch.arange(1, d + 1, device=stand.device)[:, None] ** -0.5
    centre_CD = normal(c, d) @ axes_DD
    own_N = torch.randint(c, (n,), generator=chance, device=stand.device)
    arrays = {"embedding": normal(n, d) @ axes_DD + centre_CD[own_N]}
    logits_NC = 1.6 * (arrays["embedding"] @ centre_CD.T - centre_CD.square().sum(1) / 2)
    arrays["probs"], arrays["label_probs"] = logits_NC.softmax(1), (logits_NC / 1.5).softmax(1)
    del logits_NC
    stand.say(
        "",
        "## A million rows, one selection without a warm-up",
        "",
        *head("strategy", "N, D, C, k", "seconds, float32", "reads"),
    )
    for name in ("kcenter", "badge", "sabal-greedy"):
        began = time.perf_counter()
        reads = reads_of(lambda name=name: select(name, arrays, k), n)  # type: ignore[misc]
        stand.say(row(name, shape_text(shape), f"{time.perf_counter() - began:.1f}", f"{reads:.0f}"))


def whole(stand: Stand) -> None:
    """VGG-16 forward over all images, then the selection."""
    n, _, c, k = stand.sizes.target
    torch.manual_seed(0)
    model = vgg16(outputs=c, width=stand.sizes.width)().to(stand.device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(n, 3, 32, 32, device=stand.device).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for part in images[: 8 * stand.sizes.batch].split(stand.sizes.batch):
            model(part)  # statistics of the batch norms
        list(model.parameters())[-2].mul_(20.0)  # the last layer: probabilities that differ
    model.eval()
    reader = ModelReader(model, autocast=torch.bfloat16, temperature=1.5)
    signals = (Probs(), LabelProbs(), Embedding())

    def forward() -> dict[str, Tensor]:
        parts = [reader.read(part, signals) for part in images.split(stand.sizes.batch)]
        return {signal.array: torch.cat([part[signal] for part in parts]) for signal in signals}

    seconds, arrays = stand.seconds(forward)
    stand.say("", f"## Whole acquisition: VGG-16 over {n:,} images in bfloat16, then {k:,} picks", "")
    stand.say(f"The network has random weights. The forward pass alone takes {seconds:.3f} s.", "")
    stand.say(*head("strategy", "seconds", "target", "paper, on a V100", "times"))
    assert arrays["embedding"].dtype == torch.float32
    for name, paper in PAPER.items():
        run = functools.partial(lambda name: select(name, forward(), k, ITERATIONS), name)
        seconds, _ = stand.seconds(run, 2)
        stand.say(
            row(
                name, f"{seconds:.3f}", met(stand, f"{seconds}", WHOLE_TARGET), f"{paper} s", f"{paper / seconds:.0f} x"
            )
        )


def picks(stand: Stand) -> None:
    """Picks beside those of the CPU, at shapes where every path of the device is taken."""
    sizes = stand.sizes
    cases = [("kcenter", sizes.target), ("badge", sizes.target), ("sabal-greedy", sizes.middle)]
    cases += [("sabal-iht", sizes.middle), ("sabal-greedy", sizes.wide), ("bss", sizes.middle)]
    stand.say("", "## Picks on float64 inputs, in the same order", "", *head("strategy", "N, D, C, k", "as on the CPU"))
    for name, shape in cases:
        stand.say(row(name, shape_text(shape), agreement(name, shape, stand.device, 20)))


def strategies(stand: Stand) -> None:
    """Every strategy that can be asked with these arrays."""
    sizes = stand.sizes
    stand.say("", f"## Every strategy; picks compared at {shape_text(sizes.small)}", "")
    stand.say(*head("strategy", "N, D, C, k", "picks as on the CPU (float64)", *COSTS))
    for name in lw.strategies.names():
        same = agreement(name, sizes.small, stand.device)
        shape = sizes.slow if name in (*SLOW, *MORE) else sizes.fewer
        if same.startswith("not run"):
            stand.say(row(name, shape_text(shape), same, *["-"] * len(COSTS)))
            continue
        arrays = inputs_of(shape, torch.float32, stand.device)
        stand.say(row(name, shape_text(shape), same, *measured(stand, name, shape, arrays, 2)))


PARTS: dict[str, tuple[Callable[[Stand], None], int]] = {  # with the seconds that each is given at least
    "targets": (targets, 30),
    "large": (large, 25),
    "whole": (whole, 15),
    "picks": (picks, 60),
    "strategies": (strategies, 30),
    "million": (million, 60),
}


def main(given: list[str] | None = None) -> list[str]:
    """Run the parts; the lines of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=290.0)
    options = parser.parse_args(given)
    began = time.monotonic()
    stand = Stand(options.device, TINY if options.tiny else Sizes(), options.out, began + options.seconds)
    x = torch.ones(stand.sizes.copied, device=stand.device)
    y = torch.empty_like(x)
    read = stand.rate(x.sum, x.nbytes)
    stand.copy = stand.rate(functools.partial(y.copy_, x), 2 * x.nbytes)
    del x, y
    triton = importlib.metadata.version("triton") if importlib.util.find_spec("triton") is not None else "not there"
    what = torch.cuda.get_device_name() if stand.device == "cuda" else "CPU"
    stand.say(
        "# Selection on an accelerator",
        "",
        "<!-- Written by benchmarks/accelerator.py; a change by hand is lost at the next run. -->",
        "",
        f"- Device: {what}, one read at {read / 1e12:.2f} TB/s and a copy at {stand.copy / 1e12:.2f} TB/s (bytes read "
        "and written), measured in this run",
        f"- Versions: torch {torch.__version__}, numpy {importlib.metadata.version('numpy')}, triton {triton}",
        f"- Command: `{called('accelerator', given)}`, which says what the columns are",
    )
    for name in options.parts:
        part, needed = PARTS[name]
        start = time.monotonic()
        if start + needed > stand.until:
            stand.say("", f"{name}: not run, {options.seconds:g} seconds were not enough.")
            continue
        try:
            part(stand)
        except Exception as error:  # the other parts are worth having
            stand.say("", f"{name} failed: {error!r}"[:2000])
        print(f"({name}: {time.monotonic() - start:.0f} s)", flush=True)
    return stand.lines


if __name__ == "__main__":
    main()
