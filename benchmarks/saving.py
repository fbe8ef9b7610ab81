"""After how many labels does the meter tell a saving that is real? Simulated projects whose saving is known.

    python benchmarks/saving.py --data DATA [--projects 200] [--write]

The saving is exact by construction: where a share s is saved, the model of a project with n labels is one trained on
n / (1 - s) random labels. Test rows, rounds and the meter are those of a project with classes. A saving is told once
the meter names a number of saved labels whose lower end is above 0. Where s is 0, whatever is told is wrong.

The meter is asked after every number of labels in the table, and "so far" counts what it told at that time or before:
people look at the page all the time, and one wrong claim is remembered. "At best" is a limit for every meter that uses
the test rows: it gets a model of n random labels for nothing, compares it with the model of the project row by row, and
looks once.

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
from labelwise.project.meter.meter import History, compute, losses_of
from labelwise.rng import Key

ROOT = Path(__file__).parents[1]
PAGE, TOLD = ROOT / "docs/results/meter.md", ROOT / "src/labelwise/project/meter/told.json"
ANSWERS = (100, 150, 200, 300, 400, 600, 900, 1200)  # labels of a project, test rows among them
SAVINGS = (0.0, 0.3, 0.5)
SHARE, BATCH = 0.15, 20  # test rows; labels of a round
ONCE = 1.96  # standard errors of a meter that looks once
ITEMS_AT = 300  # labels for which the page says how many test rows a saving takes
TESTS = {answers: int(SHARE * answers + 0.5) for answers in ANSWERS}


@dataclass(frozen=True)
class Look:
    """What is told of a project at one time: by the meter, and at best.

    `mean` and `square` are those of the loss of the model of n random labels less that of the project, over all rows
    that no model was trained on.
    """

    told: bool
    best: bool
    mean: float
    square: float


Told = dict[tuple[float, int], Look]  # by (share that is saved, answers)


@dataclass(frozen=True)
class World:
    """Rows (N, D) as a project scales them, and their labels."""

    name: str
    x_ND: np.ndarray
    y_N: np.ndarray

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
    """A data set as a project sees it."""
    x_ND, y_N = np.asarray(rows[0], np.float64), np.asarray(rows[1], np.int64)
    x_ND = x_ND - x_ND.mean(0)
    return World(name, x_ND / np.sqrt((x_ND**2).sum(1).mean()), np.unique(y_N, return_inverse=True)[1])


def project(one: World, seed: int) -> Told:
    """What is told of one project, where there are rows enough."""
    order = Key(seed).fold("saving", one.name).numpy().permutation(len(one.y_N))
    aside, rest = order[: max(TESTS.values())], order[max(TESTS.values()) :]
    models: dict[float, list[tuple[np.ndarray, np.ndarray]]] = {saving: [] for saving in SAVINGS}
    counts: list[int] = []
    found: Told = {}
    for answers, tests in TESTS.items():
        n, rows = answers - tests, aside[:tests]
        if n / (1 - max(SAVINGS)) + n > len(rest):
            break
        counts.append(n)
        x_MD, label_M = torch.from_numpy(one.x_ND[rows]), one.y_N[rows].astype(float)
        key = Key(seed).fold("ask", answers)
        # The curve of random labels depends on the test rows alone: it is made once for all savings.
        curve = mean_curve.random_curve(x_MD, label_M, len(one.classes), key.fold("random")) if tests >= 30 else None
        control = one.fit(rest[-n:])
        outside = np.concatenate([aside, rest[round(n / (1 - max(SAVINGS))) : len(rest) - n]])
        for saving, made in models.items():
            made.append(one.fit(rest[: round(n / (1 - saving))]))
            losses = [one.losses(model, rows) for model in made]
            history = History(rows, x_MD, label_M, one.classes, list(counts), losses, 5.0, len(rest) - n)
            with mock.patch.object(mean_curve, "random_curve", return_value=curve):
                meter = compute(history, BATCH, len(one.y_N), len(made), 0, key)
            told = meter.saved is not None and not meter.early and meter.saved.low > 0
            better_M = one.losses(control, rows) - losses[-1]
            better_N = one.losses(control, outside) - one.losses(made[-1], outside)
            best = better_M.mean() > ONCE * better_M.std(ddof=1) / np.sqrt(tests)
            found[saving, answers] = Look(told, bool(best), float(better_N.mean()), float((better_N**2).mean()))
    return found


def so_far(run: Told, saving: float, answers: int) -> bool:
    """Whether the meter told a saving at this time or before."""
    return any(run[saving, one].told for one in ANSWERS if one <= answers and (saving, one) in run)


def first(runs: list[Told], saving: float, share: float) -> int | None:
    """Answers from which on a saving is told in this share of the projects; None if it never is."""
    enough = None
    for answers in reversed(ANSWERS):
        told = [run[saving, answers].told for run in runs if (saving, answers) in run]
        if np.mean(told) < share:
            break
        enough = answers
    return enough


def items(runs: list[Told], saving: float, answers: int, errors: float) -> int | None:
    """Test rows on which the best meter tells the saving in half of the projects, with as many standard errors.

    None where the projects are too few to say: their mean is not three standard errors above 0.
    """
    found = [run[saving, answers] for run in runs if (saving, answers) in run]
    mean, square = np.mean([one.mean for one in found]), np.mean([one.square for one in found])
    if mean < 3 * np.std([one.mean for one in found], ddof=1) / np.sqrt(len(found)):
        return None
    return int(round(errors**2 * (square - mean**2) / mean**2, -2))


def page(runs: list[Told], names: list[str], command: str) -> str:
    """The page of results."""
    lines = [
        "# After how many labels does the meter tell a saving?",
        "",
        f"Made by `{command}`: {len(runs)} simulated projects ({', '.join(names)}; {100 * SHARE:.0f} % test rows). "
        "Where a share is saved, the model of a project with n labels is one trained on n / (1 - share) random labels: "
        "the saving is exact. A saving is told once the meter names a number of labels whose lower end is above 0; "
        'where nothing is saved, that is wrong. "So far" is what was told at that time or before.',
        "",
        '"At best" is a limit for every meter that compares models on the test rows. It gets a model of n random '
        "labels for nothing, compares it with the model of the project row by row, and looks once, with "
        f"{ONCE} standard errors. The meter of a project has no such model: it trains on the test rows alone and "
        f"extrapolates the curve. And it looks after every round, so it takes {mean_curve.ALWAYS} standard errors.",
        "",
        "| labels | test rows | projects "
        + "".join(f"| {100 * s:.0f} % saved: told | so far | at best " for s in SAVINGS)
        + "|\n"
        + (3 + 3 * len(SAVINGS)) * "|---"
        + "|",
    ]
    for answers, tests in TESTS.items():
        cells = []
        some = [run for run in runs if (0.0, answers) in run]
        for saving in SAVINGS:
            told = [run[saving, answers].told for run in some]
            far = [so_far(run, saving, answers) for run in some]
            best = [run[saving, answers].best for run in some]
            cells += [f"{100 * np.mean(share):.0f} %" for share in (told, far, best)]
        lines.append(f"| {answers} | {tests} | {len(some)} | {' | '.join(cells)} |")
    ever = np.mean([so_far(run, 0.0, max(ANSWERS)) for run in runs])
    lines += ["", f"Where nothing is saved, a saving was told at any time in {100 * ever:.1f} % of the projects.", ""]
    lines += ["| saving | told in half of the projects | in nine of ten |", 3 * "|---" + "|"]
    for saving in SAVINGS[1:]:
        found = [first(runs, saving, share) for share in (0.5, 0.9)]
        cells = [f"{labels} labels" if labels else f"not within {max(ANSWERS)}" for labels in found]
        lines.append(f"| {100 * saving:.0f} % | {' | '.join(cells)} |")
    lines += [
        "",
        "## What limits it",
        "",
        "The noise of the test rows. The models of n and of n / (1 - share) labels differ on few rows, and in both "
        "directions. So many test rows would be needed for the best meter to tell the saving in half of the projects:",
        "",
        "| labels | test rows there are "
        + "".join(f"| {100 * s:.0f} % saved: looking once | at all times " for s in SAVINGS[1:])
        + "|\n"
        + (2 + 2 * len(SAVINGS[1:])) * "|---"
        + "|",
    ]
    for answers, tests in TESTS.items():
        counts = [items(runs, s, answers, far) for s in SAVINGS[1:] for far in (ONCE, mean_curve.ALWAYS)]
        cells = ["too few projects to say" if count is None else f"{count:,}" for count in counts]
        lines.append(f"| {answers} | {tests} | {' | '.join(cells)} |")
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
        needed = {f"{s:g}": count for s in SAVINGS[1:] if (count := items(runs, s, ITEMS_AT, mean_curve.ALWAYS))}
        told = {"projects": len(runs), "most": max(ANSWERS), "half": half, "nine": nine}
        told |= {"labels": ITEMS_AT, "items": needed, "command": command}
        TOLD.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
