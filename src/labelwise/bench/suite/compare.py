"""Compare several recipes on the same data, with the same first batches and initial weights for each seed."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelwise.bench.data.load import Data
from labelwise.bench.suite.checkpoint import continue_run, has_started, lock_folder, read_run_records
from labelwise.bench.suite.curve import Curve
from labelwise.callbacks import NO_CALLBACKS, Callbacks
from labelwise.errors import ArgumentError
from labelwise.io.files import write_text
from labelwise.loop import rounds
from labelwise.recipes import get
from labelwise.session import Session
from labelwise.stats.record import Record


@dataclass(frozen=True)
class Comparison:
    """The plan of a comparison: recipes, seeds, and label counts.

    Attributes:
        recipes: by name.
        seeds: one run of each recipe for each.
        start: labels of the first batch.
        k: labels of a round.
        n: rounds after the first batch.
    """

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
        """The number of records of a full run."""
        return len(self.recipes) * len(self.seeds) * (self.n + 1)


def compare(
    plan: Comparison,
    data: Data,
    learner: Callable[[], Any],
    model: str,
    training: Literal["restart", "warm"] | None = None,
) -> Iterator[Record]:
    """The records of every recipe and seed; all recipes of a seed come before the next seed.

    `learner` makes a fresh learner for each run; `model` is its name in the records; `training` as for `rounds`.
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
                training=training,
                name=f"{data.name}/{model}/{recipe}/{seed}",
            )


@dataclass(frozen=True)
class ComparisonSetup:
    """How to make the runs of a comparison.

    Attributes:
        data: returns the rows for a seed.
        learner: returns a new learner for rows and a recipe.
        model: the name of the learner in the records.
        max_memory: the limit of a selection.
        training: "restart" or "warm", for every recipe; None leaves it to the recipe.
    """

    data: Callable[[int], Data]
    learner: Callable[[Data, str], Any]
    model: str
    max_memory: int | str | None = None
    training: str | None = None

    def curve(self, plan: Comparison, recipe: str, seed: int, data: Data) -> Curve:
        """One run."""
        session = Session(
            data.pool,
            self.learner(data, recipe),
            recipe if self.training is None else get(recipe).with_training(self.training),
            classes=data.classes,
            task=data.task,
            seed=seed,
            max_memory=self.max_memory,
        )
        name = f"{data.name}/{self.model}/{recipe}/{seed}"
        continues_training = session.recipe.restart is False
        return Curve(name, session, data, plan.start, plan.k, plan.n, continues_training=continues_training)


def continue_comparison(
    plan: Comparison, setup: ComparisonSetup, folder: Path, callbacks: Callbacks = NO_CALLBACKS
) -> Iterator[Record]:
    """The records of every recipe and seed, as `compare` yields them: read from the folder where they exist, else run.

    FOLDER/runs/RECIPE-SEED.jsonl has a line for each round, on disk as soon as the round is over. Callbacks are called
    with the records of rounds that are run.
    """
    for seed in plan.seeds:
        data = functools.cache(functools.partial(setup.data, seed))  # read where something is left to run
        for recipe in plan.recipes:
            path = folder / "runs" / f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', recipe)}-{seed}.jsonl"
            yield from _existing_records(path, plan, f"/{recipe}/{seed}")
            made = functools.partial(_curve, plan, setup, recipe, seed, data)
            for record in continue_run(path, made, plan.n, f"/{recipe}/{seed}"):
                callbacks.call("on_round", record)
                yield record


@contextlib.contextmanager
def comparison_folder(folder: Path, about: dict[str, Any]) -> Iterator[bool]:
    """Lock the folder of a comparison; the context value says whether it holds runs to continue.

    FOLDER/plan.json holds `about`: the settings that must be the same to continue.
    """
    with lock_folder(folder):
        path = folder / "plan.json"
        if not has_started(path, about):
            write_text(path, json.dumps(about, indent=1) + "\n")
        yield any((folder / "runs").glob("*.jsonl"))


def _existing_records(path: Path, plan: Comparison, name: str) -> list[Record]:
    """The records of a run so far; an unfinished one of an earlier version starts again, as it did then."""
    found = read_run_records(path, name) if path.exists() else []
    if found and len(found) <= plan.n and "start" not in found[0].notes:  # records of that version cannot be continued
        path.unlink()
        return []
    return found


def _curve(plan: Comparison, setup: ComparisonSetup, recipe: str, seed: int, data: Callable[[], Data]) -> Curve:
    return setup.curve(plan, recipe, seed, data())
