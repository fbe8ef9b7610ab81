"""Optimisers and learning-rate schedules by name, or as the caller makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from labelwise.errors import ArgumentError, ModelError

OptimiserChoice = Literal["adam", "adamw", "sgd"] | Callable[[Iterable[nn.Parameter]], Optimizer]
ScheduleChoice = Literal["cosine"] | Callable[[Optimizer], Any] | None


def make_optimiser(
    choice: OptimiserChoice, model: nn.Module, lr: float, weight_decay: float, momentum: float
) -> Optimizer:
    """The optimiser of the parameters of `model` that are trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ModelError("the model has no parameter to train: all have requires_grad=False, or there are none.")
    if callable(choice):
        optimiser = choice(parameters)
        if not isinstance(optimiser, Optimizer):
            raise ArgumentError(f"optimiser= has to return a torch Optimizer; it returned {type(optimiser).__name__}.")
        return optimiser
    fused = _can_fuse(parameters)
    if choice == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)
    kind = torch.optim.Adam if choice == "adam" else torch.optim.AdamW
    # On CUDA its count of steps is kept there, so that a step can be captured in a graph.
    cuda = parameters[0].device.type == "cuda"
    return kind(parameters, lr=lr, weight_decay=weight_decay, fused=fused, capturable=cuda)


def make_schedule(choice: ScheduleChoice, optimiser: Optimizer, epochs: int) -> Callable[[float], None]:
    """A function to call after each epoch with the loss that early stopping watches."""
    if choice is None:
        return lambda loss: None
    schedule = CosineAnnealingLR(optimiser, T_max=epochs) if choice == "cosine" else choice(optimiser)
    if not hasattr(schedule, "step"):
        raise ArgumentError(f"schedule= has to return a torch scheduler; it returned {type(schedule).__name__}.")
    if isinstance(schedule, ReduceLROnPlateau):
        return schedule.step
    return lambda loss: schedule.step()


def check_choices(optimiser: Any, schedule: Any) -> None:
    """Raise ArgumentError for a name that is none of those known."""
    if not callable(optimiser) and optimiser not in ("adam", "adamw", "sgd"):
        raise ArgumentError(f'optimiser is "adam", "adamw", "sgd" or a function of the parameters, not {optimiser!r}.')
    if schedule is not None and not callable(schedule) and schedule != "cosine":
        raise ArgumentError(f'schedule is None, "cosine" or a function of the optimiser, not {schedule!r}.')


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    """Whether one kernel can update all parameters; on small models it takes half the time of a step."""
    first: Tensor = parameters[0]
    plain = first.device.type in ("cpu", "cuda") and first.dtype in (torch.float32, torch.float64)
    return plain and all(p.device == first.device and p.dtype == first.dtype for p in parameters)
