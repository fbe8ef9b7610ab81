"""Are no more labels wrong than asked for, among those taken from the model? Simulated projects with known labels.

    python benchmarks/accept.py --data DATA [--seeds 10] [--out docs/results/accept.md]

Each seed labels a pool as a project does (15 % test rows, the rest chosen by margin), then accepts predictions at
several shares of errors. The table has the share of the pool that was accepted, the share of wrong labels among those
(mean over the seeds, and the largest), the share that was expected, and how often the interval holds the truth.
`--data` is a folder with `ag_news.parquet`, `trec6.parquet` and `covertype.parquet`; without it, only digits are used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from labelwise.io.encode_table import block_scale, fit_table
from labelwise.io.encode_texts import fit_texts
from labelwise.io.tables import read_table
from labelwise.pool import Pool
from labelwise.project.loop.holdout import reserve, slice_size
from labelwise.project.loop.model import head_learner, logistic
from labelwise.project.predict.accept import accept
from labelwise.project.predict.trained import HeldOutRows, cross_outputs, fit_temperature
from labelwise.rng import Key
from labelwise.session import Session

K, SHARE, ROUNDS, ROWS = 20, 0.15, (8, 20), 4000
SHARES = (0.01, 0.02, 0.05)
Rows = tuple[np.ndarray, np.ndarray]


def digits() -> Rows:
    """Handwritten digits of scikit-learn."""
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def texts(path: Path) -> Rows:
    """The first texts of a data set, as a project without an encoder sees them."""
    table = read_table(path, ["text", "label"])
    rows = np.linspace(0, len(table) - 1, ROWS).astype(int)
    words = [str(table.columns["text"][row]) for row in rows]
    return fit_texts(words).encode(words), np.array([int(float(table.columns["label"][row])) for row in rows])


def columns(path: Path) -> Rows:
    """Rows of a table, as a project sees them."""
    table = read_table(path)
    table = table.subset(np.linspace(0, len(table) - 1, ROWS).astype(int))
    target = next(reversed(table.columns))
    y = np.unique(np.array([str(value) for value in table.columns.pop(target)]), return_inverse=True)[1]
    encoder = fit_table(table)
    x = encoder.encode(table)
    mean, scale = block_scale(x, np.arange(len(x)), encoder.blocks)
    return (x - mean) / scale, y


def simulate(x_ND: np.ndarray, y_N: np.ndarray, seed: int) -> list[tuple[int, float, float, float, float, bool]]:
    """(labels, share asked for, share accepted, share wrong, share expected, interval holds) for one project."""
    x_ND = (x_ND - x_ND.mean(0)) / np.sqrt((x_ND - x_ND.mean(0)).var(0).sum())
    classes, ids = int(y_N.max()) + 1, np.arange(len(y_N))
    aside = reserve(ids, seed, SHARE)
    pool = Pool.of(x_ND.astype(np.float32)).subset(np.setdiff1d(ids, aside))
    session = Session(
        pool, head_learner(x_ND.shape[1], classes, "classify"), "typiclust+margin", classes=classes, seed=seed
    )
    tests, found = 0, []
    for number in range(1, max(ROUNDS) + 1):
        more = slice_size(number, K, SHARE)
        tests += more
        picks = session.ask(K - more)
        session.tell(picks.ids, y_N[picks.ids])
        if number not in ROUNDS:
            continue
        rows = torch.tensor(sorted(session.labelled))
        x, y = torch.from_numpy(x_ND[rows]).double(), torch.from_numpy(y_N[rows]).long()
        weight, bias = (part.numpy() for part in logistic(x, y, classes))
        out = x_ND @ weight.T + bias
        cross = cross_outputs(rows, x, y, classes, Key(seed).fold("accept", number))
        held_out = HeldOutRows(aside[:tests], out[aside[:tests]], y_N[aside[:tests]].astype(float), *cross)
        heat = fit_temperature(held_out)
        by_cross = torch.from_numpy(held_out.cross_NC / heat).softmax(1).numpy()
        p = torch.from_numpy(out / heat).softmax(1).numpy()
        free = np.setdiff1d(ids, np.concatenate([rows.numpy(), aside[:tests]]))
        right = p.argmax(1) == y_N
        for share in SHARES:
            made = accept(
                p.max(1)[free],
                share,
                (p.max(1)[held_out.rows], right[held_out.rows]),
                (by_cross.max(1), by_cross.argmax(1) == held_out.cross_label_N),
            )
            taken = free[p.max(1)[free] >= made.bar]
            wrong = int((~right[taken]).sum())
            holds = made.low is None or made.high is None or made.low - 0.5 <= wrong <= made.high + 0.5
            rate = wrong / len(taken) if len(taken) else np.nan
            expected = made.expected / len(taken) if len(taken) else np.nan
            found.append((len(rows), share, len(taken) / len(free), rate, expected, holds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    worlds: dict[str, Callable[[], Rows]] = {"digits": digits}
    if given.data is not None:
        worlds |= {
            "ag-news": lambda: texts(given.data / "ag_news.parquet"),
            "trec6": lambda: texts(given.data / "trec6.parquet"),
            "covertype": lambda: columns(given.data / "covertype.parquet"),
        }
    lines = [
        "| data | labels | asked for | accepted | wrong, mean | wrong, most | expected | interval holds |\n"
        + 8 * "|---"
        + "|"
    ]
    for name, read in worlds.items():
        x_ND, y_N = read()
        runs = [simulate(x_ND, y_N, seed) for seed in range(given.seeds)]
        for cell in zip(*runs):
            table = np.array([list(map(float, one)) for one in cell])
            labels, share = table[0, :2]
            accepted, wrong, expected = table[:, 2], table[:, 3], table[:, 4]
            some = np.isfinite(wrong).any()
            numbers = [np.nanmean(wrong), np.nanmax(wrong), np.nanmean(expected)] if some else []
            shown = " | ".join(f"{100 * one:.1f} %" for one in numbers) if some else "– | – | –"
            lines.append(
                f"| {name} | {labels:.0f} | {100 * share:.0f} % | {100 * accepted.mean():.0f} % | {shown} "
                f"| {100 * table[:, 5].mean():.0f} % |"
            )
        print("\n".join(lines), flush=True)
    if given.out is not None:
        words = f"Made by `python benchmarks/accept.py --data DATA --seeds {given.seeds}`.\n\n"
        given.out.write_text(words + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
