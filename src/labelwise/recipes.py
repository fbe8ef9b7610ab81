"""Recipes: how rows are chosen, weighed, trained on and certified, by name.

Every strategy is a recipe under its own name; the first batch is random unless the strategy can choose it. Written
`first+then`, another strategy chooses the first batch: "typiclust+margin" starts with TypiClust and continues with
margin. Objective and warm start are those of the strategy's class.

Parts follow after bars: "badge | weigh sabal | train primal-dual | certify basis". What a part is not named for is as
the strategy's class has it. docs/recipes.md says what each part does and which ones fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import torch

from labelwise import strategies, train
from labelwise.errors import ArgumentError, NeedError
from labelwise.pool import Pool
from labelwise.recommend import RECOMMENDED as RECOMMENDED
from labelwise.recommend import Recommendation, Situation, recommend
from labelwise.selection import Strategy
from labelwise.signals.spec import LabelProbs, stored
from labelwise.train.learner import Learner, adapt, with_objective
from labelwise.train.objectives.objective import Mean, Objective, Sampled, Weighted
from labelwise.train.objectives.primal_dual import PrimalDual, WeightedPrimalDual
from labelwise.weigh import Density, WeighedLearner

TRAININGS = ("restart", "warm")  # with which weights all strategies of a comparison start a round
WEIGH = ("none", "sabal", "law", "density")
TRAIN = ("mean", "weighted", "sampler", "primal-dual")
CERTIFY = ("none", "basis")
PARTS: Mapping[str, tuple[str, ...]] = {"weigh": WEIGH, "train": TRAIN, "certify": CERTIFY}


@dataclass(frozen=True, init=False, repr=False)
class Recipe:
    """How batches are chosen, weighed, trained on and certified.

    Made of four choices, `Recipe(choose="badge", weigh="sabal", train="primal-dual", certify="basis")`, which is the
    same as `get("badge | weigh sabal | train primal-dual | certify basis")`; or of strategies and an objective of your
    own, by the attributes below.

    Attributes:
        name: "margin", or "typiclust+margin".
        strategy: chooses all batches but the first.
        start: chooses the first batch, when nothing is labelled.
        objective: what training minimises; None is the learner's own. A learner with an objective of the same class
            uses its own.
        restart: with False a torch model is trained from the last round's weights (a warm start); None leaves it to
            the learner.
        recommended: why it was chosen, if "recommended" was asked for.
        weights: whether training uses the weights that rows were drawn with, where the learner can.
        weigh: where the weights of labelled rows come from: "none", "sabal", "law" or "density"; None is as `weights`
            says.
        train: "mean", "weighted", "sampler" or "primal-dual"; None is as `objective` and the weights say.
        certify: "basis" measures how much of the pool the labels see; "none" and None do not.

    >>> Recipe(choose="typiclust+badge", weigh="sabal")
    typiclust+badge | weigh sabal
    """

    name: str
    strategy: Strategy
    start: Strategy
    objective: Objective | None = None
    restart: bool | None = None
    recommended: str = ""
    weights: bool = False
    weigh: str | None = None
    train: str | None = None
    certify: str | None = None

    def __init__(
        self,
        name: str = "",
        strategy: Strategy | None = None,
        start: Strategy | None = None,
        objective: Objective | None = None,
        restart: bool | None = None,
        recommended: str = "",
        weights: bool = False,
        *,
        choose: str | Strategy | Recipe | None = None,
        weigh: str | None = None,
        train: str | None = None,
        certify: str | None = None,
    ):
        """Make a recipe of parts, or of strategies.

        Args:
            name: what it is called; with `choose`, None but the parts name it.
            strategy, start, objective, restart, recommended, weights: see the attributes; not with `choose`.
            choose: the name of a strategy, "first+then", a Strategy with parameters, or a Recipe.
            weigh, train, certify: see the attributes.

        Raises:
            ArgumentError: a part is not known, or does not fit another one.
        """
        values = locals()
        given = {part: values[part] for part in PARTS if values[part] is not None}
        made: dict[str, Any] = {field.name: values[field.name] for field in fields(self)}
        if choose is not None:
            if strategy is not None or start is not None or objective is not None:
                raise ArgumentError("Recipe: choose= names the strategies and their objective; leave the others out")
            base = get(choose)
            made = {field.name: getattr(base, field.name) for field in fields(base)} | given
            parts = [f"{part} {made[part]}" for part in PARTS if made[part] is not None]
            made["name"] = name or " | ".join([base.name.partition(" | ")[0], *parts])
        elif strategy is None or start is None or not name:
            raise ArgumentError(
                'Recipe: choose= was expected, as in Recipe(choose="badge"), or name, strategy and start'
            )
        if made["weigh"] is not None:
            made["weights"] = made["weigh"] != "none"
        for attribute, value in made.items():
            object.__setattr__(self, attribute, value)
        self._check()

    def __repr__(self) -> str:
        return self.name

    def _check(self) -> None:
        """Raise ArgumentError where parts do not fit."""
        for part, known in PARTS.items():
            if getattr(self, part) not in (None, *known):
                raise ArgumentError(
                    f"recipe {self.name!r}: {part} is one of {', '.join(known)}; found {getattr(self, part)!r}"
                )
        why = self._misfit()
        if why:
            raise ArgumentError(f"recipe {self.name!r}: {why}")
        if not self.start.cold:
            cold = ", ".join(name for name, kind in strategies.ALL.items() if kind.cold)
            raise ArgumentError(
                f"recipe {self.name!r}: {type(self.start).__name__} cannot choose the first batch, since it needs a "
                f"trained model; strategies that can: {cold}"
            )

    @property
    def _is_weighed(self) -> bool:
        """Whether labelled rows have weights in training."""
        return self.weights if self.weigh is None else self.weigh != "none"

    def _misfit(self) -> str:
        """Why the parts do not fit; "" if they do."""
        name, has_law = strategies.name_of(self.strategy), self.strategy.known_law
        if self.weigh == "law" and not has_law:
            known = ", ".join(one for one, kind in strategies.ALL.items() if kind.known_law)
            return (
                f"{name} draws by no known law, so there are no weights by it; weigh density estimates them. "
                f"Strategies with a law: {known}"
            )
        if self.weigh == "density" and has_law:
            return f"{name} draws by a known law, which needs no estimate; weigh law takes its weights"
        if self.weigh == "density" and self.strategy.needs.history:
            return f"{name} learns from its earlier batches, so it cannot be drawn again; weigh sabal or none"
        if self.train in ("weighted", "sampler") and not self._is_weighed:
            return f"train {self.train} needs weights, and nothing weighs the rows; add weigh sabal, law or density"
        if self.train == "mean" and self._is_weighed:
            return (
                f"train mean ignores weights, and rows have those of {self.weigh or name}; take train weighted, "
                "sampler or primal-dual, or weigh none"
            )
        if self.train not in (None, "primal-dual") and isinstance(self.objective, PrimalDual):
            return f"{name} reads the duals that train primal-dual publishes; leave train {self.train} out"
        return ""

    def settings(self) -> dict[str, Any]:
        """Name and parameters for JSON, to compare with those of a stored session."""
        settings: dict[str, Any] = {"name": self.name}
        settings |= {"strategy": _settings(self.strategy), "start": _settings(self.start)}
        if self.objective is not None:
            settings["objective"] = _settings(self.objective)
        if self.weights and self.weigh is None:
            settings["weights"] = True
        settings |= {part: getattr(self, part) for part in PARTS if getattr(self, part) is not None}
        return settings if self.restart is None else {**settings, "restart": self.restart}

    def learner(self, learner: Learner) -> Learner:
        """`learner` with the objective, the weights and the warm start of this recipe.

        If the strategy reads LabelProbs, they are calibrated from the first labels on.

        Args:
            learner: the user's learner, which is not changed.

        Returns:
            A copy, or `learner` itself if nothing differs.

        Raises:
            ArgumentError: the learner cannot be trained by the objective.
        """
        if self.restart is False:
            learner = adapt(learner, "with_warm_start")
        if LabelProbs() in stored(self.strategy.needs.pool):
            learner = adapt(learner, "with_calibration")
        objective = self._trained_by()
        if type(objective) is Weighted and _weighing_own_function(learner):
            return self._weighed(learner)
        if objective is None:
            return self._weighed(_weighing_if_it_can(learner) if self.weights else learner)
        found = with_objective(learner, objective)
        if found is None and type(objective) in (Weighted, Sampled):
            raise ArgumentError(
                f"recipe {self.name!r}: {type(learner).__name__} cannot use weights of rows "
                f"({'it draws no minibatches' if type(objective) is Sampled else 'its fit takes none'}). Pass another "
                "model, or leave out weigh and train"
            )
        if found is None:
            raise ArgumentError(
                f"recipe {self.name!r} trains by {type(objective).__name__}, which needs the loss of every row "
                f"during training; {type(learner).__name__} cannot give it. Pass a torch model or a TorchLearner."
            )
        return self._weighed(found)

    def _trained_by(self) -> Objective | None:
        """What training minimises; None leaves it to the learner."""
        if self.train in ("mean", "sampler"):
            return Mean() if self.train == "mean" else Sampled()
        if self.train == "primal-dual" or (self.weigh is not None and isinstance(self.objective, PrimalDual)):
            plain = self.objective if isinstance(self.objective, PrimalDual) else PrimalDual()
            if not self._is_weighed:
                return plain
            return WeightedPrimalDual(**{field.name: getattr(plain, field.name) for field in fields(plain)})
        must = self.train == "weighted" or (self.weigh is not None and self._is_weighed)
        return Weighted() if must and self.objective is None else self.objective

    def _weighed(self, learner: Learner) -> Learner:
        """`learner` trained with the weights of `weigh`, where these are not those of the ledger as they are."""
        if self.weigh not in ("sabal", "law"):
            return learner
        return WeighedLearner(learner, "sabal" if self.weigh == "sabal" else "law")

    def chooser(self, cold: bool) -> Strategy:
        """The strategy of the next batch, with the weights of its picks; `cold` says that it is the first one.

        Args:
            cold: whether nothing is labelled yet.

        Returns:
            A strategy.
        """
        strategy = self.start if cold else self.strategy
        return Density(strategy) if self.weigh == "density" and not strategy.known_law else strategy

    def with_training(self, training: str | None) -> Recipe:
        """This recipe on equal terms with others, whatever its strategy's paper does.

        Args:
            training: "restart" leaves the first weights of a round to the learner, which draws new ones by default;
                "warm" starts from those of the round before; None keeps the recipe's own rule.

        Returns:
            A new recipe.

        Raises:
            ArgumentError: `training` is neither "restart", "warm" nor None.

        >>> get("dynamical").restart, get("dynamical").with_training("restart").restart
        (False, None)
        """
        if training not in (None, *TRAININGS):
            raise ArgumentError(f'training is "restart", "warm" or None, not {training!r}.')
        return self if training is None else replace(self, restart=False if training == "warm" else None)

    def with_parts(self, parts: str) -> Recipe:
        """This recipe with other parts, written as after the first bar.

        Args:
            parts: such as "weigh sabal | certify basis".

        Returns:
            A new recipe.

        Raises:
            ArgumentError: a part is unknown, or does not fit.

        >>> get("badge").with_parts("weigh sabal | certify basis")
        badge | weigh sabal | certify basis
        """
        return Recipe(choose=self, **_read_parts(f"{self.name} | {parts}", [one.strip() for one in parts.split("|")]))

    def for_regression(self) -> Recipe:
        """This recipe for a regression model.

        Raises:
            NeedError: the strategy or the first batch needs class probabilities.
        """
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
    """The recipe of a name with its parts, or of a Strategy; a Recipe is returned unchanged.

    Args:
        recipe: "margin", "typiclust+margin", "badge | weigh sabal", a Strategy or a Recipe.

    Raises:
        ArgumentError: there is no such strategy or part.

    >>> get("typiclust+margin").strategy
    Margin()
    >>> get("badge | weigh sabal").weigh
    'sabal'
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Strategy):
        return _recipe(strategies.name_of(recipe), recipe)
    if recipe == RECOMMENDED:
        raise ArgumentError(
            f"{RECOMMENDED!r} depends on the model and the data: pass it to lw.Session, lw.rounds, lw.select, or to "
            "labelwise label, simulate and demo; `labelwise recommend` names the recipe for a situation"
        )
    if not isinstance(recipe, str):
        one = f"the class {recipe.__name__}; write {recipe.__name__}()" if isinstance(recipe, type) else repr(recipe)
        raise ArgumentError(f"a recipe is a name such as 'margin', a Strategy or a Recipe, found {one}")
    choose, *parts = (part.strip() for part in recipe.split("|"))
    if parts:
        return Recipe(choose=choose, **_read_parts(recipe, parts))
    first, plus, then = choose.partition("+")
    if plus:
        return _recipe(choose, strategies.get(then), strategies.get(first))
    return _recipe(choose, strategies.get(choose))


def _read_parts(recipe: str, parts: list[str]) -> dict[str, Any]:
    """The values of "weigh sabal", "train primal-dual" and "certify basis", by part."""
    found: dict[str, str] = {}
    for text in parts:
        part, _, value = text.partition(" ")
        if part not in PARTS or not value or part in found:
            known = "; ".join(f"{one} {', '.join(values)}" for one, values in PARTS.items())
            raise ArgumentError(
                f"recipe {recipe!r}: after the strategy, each part once was expected, between bars, of {known}; found "
                f"{text!r}"
            )
        found[part] = value.strip()
    return {part: found[part] for part in PARTS if part in found}


def recommended(
    learner: Learner | None,
    pool: Pool,
    *,
    task: Literal["classify", "regress"] = "classify",
    classes: int | None = None,
    k: int = 100,
    max_memory: int | None = None,
) -> Recommendation:
    """What is recommended for this learner, or for none, and this pool; see docs/recommend.md.

    Args:
        learner: trains the model; None without one.
        pool: the rows.
        task: "classify" or "regress".
        classes: how many, if known.
        k: rows of a batch.
        max_memory: bytes that a selection may use; None for no limit.

    Returns:
        The recipe and the records it rests on.
    """
    one = pool.inputs(pool.ids[:1]) if len(pool) else None
    width = int(one.shape[1]) if isinstance(one, torch.Tensor) and one.ndim == 2 else 512
    return recommend(
        Situation(
            model="none" if learner is None else "trees" if train.is_of_trees(learner) else "network",
            task=task,
            classes=classes,
            rows=len(pool),
            width=width,
            k=k,
            max_memory=max_memory,
            own_objective=learner is not None and _takes_objectives(learner),
        )
    )


def _takes_objectives(learner: Learner) -> bool:
    """Whether a learner can be trained by an objective that sees the loss of every row."""
    try:
        return with_objective(learner, train.PrimalDual()) is not None
    except ArgumentError:  # it trains by a function of the user's own
        return False


def weighing(learner: Learner, weights: bool) -> Learner:
    """`learner` with weights of rows used in training (`Weighted`), or ignored (`Mean`).

    Args:
        learner: trains the model.
        weights: whether the weights of rows count.

    Returns:
        A learner like `learner`, which is unchanged.

    Raises:
        ArgumentError: the learner takes no objective.
    """
    found = with_objective(learner, Weighted() if weights else Mean())
    if found is None:
        raise ArgumentError(
            f"weights={weights}: {type(learner).__name__} has no way to use or ignore the weights of rows. Leave out "
            "weights=, or pass a torch model, a scikit-learn estimator, or a learner with a method with_objective."
        )
    return found


def _weighing_own_function(learner: Learner) -> bool:
    """Whether a learner trains by a function of the user's own, which is given the weights of rows."""
    return getattr(learner, "custom_fit", None) is not None


def _weighing_if_it_can(learner: Learner) -> Learner:
    """`learner` with weights of rows used in training; as it is if it cannot, or uses them in another way."""
    try:
        return with_objective(learner, Weighted()) or learner
    except ArgumentError:  # it has an objective, a sampler or a function of the user's own
        return learner


def _recipe(name: str, strategy: Strategy, start: Strategy | None = None) -> Recipe:
    """A recipe with the objective and warm start of `strategy`, which chooses the first batch too if it can."""
    if start is None:
        start = strategy if strategy.cold else strategies.Random()
    objective = strategy.objective
    if isinstance(objective, str):
        objective = getattr(train, objective)()
    return Recipe(name, strategy, start, objective, strategy.restart, weights=strategy.trains_weighted)


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
