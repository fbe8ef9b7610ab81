"""The training loop: epochs over batches of labelled rows, early stopping, and the best weights kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from labelwise.errors import ModelError, NumericsError
from labelwise.keys import Key
from labelwise.signals.forward import at_rest, forward, home
from labelwise.signals.head import Output, check_not_probabilities, logits_of
from labelwise.train.labelled import LabelledInputs
from labelwise.train.objective import Objective, State
from labelwise.train.optimiser import OptimiserChoice, ScheduleChoice, make_optimiser, make_schedule

FITTED = 0.01  # a mean loss, in nats, below which rows that are all classified right have no more to teach
_READ = 256  # rows of a batch without gradients


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


@dataclass(frozen=True)
class Task:
    """What to train on: labelled rows, which of them are trained on, and labelled rows to watch, if any.

    Rows are named by their place among the labelled rows, here and to the objective.
    """

    rows: LabelledInputs
    labels: Tensor  # (n,) of all labelled rows
    at: Tensor  # those that are trained on
    classes: int
    watch: Watch | None


@dataclass(frozen=True)
class Watch:
    """Labelled rows that are not trained on."""

    rows: LabelledInputs
    at: Tensor
    labels: Tensor  # of the rows at `at`
    weighed: bool  # whether they are rows the objective has weights for


@dataclass(frozen=True)
class Trained:
    """How training went, and the objective's state that belongs to the weights that were kept."""

    state: State
    notes: dict[str, Any]


def train(model: nn.Module, task: Task, how: Training, weights: Tensor | None, key: Key) -> Trained:
    """Train `model` in place; it ends with its best weights. Chance in its layers comes from the caller's seed."""
    device, _ = home(model)
    start = how.objective.init(len(task.labels), weights)
    state: State = {name: value.to(device) for name, value in start.items()}
    optimiser = make_optimiser(how.optimiser, model, how.lr, how.weight_decay, how.momentum)
    schedule = make_schedule(how.schedule, optimiser, how.epochs)
    scaler = torch.amp.GradScaler(device.type, enabled=how.autocast == torch.float16)
    best = _Best(model)
    stopped = f"all {how.epochs} epochs run"
    for epoch in range(how.epochs):
        ran = _epoch(model, task, how, _Step(optimiser, scaler), state, key, epoch)
        state = ran.state
        seen = ran.loss if task.watch is None else _watched_loss(model, task.watch, state, how)
        _check_finite(ran.loss, seen, epoch, how.lr, task)
        schedule(seen)
        if best.offer(seen, epoch, ran.loss, state):
            if task.watch is None and ran.fitted:
                stopped = "every training row fitted"
                break
        elif how.patience is not None and epoch - best.epoch >= how.patience:
            which = "training" if task.watch is None else "held-out"
            stopped = f"no better {which} loss for {how.patience} epochs"
            break
    best.put_back()
    model.eval()
    notes = {"epochs": epoch + 1, "best_epoch": best.epoch + 1, "stopped": stopped, "loss": best.train_loss}
    if task.watch is not None:
        notes["held_out_loss"] = best.seen
    return Trained(best.state, notes)


class _Step(NamedTuple):
    """One step down the gradient, in any precision."""

    optimiser: Optimizer
    scaler: torch.amp.GradScaler  # does nothing unless autocast is float16

    def take(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()


class _Ran(NamedTuple):
    """What one epoch gave."""

    state: State
    loss: float
    fitted: bool  # every row that counts is classified right, with little loss


def _epoch(model: nn.Module, task: Task, how: Training, step: _Step, state: State, key: Key, epoch: int) -> _Ran:
    model.train()
    device, _ = home(model)
    labels_n = task.labels.to(device)
    losses, hits, indices = [], [], []
    for number, place_B in enumerate(_batches(task.at, how.batch, key.fold("order", epoch))):
        inputs = task.rows.take(place_B)
        if how.augment is not None:
            inputs = how.augment(inputs, key.fold("augment", epoch, number).generator())
        index_B = place_B.to(device)
        logits_BC = logits_of(forward(model, inputs, how.autocast), how.output, len(index_B))
        if epoch == 0:
            _check_outputs(logits_BC, task.classes)
        label_B = labels_n[index_B]
        loss_B = F.cross_entropy(logits_BC, label_B, reduction="none")
        step.take(how.objective.reduce(loss_B, index_B, state))
        losses.append(loss_B.detach())
        hits.append(logits_BC.detach().argmax(1) == label_B)
        indices.append(index_B)
        if how.objective.when == "batch":
            state = how.objective.after(losses[-1], index_B, state)
    loss_n, index_n = torch.cat(losses), torch.cat(indices)
    if how.objective.when == "epoch":
        state = how.objective.after(loss_n, index_n, state)
    weight_n = state["weight"][index_n]
    loss = _mean(loss_n, weight_n)
    return _Ran(state, loss, loss < FITTED and bool(torch.cat(hits)[weight_n > 0].all()))


def watched_logits(model: nn.Module, watch: Watch, output: Output | None, autocast: torch.dtype | None) -> Tensor:
    """Logits (M, C) of the watched rows, on the model's device."""
    parts = []
    with at_rest(model):
        for at_B in watch.at.split(_READ):
            parts.append(logits_of(forward(model, watch.rows.take(at_B), autocast), output, len(at_B)))
    return torch.cat(parts)


class _Best:
    """The weights with the lowest loss seen so far, and what belongs to them."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.seen = self.train_loss = math.inf
        self.epoch = -1
        self.state: State = {}
        self._weights: list[Tensor] = []
        self._newest = False

    def offer(self, seen: float, epoch: int, train_loss: float, state: State) -> bool:
        """Keep the weights as they are now if `seen` is the lowest yet; whether it is."""
        self._newest = seen < self.seen
        if self._newest:
            self.seen, self.epoch, self.train_loss, self.state = seen, epoch, train_loss, state
            now = self._tensors()
            if len(self._weights) != len(now):
                self._weights = [tensor.clone() for tensor in now]
            else:
                for kept, tensor in zip(self._weights, now):
                    kept.copy_(tensor)
        return self._newest

    def put_back(self) -> None:
        """Give the model the best weights."""
        if not self._newest:
            for kept, tensor in zip(self._weights, self._tensors()):
                tensor.copy_(kept)

    def _tensors(self) -> list[Tensor]:
        return [tensor.detach() for tensor in (*self.model.parameters(), *self.model.buffers())]


def _batches(at: Tensor, size: int, key: Key) -> list[Tensor]:
    """The places `at` in the order of one epoch, in batches. No batch holds one row: batch norm has no use for it."""
    order = at[torch.randperm(len(at), generator=key.generator())]
    if len(order) == 1:
        return [order.repeat(2)]
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _watched_loss(model: nn.Module, watch: Watch, state: State, how: Training) -> float:
    logits_MC = watched_logits(model, watch, how.output, how.autocast)
    loss_M = F.cross_entropy(logits_MC, watch.labels.to(logits_MC.device), reduction="none")
    return _mean(loss_M, state["weight"][watch.at.to(loss_M.device)] if watch.weighed else torch.ones_like(loss_M))


def _mean(loss_B: Tensor, weight_B: Tensor) -> float:
    """The weighted mean loss; rows that all count nothing are a plain mean."""
    total = float(weight_B.sum())
    return float((loss_B * weight_B).sum()) / total if total > 0 else float(loss_B.mean())


def _check_outputs(logits_BC: Tensor, classes: int) -> None:
    if logits_BC.shape[1] < classes:
        raise ModelError(
            f"one output for each of {classes} classes was expected, the model has {logits_BC.shape[1]}. Give its last "
            f"layer {classes} outputs."
        )
    check_not_probabilities(logits_BC.detach())


def _check_finite(loss: float, seen: float, epoch: int, lr: float, task: Task) -> None:
    if math.isfinite(loss) and math.isfinite(seen):
        return
    held = task.rows.held
    if isinstance(held, Tensor) and held.is_floating_point():
        bad_n = ~torch.isfinite(held.flatten(1)).all(1)
        if bool(bad_n.any()):
            row = int(task.rows.ids[int(bad_n.nonzero()[0])])
            raise NumericsError(f"the input of row id {row} holds NaN or infinity; mend the row or leave it out.")
    which = "training" if not math.isfinite(loss) else "held-out"
    raise NumericsError(
        f"the {which} loss became {loss if which == 'training' else seen} in epoch {epoch + 1} with lr={lr}. "
        "Try a lower lr, and scale inputs to about 1."
    )
