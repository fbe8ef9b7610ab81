"""Coverage of the 95 % intervals of estimates: of a mean, of the running estimate, and of the test slice of a project.

    python benchmarks/estimate.py page --out docs/results/estimate.md     all tables, and their numbers as JSON
    python benchmarks/estimate.py means [--runs 1000]       uniform draws from losses with light and heavy tails
    python benchmarks/estimate.py batches [--runs 200]      one batch of bss, leverage or random, and a given model
    python benchmarks/estimate.py running [--runs 200]      sessions: the model of all labels, from all labels
    python benchmarks/estimate.py slice [--runs 200]        the test slice of a project with numbers, by bss or uniform

Each prints a Markdown table. A session has a pool of its own; other simulations make one for every ten runs, so their
standard error is a little above that of as many independent runs, which the tables give.
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
from unittest import mock

import numpy as np
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

import labelwise as lw
from bss import pool_of_losses
from labelwise.io.files import write_text
from labelwise.pool import Pool
from labelwise.project.loop.holdout import draw_by_bss, reserve
from labelwise.project.meter.meter import score_of
from labelwise.stats.environment import environment
from labelwise.stats.estimate import factor_of, losses_of, out_of_fold_losses, pool_mean

POOL = 3000
WIDE = "wide "  # of 20 columns, of which 15 tell nothing
CLASSES = ("classes", "wide classes")
KINDS = (*CLASSES, "light", "wide light", "heavy", "long rows")


def _with_outliers(rng: np.random.Generator, n: int, share: float, far: float) -> np.ndarray:
    return rng.normal(size=n) * np.where(rng.random(n) < share, far, 1.0)


LOSSES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal, far from 0": lambda rng, n: 3 + rng.normal(size=n),
    "squares of a normal": lambda rng, n: rng.normal(size=n) ** 2,
    "exponential": lambda rng, n: rng.exponential(size=n),
    "log-normal, sigma 1": lambda rng, n: np.exp(rng.normal(size=n)),
    "log-normal, sigma 1.5": lambda rng, n: np.exp(1.5 * rng.normal(size=n)),
    "one row in ten large": lambda rng, n: rng.exponential(size=n) * np.where(rng.random(n) < 0.1, 9.0, 0.05),
    "squares of t(5)": lambda rng, n: rng.standard_t(5, size=n) ** 2,
    "squares of t(4)": lambda rng, n: rng.standard_t(4, size=n) ** 2,
    "squares of t(3)": lambda rng, n: rng.standard_t(3, size=n) ** 2,
    "squares of t(2.5)": lambda rng, n: rng.standard_t(2.5, size=n) ** 2,
}
CHECKED: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "gamma, shape 0.5": lambda rng, n: rng.gamma(0.5, size=n),
    "Weibull, shape 0.6": lambda rng, n: rng.weibull(0.6, size=n),
    "log-normal, sigma 1.25": lambda rng, n: np.exp(1.25 * rng.normal(size=n)),
    "Pareto, index 3": lambda rng, n: rng.pareto(3, size=n),
    "Pareto, index 1.75": lambda rng, n: rng.pareto(1.75, size=n),
    "0 or 1, 2 % are 1": lambda rng, n: 1.0 * (rng.random(n) < 0.02),
    "squares, one row in 20 five times as far": lambda rng, n: _with_outliers(rng, n, 0.05, 5.0) ** 2,
    "squares, one row in 100 ten times as far": lambda rng, n: _with_outliers(rng, n, 0.01, 10.0) ** 2,
    "distances, one row in 100 ten times as far": lambda rng, n: np.abs(_with_outliers(rng, n, 0.01, 10.0)),
}
PAGE = (  # title, text, and the arguments that make the table
    (
        "The mean of a loss",
        "Uniform draws without replacement. The constants of the interval were chosen on other pools of these losses.",
        "means --runs 600",
    ),
    (
        "",
        "Losses on which nothing was chosen. In the last three, few rows have much of the loss: in samples that hold "
        "none or one of them, nothing shows it.",
        "means --fresh --runs 600",
    ),
    (
        "One batch",
        "Losses of a calibrated model of two classes that did not see the batch; *rare large loss* is made by one row "
        "in ten. Rows are Gaussian, or columns of t(2.5).",
        "batches --runs 200 --only random",
    ),
    ("", "", "batches --runs 200 --only leverage"),
    ("", "", "batches --runs 200 --only volume"),
    ("", "", "batches --runs 200 --only bss"),
    (
        "The running estimate",
        "Sessions of four batches, the first one at random. The truth is the mean over the pool of the loss of the "
        "model trained on all labels; on labelled rows, which it has seen, that of the ten models of the estimate. "
        "Noise is normal (light) or Student's with three degrees of freedom (heavy) on Gaussian rows, or grows with "
        "the length of rows of a multivariate t(5) (long rows). *bias / spread* is that of the estimate, in units of "
        "its own spread. Pools have 5 columns, those called wide 20, of which 15 tell nothing.",
        "running --runs 200 --only random",
    ),
    ("", "", "running --runs 400 --only bss"),
    (
        "The test slice of a project with numbers",
        "RMSE of a linear model, by the first m rows of a test slice drawn uniformly and of one drawn half by `bss`, "
        "as projects do. Labels as above; few long rows are those of a multivariate t(2.5). *deviation*: root of the "
        "mean squared error of the estimate, in units of the truth. *rows for one*: how many uniform rows are worth "
        "one of the other slice, by the squares of the deviations.",
        "slice --runs 150",
    ),
)


def means(options: argparse.Namespace) -> None:
    """Uniform draws from pools of every kind of loss."""
    sizes = (30, 100, 300)
    heads = [f"k = {k} | above it" for k in sizes]
    print(f"| loss | {' | '.join(heads)} |")
    print("|---" * (1 + 2 * len(sizes)) + "|")
    for name, draw in (CHECKED if options.fresh else LOSSES).items():
        cells = []
        for k in sizes:
            low, above = 0, 0
            for run in range(options.runs):
                if run % 10 == 0:
                    pool = draw(np.random.default_rng([options.seed, run, 1]), POOL)
                rows = np.random.default_rng([options.seed, run, k]).choice(POOL, k, replace=False)
                found = pool_mean(pool[rows], np.ones(k), share=name.startswith("0 or 1"), factor=1 - k / POOL)
                low += bool(found.low > pool.mean())
                above += bool(found.high < pool.mean())
            cells.append(f"{1 - (low + above) / options.runs:.3f} | {above / options.runs:.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def batches(options: argparse.Namespace) -> None:
    """One batch, and the losses of a model that did not see it; bias is the mean error in units of its own spread."""
    print("| draws | rows | k | of | covered | truth above it | bias / spread | weights' sum / k |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only or ("random", "leverage", "bss"):
        for kind in ("gaussian", "heavy-tailed"):
            for k in options.k or (100, 300):
                found, sums = [], []
                for run in range(options.runs):
                    if run % 10 == 0:
                        x, loss_of = pool_of_losses(kind, options.seed + run)
                    s = lw.select(name, k, embedding=x, seed=run + 7)
                    sums.append(s.weights.sum() / k)
                    factor = factor_of(s.notes) if "effective_draws" in s.notes else 1 - k / len(x)
                    for of, loss in loss_of.items():
                        one = pool_mean(loss[s.ids], s.weights, share=of == "accuracy", factor=factor)
                        found.append((loss.mean(), one.value, one.low, one.high))
                for number, of in enumerate(loss_of):
                    true, value, low, high = np.array(found[number :: len(loss_of)]).T
                    covered, bias = (
                        ((low <= true) & (true <= high)).mean(),
                        (value - true).mean() / max((value - true).std(), 1e-300),
                    )
                    print(
                        f"| {name} | {kind} | {k} | {of} | {covered:.3f} | {(high < true).mean():.3f} | {bias:+.2f} "
                        f"| {np.mean(sums):.3f} |",
                        flush=True,
                    )


def made_pool(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels: two classes, or numbers with light or heavy noise, or with noise that grows with long rows."""
    kind, columns = (kind.removeprefix(WIDE), 20) if kind.startswith(WIDE) else (kind, 5)
    x = rng.normal(size=(POOL, columns))
    if kind == "classes":
        return x, (x[:, 0] + 0.5 * x[:, 1] + rng.logistic(size=POOL) * 0.7 > 0).astype(int)
    if kind in ("long rows", "few long rows"):
        freedom = 5 if kind == "long rows" else 2.5
        x /= np.sqrt(rng.chisquare(freedom, size=(POOL, 1)) / freedom)
        noise = rng.normal(size=POOL) * np.sqrt((x**2).mean(1))
    else:
        noise = rng.normal(size=POOL) if kind == "light" else rng.standard_t(3, size=POOL)
    return x, x[:, :5] @ np.arange(1, 6) / 3 + np.sin(2 * x[:, 0]) + noise


def run_session(strategy: str, kind: str, k: int, seed: int) -> dict[str, tuple[float, float, float, float]]:
    """Of one session: (truth, value, low, high) of each number of the running estimate."""
    x, y = made_pool(kind, np.random.default_rng([seed, 7]))
    learner: Any = LogisticRegression() if kind in CLASSES else LinearRegression()
    how: dict[str, Any] = {"classes": 2} if kind in CLASSES else {"task": "regress"}
    al = lw.Session(x, learner, f"random+{strategy}" if strategy != "random" else strategy, seed=seed, **how)
    for _ in range(4):
        ids = al.ask(k // 4).ids
        al.tell(ids, y[ids])
    losses: list[dict[str, np.ndarray]] = []

    def remember(*given: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        outside, inside = out_of_fold_losses(*given)
        losses.append(outside)
        return outside, inside

    with mock.patch("labelwise.stats.estimate.out_of_fold_losses", remember):  # an estimate does not show its losses
        estimate = al.estimate
    assert estimate is not None
    (known,) = losses
    fit = al.fit()
    free = torch.from_numpy(al.free)
    rest = losses_of(fit.reader, al.pool, free, torch.from_numpy(y)[free])
    return {
        name: (
            (known[name].sum() + rest[name].sum()) / POOL,
            *(estimate[name][end] for end in ("value", "low", "high")),
        )
        for name in known
    }


def running(options: argparse.Namespace) -> None:
    """Sessions whose truth is known."""
    print("| draws | labels | k | of | covered | truth above it | bias / spread | width / truth |")
    print("|---|---|---|---|---|---|---|---|")
    for strategy in options.only or ("random", "leverage", "bss"):
        for kind in options.kinds or KINDS:
            for k in options.k or (100, 300):
                runs = [run_session(strategy, kind, k, options.seed + run) for run in range(options.runs)]
                for name in runs[0]:
                    true, value, low, high = np.array([run[name] for run in runs]).T
                    above = high < true
                    covered = 1 - (above | (low > true)).mean()
                    bias = (value - true).mean() / (value - true).std()
                    width = ((high - low) / true).mean()
                    print(
                        f"| {strategy} | {kind} | {k} | {name} | {covered:.3f} | {above.mean():.3f} | {bias:+.2f} "
                        f"| {width:.2f} |",
                        flush=True,
                    )


def slices(options: argparse.Namespace) -> None:
    """RMSE of a linear model by the first m rows of a test slice, of both kinds on the same pools and models."""
    print("| labels | m | uniform: covered | deviation | by bss: covered | deviation | truth above it | rows for one |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in options.kinds or ("light", "heavy", "long rows", "few long rows"):
        found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
        for run in range(options.runs):
            if run % 5 == 0:
                x, y = made_pool(kind, np.random.default_rng([options.seed + run, 8]))
                rng = np.random.default_rng([options.seed + run, 9])
                some, ids = rng.choice(POOL, 100, replace=False), np.arange(POOL)
                loss = (LinearRegression().fit(x[some], y[some]).predict(x) - y) ** 2
                true = math.sqrt(loss.mean())
                pool = Pool.of(x.astype(np.float32))
            draws = draw_by_bss(pool, run)
            for m in options.k or (30, 100, 300):
                for law, rows in (("uniform", reserve(ids, run, 0.15)[:m]), ("bss", draws.reserve[:m])):
                    how = draws.weights_of(rows.tolist(), m) if law == "bss" else (None, 1.0)
                    score = score_of(loss[rows], "rmse", *how)
                    high = math.inf if score.high is None else score.high
                    found.setdefault((law, m), []).append((score.value / true, score.low / true, high / true))
        for m in sorted({m for _, m in found}):
            (even, low, high), (value, least, most) = (np.array(found[law, m]).T for law in ("uniform", "bss"))
            covered, ours = ((low <= 1) & (high >= 1)).mean(), ((least <= 1) & (most >= 1)).mean()
            spread, our_spread = (math.sqrt(((one - 1) ** 2).mean()) for one in (even, value))
            print(
                f"| {kind} | {m} | {covered:.3f} | {spread:.3f} | {ours:.3f} | {our_spread:.3f} "
                f"| {(most < 1).mean():.3f} | {(spread / our_spread) ** 2:.1f} |",
                flush=True,
            )


SIMULATIONS = {"means": means, "batches": batches, "running": running, "slice": slices}


def page(out: Path, parts: tuple[tuple[str, str, str], ...] = PAGE, keep: bool = False) -> None:
    """Run every part, and write the page and its JSON; after each part, so that nothing is lost.

    With `keep`, tables that the JSON already has are taken from there.
    """
    known: dict[str, dict[str, Any]] = {}
    if keep:
        known = {one["words"]: one for one in json.loads(out.with_suffix(".json").read_text())["tables"]}
    about: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/estimate.py", "page", "--out", out.as_posix()]),
        "environment": {**environment("cpu"), "cores": str(os.cpu_count())},
    }
    for _, _, words in parts:
        if words not in known:
            began, shown = time.process_time(), io.StringIO()
            with contextlib.redirect_stdout(shown):
                options = parsed(words.split())
                SIMULATIONS[options.what](options)
            lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.getvalue().splitlines()]
            spent = round(time.process_time() - began)
            known[words] = {"words": words, "runs": options.runs, "cpu_seconds": spent, "rows": lines}
            sys.stderr.write(f"{words}: {spent} CPU s\n")
        about["tables"] = [
            known[words] | {"title": title, "text": text} for title, text, words in parts if words in known
        ]
        write_text(out.with_suffix(".json"), json.dumps(about, indent=1) + "\n")
        write_text(out, page_text(about, len(parts)))


def page_text(about: dict[str, Any], parts: int) -> str:
    """The page of what was measured, from its JSON alone."""
    lines = [
        "# Estimates: how often their 95 % intervals hold the truth",
        "",
        f"Written by `{about['command']}`. What is estimated is in [weights.md](../methods/weights.md) and "
        f"[human-loop.md](../human-loop.md). Pools have {POOL:,} rows.",
        "",
    ]
    if len(about["tables"]) < parts:
        lines += [f"**The run did not finish: {len(about['tables'])} of {parts} tables.**", ""]
    for one in about["tables"]:
        lines += [f"## {one['title']}", ""] if one["title"] else []
        error = math.sqrt(0.95 * 0.05 / one["runs"])
        words = f"`python benchmarks/estimate.py {one['words']}`, {one['cpu_seconds']} CPU s"
        lines += [one["text"], "", f"{words}; the standard error of a coverage is {error:.3f}:", ""]
        lines += [*(f"| {' | '.join(row)} |" for row in one["rows"]), ""]
    ran = ", ".join(f"{name} {value}" for name, value in about["environment"].items())
    return "\n".join([*lines, ran, ""])


def parsed(words: list[str]) -> argparse.Namespace:
    """What a command asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*SIMULATIONS, "page"))
    parser.add_argument("--runs", type=int, default=200, help="simulations of each line")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--fresh", action="store_true", help="losses on which nothing was chosen")
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), help="strategies, with commas")
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), help="kinds of labels, with commas")
    parser.add_argument("--k", type=lambda text: tuple(int(k) for k in text.split(",")), help="budgets, with commas")
    parser.add_argument("--out", type=Path, help="where the page goes")
    parser.add_argument("--keep", action="store_true", help="of a page, run only the tables that it does not have")
    options = parser.parse_args(words)
    if (options.what == "page") != (options.out is not None):
        parser.error("page and --out go together")
    return options


def main() -> None:
    """Run one of the simulations, or all that the page has."""
    torch.set_num_threads(1)
    options = parsed(sys.argv[1:])
    if options.what == "page":
        page(options.out, keep=options.keep)
    else:
        SIMULATIONS[options.what](options)


if __name__ == "__main__":
    main()
