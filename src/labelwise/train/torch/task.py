"""What training is told: how to train, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labelwise.signals.model.head import Output
from labelwise.train.objectives.loss import Loss
from labelwise.train.objectives.objective import Objective
from labelwise.train.torch.inputs import LabelledInputs
from labelwise.train.torch.optimiser import OptimiserChoice, ScheduleChoice
from labelwise.train.torch.sampler import SamplerChoice

Keep = Literal["loss", "accuracy", "last"]


@dataclass(frozen=True)
class Training:
    """How to train; the arguments of TorchLearner."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float
    momentum: float
    optimiser: OptimiserChoice
    schedule: ScheduleChoice
    patience: int | None
    augment: Callable[[Any, torch.Generator], Any] | None
    objective: Objective
    output: Output | None
    autocast: torch.dtype | None
    sampler: SamplerChoice = "shuffle"
    clamp: float | None = None  # of every entry of a gradient
    look: Callable[[nn.Module, int], float | None] | None = None
    keep: Keep = "loss"  # which epoch's weights a fit ends with


@dataclass(frozen=True)
class Task:
    """What to train on: labelled rows, which of them are trained on, and labelled rows to watch, if any.

    Rows are named by their place among the labelled rows, here and to the objective.
    """

    rows: LabelledInputs
    labels: Tensor  # (n,) of all labelled rows
    at: Tensor  # those that are trained on
    loss: Loss
    watch: Watch | None


@dataclass(frozen=True)
class Watch:
    """Labelled rows that are not trained on."""

    rows: LabelledInputs
    at: Tensor
    labels: Tensor  # of the rows at `at`
    weighed: bool  # whether they are rows the objective has weights for
