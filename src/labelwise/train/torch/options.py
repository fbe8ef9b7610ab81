"""How to train: the options of a TorchLearner, their checks, and the optimiser and schedule they name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from labelwise.errors import ArgumentError, ModelError
from labelwise.io.arguments import check_real, check_whole
from labelwise.signals.model.head import Output
from labelwise.train.objectives.objective import Mean, Objective

CrossValidated = Literal["epochs", "weight_decay"]
Keep = Literal["loss", "accuracy", "last", "average"]
OptimiserChoice = Literal["adam", "adamw", "sgd"] | Callable[[Iterable[nn.Parameter]], Optimizer]
SamplerChoice = Literal["shuffle", "weights"]
ScheduleChoice = Literal["cosine"] | Callable[[Optimizer], Any] | None

EPOCHS, LEAST_STEPS, WEIGHT_DECAY = 100, 1000, 0.005  # docs/decisions/training-rule.md
SMALL = 0.1  # mean square of inputs below which the default weight decay is in proportion to it


@dataclass(frozen=True)
class TrainOptions:
    """The arguments of TorchLearner that the training loop reads; `TorchLearner` describes them."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float | None
    momentum: float
    optimiser: OptimiserChoice
    schedule: ScheduleChoice
    patience: int | None
    keep: Keep
    augment: Callable[[Any, torch.Generator], Any] | None
    objective: Objective
    output: Output | None
    autocast: torch.dtype | None
    sampler: SamplerChoice
    clamp: float | None
    look: Callable[[nn.Module, int], float | None] | None
    least_steps: int = 0  # gradient steps: few rows are passed over more often than `epochs`

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch", self.batch), ("patience", self.patience)):
            if value is not None or name != "patience":
                object.__setattr__(self, name, check_whole(name, value, 1))
        check_real("lr", self.lr, above=0)
        check_real("momentum", self.momentum, least=0)
        if self.clamp is not None:
            check_real("clamp", self.clamp, above=0)
        if self.weight_decay is not None:
            check_real("weight_decay", self.weight_decay, least=0)
        if self.keep not in get_args(Keep):
            raise ArgumentError(f'keep is "loss", "accuracy", "last" or "average", not {self.keep!r}.')
        if not callable(self.optimiser) and self.optimiser not in ("adam", "adamw", "sgd"):
            raise ArgumentError(
                f'optimiser is "adam", "adamw", "sgd" or a function of the parameters, not {self.optimiser!r}.'
            )
        if self.schedule is not None and not callable(self.schedule) and self.schedule != "cosine":
            raise ArgumentError(f'schedule is None, "cosine" or a function of the optimiser, not {self.schedule!r}.')
        if self.sampler not in ("shuffle", "weights"):
            raise ArgumentError(f'sampler is "shuffle" or "weights", not {self.sampler!r}.')
        if self.sampler == "weights" and not isinstance(self.objective, Mean):
            raise ArgumentError(
                f'sampler="weights" draws rows by their weights and needs the plain mean of their losses; with '
                f"objective={type(self.objective).__name__}() the weights would count twice. Take one of the two."
            )

    def for_rows(self, rows: int, model: nn.Module) -> TrainOptions:
        """The options for a training set of `rows` rows, with as many epochs as make `least_steps` steps.

        A model of transformers is fine-tuned in `epochs` as they are: there each step is dear and the weights are good.
        """
        if not self.least_steps or any(map(is_of_transformers, model.modules())):
            return replace(self, least_steps=0)
        steps = math.ceil(rows / self.batch)  # in an epoch
        return replace(self, epochs=max(self.epochs, math.ceil(self.least_steps / steps)), least_steps=0)

    def for_inputs(self, inputs: Any, model: nn.Module) -> TrainOptions:
        """The options with the default weight decay for rows of numbers of this size.

        For inputs s times as small the same function has first weights 1/s times as large, and their penalty asks the
        same of it at s^2 times the weight decay. At 0.005 the decay outweighs the gradients of vectors of length 1, as
        sentence encoders and CLIP give them, and a network of many classes learns next to nothing.
        """
        is_rows = isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.dim() == 2 and inputs.numel()
        if self.weight_decay is not None or not is_rows or any(map(is_of_transformers, model.modules())):
            return self
        size = float(inputs.double().square().mean())
        # Two digits: the order of the rows and the device, which change the last bits of the mean, do not matter.
        return replace(self, weight_decay=float(f"{WEIGHT_DECAY * size:.1e}")) if size < SMALL else self

    def make_optimiser(self, model: nn.Module) -> Optimizer:
        """The optimiser of the trainable parameters of `model`.

        Weight decay leaves out layers with a penalty of their own, such as variational ones, since their prior is in
        that, and embeddings: to a token that is not in the batch it would be the whole gradient, which Adam makes a
        step of full size.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise ModelError("the model has no parameter to train: all have requires_grad=False, or there are none.")
        if callable(self.optimiser):
            optimiser = self.optimiser(parameters)
            if not isinstance(optimiser, Optimizer):
                raise ArgumentError(
                    f"optimiser= has to return a torch Optimizer; it returned {type(optimiser).__name__}."
                )
            return optimiser
        is_cuda = parameters[0].device.type == "cuda"
        # On CUDA the rate and the step count are on the device, so that a step is captured once, whatever the schedule.
        lr = torch.tensor(self.lr, device=parameters[0].device) if is_cuda and _can_fuse(parameters) else self.lr
        decay = self.weight_decay
        if decay is None:
            decay = 0.0 if any(map(is_of_transformers, model.modules())) else WEIGHT_DECAY
        shared: dict[str, Any] = {"lr": lr, "weight_decay": decay, "fused": _can_fuse(parameters)}
        groups = _decay_groups(model, parameters)
        if self.optimiser == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum, **shared)
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.AdamW
        return kind(groups, capturable=is_cuda, **shared)

    def make_schedule(self, optimiser: Optimizer) -> Callable[[float], None]:
        """A function to call after each epoch with the validation loss."""
        if self.schedule is None:
            return lambda loss: None
        if self.schedule == "cosine":
            return _CosineSchedule(optimiser, self.epochs)
        schedule: Any = self.schedule(optimiser)
        if not hasattr(schedule, "step"):
            raise ArgumentError(f"schedule= has to return a torch scheduler; it returned {type(schedule).__name__}.")
        if isinstance(schedule, ReduceLROnPlateau):
            return schedule.step
        return lambda loss: schedule.step()


class _CosineSchedule:
    """Lets learning rates fall from lr to 0 along lr (1 + cos(pi epoch / epochs)) / 2. Call it after each epoch."""

    def __init__(self, optimiser: Optimizer, epochs: int):
        self.optimiser = optimiser
        self.first = [float(group["lr"]) for group in optimiser.param_groups]
        self.epochs = epochs
        self.epoch = 0

    def __call__(self, loss: float) -> None:
        self.epoch += 1
        share = (1 + math.cos(math.pi * self.epoch / self.epochs)) / 2
        for group, first in zip(self.optimiser.param_groups, self.first):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(share * first)
            else:
                group["lr"] = share * first


def _decay_groups(model: nn.Module, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """The parameters as one group, or as two where weight decay leaves some out."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    spared = [*penalised_modules(model), *tables]
    own = {id(parameter) for module in spared for parameter in module.parameters(recurse=False)}
    free = [parameter for parameter in parameters if id(parameter) in own]
    decayed = [parameter for parameter in parameters if id(parameter) not in own]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def is_of_transformers(model: Any) -> bool:
    """Whether a model is a module of the package transformers, whose weights are pretrained as a rule."""
    return any(kind.__module__.split(".")[0] == "transformers" for kind in type(model).__mro__)


def penalised_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that add a penalty of their own to the loss."""
    return [module for module in model.modules() if callable(getattr(module, "penalty", None))]


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    """Whether one kernel can update all parameters; on small models it takes half the time of a step."""
    first: Tensor = parameters[0]
    plain = first.device.type in ("cpu", "cuda") and first.dtype in (torch.float32, torch.float64)
    return plain and all(p.device == first.device and p.dtype == first.dtype for p in parameters)
