"""Models of the benchmark by name: `linear`, `mlp`, the other networks of networks.py, or any class of scikit-learn.

Draws of the weights, which Bayesian strategies ask for, come from a Laplace approximation of the trained last layer.
It is made after training, for those strategies alone, so that all strategies are compared on the same trained model.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from labelwise import recipes
from labelwise.bench.data.load import Data
from labelwise.bench.models.networks import NETWORKS, Factory
from labelwise.bench.models.paper_training import BestOnTest, Until, augmentation
from labelwise.bench.suite.config import named
from labelwise.errors import ArgumentError
from labelwise.recommend.situation import GIVEN
from labelwise.selection import Strategy
from labelwise.signals.spec import LabelProbs, LogProbs, Prediction, Probs, Signal, Weight, stored
from labelwise.train import Learner, SklearnLearner, TorchLearner
from labelwise.train.laplace import laplace
from labelwise.train.sklearn import is_regressor

_OPTIMISER = (
    "epochs",
    "batch",
    "lr",
    "weight_decay",
    "momentum",
    "optimiser",
    "schedule",
    "patience",
    "keep",
    "restart",
)
_HOLDOUT = ("holdout", "holdout_from", "cross_validate")
TRAINING = (*_OPTIMISER, *_HOLDOUT, "augment", "until", "best_on_test", "precision")
_PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
DRAWS = 100
DEEP = ("vgg11", "vgg16", "resnet18", "bayesian_resnet18")  # networks with a width
PACKAGES = ("sklearn", "lightgbm", "xgboost", "catboost")  # those that a suite may import
_OF_DATA = ("inputs", "outputs", "channels", "size")  # parameters of a network that the data set decides


@dataclass(frozen=True)
class ModelSpec:
    """A model by name: a kind with parameters."""

    name: str
    kind: str  # linear, mlp, a name of NETWORKS, or the dotted path of a class
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def is_torch(self) -> bool:
        """Whether it is a network that is trained by torch."""
        return "." not in self.kind


def read_model(entry: Any, where: str) -> ModelSpec:
    """The model of a configuration: a name, or a mapping with `name`, `kind` or `class`, and parameters."""
    section = named(entry, where)
    name = section.text("name")
    path, kind = section.text("class", None), section.text("kind", name)
    spec = ModelSpec(name, path or {"logistic": "linear"}.get(kind, kind), section.rest())
    if path is not None:
        _estimator(spec, section.where)
        return spec
    if spec.kind not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise section.error("kind", f"one of {known}, or class: a dotted path such as sklearn.svm.SVC", spec.kind)
    shape = [one for one in _names(NETWORKS[spec.kind]) if one not in _OF_DATA and spec.kind != "linear"]
    for one in spec.parameters:
        if one not in (*shape, *TRAINING, "draws"):
            known = ", ".join([*shape, *TRAINING, "draws"])
            raise ArgumentError(f"{section.where}: expected parameters among {known}; found {one!r}")
    if spec.parameters.get("precision", "float32") not in _PRECISIONS:
        raise section.error("precision", " or ".join(_PRECISIONS), spec.parameters["precision"])
    try:
        TorchLearner(nn.Identity(), **_training(spec))
    except (ArgumentError, TypeError) as error:
        raise ArgumentError(f"{section.where}: {error}") from error
    return spec


def why_not(model: ModelSpec, strategy: Strategy, task: str, whole: recipes.Recipe | None = None) -> str | None:
    """Why a strategy cannot be used with this model for this task; None where it can.

    `whole` is its recipe with the parts for weights and training; None is that of the strategy.
    """
    if not model.is_torch and is_regressor(_estimator(model, model.name)) != (task == "regress"):
        return "the model is a classifier" if task == "regress" else "the model is a regressor"
    form = strategy.for_regression() if task == "regress" else strategy
    if form is None:
        return "it asks for class probabilities, and the labels are numbers"
    recipe = recipes.get(strategy) if whole is None else whole
    if not model.is_torch and recipe.weigh not in (None, "none"):
        try:
            recipe.learner(SklearnLearner(_estimator(model, model.name)))
        except ArgumentError as error:
            return str(error)
    if recipe.train in ("sampler", "primal-dual") and not model.is_torch:
        return f"it trains by {recipe.train}, which takes a torch model"
    if recipe.objective is not None and not model.is_torch:
        return f"it trains by {type(recipe.objective).__name__}, which takes a torch model"
    if recipe.restart is False and not model.is_torch:
        return "it trains on from the last weights, which takes a torch model"
    for signal in stored(form.needs.pool + form.needs.labelled):
        if not _gives(model, signal, task):
            return f"it needs {type(signal).__name__}, which this model does not give"
    return None


def learner_for(spec: ModelSpec, data: Data, strategy: Strategy | None, device: str) -> Learner:
    """The learner of one cell. `strategy` decides whether draws are made."""
    if not spec.is_torch:
        estimator = _estimator(spec, f"models: {spec.name}")
        return SklearnLearner(estimator, cross_validate=spec.parameters.get("cross_validate"))
    learner = TorchLearner(
        _factory(spec, data, torch.device(device)),
        loss="mse" if data.task == "regress" else "cross_entropy",
        valid=None if data.valid is None else (data.valid, data.valid.labels),
        look=_look(spec, data),
        **_training(spec),
    )
    if spec.kind.startswith("bayesian"):
        return learner  # draws are those of its own last layer
    needs = () if strategy is None else stored(strategy.needs.pool + strategy.needs.labelled)
    if any(isinstance(signal, LogProbs) for signal in needs):
        return laplace(learner, draws=int(spec.parameters.get("draws", DRAWS)))
    return learner


def _gives(model: ModelSpec, signal: Signal, task: str) -> bool:
    given = {*GIVEN["network" if model.is_torch else "trees"], Weight}
    if task == "regress":
        given = given - {Probs, LabelProbs} | {Prediction}
    if task == "classify" if model.is_torch else _has_members(model):
        given.add(LogProbs)
    return isinstance(signal, tuple(given))


def _has_members(model: ModelSpec) -> bool:
    """Whether an estimator is an ensemble whose members are draws."""
    return hasattr(_class(model.kind, model.name), "estimators_samples_") or "Forest" in model.kind


def _factory(spec: ModelSpec, data: Data, device: torch.device) -> Factory:
    """A function that makes the network: weights are drawn on the CPU, then moved."""
    outputs = 1 if data.task == "regress" else len(data.classes or ())
    one = data.pool.inputs(data.pool.ids[:1])
    shape = {key: value for key, value in spec.parameters.items() if key not in (*TRAINING, "draws")}
    wanted = _names(NETWORKS[spec.kind])
    if spec.kind == "linear":
        shape["hidden"] = ()
    if "inputs" in wanted:
        shape["inputs"] = one[0].numel()
    elif one.ndim != 4:
        raise ArgumentError(
            f"models: {spec.name}: expected images (channels, height, width); a row of {data.name} has the "
            f"shape {tuple(one[0].shape)}"
        )
    else:
        shape |= {"channels": one.shape[1]} | ({"size": one.shape[2]} if "size" in wanted else {})
    make = NETWORKS[spec.kind](outputs=outputs, **shape)
    # With the channels last, wide convolutions train half as fast again on a GPU (benchmarks/training_device.py).
    last = device.type == "cuda" and spec.kind in DEEP
    form = torch.channels_last if last else torch.preserve_format
    return lambda: make().to(device, memory_format=form)  # type: ignore[call-overload]


def _training(spec: ModelSpec) -> dict[str, Any]:
    """The arguments of TorchLearner that the parameters stand for."""
    given = {key: value for key, value in spec.parameters.items() if key in TRAINING and key != "best_on_test"}
    if "augment" in given:
        given["augment"] = augmentation(given["augment"])
    if "precision" in given:
        given["autocast"] = _PRECISIONS.get(given.pop("precision"))
    until = given.pop("until", None)
    return given if until is None else {**given, "objective": Until(*until)}


def _look(spec: ModelSpec, data: Data) -> BestOnTest | None:
    every = spec.parameters.get("best_on_test")
    return None if every is None else BestOnTest(data.test, data.test_labels, int(every))


def _names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _class(path: str, name: str) -> Any:
    """The class of a model. A suite may come from somebody else: it names estimators and nothing else."""
    module, _, own = path.rpartition(".")
    package = module.partition(".")[0]
    if package not in PACKAGES and module not in sys.modules:
        raise ArgumentError(
            f"models: {name}: class: expected a class of {', '.join(PACKAGES)}, or of a module that is imported "
            f"already, found {path!r}; a suite imports no other module"
        )
    try:
        found = getattr(importlib.import_module(module), own)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"models: {name}: class: expected the path of a class, found {path!r} ({error})") from error
    if not isinstance(found, type) or not all(callable(getattr(found, one, None)) for one in ("fit", "predict")):
        raise ArgumentError(f"models: {name}: class: expected an estimator with fit and predict, found {path!r}")
    return found


def _estimator(spec: ModelSpec, where: str) -> Any:
    try:
        parameters = {name: value for name, value in spec.parameters.items() if name != "cross_validate"}
        return _class(spec.kind, spec.name)(**parameters)
    except TypeError as error:
        raise ArgumentError(f"{where}: {spec.kind} does not take these parameters: {error}") from error
