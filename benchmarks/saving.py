"""After how many labels does the meter tell a saving that is real? Simulated projects whose saving is known.

    python benchmarks/saving.py --data DATA [--projects 200] [--write]

The saving is exact by construction: where a share s is saved, the model of a project with n labels is one trained on
n / (1 - s) random labels. Test rows, rounds and the meter are those of a project with classes. A saving is told once
the meter names a number of saved labels whose lower end is above 0. Where s is 0, whatever is told is wrong.

The column "at best" is a limit for meters that compare accuracies on the same test rows: it knows the curve of random
labels exactly, and tells a saving once the lower end of Wilson's interval is above that curve.

`--data` is a folder with `ag_news.parquet`, `trec6.parquet` and `covertype.parquet`. With `--write`, the page goes to
`docs/results/meter.md`, and what the labelling page says from the start to `project/meter/told.json` of the package.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from accept import Rows, columns, digits, texts
from labelwise.project.loop.model import logistic
from labelwise.project.meter import mean_curve
from labelwise.project.meter.meter import History, compute, losses_of, score_of
from labelwise.rng import Key

ROOT = Path(__file__).parents[1]
PAGE, TOLD = ROOT / "docs/results/meter.md", ROOT / "src/labelwise/project/meter/told.json"
ANSWERS = (100, 150, 200, 300, 400, 600, 900, 1200)  # labels of a project, test rows among them
SAVINGS = (0.0, 0.3, 0.5)
SHARE, BATCH, CURVES = 0.15, 20, 12  # test rows; labels of a round; random draws of the curve that is the truth
TESTS = {answers: int(SHARE * answers + 0.5) for answers in ANSWERS}
Told = dict[tuple[float, int], tuple[bool, bool]]  # by (share that is saved, answers): the meter, and at best


@dataclass(frozen=True)
class World:
    """Rows (N, D) as a project scales them, their labels, and the mean accuracy of random labels by their number."""

    name: str
    x_ND: np.ndarray
    y_N: np.ndarray
    sizes_S: np.ndarray
    accuracy_S: np.ndarray

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(map(str, range(int(self.y_N.max()) + 1)))

    def fit(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The model of a project, trained on these rows."""
        weight, bias = logistic(torch.from_numpy(self.x_ND[rows]), torch.from_numpy(self.y_N[rows]), len(self.classes))
        return weight.numpy(), bias.numpy()

    def losses(self, model: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> np.ndarray:
        """1 where the model is wrong."""
        return losses_of(self.x_ND[rows], self.y_N[rows], self.classes, *model, self.classes)


def world(name: str, rows: Rows) -> World:
    """A world, and its curve of random labels, tested on rows outside the training rows."""
    x_ND, y_N = np.asarray(rows[0], np.float64), np.asarray(rows[1], np.int64)
    x_ND = x_ND - x_ND.mean(0)
    x_ND = x_ND / np.sqrt((x_ND**2).sum(1).mean())
    y_N = np.unique(y_N, return_inverse=True)[1]
    most = min(int(max(ANSWERS) / (1 - max(SAVINGS))), int(0.8 * len(y_N)))
    sizes_S = np.unique(np.geomspace(20, most, 14).round().astype(int))
    made = World(name, x_ND, y_N, sizes_S, np.zeros(len(sizes_S)))
    found_RS = np.zeros((CURVES, len(sizes_S)))
    for r in range(CURVES):
        order = Key(r).fold("saving", "truth").numpy().permutation(len(y_N))
        for s, n in enumerate(sizes_S.tolist()):
            found_RS[r, s] = 1 - made.losses(made.fit(order[:n]), order[most:]).mean()
    return World(name, x_ND, y_N, sizes_S, np.maximum.accumulate(found_RS.mean(0)))


def project(one: World, seed: int) -> Told:
    """What is told of one project, where there are rows enough."""
    order = Key(seed).fold("saving", one.name).numpy().permutation(len(one.y_N))
    aside, rest = order[: max(TESTS.values())], order[max(TESTS.values()) :]
    models: dict[float, list[tuple[np.ndarray, np.ndarray]]] = {saving: [] for saving in SAVINGS}
    counts: list[int] = []
    found: Told = {}
    for answers, tests in TESTS.items():
        n, rows = answers - tests, aside[:tests]
        if n / (1 - max(SAVINGS)) > len(rest):
            break
        counts.append(n)
        x_MD, label_M = torch.from_numpy(one.x_ND[rows]), one.y_N[rows].astype(float)
        key = Key(seed).fold("ask", answers)
        # The curve of random labels depends on the test rows alone: it is made once for all savings.
        curve = mean_curve.random_curve(x_MD, label_M, len(one.classes), key.fold("random")) if tests >= 30 else None
        known = float(np.interp(np.log(n), np.log(one.sizes_S), one.accuracy_S))
        for saving, made in models.items():
            made.append(one.fit(rest[: round(n / (1 - saving))]))
            losses = [one.losses(model, rows) for model in made]
            history = History(rows, x_MD, label_M, one.classes, list(counts), losses, 5.0, len(rest) - n)
            with mock.patch.object(mean_curve, "random_curve", return_value=curve):
                meter = compute(history, BATCH, len(one.y_N), len(made), 0, key)
            told = meter.saved is not None and not meter.early and meter.saved.low > 0
            found[saving, answers] = (told, score_of(losses[-1], "accuracy").low > known)
    return found


def first(runs: list[Told], saving: float, share: float, limit: int = 0) -> int | None:
    """Answers from which on a saving is told in this share of the projects; None if it never is."""
    enough = None
    for answers in reversed(ANSWERS):
        told = [run[saving, answers][limit] for run in runs if (saving, answers) in run]
        if np.mean(told) < share:
            break
        enough = answers
    return enough


def page(runs: list[Told], names: list[str], command: str) -> str:
    """The page of results."""
    lines = [
        "# After how many labels does the meter tell a saving?",
        "",
        f"Made by `{command}`: {len(runs)} simulated projects ({', '.join(names)}; {100 * SHARE:.0f} % test rows). "
        "Where a share is saved, the model of a project with n labels is one trained on n / (1 - share) random labels: "
        "the saving is exact. A saving is told once the meter names a number of labels whose lower end is above 0; "
        'where nothing is saved, that is wrong. "At best" is what any meter could tell that compares accuracies on the '
        "same test rows: it knows the curve of random labels exactly.",
        "",
        "| labels | test rows | projects "
        + "".join(f"| {100 * s:.0f} % saved: told | at best " for s in SAVINGS)
        + "|\n"
        + (3 + 2 * len(SAVINGS)) * "|---"
        + "|",
    ]
    for answers, tests in TESTS.items():
        cells = []
        for saving in SAVINGS:
            told = np.array([run[saving, answers] for run in runs if (saving, answers) in run])
            cells += [f"{100 * share:.0f} %" for share in told.mean(0)]
        lines.append(f"| {answers} | {tests} | {len(told)} | {' | '.join(cells)} |")
    lines += ["", "| saving | told in half of the projects | in nine of ten | half, at best | nine of ten, at best |"]
    lines.append(5 * "|---" + "|")
    for saving in SAVINGS[1:]:
        cells = []
        for limit in (0, 1):
            for share in (0.5, 0.9):
                labels = first(runs, saving, share, limit)
                cells.append(f"{labels} labels" if labels else f"not within {max(ANSWERS)}")
        lines.append(f"| {100 * saving:.0f} % | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--projects", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sources: dict[str, Callable[[], Rows]] = {
        "digits": digits,
        "ag-news": partial(texts, given.data / "ag_news.parquet"),
        "trec6": partial(texts, given.data / "trec6.parquet"),
        "covertype": partial(columns, given.data / "covertype.parquet"),
    }
    runs: list[Told] = []
    for name, read in sources.items():
        began, made = time.perf_counter(), world(name, read())
        with ProcessPoolExecutor(given.jobs, initializer=torch.set_num_threads, initargs=(1,)) as jobs:
            runs += jobs.map(partial(project, made), range(given.projects // len(sources)))
        print(f"{name}: {len(runs)} projects, {time.perf_counter() - began:.0f} s", flush=True)
    command = f"python benchmarks/saving.py --data DATA --projects {given.projects} --write"
    text = page(runs, list(sources), command)
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
        half = {f"{saving:g}": first(runs, saving, 0.5) for saving in SAVINGS[1:]}
        nine = {f"{saving:g}": first(runs, saving, 0.9) for saving in SAVINGS[1:]}
        told = {"projects": len(runs), "most": max(ANSWERS), "half": half, "nine": nine, "command": command}
        TOLD.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
