"""How to train: the options of a TorchLearner, their checks, and the optimiser and schedule they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from labelwise.errors import ArgumentError, ModelError
from labelwise.signals.model.head import Output
from labelwise.train.objectives.objective import Mean, Objective

CrossValidated = Literal["epochs", "weight_decay"]
Keep = Literal["loss", "accuracy", "last"]
OptimiserChoice = Literal["adam", "adamw", "sgd"] | Callable[[Iterable[nn.Parameter]], Optimizer]
SamplerChoice = Literal["shuffle", "weights"]
ScheduleChoice = Literal["cosine"] | Callable[[Optimizer], Any] | None


@dataclass(frozen=True)
class TrainOptions:
    """The arguments of TorchLearner that the training loop reads; `TorchLearner` describes them."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float
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

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch", self.batch), ("patience", self.patience)):
            if value is not None and value < 1:
                raise ArgumentError(f"{name} is at least 1, not {value}.")
        if self.clamp is not None and not self.clamp > 0:
            raise ArgumentError(f"clamp is above 0, or None, not {self.clamp}.")
        if not self.lr > 0:
            raise ArgumentError(f"lr is above 0, not {self.lr}.")
        if self.keep not in ("loss", "accuracy", "last"):
            raise ArgumentError(f'keep is "loss", "accuracy" or "last", not {self.keep!r}.')
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

    def make_optimiser(self, model: nn.Module) -> Optimizer:
        """The optimiser of the trainable parameters of `model`."""
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
        shared: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": _can_fuse(parameters)}
        if self.optimiser == "sgd":
            return torch.optim.SGD(parameters, momentum=self.momentum, **shared)
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.AdamW
        # On CUDA its step count stays on the device, so that a step can be captured in a graph.
        return kind(parameters, capturable=parameters[0].device.type == "cuda", **shared)

    def make_schedule(self, optimiser: Optimizer) -> Callable[[float], None]:
        """A function to call after each epoch with the validation loss."""
        if self.schedule is None:
            return lambda loss: None
        if self.schedule == "cosine":
            schedule: Any = CosineAnnealingLR(optimiser, T_max=self.epochs)
        else:
            schedule = self.schedule(optimiser)
        if not hasattr(schedule, "step"):
            raise ArgumentError(f"schedule= has to return a torch scheduler; it returned {type(schedule).__name__}.")
        if isinstance(schedule, ReduceLROnPlateau):
            return schedule.step
        return lambda loss: schedule.step()


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    """Whether one kernel can update all parameters; on small models it takes half the time of a step."""
    first: Tensor = parameters[0]
    plain = first.device.type in ("cpu", "cuda") and first.dtype in (torch.float32, torch.float64)
    return plain and all(p.device == first.device and p.dtype == first.dtype for p in parameters)
