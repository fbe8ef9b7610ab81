"""Does the meter of a labelling project tell the truth? Simulated projects whose truth is known.

    python benchmarks/meter.py [--seeds 20] [--out docs/results/meter.md]

Each seed draws a pool, labels it round by round as a project does (15 % test rows, the rest chosen), and asks the meter
after some rounds. The truth comes from rows outside the pool: the accuracy (or RMSE) of that very model, and the mean
curve of models trained on random labels, from many draws, whose crossing with it is the number of random labels needed.
The table says how often the 95 % intervals hold the truth, how wide they are, and how often it is too early to tell.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from labelwise.io.tables import Table
from labelwise.pool import Pool
from labelwise.project.data.plain_encoders import columns
from labelwise.project.loop.holdout import draw_by_bss, reserve, slice_size
from labelwise.project.loop.model import head_learner, logistic, ridge
from labelwise.project.meter.meter import History, Meter, Span, compute, losses_of
from labelwise.rng import Key
from labelwise.session import Session
from labelwise.signals.model.reader import ModelReader

K, SHARE = 20, 0.15
ROUNDS = (15, 30)  # the meter is asked after these
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]  # rows and labels of the population


@dataclass(frozen=True)
class World:
    """A population, and how it is labelled."""

    name: str
    draw: Draw
    pool: int
    classes: int  # 0: numbers
    recipe: str
    truth: int = 10_000  # rows the truth is measured on


@dataclass(frozen=True)
class Found:
    """A meter, and what it should have said."""

    meter: Meter
    score: float
    control: float
    needed: float


def blobs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Six classes of three clouds each that overlap, in 20 columns."""
    place = Key(7).fold("blobs").numpy()
    centre = 1.15 * place.standard_normal((18, 20))
    which = rng.integers(18, size=n)
    return centre[which] + rng.standard_normal((n, 20)), which % 6


def rare(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, the second one row in ten, in 30 columns, with 3 % wrong labels."""
    direction = Key(7).fold("rare").numpy().standard_normal(30)
    x = rng.standard_normal((n, 30))
    y = (x @ direction / np.linalg.norm(direction) > 1.28).astype(int)
    return x, np.where(rng.random(n) < 0.03, 1 - y, y)


def waves(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A number that bends with eight columns, as a project encodes them, and noise."""
    x = rng.random((n, 8))
    y = 10 * np.sin(np.pi * x[:, 0] * 2) + 20 * (x[:, 1] - 0.5) ** 2 + 10 * x[:, 2] + 5 * x[:, 3]
    return x, y + rng.standard_normal(n)


def digits(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits of scikit-learn, without replacement."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    at = rng.permutation(len(y))[:n]
    return x[at], y[at]


WORLDS = (
    World("digits", digits, 1100, 10, "typiclust+badge", truth=697),
    World("blobs", blobs, 3000, 6, "typiclust+badge"),
    World("rare", rare, 3000, 2, "typiclust+margin"),
    World("waves", waves, 3000, 0, "typiclust+kcenter"),
)


def _scaled(x_ND: np.ndarray) -> np.ndarray:
    """Rows of mean zero and mean length one, as the features of a project."""
    x_ND = x_ND - x_ND.mean(0)
    return x_ND / np.sqrt((x_ND**2).sum(1).mean())


def _rows(world: World, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = Key(seed).fold("meter", world.name).numpy()
    x, y = world.draw(rng, world.pool + world.truth)
    if world.classes == 0:  # columns of a table
        table = Table(np.arange(len(x)), {f"c{j}": x[:, j] for j in range(x.shape[1])}, [], ())
        x = columns(table).x_NW.astype(np.float64)
    return _scaled(x), y


class Random:
    """The mean loss of random labels by their number: many pools, each tested on the rows outside it."""

    def __init__(self, world: World, repeats: int):
        self.sizes = np.unique(np.geomspace(20, world.pool // 2, 12).round().astype(int))
        loss = np.zeros((repeats, len(self.sizes)))
        for r in range(repeats):
            x, y = map(torch.from_numpy, _rows(world, 1000 + r))
            out_x, out_y = x[world.pool :], y[world.pool :]
            for s, n in enumerate(self.sizes.tolist()):  # the rows of a pool are in no order
                if world.classes:
                    w, b = logistic(x[:n], y[:n], world.classes)
                    loss[r, s] = float(((out_x @ w.T + b).argmax(1) != out_y).double().mean())
                else:
                    w, b = ridge(x[:n], y[:n].double())
                    loss[r, s] = float(((out_x @ w[0] + b[0]) - out_y).square().mean())
        self.loss = np.minimum.accumulate(loss.mean(0))

    def at(self, n: float) -> float:
        """The mean loss with n labels."""
        return float(np.interp(np.log(n), np.log(self.sizes), self.loss))

    def reaches(self, level: float) -> float:
        """How many labels bring the loss down to `level`; infinite where half the pool does not."""
        if level < self.loss[-1]:
            return float("inf")
        return float(np.exp(np.interp(-level, -self.loss, np.log(self.sizes))))


def simulate(world: World, seed: int, chance: Random) -> dict[int, Found]:
    """One project, and the meter after some rounds."""
    x_ND, y_N = _rows(world, seed)
    ids = np.arange(world.pool)
    whole = Pool.of(x_ND[: world.pool].astype(np.float32))
    draws = None if world.classes else draw_by_bss(whole, seed)
    aside = reserve(ids, seed, SHARE) if draws is None else draws.reserve
    pool = whole.subset(np.setdiff1d(ids, aside))
    task = "classify" if world.classes else "regress"
    session = Session(
        pool,
        head_learner(x_ND.shape[1], world.classes, task),  # type: ignore[arg-type]
        world.recipe,
        classes=world.classes or None,
        task=task,  # type: ignore[arg-type]
        seed=seed,
    )
    names = tuple(map(str, range(world.classes)))
    tests, counts, models, found = 0, [], [], {}
    for number in range(1, max(ROUNDS) + 1):
        more = slice_size(number, K, SHARE)
        picks = session.ask(K - more)
        session.tell(picks.ids, y_N[picks.ids])
        tests += more
        reader = session.fit().reader
        layer = reader.model if isinstance(reader, ModelReader) else None
        assert isinstance(layer, torch.nn.Linear)
        weight, bias = (part.detach().numpy().copy() for part in (layer.weight, layer.bias))
        counts.append(len(session.labelled))
        models.append((weight, bias))
        if number not in ROUNDS:
            continue
        rows = aside[:tests]
        losses = [losses_of(x_ND[rows], y_N[rows], names, w, b, names) for w, b in models]
        history = History(
            rows, torch.from_numpy(x_ND[rows]).float(), y_N[rows].astype(float), names, list(counts), losses, 5.0,
            len(session.free), None, *((None, 1.0) if draws is None else draws.weights_of(rows.tolist(), tests)),
        )  # fmt: skip
        meter = compute(history, K, world.pool, number, 0, Key(seed).fold("ask", number))
        outside = slice(world.pool, None)
        loss = float(losses_of(x_ND[outside], y_N[outside], names, weight, bias, names).mean())
        score = (lambda e: 1 - e) if world.classes else np.sqrt
        found[number] = Found(meter, score(loss), score(chance.at(counts[-1])), chance.reaches(loss))
    return found


def _holds(span: Span | None, truth: float, slack: float = 0.0) -> bool:
    if span is None:
        return False
    return span.low - slack <= truth and (span.high is None or truth <= span.high + slack)


def table(world: World, runs: list[dict[int, Found]]) -> list[str]:
    """A line for each number of rounds."""
    lines = []
    for number in ROUNDS:
        found = [run[number] for run in runs]
        told = [one for one in found if one.meter.needed is not None]
        clear = [one for one in told if not one.meter.early]
        open_ = sum(one.meter.needed is not None and one.meter.needed.high is None for one in told)
        lows = [one.meter.needed.low for one in told if one.meter.needed is not None]
        lines.append(
            f"| {world.name} | {found[0].meter.labels} | {found[0].meter.test} "
            f"| {np.mean([_holds(one.meter.score, one.score) for one in found]):.0%} "
            f"| {np.mean([_holds(one.meter.control, one.control) for one in told]):.0%} "
            f"| {np.mean([_holds(one.meter.needed, one.needed) for one in told]):.0%} "
            f"| {np.median([one.needed for one in found]):.0f} "
            f"| {np.median([one.meter.needed.value for one in told if one.meter.needed]):.0f} "
            f"| {np.median(lows):.0f} "
            f"| {1 - len(clear) / len(found):.0%} | {open_ / len(found):.0%} "
            f"| {np.mean([_wrong(one) for one in told]):.0%} |"
        )
    return lines


def _wrong(one: Found) -> bool:
    """The meter says that labels were saved, or lost, and the opposite is true."""
    saved, true = one.meter.saved, one.needed - one.meter.labels
    if saved is None or one.meter.early:
        return False
    return (saved.low > 0 and true < 0) or (saved.high is not None and saved.high < 0 and true > 0)


HEAD = (
    "| world | labels | test rows | accuracy or RMSE holds | control holds | needed holds | needed, truth "
    "| needed, meter | its lower end | too early | open above | wrong sign |\n" + 12 * "|---" + "|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=20, help="draws of the random curve that is the truth")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--worlds", default=",".join(world.name for world in WORLDS))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [HEAD]
    for world in WORLDS:
        if world.name not in given.worlds.split(","):
            continue
        began = time.perf_counter()
        chance = Random(world, given.repeats)
        with ProcessPoolExecutor(given.jobs, initializer=torch.set_num_threads, initargs=(1,)) as jobs:
            seeds = range(given.seeds)
            runs = list(jobs.map(simulate, [world] * len(seeds), seeds, [chance] * len(seeds)))
        new = table(world, runs)
        lines += new
        print(f"{world.name}: {time.perf_counter() - began:.0f} s\n" + "\n".join(new), flush=True)
    if given.out is not None:
        command = f"python benchmarks/meter.py --seeds {given.seeds} --repeats {given.repeats}"
        given.out.write_text(f"Made by `{command}`.\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
