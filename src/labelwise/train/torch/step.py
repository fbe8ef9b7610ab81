"""Step: one gradient step on a batch of labelled rows, in any precision.

On CUDA it is captured as a graph if possible; a plain perceptron on a CPU has a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labelwise.rng import Key
from labelwise.signals.model.forward import device_and_dtype, forward, move_inputs
from labelwise.train.objectives.objective import Objective, State
from labelwise.train.torch.captured import CapturedStep, rates
from labelwise.train.torch.data import TrainSet, take_rows
from labelwise.train.torch.options import TrainOptions, penalised_modules
from labelwise.train.torch.perceptron import PerceptronStep


class StepResult(NamedTuple):
    """What a step measured, without gradients."""

    loss_B: Tensor
    losses: Tensor  # what the objective was given: the loss of each row, or more columns
    right_B: Tensor


class Step:
    """The steps of one training. On CUDA, steps that run the same kernels every time are recorded and replayed."""

    def __init__(self, model: nn.Module, data: TrainSet, options: TrainOptions, optimiser: Optimizer, state: State):
        self.model, self.data, self.options, self.optimiser = model, data, options, optimiser
        self.device, dtype = device_and_dtype(model)
        self.count = 0
        # Modules with a method `penalty` add it to the sum of the rows' losses, as a variational layer does.
        self.penalised = penalised_modules(model)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=options.autocast == torch.float16)
        self._labels_n = data.labels.to(self.device)
        self._perceptron = PerceptronStep.of(model, data, options, optimiser)
        self._captured: CapturedStep | None = None
        if self._can_be_captured():
            inputs = move_inputs(data.inputs.cache, self.device, dtype)
            self._captured = CapturedStep(
                lambda index_B: self._run(take_rows(inputs, index_B), index_B, state),
                self.device,
                partial(rates, optimiser),
            )

    def __call__(self, host_B: Tensor, index_B: Tensor, key: Callable[[], Key], state: State) -> StepResult:
        """Take a step on the rows at positions `index_B`, `host_B` on the CPU; inputs are augmented by `key()`."""
        is_first, self.count = self.count == 0, self.count + 1
        if self._captured is not None and not is_first:
            return StepResult(*self._captured(index_B))
        if self._perceptron is not None and not is_first:
            return StepResult(*self._perceptron(index_B, self._labels_n[index_B], state))
        inputs = self.data.inputs.take(host_B)
        if self.options.augment is not None:
            inputs = self.options.augment(inputs, key().generator())
        return StepResult(*self._run(inputs, index_B, state, is_first))

    def penalty(self) -> Tensor | float:
        """What the penalised modules add to the sum of the rows' losses."""
        return sum((cast(Tensor, module.penalty()) for module in self.penalised), 0.0)  # type: ignore[operator]

    def _run(self, inputs: Any, index_B: Tensor, state: State, is_first: bool = False) -> tuple[Tensor, ...]:
        loss, options = self.data.loss, self.options
        output_BC = loss.output(forward(self.model, inputs, options.autocast), options.output, len(index_B))
        if is_first:
            loss.check(output_BC)
        label_B = self._labels_n[index_B]
        loss_B = loss.rows(output_BC, label_B)
        losses = options.objective.losses(loss_B, output_BC, label_B)
        self._descend(options.objective.reduce(losses, index_B, state) + self.penalty() / len(self.data.index))
        return loss_B.detach(), losses.detach(), loss.right(output_BC, label_B)

    def _descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        self._scaler.scale(loss).backward()
        if self.options.clamp is not None:
            self._scaler.unscale_(self.optimiser)
            parameters = [value for group in self.optimiser.param_groups for value in group["params"]]
            nn.utils.clip_grad_value_(parameters, self.options.clamp)
        self._scaler.step(self.optimiser)
        self._scaler.update()

    def _can_be_captured(self) -> bool:
        """Whether every step runs the same kernels on tensors that stay in place."""
        return (
            self.device.type == "cuda"
            and isinstance(self.data.inputs.cache, Tensor)
            and self.options.augment is None
            and isinstance(self.options.optimiser, str)
            and not self._scaler.is_enabled()
            and type(self.options.objective).after is Objective.after  # else the state is replaced
        )
