"""Simulations behind docs/methods/bss.md and weights.md: barriers, fits, bias, training with weights.

Several rounds are `labelwise reproduce bss/rounds`.

    python benchmarks/bss.py barriers [--runs 1000]     thousands of random problems to their natural end
    python benchmarks/bss.py fit [--runs 50]            weighted least squares against uniform, leverage and volume
    python benchmarks/bss.py stop [--runs 5000]         the bias that the exact budget adds to it
    python benchmarks/bss.py train [--weights off]      a network on digits, weights on or off
    python benchmarks/bss.py speed [--rows 1000000]     CPU seconds, memory and passes' worth of matrix products
    python benchmarks/bss.py page --out docs/results/bss.md     the page, and its numbers as JSON

Each prints a Markdown table; the page has those of `PAGE`, one after the other, each with its command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labelwise as lw
from labelwise.io.files import write_text
from labelwise.stats.environment import environment
from labelwise.strategies.leverage.barrier import Barrier, Tuning
from measure import forget_peak, peak

# B is decomposed for every E, or after 4 d draws.
TUNINGS = (Tuning(exact_rank=48, rows_per_rank=0.0), Tuning(exact_rank=0, rows_per_rank=4.0))
KINDS = ("gaussian", "heavy-tailed", "clustered", "nearly singular")
PAGE = (  # title where a part begins, text above the table, and the arguments that make it
    ("A million rows", "The target is 60 passes' worth of matrix products and 1 GB.", "speed"),
    (
        "Barriers",
        "A thousand problems of each kind, gamma from 0.25 to 0.6; below, fewer with gamma from 0.07 on.",
        "barriers --runs 1000 --finest 0.25",
    ),
    ("", "", "barriers --runs 200 --seed 1"),
    ("The bias of the exact budget", "", "stop --runs 1000 --seed 3"),
)
RUNS = {"barriers": 1000, "fit": 50, "stop": 5000, "train": 10, "speed": 1}


def features(kind: str, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of one kind."""
    if kind == "gaussian":
        return rng.normal(size=(n, d))
    if kind == "heavy-tailed":
        return rng.standard_t(2.5, size=(n, d))
    if kind == "heavy rows":  # multivariate t: whole rows are long or short
        return rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(2.5, size=(n, 1)) / 2.5)
    if kind == "clustered":
        centres = 3 * rng.normal(size=(max(2, d), d))
        return centres[rng.integers(0, len(centres), n)] + 0.05 * rng.normal(size=(n, d))
    return rng.normal(size=(n, d)) * 10.0 ** -np.linspace(0, 4, d)


def barriers(options: argparse.Namespace) -> None:
    """Every step of `--runs` problems of each kind, to the natural end.

    At random with one draw or several for each E, and with B decomposed for every E or updated by Woodbury's formula.
    """
    torch.set_num_threads(1)
    print(
        "| features | problems | steps | barriers broken | sum beta | share of the interval used | good | decomposed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for number, kind in enumerate(KINDS):
        rng = np.random.default_rng([options.seed, number])
        steps, broken, sums, used, good, sure, looks, decomposed = 0, 0, [], [], 0, 0, 0, 0
        for _ in range(options.runs):
            d, gamma = int(rng.integers(1, 9)), float(np.exp(rng.uniform(math.log(options.finest), math.log(0.6))))
            x = features(kind, int(rng.integers(4 * d, 200)), d, rng)
            v = torch.from_numpy(np.linalg.svd(x, full_matrices=False)[0] * math.sqrt(len(x)))
            several, tuning = bool(rng.integers(2)), TUNINGS[rng.integers(2)]
            barrier, ended = Barrier(d, gamma, tuning=tuning), False
            while not ended:
                energy = barrier.energy()
                form = energy.forms(v)
                law = (form / form.sum()).numpy()
                for _ in range(barrier.draws_per_energy if several else 1):
                    ended = barrier.is_ended(energy)
                    if ended:
                        break
                    pick = int(rng.choice(len(v), p=law))
                    barrier.add(energy, v[pick : pick + 1], form[pick : pick + 1])
                    lam = torch.linalg.eigvalsh(barrier.matrix)
                    broken += not (barrier.lower < float(lam[0]) and float(lam[-1]) < barrier.upper)
                    steps += 1
            looks, decomposed = looks + barrier.evaluations, decomposed + barrier.decompositions
            lam = barrier.eigenvalues() / barrier.mid
            low, high = (1 - 2 * gamma) / (1 - gamma**2), (1 + 2 * gamma) / (1 - gamma**2)
            sums.append(barrier.total / barrier.mid)
            used.append(max((float(lam[-1]) - 1) / (high - 1), (1 - float(lam[0])) / (1 - low)))
            if gamma <= 0.1165:
                sure += 1
                good += float(lam[0]) >= 0.75 and float(lam[-1]) <= 1.25
        print(
            f"| {kind} | {options.runs} | {steps:,} | {broken} | {min(sums):.3f} to {max(sums):.5f} "
            f"| {np.mean(used):.2f}, at most {max(used):.2f} | {good} of {sure} with gamma <= 0.1165 "
            f"| {decomposed:,} of {looks:,} looks |",
            flush=True,
        )


def fit(options: argparse.Namespace) -> None:
    """Excess risk of a weighted fit over that on the whole pool, in units of the latter; the mean over seeds."""
    kinds: dict[str, Callable[[int], lw.Strategy]] = {
        "bss": lambda d: lw.strategies.Bss(rank=d),
        "leverage": lambda d: lw.strategies.Leverage(rank=d),
        "volume": lambda d: lw.strategies.Volume(rank=d),
        "random": lambda d: lw.strategies.Random(),
    }
    n, d = 4000, 20
    print("| features | k | " + " | ".join(kinds) + " | bss below random |")
    print("|---|---|" + "---|" * (len(kinds) + 1))
    for law in ("gaussian", "heavy-tailed", "heavy rows"):
        for k in options.k or (5 * d, 10 * d, 20 * d):
            found: dict[str, list[float]] = {name: [] for name in kinds}
            for seed in range(options.runs):
                rng = np.random.default_rng([options.seed, seed])
                x = features(law, n, d, rng)
                y = x @ rng.normal(size=d) + rng.normal(size=n)
                floor = _risk(x, y, x, y, np.ones(n))
                for name, make in kinds.items():
                    s = lw.select(make(d), k, basis=x, seed=seed)
                    found[name].append(_risk(x, y, x[s.ids], y[s.ids], s.weights) / floor - 1)
            wins = sum(a < b for a, b in zip(found["bss"], found["random"]))
            cells = [f"{np.mean(values):.3f} ({np.median(values):.3f})" for values in found.values()]
            print(f"| {law} | {k} | " + " | ".join(cells) + f" | {wins} of {options.runs} |", flush=True)


def _risk(x: np.ndarray, y: np.ndarray, rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    root = np.sqrt(weights)
    beta = np.linalg.lstsq(rows * root[:, None], labels * root, rcond=None)[0]
    return float(np.mean((x @ beta - y) ** 2))


def pool_of_losses(kind: str, seed: int, n: int = 3000, d: int = 6) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A pool, and per row whether a calibrated model is right, its log-loss, and a loss few rows make up."""
    rng = np.random.default_rng(seed)
    x = features(kind, n, d, rng)
    p = 1 / (1 + np.exp(-np.clip(1.5 + np.abs(x @ rng.normal(size=d) / 2), None, 15)))
    right = (rng.uniform(size=n) < p).astype(float)
    log_loss = -np.log(np.where(right == 1, p, 1 - p))
    return x, {"accuracy": right, "log-loss": log_loss, "rare large loss": rng.exponential(size=n) * (1.2 - right)}


def stop(options: argparse.Namespace) -> None:
    """The bias that ending before row k + 1 adds to draws by leverage, compared with a fixed number of draws."""
    print("| features | pool | k | of | bias / truth, exact budget | bias / spread | fixed draws | bias / spread |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in ("gaussian", "heavy-tailed"):
        for n in (3000, 600, 200):
            x, truth = pool_of_losses(kind, options.seed, n)
            v = np.linalg.qr(np.hstack([np.ones((n, 1)), x]))[0]
            p, k = (v**2).sum(1) / v.shape[1], 100
            rng = np.random.default_rng(options.seed)
            values: dict[str, tuple[list[float], list[float]]] = {f: ([], []) for f in truth}
            longest = int(20 * k * math.log(n))
            for _ in range(options.runs):
                drawn = rng.choice(n, size=longest, p=p)
                first = np.sort(np.unique(drawn, return_index=True)[1])
                ends = (first[k] if len(first) > k else longest, int(1.2 * k))
                for place, end in enumerate(ends):
                    weight = 1 / p[drawn[:end]]
                    for f, row in truth.items():
                        values[f][place].append(float(weight @ row[drawn[:end]] / weight.sum()))
            for f, row in truth.items():
                cells = []
                for found in values[f]:
                    error, spread = np.mean(found) - row.mean(), np.std(found)
                    sure = 1.96 * spread / math.sqrt(options.runs) / row.mean()
                    cells += [f"{error / row.mean():+.4f} ± {sure:.4f}", f"{error / spread:+.2f}"]
                print(f"| {kind} | {n} | {k} | {f} | " + " | ".join(cells) + " |", flush=True)


def train(options: argparse.Namespace) -> None:
    """Digits: test accuracy of a small network when weights are used in training and when they are left aside."""
    from labelwise.bench.data.load import load
    from labelwise.bench.models.networks import mlp

    data = load("digits")
    on = options.weights == "on"
    print(f"| recipe, weights {options.weights} | labels | accuracy |")
    print("|---|---|---|")
    for recipe in options.only or ("bss", "leverage", "random"):
        found: dict[int, list[float]] = {}
        for seed in range(options.runs):
            learner = lw.TorchLearner(mlp(64, 10), objective=lw.Weighted() if on else lw.Mean())
            test = (data.test, data.test.labels)
            for record in lw.rounds(data.pool, None, learner, recipe, k=60, n=3, start=60, test=test, seed=seed):
                found.setdefault(record.labels, []).append(record.metrics["accuracy"])
        for labels, values in found.items():
            error = 1.96 * np.std(values) / math.sqrt(len(values))
            print(f"| {recipe} | {labels} | {np.mean(values):.4f} ± {error:.4f} |", flush=True)


def speed(options: argparse.Namespace) -> None:
    """Selections of a basis of 256, in CPU seconds compared with one product X^T X, measured before and after.

    `--only volume-greedy` is the D-optimal design.
    """
    torch.set_num_threads(1)  # threads that wait for each other would count as work on a busy machine
    n, width = options.rows, 256
    x, block = torch.empty(n, width), 1 << 16
    for number, part in enumerate(x.split(block)):
        part.normal_(generator=torch.Generator().manual_seed(options.seed + number))
    print(
        "| strategy | rows | basis | k | CPU s | a product | passes' worth | extra MB | looks | decomposed | sweeps |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in options.only or ("bss", "leverage", "volume"):
        for k in options.k or (10_000,):
            once = _product_seconds(x, block)
            before = forget_peak()
            began = time.process_time()
            s = lw.select(lw.strategies.Volume(rule="greedy") if name == "volume-greedy" else name, k, basis=x)
            took, extra = time.process_time() - began, (peak() - before) / 1e6
            once = min(once, _product_seconds(x, block))
            seen = [s.notes.get(note) for note in ("looks", "decompositions", "sweeps")]
            counts = " | ".join("" if count is None else f"{count:,}" for count in seen)
            print(
                f"| {name} | {n:,} | {width} | {k:,} | {took:.1f} | {once:.2f} | {took / once:.1f} | {extra:.0f} "
                f"| {counts} |",
                flush=True,
            )


def _product_seconds(x: torch.Tensor, block: int) -> float:
    """CPU seconds of X^T X in the precision of X, by blocks of rows: the best of three."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        total = torch.zeros(x.shape[1], x.shape[1])
        for part in x.split(block):
            total.addmm_(part.T, part)
        seconds.append(time.process_time() - began)
    return min(seconds)


SIMULATIONS = {
    "barriers": barriers,
    "fit": fit,
    "stop": stop,
    "train": train,
    "speed": speed,
}


def page(out: Path, parts: tuple[tuple[str, str, str], ...] = PAGE) -> None:
    """Run every part, and write the page and its JSON; after each part, so that nothing is lost."""
    about: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/bss.py", "page", "--out", out.as_posix()]),
        "environment": {**environment("cpu"), "cores": str(os.cpu_count())},
        "tables": [],
    }
    for title, text, words in parts:
        began, shown = time.process_time(), io.StringIO()
        with contextlib.redirect_stdout(shown):
            options = parsed(words.split())
            SIMULATIONS[options.what](options)
        spent = round(time.process_time() - began)
        about["tables"].append({"title": title, "said": text, "words": words, "cpu_seconds": spent, **_read(shown)})
        print(f"{words}: {spent} CPU s", flush=True)
        write_text(out.with_suffix(".json"), json.dumps(about, indent=1) + "\n")
        write_text(out, page_text(about, len(parts)))


def _read(shown: io.StringIO) -> dict[str, Any]:
    """The Markdown table that a simulation printed, as titles and rows."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.getvalue().splitlines()]
    return {"titles": lines[0], "rows": lines[2:]}


def page_text(about: dict[str, Any], parts: int) -> str:
    """The page of what was measured, from its JSON alone."""
    lines = [
        "# Provable sampling: what was measured",
        "",
        f"Written by `{about['command']}`. Times are CPU seconds of one thread, and passes are ratios of CPU times in "
        "one run: others may use the machine at the same time. What the tables mean is in "
        "[bss.md](../methods/bss.md) and [weights.md](../methods/weights.md).",
        "",
    ]
    if len(about["tables"]) < parts:
        lines += [f"**The run did not finish: {len(about['tables'])} of {parts} tables.**", ""]
    for one in about["tables"]:
        lines += [f"## {one['title']}", ""] if one["title"] else []
        lines += [one["said"], ""] if one["said"] else []
        lines += [f"`python benchmarks/bss.py {one['words']}`, {one['cpu_seconds']} CPU s:", ""]
        rows = [one["titles"], ["---"] * len(one["titles"]), *one["rows"]]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    ran = ", ".join(f"{name} {value}" for name, value in about["environment"].items())
    return "\n".join([*lines, ran, ""])


def parsed(words: list[str]) -> argparse.Namespace:
    """What a command asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*SIMULATIONS, "page"))
    parser.add_argument("--runs", type=int, help="problems or seeds of each line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), help="strategies, with commas")
    parser.add_argument("--k", type=lambda text: tuple(int(k) for k in text.split(",")), help="budgets, with commas")
    parser.add_argument("--finest", type=float, default=0.07, help="smallest gamma of barriers; smaller takes longer")
    parser.add_argument("--weights", choices=("on", "off"), default="on")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="where the page goes")
    options = parser.parse_args(words)
    if (options.what == "page") != (options.out is not None):
        parser.error("page and --out go together")
    if options.runs is None:
        options.runs = RUNS.get(options.what, 1)
    return options


def main() -> None:
    """Run one of the simulations, or all that the page has."""
    options = parsed(sys.argv[1:])
    if options.what == "page":
        torch.set_num_threads(1)
        page(options.out)
    else:
        SIMULATIONS[options.what](options)


if __name__ == "__main__":
    main()
