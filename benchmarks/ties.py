"""Tree models and nearest neighbours on a pool sorted by class: `python benchmarks/ties.py --out docs/results/ties.md`.

Such models give many rows exactly the same probabilities. Ties are broken by lot, a hash of (key, id); the table has
the smaller id next to it, the rule of 0.1, which labels a pool that is sorted by class one class after the other.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

import labelwise as lw
from labelwise.rng import Key

TEST, START, K, LABELS, SEEDS = 500, 20, 20, 60, 10
MODELS: dict[str, Callable[[int], Any]] = {
    "k-NN": lambda seed: KNeighborsClassifier(5),
    "random forest": lambda seed: RandomForestClassifier(100, random_state=seed, n_jobs=1),
    "boosting": lambda seed: HistGradientBoostingClassifier(max_iter=30, random_state=seed),
}
COLUMNS = ("random", "margin, shuffled", "margin, sorted", "margin, sorted, ties to the smaller id")


def accuracy(model: str, column: str, seed: int) -> float:
    """Test accuracy after the last round."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    test, pool = order[:TEST], order[TEST:]
    if "shuffled" not in column:
        pool = pool[np.argsort(y[pool], kind="stable")]
    recipe = "random" if column == "random" else "random+margin"
    rule = _smaller_id if "smaller" in column else Key.lots
    with warnings.catch_warnings(), mock.patch.object(Key, "lots", rule):
        warnings.simplefilter("ignore")  # few rows of a class
        torch.set_num_threads(1)
        rounds = lw.rounds(
            x[pool],
            y[pool],
            MODELS[model](seed),
            recipe,
            K,
            (LABELS - START) // K,
            start=START,
            test=(x[test], y[test]),
            seed=seed,
        )
        return float([*rounds][-1].metrics["accuracy"])


def _smaller_id(key: Key, ids: Tensor) -> Tensor:
    return ids.clone()


def page(seeds: int, processes: int) -> str:
    """The table in Markdown."""
    cells = [(model, column, seed) for model in MODELS for column in COLUMNS for seed in range(seeds)]
    with concurrent.futures.ProcessPoolExecutor(processes) as workers:
        found = dict(zip(cells, workers.map(accuracy, *zip(*cells))))
    lines = [
        "# Ties: tree models and nearest neighbours on a pool sorted by class",
        "",
        f"Accuracy on {TEST} test rows of the handwritten digits with {LABELS} labels ({START} at random, then rounds "
        f"of {K}), mean of {seeds} seeds with the standard error. The command is `python benchmarks/ties.py --out "
        "docs/results/ties.md`.",
        "",
        f"| model | {' | '.join(COLUMNS)} |",
        f"| --- | {' | '.join('---:' for _ in COLUMNS)} |",
    ]
    for model in MODELS:
        row = []
        for column in COLUMNS:
            values = np.array([found[model, column, seed] for seed in range(seeds)])
            row.append(f"{values.mean():.2f} ± {values.std(ddof=1) / np.sqrt(seeds):.2f}")
        lines.append(f"| {model} | {' | '.join(row)} |")
    lines += [
        "",
        "These models give many rows the same probabilities. Ties are broken by a hash of (key, id), so a pool that is "
        "sorted by class gives what a shuffled one gives. The last column is the rule of version 0.1.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the page here instead of printing it")
    given = parser.parse_args()
    text = page(given.seeds, given.processes)
    if given.out:
        given.out.write_text(text)
    else:
        sys.stdout.write(text)
