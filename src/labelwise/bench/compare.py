"""Compare: several recipes on the same data, first batches and initial weights, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labelwise.bench.data import Data
from labelwise.errors import ArgumentError
from labelwise.loop import rounds
from labelwise.recipes import get
from labelwise.report.record import Record


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
