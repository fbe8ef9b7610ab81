"""Compare: several recipes on the same data, first batches and initial weights, seed by seed."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.bench.data.load import Data
from labelwise.bench.suite.checkpoint import begun, kept_rounds, locked, records_of_run
from labelwise.bench.suite.curve import Curve
from labelwise.errors import ArgumentError
from labelwise.io.files import write_text
from labelwise.loop import rounds
from labelwise.recipes import get
from labelwise.session import Session
from labelwise.stats.record import Record


@dataclass(frozen=True)
class Comparison:
    """What is compared: recipes, and the label counts at which they are measured."""

    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    start: int
    k: int
    n: int

    def __post_init__(self) -> None:
        for recipe in self.recipes:
            get(recipe)
        if len(set(self.recipes)) != len(self.recipes) or len(set(self.seeds)) != len(self.seeds):
            raise ArgumentError(f"recipes and seeds of a comparison must differ, found {self.recipes} and {self.seeds}")

    @property
    def records(self) -> int:
        """How many records a full run gives."""
        return len(self.recipes) * len(self.seeds) * (self.n + 1)


def compare(plan: Comparison, data: Data, learner: Callable[[], Any], model: str) -> Iterator[Record]:
    """The records of every recipe and seed; all recipes of a seed come before the next seed.

    `learner` makes a fresh learner for each run; `model` is its name in the records.
    """
    for seed in plan.seeds:
        for recipe in plan.recipes:
            yield from rounds(
                data.pool,
                None,
                learner(),
                recipe,
                plan.k,
                plan.n,
                start=plan.start,
                test=(data.test, data.test.labels),
                seed=seed,
                name=f"{data.name}/{model}/{recipe}/{seed}",
            )


@dataclass(frozen=True)
class Trial:
    """What the runs of a comparison are made of, and what a selection in them may hold.

    `data` gives the rows for a seed, `learner` a fresh learner of them for a recipe; `model` is its name.
    """

    data: Callable[[int], Data]
    learner: Callable[[Data, str], Any]
    model: str
    max_memory: int | str | None = None

    def curve(self, plan: Comparison, recipe: str, seed: int, data: Data) -> Curve:
        """One run."""
        session = Session(
            data.pool,
            self.learner(data, recipe),
            recipe,
            classes=data.classes,
            task=data.task,
            seed=seed,
            max_memory=self.max_memory,
        )
        name = f"{data.name}/{self.model}/{recipe}/{seed}"
        goes_on = session.recipe.restart is False
        return Curve(name, session, data, plan.start, plan.k, plan.n, goes_on=goes_on)


def compare_kept(plan: Comparison, trial: Trial, folder: Path) -> Iterator[Record]:
    """The records of every recipe and seed as `compare` gives them: those in the folder are read, the rest is run now.

    FOLDER/runs/RECIPE-SEED.jsonl has a line for each round, on disk as soon as the round is over.
    """
    for seed in plan.seeds:
        data = functools.cache(functools.partial(trial.data, seed))  # read where something is left to run
        for recipe in plan.recipes:
            path = folder / "runs" / f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', recipe)}-{seed}.jsonl"
            yield from _there(path, plan, f"/{recipe}/{seed}")
            made = functools.partial(_curve, plan, trial, recipe, seed, data)
            yield from kept_rounds(path, made, plan.n, f"/{recipe}/{seed}")


@contextlib.contextmanager
def kept_in(folder: Path, about: dict[str, Any]) -> Iterator[bool]:
    """The folder of a kept comparison, for this process alone; whether there are runs in it to go on with.

    FOLDER/plan.json holds `about`, what has to be the same for that.
    """
    with locked(folder):
        path = folder / "plan.json"
        if not begun(path, about):
            write_text(path, json.dumps(about, indent=1) + "\n")
        yield any((folder / "runs").glob("*.jsonl"))


def _there(path: Path, plan: Comparison, name: str) -> list[Record]:
    """The records of a run so far; one that an earlier Labelwise broke off begins again, as it did then."""
    found = records_of_run(path, name) if path.exists() else []
    if found and len(found) <= plan.n and "start" not in found[0].notes:  # what going on needs was not kept yet
        path.unlink()
        return []
    return found


def _curve(plan: Comparison, trial: Trial, recipe: str, seed: int, data: Callable[[], Data]) -> Curve:
    return trial.curve(plan, recipe, seed, data())
