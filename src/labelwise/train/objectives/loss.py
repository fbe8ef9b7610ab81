"""Loss of single rows: cross-entropy for classes, squared error for numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.errors import ModelError
from labelwise.signals.model.head import Output, check_not_probabilities, logits_of, values_of

LossChoice = Literal["cross_entropy", "mse"]
CLOSE = 0.01  # a squared error, in variances of the target, below which a number counts as right


class Loss(ABC):
    """Compares a model's output with labels, row by row."""

    @abstractmethod
    def output(self, given: Any, where: Output | None, rows: int) -> Tensor:
        """Find the output (B, C) to compare in what a model returned for `rows` rows; `where` as for TorchLearner."""

    @abstractmethod
    def check(self, output_BC: Tensor) -> None:
        """Raise ModelError if such outputs cannot be trained on."""

    @abstractmethod
    def rows(self, output_BC: Tensor, label_B: Tensor) -> Tensor:
        """Return the loss (B,) of each row."""

    @abstractmethod
    def right(self, output_BC: Tensor, label_B: Tensor) -> Tensor:
        """Return whether each row (B,) is predicted right: its class, or its number within a tenth of a deviation."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Minus the log probability of the label, in nats; labels are classes 0..classes-1."""

    classes: int

    def output(self, given: Any, where: Output | None, rows: int) -> Tensor:
        return logits_of(given, where, rows)

    def check(self, output_BC: Tensor) -> None:
        if output_BC.shape[1] < self.classes:
            raise ModelError(
                f"one output for each of {self.classes} classes was expected, the model has {output_BC.shape[1]}. Give "
                f"its last layer {self.classes} outputs."
            )
        check_not_probabilities(output_BC.detach())

    def rows(self, output_BC: Tensor, label_B: Tensor) -> Tensor:
        return F.cross_entropy(output_BC, label_B, reduction="none")

    def right(self, output_BC: Tensor, label_B: Tensor) -> Tensor:
        return output_BC.detach().argmax(1) == label_B


@dataclass(frozen=True)
class SquaredError(Loss):
    """The squared difference to the standardised label, in variances of the target."""

    def output(self, given: Any, where: Output | None, rows: int) -> Tensor:
        return values_of(given, where, rows)[:, None]

    def check(self, output_BC: Tensor) -> None:
        """Any number can be trained on."""

    def rows(self, output_BC: Tensor, label_B: Tensor) -> Tensor:
        return (output_BC[:, 0] - label_B.to(output_BC.dtype)).square()

    def right(self, output_BC: Tensor, label_B: Tensor) -> Tensor:
        return self.rows(output_BC.detach(), label_B) < CLOSE


@dataclass(frozen=True)
class Target:
    """The units of a regression target: a model is trained on (label - mean) / spread."""

    mean: float
    spread: float

    @staticmethod
    def of(labels: Tensor) -> Target:
        """Mean and standard deviation of these labels; a spread of 1 where they are all the same."""
        values = labels.double()
        spread = float(values.std(correction=0))
        return Target(float(values.mean()), spread if spread > 0 else 1.0)

    def standard(self, labels: Tensor) -> Tensor:
        """Return labels (n,) as (label - mean) / spread."""
        return ((labels.double() - self.mean) / self.spread).to(torch.get_default_dtype())
