"""Recipes: a strategy together with what published work pairs it with, by name.

Every strategy is a recipe under its own name, with a random first batch. A recipe whose first batch is chosen
otherwise is written `first+then`: "typiclust+margin" starts with TypiClust and goes on with margin.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from labelwise import strategies
from labelwise.choose import Strategy
from labelwise.errors import ArgumentError


@dataclass(frozen=True)
class Recipe:
    """How batches are chosen: `start` the first, when nothing is labelled yet, `strategy` all others."""

    name: str
    strategy: Strategy
    start: Strategy

    def __post_init__(self) -> None:
        if not self.start.cold:
            cold = ", ".join(name for name, kind in strategies.ALL.items() if kind.cold)
            raise ArgumentError(
                f"recipe {self.name!r}: {type(self.start).__name__} cannot choose the first batch, since it asks a "
                f"trained model; strategies that can: {cold}"
            )

    def settings(self) -> dict[str, Any]:
        """Name and parameters, as JSON can hold them, to compare a stored session with."""
        return {"name": self.name, "strategy": _settings(self.strategy), "start": _settings(self.start)}


def get(recipe: str | Strategy | Recipe) -> Recipe:
    """A recipe from its name, from a Strategy with parameters, or as it is.

    >>> get("typiclust+margin").strategy
    Margin()
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Strategy):
        name = next((n for n, kind in strategies.ALL.items() if type(recipe) is kind), type(recipe).__name__)
        return Recipe(name, recipe, recipe if recipe.cold else strategies.Random())
    first, plus, then = str(recipe).partition("+")
    if plus:
        return Recipe(recipe, strategies.get(then), strategies.get(first))
    strategy = strategies.get(recipe)
    return Recipe(recipe, strategy, strategy if strategy.cold else strategies.Random())


def _settings(strategy: Strategy) -> dict[str, Any]:
    values: dict[str, Any] = (
        {f.name: getattr(strategy, f.name) for f in fields(strategy)} if is_dataclass(strategy) else {}
    )
    return {"class": type(strategy).__name__, **values}
