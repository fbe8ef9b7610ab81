"""Suite: what a benchmark runs. A YAML file becomes frozen values, and those become jobs: one learning curve each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from labelwise import recipes, strategies
from labelwise.bench.data.catalogue import dataset_entry
from labelwise.bench.data.corruptions import Corruption, read_corruption
from labelwise.bench.models import registry
from labelwise.bench.suite.config import Section, named, read_yaml
from labelwise.errors import ArgumentError
from labelwise.recipes import Recipe
from labelwise.selection import Strategy
from labelwise.stats.verdict import ORACLE

TRAININGS = ("restart", "restart-only", "warm", "both")
FEATURES = ("auto", "raw", "tfidf", "encoder")
MAX_SEEDS = 10_000
FIRST_BATCHES = ("random", "own")


@dataclass(frozen=True)
class DataSpec:
    """A data set of the suite with its settings, named like the keys of the file."""

    label: str
    name: str
    limit: int | None
    seed: int
    hard: Corruption | None
    features: str
    width: int
    models: tuple[str, ...] | None
    without: tuple[str, ...]
    start: int
    k: int
    rounds: int
    valid: int | None = None  # pool rows set aside as labelled validation rows, which do not count as labels
    centred: bool | None = None  # whether each channel of images gets mean 0 and deviation 1

    @property
    def task(self) -> str:
        """ "classify" or "regress"."""
        return dataset_entry(self.name).task


@dataclass(frozen=True)
class StrategySpec:
    """A strategy with its parameters, and whether training uses the weights of its picks; None: as its recipe does.

    `first` is the strategy of the first batch in a recipe "first+then"; None: this strategy, or random.
    `parts` are the other parts of its recipe, such as "weigh sabal | train primal-dual".
    """

    label: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    weights: bool | None = None
    datasets: tuple[str, ...] | None = None
    first: str | None = None
    parts: str | None = None

    def strategy(self) -> Strategy:
        """The strategy; the oracle has none."""
        return strategies.get(self.name, self.parameters)

    @property
    def continues(self) -> bool:
        """Whether its recipe starts each round from the last weights."""
        return self.name != ORACLE and recipes.get(self.strategy()).restart is False

    def whole_recipe(self) -> Recipe:
        """The recipe with its parts."""
        recipe = recipes.get(self.strategy())
        return recipe if self.parts is None else recipe.with_parts(self.parts)

    def recipe(self, own_start: bool = False, training: str | None = None) -> Recipe:
        """The recipe, with a random first batch even if the strategy could choose one, unless `own_start`."""
        recipe = replace(self.whole_recipe(), name=self.label).with_training(training)
        if self.first is not None:
            return replace(recipe, start=strategies.get(self.first))
        return recipe if own_start else replace(recipe, start=strategies.Random())


@dataclass(frozen=True)
class Job:
    """One run: data set, model, strategy and seed."""

    data: DataSpec
    model: registry.ModelSpec
    strategy: StrategySpec
    seed: int
    device: str
    max_memory: int | str | None = None  # of a selection
    own_start: bool = False  # whether the strategy chooses the first batch too
    training: str | None = None  # "restart" or "warm"; None: as the strategy's recipe says

    @property
    def name(self) -> str:
        """The name of the run in its records."""
        return f"{self.data.label}/{self.model.name}/{self.strategy.label}/{self.seed}"

    @property
    def file(self) -> str:
        """The stem of the files of this job."""
        return "--".join(slug(part) for part in self.name.split("/"))


@dataclass(frozen=True)
class Skipped:
    """A strategy that does not apply to a data set and model, and why."""

    data: str
    model: str
    strategy: str
    why: str


@dataclass(frozen=True)
class Suite:
    """A benchmark, as its file describes it."""

    name: str
    datasets: tuple[DataSpec, ...]
    models: tuple[registry.ModelSpec, ...]
    strategies: tuple[StrategySpec, ...]
    seeds: tuple[int, ...]
    processes: int
    device: str
    max_memory: int | str | None = None
    first_batch: str | None = None  # "own": strategies choose it themselves; None: random, the same for all
    training: str | None = None  # one of TRAININGS; None: as the recipe of each strategy says

    def settings(self) -> dict[str, Any]:
        """The settings that decide the records, for JSON: all but the number of processes and the memory limit."""
        return {name: value for name, value in asdict(self).items() if name not in ("processes", "max_memory")}

    def jobs(self) -> tuple[list[Job], list[Skipped]]:
        """All jobs, seed by seed, and the strategies skipped because they do not apply."""
        jobs: list[Job] = []
        out: dict[tuple[str, str, str], Skipped] = {}
        own = self.first_batch == "own"
        for seed in self.seeds:
            for data in self.datasets:
                for model in self.models:
                    if data.models is not None and model.name not in data.models:
                        continue
                    for strategy in self.strategies:
                        why = _why_not(data, model, strategy, own)
                        if why is None:
                            fixed = (seed, self.device, self.max_memory, own)
                            ways = self._ways(model, strategy)
                            jobs += [Job(data, network, strategy, *fixed, way) for network, way in ways]
                        elif why:
                            key = (data.label, model.name, strategy.label)
                            out[key] = Skipped(*key, why)
        return jobs, list(out.values())

    def _ways(self, model: registry.ModelSpec, strategy: StrategySpec) -> list[tuple[registry.ModelSpec, str | None]]:
        """The ways in which a strategy trains a model: with new weights each round, and under MODEL+warm with the last.

        With "restart", strategies that train on by their paper are shown in both ways, next to random in both.
        """
        if self.training is None or not model.is_torch:
            return [(model, None)]
        warm = replace(model, name=f"{model.name}+warm", parameters={**model.parameters, "restart": False})
        both = self.training == "both"
        if self.training == "restart-only":
            return [(model, "restart")]
        if self.training == "restart":
            going_on = [one for one in self.strategies if one.continues]
            both = strategy.continues or (strategy.name == "random" and bool(going_on))
        ways: list[tuple[registry.ModelSpec, str | None]] = [] if self.training == "warm" else [(model, "restart")]
        if strategy.name != ORACLE and (both or self.training == "warm"):
            ways.append((warm, "warm"))
        return ways


def read_suite(path: Path) -> Suite:
    """Read the suite of a YAML file.

    Raises:
        ArgumentError: names the key, what was expected and what was found.
    """
    section = read_yaml(path)
    section.only(("start", "k", "rounds", *(one.name for one in fields(Suite))))
    sizes = (section.whole("start", 1), section.whole("k", 1), section.whole("rounds", 0))
    datasets = [_dataset(entry, sizes, f"{path}: datasets") for entry in section.entries("datasets")]
    chosen = [registry.read_model(entry, f"{path}: models") for entry in section.entries("models")]
    wanted = _wanted(section.entries("strategies"), f"{path}: strategies")
    suite = Suite(
        section.text("name", path.stem),
        _distinct(datasets, "label", f"{path}: datasets"),
        _distinct(chosen, "name", f"{path}: models"),
        _distinct(wanted, "label", f"{path}: strategies"),
        _seeds(section),
        section.whole("processes", 1, 1),
        section.one_of("device", ("cpu", "cuda"), "cpu"),
        section.size("max_memory", None),
        None if section.one_of("first_batch", FIRST_BATCHES, "random") == "random" else "own",
        section.one_of("training", TRAININGS, None),
    )
    _check(suite, path)
    return suite


def slug(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+=]+", "-", text).strip("-")


def _dataset(entry: Any, sizes: tuple[int, int, int], where: str) -> DataSpec:
    section = named(entry, where)
    section.only(one.name for one in fields(DataSpec))
    name = _known(section.text("name"), where)
    hard = read_corruption(section.any("hard", None), section.where, dataset_entry(name).task)
    return DataSpec(
        label=section.text("label", name if hard is None else f"{name}+{hard.case}"),
        name=name,
        limit=section.whole("limit", 1, None),
        seed=section.whole("seed", 0, 0),
        hard=hard,
        features=section.one_of("features", FEATURES, "auto"),
        width=section.whole("width", 1, 128),
        models=section.texts("models", None),
        without=section.texts("without", ()),
        start=section.whole("start", 1, sizes[0]),
        k=section.whole("k", 1, sizes[1]),
        rounds=section.whole("rounds", 0, sizes[2]),
        valid=section.whole("valid", 1, None),
        centred=section.flag("centred", False) or None,
    )


def _known(name: str, where: str) -> str:
    try:
        return dataset_entry(name).name
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error


def _wanted(entries: list[Any], where: str) -> list[StrategySpec]:
    """Random first, then the strategies of all entries; an entry with parameters replaces the same name from `all`."""
    spelt = [_strategy(one, where) for entry in entries if entry != "all" for one in _combinations(entry, where)]
    plain = [
        StrategySpec(name, name) for name, _ in (strategies.ALL.items() if "all" in entries else [("random", None)])
    ]
    labels = [one.label for one in spelt]
    return [one for one in plain if one.label not in labels] + spelt


def _combinations(entry: Any, where: str) -> list[Any]:
    """The entries that one with the key `choose` stands for: each combination of its parts that fits.

    `train: mean` is the weighted mean where rows are weighed.
    """
    if not isinstance(entry, Mapping) or "choose" not in entry:
        return [entry]
    section = Section(entry, f"{where}: {entry['choose']}")
    chosen, listed = section.texts("choose"), {part: section.texts(part, None) for part in recipes.PARTS}
    others = {
        key: value for key, value in entry.items() if key not in ("choose", *recipes.PARTS)
    }  # read by `_strategy`
    found, why = list[dict[str, Any]](), ""
    for choose, *values in itertools.product(chosen, *(one or (None,) for one in listed.values())):
        parts = {part: value for part, value in zip(listed, values) if value is not None}
        if parts.get("train") == "mean" and parts.get("weigh", "none") != "none":
            parts["train"] = "weighted"
        name = " | ".join([choose, *(f"{part} {value}" for part, value in parts.items())])
        try:
            recipes.get(name)
        except ArgumentError as error:
            why = str(error)
            continue
        found.append({**others, "name": name})
    if not found:
        raise ArgumentError(f"{section.where}: no combination of these parts fits: {why}")
    return found


def _strategy(entry: Any, where: str) -> StrategySpec:
    """The strategy of one entry: a name, or a name with parameters; parts of the recipe may follow the name."""
    section = named(entry, where)
    recipe, bar, parts = (one.strip() for one in section.text("name").partition("|"))
    first, name = recipe.split("+", 1) if "+" in recipe else (None, recipe)
    if name not in (*strategies.ALL, ORACLE):
        known_names = ", ".join([*strategies.ALL, ORACLE, "all"])
        raise ArgumentError(f"{section.where}: there is no strategy {name!r}; expected one of {known_names}")
    starts = [known for known, kind in strategies.ALL.items() if kind.cold]
    if first is not None and (first not in starts or name == ORACLE):
        expected = f"first+then, where the first batch is chosen by one of {', '.join(starts)}"
        raise section.error("name", expected if name != ORACLE else "the oracle alone", recipe)
    label, weights = section.text("label", None), section.any("weights", None)
    if label is not None and label != recipe and (label in (*strategies.ALL, ORACLE) or name == ORACLE):
        expected = "none, since it is not a contender" if name == ORACLE else "one that is no other strategy's name"
        raise section.error("label", expected, label)
    if weights not in (True, False, None):
        raise section.error("weights", "true or false", weights)
    datasets = section.texts("datasets", None)
    spec = StrategySpec("", name, section.rest(), weights, datasets, first, parts if bar else None)
    _check_strategy(spec, section)
    settings = [f"{key}={value}" for key, value in spec.parameters.items()] + (
        [] if weights is None else ["weights" if weights else "weights=False"]
    )
    made = f"{recipe}({', '.join(settings)})" if settings and name != ORACLE else recipe
    if spec.parts is not None:
        made = " | ".join([made, *spec.whole_recipe().name.split(" | ")[1:]])
    return replace(spec, label=label or made)


def _check_strategy(spec: StrategySpec, section: Section) -> None:
    if spec.name == ORACLE:
        least = {"candidates": 2, "swaps": 0}
        for key, value in spec.parameters.items():
            if key not in least or not isinstance(value, int) or value < least[key]:
                known_keys = " and ".join(f"{one}: a whole number of at least {low}" for one, low in least.items())
                raise section.error("parameters", known_keys, spec.parameters)
        return
    try:
        spec.strategy()
    except TypeError as error:
        fields = ", ".join(getattr(strategies.ALL[spec.name], "__dataclass_fields__", {})) or "none"
        raise ArgumentError(f"{section.where}: expected parameters among: {fields}; found: {error}") from error
    except ArgumentError as error:
        raise ArgumentError(f"{section.where}: {error}") from error
    if spec.parts is not None:
        if spec.weights is not None:
            raise section.error("weights", "nothing, since the parts of the recipe say it", spec.weights)
        try:
            spec.whole_recipe()
        except ArgumentError as error:
            raise ArgumentError(f"{section.where}: {error}") from error
    objective = recipes.get(spec.strategy()).objective
    if spec.weights and objective is not None:
        raise section.error("weights", f"false, since it trains by {type(objective).__name__}", True)


def _why_not(data: DataSpec, model: registry.ModelSpec, spec: StrategySpec, own_start: bool) -> str | None:
    """Why a strategy is skipped on a data set and model; "" if the suite does not want it there, None if it runs."""
    if spec.datasets is not None and data.label not in spec.datasets:
        return ""
    if spec.name in data.without or spec.label in data.without:
        return "the configuration excludes it (without)"
    if own_start and spec.first is None and (spec.name == ORACLE or not spec.strategy().cold):
        return "it cannot choose the first batch (first_batch: own)"
    if spec.name == ORACLE:
        return registry.why_not(model, strategies.Random(), data.task)
    return registry.why_not(model, spec.strategy(), data.task, spec.whole_recipe())


def _seeds(section: Section) -> tuple[int, ...]:
    given = section.any("seeds")
    counted = isinstance(given, int) and not isinstance(given, bool) and given <= MAX_SEEDS
    seeds = tuple(range(given)) if counted else given
    listed = seeds if isinstance(seeds, list | tuple) else ()
    numbers = [seed for seed in listed if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0]
    if not listed or len(numbers) != len(listed) or len(set(numbers)) != len(numbers):
        raise section.error(
            "seeds", f"how many (a whole number from 1 to {MAX_SEEDS:,}), or a list of different ones", given
        )
    return tuple(seeds)


def _distinct(entries: list[Any], key: str, where: str) -> tuple[Any, ...]:
    """The entries without exact repeats; two that differ may not share a name or the name of a file."""
    unique: dict[str, Any] = {}
    for entry in entries:
        other = unique.setdefault(slug(getattr(entry, key)), entry)
        if other != entry:
            name = getattr(entry, key)
            raise ArgumentError(f"{where}: {name!r} appears twice; expected different names. Give one of them a label")
    return tuple(unique.values())


def _check(suite: Suite, path: Path) -> None:
    """Names that refer to other parts, and strategies that apply nowhere."""
    for model in suite.models:
        if suite.training is not None and model.parameters.get("restart") is False:
            raise ArgumentError(
                f"{path}: models: {model.name}: restart: leave it out, since training: {suite.training} decides it for "
                "all models"
            )
    for strategy in suite.strategies:
        if strategy.first is not None and suite.first_batch != "own":
            raise ArgumentError(
                f"{path}: strategies: {strategy.label}: {strategy.first!r} chooses its first batch, and here all "
                "strategies start from the same random one. Set first_batch: own, or leave it out"
            )
    known_models, labels = [m.name for m in suite.models], [d.label for d in suite.datasets]
    for data in suite.datasets:
        for name in data.models or ():
            if name not in known_models:
                raise ArgumentError(f"{path}: datasets: {data.label}: models: expected {known_models}, found {name!r}")
    for strategy in suite.strategies:
        for name in strategy.datasets or ():
            if name not in labels:
                raise ArgumentError(
                    f"{path}: strategies: {strategy.label}: datasets: expected {labels}, found {name!r}"
                )
    if not suite.jobs()[0]:
        raise ArgumentError(f"{path}: nothing to run; expected a model and a strategy that fit a data set")
