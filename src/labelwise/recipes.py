"""Recipes: a strategy with its first batch, training objective and warm start, by name.

Every strategy is a recipe under its own name; the first batch is random unless the strategy can choose it. Written
`first+then`, another strategy chooses the first batch: "typiclust+margin" starts with TypiClust and continues with
margin. Objective and warm start are those of the strategy's class.
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
    """How batches are chosen and the model is trained.

    Attributes:
        name: "margin", or "typiclust+margin".
        strategy: chooses all batches but the first.
        start: chooses the first batch, when nothing is labelled.
        objective: what training minimises; None is the learner's own. A learner with an objective of the same class
            uses its own.
        restart: with False a torch model is trained from the last round's weights (a warm start); None leaves it to
            the learner.
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
                f"recipe {self.name!r}: {type(self.start).__name__} cannot choose the first batch, since it needs a "
                f"trained model; strategies that can: {cold}"
            )

    def settings(self) -> dict[str, Any]:
        """Name and parameters for JSON, to compare with those of a stored session."""
        settings = {"name": self.name, "strategy": _settings(self.strategy), "start": _settings(self.start)}
        if self.objective is not None:
            settings["objective"] = _settings(self.objective)
        return settings if self.restart is None else {**settings, "restart": self.restart}

    def learner(self, learner: Learner) -> Learner:
        """`learner` with the objective and the warm start of this recipe.

        If the strategy reads LabelProbs, they are calibrated from the first labels on.

        Raises:
            ArgumentError: the learner cannot be trained by the objective.
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
                f"during training; {type(learner).__name__} cannot give it. Pass a torch model or a TorchLearner."
            )
        return found

    def for_regression(self) -> Recipe:
        """This recipe for a regression model; NeedError if it needs class probabilities."""
        strategy, start = self.strategy.for_regression(), self.start.for_regression()
        if strategy is None or start is None:
            fit = ", ".join(name for name, kind in strategies.ALL.items() if kind().for_regression() is not None)
            which = self.strategy if strategy is None else self.start
            raise NeedError(
                f"recipe {self.name!r}: {type(which).__name__} needs class probabilities, which a regression model "
                f"does not have; strategies for regression: {fit}"
            )
        return replace(self, strategy=strategy, start=start)


def get(recipe: str | Strategy | Recipe) -> Recipe:
    """The recipe of a name or of a Strategy; a Recipe is returned unchanged.

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
    """`learner` with weights of rows used in training (`Weighted`), or ignored (`Mean`)."""
    found = with_objective(learner, Weighted() if weights else Mean())
    if found is None:
        raise ArgumentError(
            f"weights={weights}: {type(learner).__name__} has no way to use or ignore the weights of rows. Leave out "
            "weights=, or pass a torch model, a scikit-learn estimator, or a learner with a method with_objective."
        )
    return found


def _recipe(name: str, strategy: Strategy, start: Strategy | None = None) -> Recipe:
    """A recipe with the objective and warm start of `strategy`, which chooses the first batch too if it can."""
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
    """A parameter for JSON; a function as its name."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return getattr(value, "__qualname__", repr(value)) if callable(value) else value
