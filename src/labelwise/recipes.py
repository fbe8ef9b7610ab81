"""Recipes: a strategy together with what published work pairs it with, by name.

Every strategy is a recipe under its own name, with a random first batch. A recipe whose first batch is chosen
otherwise is written `first+then`: "typiclust+margin" starts with TypiClust and goes on with margin. ALLY comes with
the objective that gives labelled rows their duals.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

from labelwise import strategies, train
from labelwise.errors import ArgumentError, NeedError
from labelwise.selection import Strategy
from labelwise.signals.spec import LabelProbs, stored
from labelwise.train.learner import Learner, with_calibration, with_objective, with_warm_start
from labelwise.train.objectives.objective import Mean, Objective, Weighted


@dataclass(frozen=True)
class Recipe:
    """How batches are chosen: `start` the first, when nothing is labelled yet, `strategy` all others.

    `objective` is what training minimises, where the strategy is paired with one; a learner that has one of the same
    kind keeps its own. With `restart` False a torch model goes on from the weights of the round before, whatever the
    learner does by itself.
    """

    name: str
    strategy: Strategy
    start: Strategy
    objective: Objective | None = None
    restart: bool | None = None

    def __post_init__(self) -> None:
        if not self.start.cold:
            cold = ", ".join(name for name, kind in strategies.ALL.items() if kind.cold)
            raise ArgumentError(
                f"recipe {self.name!r}: {type(self.start).__name__} cannot choose the first batch, since it asks a "
                f"trained model; strategies that can: {cold}"
            )

    def settings(self) -> dict[str, Any]:
        """Name and parameters, as JSON can hold them, to compare a stored session with."""
        settings = {"name": self.name, "strategy": _settings(self.strategy), "start": _settings(self.start)}
        if self.objective is not None:
            settings["objective"] = _settings(self.objective)
        return settings if self.restart is None else {**settings, "restart": self.restart}

    def learner(self, learner: Learner) -> Learner:
        """The learner that trains by the objective of this recipe, and on from the last weights where it says so.

        Where the strategy asks for LabelProbs it calibrates them from the first labels on.
        """
        if self.restart is False:
            learner = with_warm_start(learner)
        if LabelProbs() in stored(self.strategy.needs.pool):
            learner = with_calibration(learner)
        if self.objective is None:
            return learner
        found = with_objective(learner, self.objective)
        if found is None:
            raise ArgumentError(
                f"recipe {self.name!r} trains by {type(self.objective).__name__}, which needs the loss of every row "
                f"while training; {type(learner).__name__} cannot be trained so. Pass a torch model or a TorchLearner."
            )
        return found

    def for_regression(self) -> Recipe:
        """This recipe for a model of numbers; NeedError where it needs class probabilities."""
        strategy, start = self.strategy.for_regression(), self.start.for_regression()
        if strategy is None or start is None:
            fit = ", ".join(name for name, kind in strategies.ALL.items() if kind().for_regression() is not None)
            which = self.strategy if strategy is None else self.start
            raise NeedError(
                f"recipe {self.name!r}: {type(which).__name__} asks for class probabilities, which a regression model "
                f"does not have; strategies that fit a regression pool: {fit}"
            )
        return replace(self, strategy=strategy, start=start)


def get(recipe: str | Strategy | Recipe) -> Recipe:
    """A recipe from its name, from a Strategy with parameters, or as it is.

    >>> get("typiclust+margin").strategy
    Margin()
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Strategy):
        return _recipe(strategies.name_of(recipe), recipe)
    first, plus, then = str(recipe).partition("+")
    if plus:
        return _recipe(recipe, strategies.get(then), strategies.get(first))
    return _recipe(recipe, strategies.get(recipe))


def weighing(learner: Learner, weights: bool) -> Learner:
    """A learner like this one in whose training rows count by their weights, `Weighted`, or all the same, `Mean`."""
    found = with_objective(learner, Weighted() if weights else Mean())
    if found is None:
        raise ArgumentError(
            f"weights={weights}: {type(learner).__name__} cannot be told whether to use the weights of its rows. Leave "
            "weights= out, or pass a torch model, a scikit-learn estimator, or a learner with a method with_objective."
        )
    return found


def _recipe(name: str, strategy: Strategy, start: Strategy | None = None) -> Recipe:
    """A recipe with what published work pairs `strategy` with; it makes the first batch too, where it can."""
    if start is None:
        start = strategy if strategy.cold else strategies.Random()
    objective = strategy.objective
    if isinstance(objective, str):
        objective = getattr(train, objective)()
    return Recipe(name, strategy, start, objective, strategy.restart)


def _settings(part: Strategy | Objective) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if is_dataclass(part):
        values = {f.name: _plain(getattr(part, f.name)) for f in fields(part)}
    return {"class": type(part).__name__, **values}


def _plain(value: Any) -> Any:
    """A parameter as JSON can hold it; a function by its name."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return getattr(value, "__qualname__", repr(value)) if callable(value) else value
