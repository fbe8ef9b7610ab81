"""The papers' tables as suites of the benchmark: data, network, training and strategies of each, at three scales.

"paper" is the paper's own protocol as far as it is known; "small" is for two cores: fewer rows, labels, epochs and
seeds, narrow networks; "smoke" shows in seconds that everything runs. What differs from the paper even at its own scale
is in `differences`, and on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labelwise.bench.data.catalogue import CATALOGUE, availability
from labelwise.bench.models.registry import DEEP, ModelSpec, read_model
from labelwise.bench.suite.suite import DataSpec, StrategySpec, Suite
from labelwise.errors import SourceError

VALID_SHARE, VALID_LEAST, VALID_MOST = 0.1, 500, 2000  # of the pool, SABAL's validation rows
WHOLE = {"cifar10": "cifar10-full"}  # taken instead where it is found


@dataclass(frozen=True)
class Sheet:
    """One data set with one network: a row of a table of areas, or a whole table of accuracies by round."""

    row: str  # what the paper calls it
    data: str
    model: ModelSpec
    strategies: tuple[StrategySpec, ...]  # labelled as the paper's columns
    start: int
    k: int
    rounds: int
    seeds: int
    valid: bool = False  # whether rows are set aside, labelled free of charge, as in the paper
    column: str = ""  # where the paper's columns are not strategies
    limit: int | None = None
    changes: tuple[str, ...] = ()  # what was changed to fit the data that are there, or by --set
    centred: bool = True  # whether each channel of images has mean 0 and deviation 1

    @property
    def name(self) -> str:
        """The sheet, in words and as a folder."""
        return f"{self.column} {self.row}".strip()


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper whose numbers are learning curves."""

    name: str
    paper: str
    what: str
    by: str  # what is in it: the "area" under the curve, the accuracy by "round", or the "last" accuracy
    sheets: tuple[Sheet, ...]
    differences: tuple[str, ...]
    compat: tuple[str, ...] = ()  # what --paper-compat does
    compatible: Callable[[Sheet], Sheet] = lambda sheet: sheet
    random: str = "Random"
    own: tuple[str, ...] = ()  # the columns of the paper's own methods
    same: tuple[tuple[str, str], ...] = ()  # columns that are compared with a column of another name in the paper

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets it takes at the paper's scale."""
        return tuple(dict.fromkeys(sheet.data for sheet in self.sheets))


def present(name: str) -> str | None:
    """The data set of this name, whole if it is installed, else its part; None if there is neither."""
    there = {one.name for one in availability() if one.present}
    return next((one for one in (WHOLE.get(name, name), name) if one in there), None)


def sized(sheet: Sheet, scale: str) -> Sheet:
    """The sheet at a scale, on data that are there; SourceError where the paper's are not."""
    if scale == "smoke":
        return _smoke(sheet)
    data = present(sheet.data)
    if scale == "small":
        return _small(sheet, data or "digits")
    if data is None:
        how = CATALOGUE[sheet.data].how if sheet.data in CATALOGUE else "Labelwise does not read it by name yet"
        raise SourceError(f"{sheet.name}: the data set {sheet.data!r} was not found: {how}; or take --scale small")
    return _fitted(replace(sheet, data=data))


def changed(sheet: Sheet, changes: Sequence[tuple[str, Any]]) -> Sheet:
    """The sheet with other inputs, another network or another training.

    Raises:
        ArgumentError: the network has no such parameter.
    """
    for name, value in changes:
        if name == "centred":
            sheet = replace(sheet, centred=bool(value))
        else:
            sheet = replace(sheet, model=replace(sheet.model, parameters={**sheet.model.parameters, name: value}))
        sheet = replace(sheet, changes=(*sheet.changes, f"{sheet.name}: run with {name}={value}."))
    if changes:
        read_model({"name": sheet.model.name, "kind": sheet.model.kind, **sheet.model.parameters}, "--set")
    return sheet


def suite_of(sheet: Sheet, table: str, seed: int, device: str, processes: int) -> Suite:
    """The suite of a sheet that is sized."""
    centred = True if sheet.centred and CATALOGUE[sheet.data].kind == "image" else None
    data = DataSpec(
        label=sheet.name,
        name=sheet.data,
        limit=sheet.limit,
        seed=seed,
        hard=None,
        features="raw",
        width=128,
        models=None,
        without=(),
        start=sheet.start,
        k=sheet.k,
        rounds=sheet.rounds,
        valid=valid_rows(sheet) or None,
        centred=centred,
    )
    seeds = tuple(range(seed, seed + sheet.seeds))
    return Suite(table, (data,), (sheet.model,), sheet.strategies, seeds, processes, device)


def pool_rows(sheet: Sheet) -> int:
    """Rows of the training set, those that are set aside counted."""
    rows = CATALOGUE[sheet.data].rows[0]
    return rows if sheet.limit is None else min(rows, sheet.limit)


def valid_rows(sheet: Sheet) -> int:
    """Rows that are set aside with their labels."""
    rows = pool_rows(sheet)
    return min(max(VALID_LEAST, round(VALID_SHARE * rows)), VALID_MOST, rows // 4) if sheet.valid else 0


def _fitted(sheet: Sheet) -> Sheet:
    """The paper's sizes, or where there are too few rows for them, the same shares of those there are."""
    rows, whole = pool_rows(sheet), CATALOGUE[WHOLE.get(sheet.data, sheet.data)].rows[0]
    changes = () if rows == whole else (f"{sheet.name}: {rows} of the {whole} training rows were there.",)
    if sheet.start + sheet.k * sheet.rounds <= 0.9 * (rows - valid_rows(sheet)):
        return replace(sheet, changes=changes)
    start, k = round(sheet.start * rows / whole), round(sheet.k * rows / whole)
    more = f"{sheet.name}: first labels and batches are the same shares of them: {start} and {k}."
    return replace(sheet, start=start, k=k, changes=(*changes, more))


def _small(sheet: Sheet, data: str) -> Sheet:
    """Two cores: the sizes of MNIST's sheet stay, larger ones are a fifth to a twentieth."""
    part = 1 if sheet.start <= 50 else 5 if sheet.start <= 500 else 20
    deep = sheet.model.kind in DEEP
    model = _model(
        sheet.model, {"epochs": 20 if deep else 60, "batch": 32, "width": 4, "until": (0.97, 5, 10 if deep else 20)}
    )
    if data == "digits":
        model = _for_digits(model)
    model = _few_draws(model, 100)
    few = replace(
        sheet,
        data=data,
        model=model,
        strategies=tuple(_with_draws(one, 100) for one in sheet.strategies),
        start=max(20, sheet.start // part),
        k=max(20, sheet.k // part),
        rounds=sheet.rounds if sheet.column else min(3 if deep else 6, sheet.rounds),
        seeds=3,
        limit=3000,
    )
    most = 0.9 * (pool_rows(few) - valid_rows(few)) / (few.start + few.k * few.rounds)
    if most < 1:  # the digits that stand in are fewer rows than the labels of a large sheet
        few = replace(few, start=int(few.start * most), k=int(few.k * most))
    stand = () if data != "digits" or sheet.data == "digits" else (f"{sheet.name}: the digits stand in for it.",)
    narrow = f"{sheet.name}: a narrow network, {few.model.parameters['epochs']} epochs at most, {pool_rows(few)} rows."
    return replace(few, changes=(*stand, narrow))


def _smoke(sheet: Sheet) -> Sheet:
    """Seconds: the digits and a few epochs of a small network."""
    epochs = 2 if sheet.model.kind in DEEP else 3
    model = _model(sheet.model, {"epochs": epochs, "batch": 16, "width": 4, "until": (0.97, 2, 1), "best_on_test": 1})
    return replace(
        sheet,
        data="digits",
        model=_few_draws(_for_digits(model), 8),
        strategies=tuple(_with_draws(one, 8) for one in sheet.strategies),
        start=20,
        k=6,
        rounds=1,
        seeds=2,
        limit=160,
        changes=(f"{sheet.name}: the digits stand in for it.",),
    )


def _model(model: ModelSpec, values: dict[str, Any]) -> ModelSpec:
    """The model with other values for those of its parameters that are named; a width where it has one."""
    width = ("width",) if model.kind in DEEP else ()
    changed = {key: value for key, value in values.items() if key in (*model.parameters, *width)}
    return replace(model, parameters={**model.parameters, **changed})


def _for_digits(model: ModelSpec) -> ModelSpec:
    """The same training of a perceptron: 8 x 8 images are too small for all networks but ResNet-18."""
    if "resnet18" in model.kind:
        return model
    training = {key: value for key, value in model.parameters.items() if key not in ("width", "batch_norm")}
    return ModelSpec(model.name, "mlp", {**training, "hidden": (32,)})


def _few_draws(model: ModelSpec, draws: int) -> ModelSpec:
    return _model(model, {"draws": min(draws, model.parameters.get("draws", draws))})


def _with_draws(strategy: StrategySpec, draws: int) -> StrategySpec:
    if "draws" not in strategy.parameters:
        return strategy
    fewer = min(draws, strategy.parameters["draws"])
    return replace(strategy, parameters={**strategy.parameters, "draws": fewer})
