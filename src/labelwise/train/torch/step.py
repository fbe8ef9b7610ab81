"""Step: one step down the gradient on a batch of labelled rows, in any precision; captured where that pays."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labelwise.rng import Key
from labelwise.signals.model.forward import device_and_dtype, forward, move_inputs
from labelwise.train.objectives.objective import Objective, State
from labelwise.train.torch.captured import Captured
from labelwise.train.torch.inputs import take
from labelwise.train.torch.task import Task, Training


class Stepped(NamedTuple):
    """What a step gave, without gradients."""

    loss_B: Tensor
    given: Tensor  # what the objective was given: losses, or more columns
    right_B: Tensor


class Step:
    """Steps of one training. On CUDA, steps that are the same kernels every time are recorded and replayed."""

    def __init__(self, model: nn.Module, task: Task, how: Training, optimiser: Optimizer, state: State):
        self.model, self.task, self.how, self.optimiser = model, task, how, optimiser
        self.device, dtype = device_and_dtype(model)
        self.taken = 0
        # Modules with a method `penalty` add it to the sum of the rows' losses, as a variational layer does.
        self.penalised = [module for module in model.modules() if callable(getattr(module, "penalty", None))]
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=how.autocast == torch.float16)
        self._labels_n = task.labels.to(self.device)
        self._captured: Captured | None = None
        if self._can_be_captured():
            held = move_inputs(task.rows.held, self.device, dtype)
            self._captured = Captured(
                lambda index_B: self._take(take(held, index_B), index_B, state), self.device, self._stamp
            )

    def __call__(self, place_B: Tensor, index_B: Tensor, key: Key, state: State) -> Stepped:
        """A step on the rows at these places, `index_B` the same on the device; inputs are augmented by `key`."""
        first, self.taken = self.taken == 0, self.taken + 1
        if self._captured is not None and not first:
            return Stepped(*self._captured(index_B))
        inputs = self.task.rows.take(place_B)
        if self.how.augment is not None:
            inputs = self.how.augment(inputs, key.generator())
        return Stepped(*self._take(inputs, index_B, state, first))

    def penalty(self) -> Tensor | float:
        """What the penalised modules add to the sum of the rows' losses."""
        return sum((cast(Tensor, module.penalty()) for module in self.penalised), 0.0)  # type: ignore[operator]

    def _take(self, inputs: Any, index_B: Tensor, state: State, first: bool = False) -> tuple[Tensor, ...]:
        loss, how = self.task.loss, self.how
        output_BC = loss.output(forward(self.model, inputs, how.autocast), how.output, len(index_B))
        if first:
            loss.check(output_BC)
        label_B = self._labels_n[index_B]
        loss_B = loss.rows(output_BC, label_B)
        given = how.objective.losses(loss_B, output_BC, label_B)
        self._descend(how.objective.reduce(given, index_B, state) + self.penalty() / len(self.task.at))
        return loss_B.detach(), given.detach(), loss.right(output_BC, label_B)

    def _descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        self._scaler.scale(loss).backward()
        if self.how.clamp is not None:
            self._scaler.unscale_(self.optimiser)
            every = [value for group in self.optimiser.param_groups for value in group["params"]]
            nn.utils.clip_grad_value_(every, self.how.clamp)
        self._scaler.step(self.optimiser)
        self._scaler.update()

    def _can_be_captured(self) -> bool:
        """Whether every step is the same kernels on tensors that stay where they are."""
        return (
            self.device.type == "cuda"
            and isinstance(self.task.rows.held, Tensor)
            and self.how.augment is None
            and isinstance(self.how.optimiser, str)
            and not self._scaler.is_enabled()
            and type(self.how.objective).after is Objective.after  # else the state is replaced
        )

    def _stamp(self) -> tuple[float, ...]:
        """What a recorded step holds as plain numbers."""
        return tuple(float(group["lr"]) for group in self.optimiser.param_groups)
