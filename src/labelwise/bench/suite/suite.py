"""Suite: what a benchmark runs. A YAML file becomes frozen values, and those become jobs: one learning curve each."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
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

FEATURES = ("auto", "raw", "tfidf", "encoder")


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
    """A strategy with its parameters, and whether training uses the weights of its picks."""

    label: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    weights: bool = False
    datasets: tuple[str, ...] | None = None

    def strategy(self) -> Strategy:
        """The strategy; the oracle has none."""
        return strategies.get(self.name, self.parameters)

    def recipe(self) -> Recipe:
        """The recipe, with a random first batch even if the strategy could choose one."""
        return replace(recipes.get(self.strategy()), name=self.label, start=strategies.Random())


@dataclass(frozen=True)
class Job:
    """One run: data set, model, strategy and seed."""

    data: DataSpec
    model: registry.ModelSpec
    strategy: StrategySpec
    seed: int
    device: str
    max_memory: int | str | None = None  # of a selection

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

    def settings(self) -> dict[str, Any]:
        """The settings that decide the records, for JSON: all but the number of processes and the memory limit."""
        return {name: value for name, value in asdict(self).items() if name not in ("processes", "max_memory")}

    def jobs(self) -> tuple[list[Job], list[Skipped]]:
        """All jobs, seed by seed, and the strategies skipped because they do not apply."""
        jobs: list[Job] = []
        out: dict[tuple[str, str, str], Skipped] = {}
        for seed in self.seeds:
            for data in self.datasets:
                for model in self.models:
                    if data.models is not None and model.name not in data.models:
                        continue
                    for strategy in self.strategies:
                        why = _why_not(data, model, strategy)
                        if why is None:
                            jobs.append(Job(data, model, strategy, seed, self.device, self.max_memory))
                        elif why:
                            key = (data.label, model.name, strategy.label)
                            out[key] = Skipped(*key, why)
        return jobs, list(out.values())


def read_suite(path: Path) -> Suite:
    """Read the suite of a YAML file.

    Raises:
        ArgumentError: names the key, what was expected and what was found.
    """
    section = read_yaml(path)
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
    )
    section.done()
    _check(suite, path)
    return suite


def slug(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+=]+", "-", text).strip("-")


def _dataset(entry: Any, sizes: tuple[int, int, int], where: str) -> DataSpec:
    section = named(entry, where)
    name = _known(section.text("name"), where)
    section.where = f"{where}: {name}"
    hard = read_corruption(section.any("hard", None), section.where, dataset_entry(name).task)
    spec = DataSpec(
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
    section.done()
    return spec


def _known(name: str, where: str) -> str:
    try:
        return dataset_entry(name).name
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error


def _wanted(entries: list[Any], where: str) -> list[StrategySpec]:
    """Random first, then the strategies of all entries; an entry with parameters replaces the same name from `all`."""
    spelt = [_strategy(entry, where) for entry in entries if entry != "all"]
    plain = [StrategySpec(name, name) for name in (strategies.names() if "all" in entries else ["random"])]
    labels = [one.label for one in spelt]
    return [one for one in plain if one.label not in labels] + spelt


def _strategy(entry: Any, where: str) -> StrategySpec:
    """The strategy of one entry: a name, or a name with parameters."""
    section = named(entry, where)
    name = section.text("name")
    section.where = f"{where}: {name}"
    if name not in (*strategies.ALL, ORACLE):
        first = " The first batch is the same random one for every strategy here." if "+" in name else ""
        known_names = ", ".join([*strategies.ALL, ORACLE, "all"])
        raise ArgumentError(f"{section.where}: there is no strategy {name!r}; expected one of {known_names}.{first}")
    label, weights = section.text("label", None), section.flag("weights", False)
    if label is not None and label != name and (label in (*strategies.ALL, ORACLE) or name == ORACLE):
        expected = "none, since it is not a contender" if name == ORACLE else "one that is no other strategy's name"
        raise section.error("label", expected, label)
    datasets = section.texts("datasets", None)
    spec = StrategySpec("", name, section.rest(), weights, datasets)
    _check_strategy(spec, section)
    settings = [f"{key}={value}" for key, value in spec.parameters.items()] + (["weights"] if weights else [])
    made = f"{name}({', '.join(settings)})" if settings and name != ORACLE else name
    return StrategySpec(label or made, name, spec.parameters, weights, datasets)


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
    objective = recipes.get(spec.strategy()).objective
    if spec.weights and objective is not None:
        raise section.error("weights", f"false, since it trains by {type(objective).__name__}", True)


def _why_not(data: DataSpec, model: registry.ModelSpec, spec: StrategySpec) -> str | None:
    """Why a strategy is skipped on a data set and model; "" if the suite does not want it there, None if it runs."""
    if spec.datasets is not None and data.label not in spec.datasets:
        return ""
    if spec.name in data.without or spec.label in data.without:
        return "the configuration excludes it (without)"
    if spec.name == ORACLE:
        return registry.why_not(model, strategies.Random(), data.task)
    return registry.why_not(model, spec.strategy(), data.task)


def _seeds(section: Section) -> tuple[int, ...]:
    given = section.any("seeds")
    seeds = tuple(range(given)) if isinstance(given, int) and not isinstance(given, bool) else given
    fine = isinstance(seeds, list | tuple) and seeds and len(set(seeds)) == len(seeds)
    if not fine or not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds):
        raise section.error("seeds", "how many (a whole number of at least 1), or a list of different ones", given)
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
