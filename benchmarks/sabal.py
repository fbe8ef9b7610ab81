"""SABAL and its plain form: time, extra memory, sweeps, picks. Ratios are of one run on one machine.

    python benchmarks/sabal.py [--clock] [--cuda] [N D C k]...

Plain is what a good engineer writes first: gradients as two factors, R = Phi w - v as a matrix, one pass over the
embeddings for each pick, line search and de-bias on the picked rows. IHT is compared with the dense form: all
gradients as one matrix of N x (C D), a product with it wherever the algorithm has Phi. Seconds are of the processor and
of one thread, in turns, so that other work on the machine counts for little; with --clock, of the clock and of all
threads. With
--cuda, seconds on the accelerator, the share of its memory bandwidth that one read of the embeddings for each pick or
iteration comes to, and the picks compared with those of the CPU.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import labelwise as lw
from labelwise.strategies import Sabal

TIE = 1e-9
SHAPES = [(50_000, 512, 10, 1000), (50_000, 512, 10, 3000)]
ITERATIONS = 30


def plain_greedy(k: int, alpha: float, beta: float, probs: Tensor, label_probs: Tensor, embedding: Tensor) -> Tensor:
    """Algorithm 1 with one pass over the embeddings for each pick."""
    left_NC, n = probs - label_probs, len(probs)
    v_CD = (left_NC.double().T @ embedding.double()) / n
    gap_NC = (1 - 2 * label_probs + (label_probs**2).sum(1, keepdim=True)).sqrt()
    bonus_N = alpha * ((label_probs * gap_NC).sum(1) * embedding.norm(dim=1) / n) ** 2
    a_kC, h_kD = v_CD.new_zeros(k, v_CD.shape[0]), v_CD.new_zeros(k, v_CD.shape[1])
    r_CD, w_k = -v_CD, v_CD.new_zeros(k)
    picks: list[int] = []
    for step in range(k):
        score_N = ((embedding @ r_CD.float().T) * left_NC).sum(1) * (2 / k) - bonus_N
        score_N[picks] = torch.inf
        low = score_N.min()
        j = int((score_N <= low + TIE * low.abs()).nonzero()[0])
        picks.append(j)
        a_kC[step], h_kD[step] = left_NC[j].double() / k, embedding[j].double()
        a_SC, h_SD, w = a_kC[: step + 1], h_kD[: step + 1], w_k[: step + 1]
        phi_CD = torch.outer(a_kC[step], h_kD[step])
        mu = ((phi_CD * r_CD).sum() - beta) / ((phi_CD * phi_CD).sum() + beta)
        w[step] = -mu
        r_CD = r_CD - mu * phi_CD
        u = 2 * ((a_SC * (h_SD @ r_CD.T)).sum(1) + beta * (w - 1))
        u = u.masked_fill(w == 0, 0.0)  # a weight that was cut is not in the support
        along_CD = (a_SC * u[:, None]).T @ h_SD
        curve = (along_CD**2).sum() + beta * (u @ u)
        mu = u @ u / 2 / curve.clamp(min=1e-300)  # u may be zero, as after the line search of the first pick
        w -= mu * u
        r_CD = r_CD - mu * along_CD
        below = w.clamp(max=0)
        if below.any():
            w -= below
            r_CD = r_CD - (a_SC * below[:, None]).T @ h_SD
    return torch.tensor(picks)


def dense_iht(
    k: int, iterations: int, alpha: float, beta: float, probs: Tensor, label_probs: Tensor, embedding: Tensor
) -> Tensor:
    """Algorithm 2 with the gradients of all rows as one matrix."""
    n, left_NC = len(probs), probs - label_probs
    phi_NM = (left_NC[:, :, None] * embedding[:, None, :]).reshape(n, -1).div_(k)
    v_M = phi_NM.mean(0) * k
    gap_NC = (1 - 2 * label_probs + (label_probs**2).sum(1, keepdim=True)).sqrt()
    bonus_N = alpha * ((label_probs * gap_NC).sum(1) * embedding.norm(dim=1) / n) ** 2

    def search(u_N: Tensor, w_N: Tensor) -> Tensor:
        along_M = u_N @ phi_NM
        slope = (w_N @ phi_NM - v_M) @ along_M + beta * ((w_N - 1) @ u_N)
        return slope / (along_M @ along_M + beta * (u_N @ u_N)).clamp(min=1e-30)

    def gradient(w_N: Tensor) -> Tensor:
        return 2 * (phi_NM @ (w_N @ phi_NM - v_M)) + 2 * beta * (w_N - 1)

    w_N, z_N = torch.zeros_like(bonus_N), torch.zeros_like(bonus_N)
    support = torch.arange(k)
    for _ in range(iterations):
        old_N, u_N = w_N, gradient(z_N)
        s_N = z_N - search(u_N, z_N) * u_N
        support = (s_N.clamp(min=0) ** 2 / 2 + bonus_N).topk(k).indices
        w_N = torch.zeros_like(s_N)
        w_N[support] = s_N[support].clamp(min=0)
        u_N = gradient(w_N) * (w_N != 0)
        w_N = (w_N - search(u_N, w_N) * u_N).clamp(min=0)
        z_N = w_N - search(w_N - old_N, w_N) * (w_N - old_N)
    return support


def inputs_of(n: int, dim: int, classes: int) -> dict[str, Any]:
    """Random embeddings, softmax of random logits, and the same at temperature 1.5."""
    chance = torch.Generator().manual_seed(0)
    logits_NC = 2 * torch.randn(n, classes, generator=chance)
    embedding_ND = torch.randn(n, dim, generator=chance)
    return {"probs": logits_NC.softmax(1), "label_probs": (logits_NC / 1.5).softmax(1), "embedding": embedding_ND}


def timed(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    began = clock()
    answer = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began, answer


def on_cpu(n: int, dim: int, classes: int, k: int, clock: Callable[[], float] = time.process_time) -> None:
    if clock is time.process_time:
        torch.set_num_threads(1)
    inputs, strategy, shape = inputs_of(n, dim, classes), Sabal(), f"N {n} D {dim} C {classes} k {k}"
    iht = Sabal("iht", iterations=ITERATIONS, tolerance=0.0)
    lw.select(strategy, 4, **{name: value[:500] for name, value in inputs.items()})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours, got = timed(lambda: lw.select(strategy, k, **inputs), clock)
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    plain, picks = timed(lambda: plain_greedy(k, strategy.alpha or 0.0, strategy.beta or 0.0, **inputs), clock)
    ours = min(ours, timed(lambda: lw.select(strategy, k, **inputs), clock)[0])
    same = int((torch.from_numpy(got.ids) == picks).sum())
    print(
        f"greedy {shape}: {ours:.2f} s, plain {plain:.2f} s, ratio {plain / ours:.1f}, extra {extra:.0f} MB, "
        f"{got.notes['sweeps']} sweeps, {same} of {k} picks the same",
        flush=True,
    )
    wider = {name: value.double() for name, value in inputs.items()}
    ours, solved = timed(lambda: lw.select(iht, k, **inputs), clock)
    dense, support = timed(lambda: dense_iht(k, ITERATIONS, iht.alpha or 0.0, iht.beta or 0.0, **inputs), clock)
    ours = min(ours, timed(lambda: lw.select(iht, k, **inputs), clock)[0])
    same = len(set(solved.ids.tolist()) & set(support.tolist()))
    print(
        f"iht    {shape}: {ITERATIONS} iterations in {ours:.2f} s, dense {dense:.2f} s, ratio {dense / ours:.1f}, "
        f"{same} of {k} rows the same",
        flush=True,
    )
    exact, support = timed(lambda: dense_iht(k, ITERATIONS, iht.alpha or 0.0, iht.beta or 0.0, **wider), clock)
    same = len(set(solved.ids.tolist()) & set(support.tolist()))
    one = (ours - timed(lambda: lw.select(dataclasses.replace(iht, iterations=1), k, **inputs), clock)[0]) / (
        ITERATIONS - 1
    )
    five = 5 * min(timed(lambda: inputs["embedding"] @ inputs["embedding"][:classes].T, clock)[0] for _ in range(5))
    print(
        f"       dense in float64, the precision of ours: {exact:.2f} s, ratio {exact / ours:.1f}, {same} of {k} rows "
        f"the same; an iteration takes {1e3 * one:.0f} ms, five products N x D by D x C in float32 {1e3 * five:.0f} ms",
        flush=True,
    )


def on_cuda(n: int, dim: int, classes: int, k: int) -> None:
    inputs = inputs_of(n, dim, classes)
    there = {name: value.cuda() for name, value in inputs.items()}
    size = inputs["embedding"].nbytes
    rate = copy_rate()
    shape = f"N {n} D {dim} C {classes} k {k}"
    runs = {"greedy": (Sabal(), k), "iht": (Sabal("iht", iterations=200, tolerance=0.0), 200)}
    for name, (strategy, reads) in runs.items():
        lw.select(strategy, k, **there)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        times = [timed(lambda s=strategy: lw.select(s, k, **there)) for _ in range(3)]  # type: ignore[misc]
        seconds, got = min(times, key=lambda one: one[0])
        extra = (torch.cuda.max_memory_allocated() - before) / 1e6
        print(
            f"cuda {name} {shape}: {seconds:.3f} s, {1e6 * seconds / reads:.0f} us each, "
            f"{got.notes.get('sweeps')} waits, {100 * reads * size / seconds / rate:.0f} % of {rate / 1e12:.1f} TB/s, "
            f"extra {extra:.0f} MB",
            flush=True,
        )
        if n * k <= 50_000 * 3000:
            on_cpu = lw.select(strategy, k, **inputs)
            same = len(set(got.ids.tolist()) & set(on_cpu.ids.tolist()))
            order = int((got.ids == on_cpu.ids).sum())
            print(f"  compared with the CPU: {order} of {k} picks in the same place, {same} the same", flush=True)


def copy_rate() -> float:
    """Bytes read and written a second by a copy on the accelerator."""
    whole = torch.empty(1 << 28, device="cuda")
    times = [timed(lambda: [whole.clone() for _ in range(20)])[0] for _ in range(3)]
    return 2 * 20 * whole.nbytes / min(times)


def main(arguments: list[str]) -> None:
    numbers = [int(text) for text in arguments if text.isdigit()]
    clock = time.perf_counter if "--clock" in arguments else time.process_time
    for n, dim, classes, k in [tuple(numbers[i : i + 4]) for i in range(0, len(numbers), 4)] or SHAPES:
        if "--cuda" in arguments:
            on_cuda(n, dim, classes, k)
        else:
            on_cpu(n, dim, classes, k, clock)


if __name__ == "__main__":
    main(sys.argv[1:])
