"""SABAL on a CUDA device: picks and those of the CPU, then times of each backend, the bandwidth reached, and its parts.

    python benchmarks/sabal_device.py [picks] [times] [parts] [large] [dense] [cpu]

Times are by CUDA events around one selection on tensors that are on the device, best of three after a warm-up.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import labelwise as lw
from accelerator import seconds_of
from labelwise.shards import shards_of
from labelwise.signals.spec import Embedding, LabelProbs, MeanGrad, Probs
from labelwise.strategies import Sabal
from labelwise.strategies.sabal.kernels.tuning import Tile, TritonTuning
from labelwise.strategies.sabal.problem import Terms, posed
from labelwise.strategies.sabal.vectors import Gradients
from sabal import copy_rate, dense_iht, inputs_of

SHAPE = (50_000, 512, 10, 3000)
TUNING = TritonTuning()
TILES: tuple[Tile, ...] = (
    (64, 64, 4),
    (64, 128, 4),
    (128, 64, 4),
    (128, 64, 8),
    (64, 32, 4),
    (32, 64, 4),
    (64, 128, 8),
)
PASSES: tuple[Tile, ...] = ((16, 64, 4), (16, 128, 4), (32, 64, 4), (64, 64, 4))
IHT = Sabal("iht", iterations=200, tolerance=0.0)


def on_device(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cuda() for name, value in inputs.items()}


def picks() -> None:
    """On float64 and float32 inputs: the CPU's picks and those of the device."""
    print("picks as on the CPU, in the same place", flush=True)
    for n, dim, classes, k in ((4000, 32, 5, 300), (20_000, 512, 10, 1000)):
        for dtype in (torch.float64, torch.float32):
            inputs = {name: value.to(dtype) for name, value in inputs_of(n, dim, classes).items()}
            for copies in (1, 3) if n == 4000 else (1,):
                given = {name: value.repeat(copies, 1) for name, value in inputs.items()}
                for strategy in (
                    Sabal(),
                    Sabal(alpha=1e3, beta=1e-4),
                    Sabal(unit_weights=True),
                    Sabal("iht", 1e-2, 0.1, tolerance=1e-5),
                    Sabal("iht", iterations=20),
                    Sabal("iht", prox="paper", iterations=5),
                ):
                    here, there = lw.select(strategy, k, **given), lw.select(strategy, k, **on_device(given))
                    order = int((here.ids == there.ids).sum())
                    same = len(set(here.ids.tolist()) & set(there.ids.tolist()))
                    difference = float(abs(here.weights - there.weights).max()) if order == k else float("nan")
                    what = f"{strategy.solver} {strategy.alpha} {strategy.beta} {strategy.prox}"
                    notes = f"{there.notes['iterations']} iterations, {there.notes.get('sweeps')} waits"
                    text = (
                        f"{n * copies} {dim} {classes} {k} {dtype} {what}: {order}, {same} of {k}, w {difference:.1e}, "
                    )
                    print(("  " if order == k else "! ") + text + notes, flush=True)


def times() -> None:
    """Whole selections: the fused path, and the path without Triton."""
    inputs = on_device(inputs_of(*SHAPE[:3]))
    size, rate, k = inputs["embedding"].nbytes, copy_rate(), SHAPE[3]
    print(f"copy {rate / 1e12:.2f} TB/s", flush=True)
    for backend in ("triton", "cuda-graph"):
        os.environ["LABELWISE_BACKEND"] = backend
        for strategy, reads in ((Sabal(), k), (IHT, 200)):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            seconds, got = seconds_of(functools.partial(lw.select, strategy, k, **inputs))
            extra = (torch.cuda.max_memory_allocated() - before) / 1e6
            print(
                f"{backend} {strategy.solver} {SHAPE}: {seconds:.4f} s, {1e6 * seconds / reads:.1f} us each, "
                f"{100 * reads * size / seconds / rate:.0f} % of the copy rate, {got.notes.get('sweeps')} waits, "
                f"extra {extra:.0f} MB, objective {got.notes['objective']:.9g}",
                flush=True,
            )
    del os.environ["LABELWISE_BACKEND"]


def problem_of(inputs: dict[str, Tensor], k: int) -> Any:
    """A posed problem on these tensors, as a context."""
    columns = {Probs(): inputs["probs"], LabelProbs(): inputs["label_probs"], Embedding(): inputs["embedding"]}
    ids = torch.arange(len(inputs["probs"]), device=inputs["probs"].device)
    pool = shards_of(ids, columns, 1)
    return posed(pool, Gradients(MeanGrad()), k, Terms(1e-2, 1e-1, 1.0, 1 / pool.n))


def parts() -> None:
    """Microseconds of each kernel, for several tiles."""
    from labelwise.strategies.sabal.kernels.triton import GradientPasses, TritonSteps  # needs Triton

    inputs, k = on_device(inputs_of(*SHAPE[:3])), SHAPE[3]
    began = time.perf_counter()
    with problem_of(inputs, k) as problem:
        torch.cuda.synchronize()
        print(f"posed in {1e3 * (time.perf_counter() - began):.1f} ms", flush=True)
        (shard,) = problem.pool.map(lambda one: one)
        for tile in TILES:
            for precision in ("tf32x3", "ieee"):
                steps = TritonSteps(problem, shard, dataclasses.replace(TUNING, score_tile=tile))
                steps.precision = precision
                print(f"score {tile} {precision}: {_each(steps.score):.1f} us", flush=True)
        steps = TritonSteps(problem, shard, TUNING)
        steps.positions.copy_(torch.arange(k + 1) * 7)
        steps.w.fill_(1.0)
        for tile in PASSES:
            passes = GradientPasses(problem, steps.g, k, tile, TUNING)
            for rows in (10, 1000, 2999):
                steps.state.copy_(torch.tensor([1, rows]))
                args = (steps.r_AB, steps.w, steps.u, steps.positions, steps.state[1:], steps.state)
                both = _each(functools.partial(passes, *args, "next")), _each(functools.partial(passes, *args, "given"))
                print(f"passes {tile} over {rows}: {both[0]:.1f} us, with u given {both[1]:.1f}", flush=True)
        steps.state.copy_(torch.tensor([1, 0]))
        print(f"step: {_each(steps.step, 50):.1f} us", flush=True)
        u, z = torch.zeros(2, len(shard), dtype=torch.float64, device="cuda")
        count = torch.tensor([len(shard)], dtype=torch.int32, device="cuda")
        for tile in (*PASSES, (128, 64, 8), (64, 128, 8)):
            passes = GradientPasses(problem, steps.g, len(shard), tile, TUNING)
            read = functools.partial(passes, steps.r_AB, z, u, None, count, steps.state)
            both = _each(read), _each(functools.partial(read, "given"))
            print(f"passes {tile} over all: {both[0]:.1f} us, with u given {both[1]:.1f}", flush=True)
        key = torch.randn(len(shard), dtype=torch.float64, device="cuda")
        print(f"sort: {_each(lambda: torch.sort(key, descending=True, stable=True)):.1f} us", flush=True)
        print(f"topk: {_each(lambda: torch.topk(key, k)):.1f} us", flush=True)


def _each(run: Callable[[], Any], repeats: int = 20) -> float:
    """Microseconds of one of many replays of a graph of it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()

    def many() -> None:
        for _ in range(repeats):
            graph.replay()

    return 1e6 * seconds_of(many)[0] / repeats / 10


def large() -> None:
    """A thousand classes: lists with checks, with picks by inner products or with R."""
    shape = (200_000, 2048, 1000, 1000)
    chance = torch.Generator("cuda").manual_seed(0)
    logits = 2 * torch.randn(shape[0], shape[2], generator=chance, device="cuda")
    inputs: dict[str, Any] = {"probs": logits.softmax(1), "label_probs": (logits / 1.5).softmax(1)}
    inputs["embedding"] = torch.randn(shape[0], shape[1], generator=chance, device="cuda")
    found = {}
    for backend in ("gram", "torch"):
        os.environ["LABELWISE_BACKEND"] = backend
        seconds, got = seconds_of(functools.partial(lw.select, Sabal(), shape[3], **inputs), 1)
        found[backend] = got.ids
        print(f"greedy by {backend} {shape}: {seconds:.3f} s, {got.notes['sweeps']} sweeps", flush=True)
    del os.environ["LABELWISE_BACKEND"]
    same = int((found["gram"] == found["torch"]).sum())
    print(f"{same} of {shape[3]} picks the same", flush=True)


def dense() -> None:
    """IHT and the dense form, on the device."""
    n, dim, classes, k = SHAPE
    inputs = on_device(inputs_of(n, dim, classes))
    ours, got = seconds_of(lambda: lw.select(Sabal("iht", iterations=30, tolerance=0.0), k, **inputs))
    plain, picked = seconds_of(lambda: dense_iht(k, 30, 1e-8, 1e-6, **inputs), 1)
    same = len(set(got.ids.tolist()) & set(picked.tolist()))
    print(f"cuda iht {n, dim, classes, k}, 30 iterations: {ours:.4f} s, dense {plain:.3f} s, {same} same", flush=True)


def main(asked: list[str]) -> None:
    for part in (picks, times, parts, large, dense):
        if not asked or part.__name__ in asked:
            began = time.perf_counter()
            try:
                part()
            except Exception as error:
                print(f"{part.__name__} failed: {error!r}"[:3000], flush=True)
            print(f"({part.__name__}: {time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
