"""The training loop: epochs over batches of labelled rows, early stopping, and the choice of the weights to keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.signals.model.forward import device_and_dtype, eval_mode, forward
from labelwise.train.objectives.loss import Loss
from labelwise.train.objectives.objective import State, scaled
from labelwise.train.torch.inputs import LabelledInputs
from labelwise.train.torch.optimiser import make_optimiser, make_schedule
from labelwise.train.torch.sampler import check_sampler, drawn_order
from labelwise.train.torch.step import Step, Stepped
from labelwise.train.torch.task import Keep, Task, Training, Watch

FITTED = 0.01  # a mean loss, in nats, below which rows that are all classified right have no more to teach
_READ = 256  # rows of a batch without gradients


@dataclass(frozen=True)
class Trained:
    """How training went, and the objective's state that belongs to the weights that were kept."""

    state: State
    notes: dict[str, Any]


def train(model: nn.Module, task: Task, how: Training, weights: Tensor | None, key: Key) -> Trained:
    """Train `model` in place and leave it with the weights that `how.keep` names.

    Chance in its layers comes from the caller's seed.
    """
    device, _ = device_and_dtype(model)
    start = how.objective.init(len(task.labels), weights)
    state: State = {name: value.to(device) for name, value in start.items()}
    if how.sampler == "weights":
        check_sampler(how.sampler, how.objective)
        state = {**state, "rate": scaled(weights, len(task.labels)).to(device)}  # what batches are drawn by
    optimiser = make_optimiser(how.optimiser, model, how.lr, how.weight_decay, how.momentum)
    schedule = make_schedule(how.schedule, optimiser, how.epochs)
    step = Step(model, task, how, optimiser, state)
    keep: Keep = "last" if how.objective.last else how.keep
    best = _Best(model, keep)
    held, looks = 0, [-math.inf]
    stopped = f"all {how.epochs} epochs run"
    for epoch in range(how.epochs):
        ran = _epoch(model, task, how, step, state, key, epoch)
        state = ran.state
        seen, right = (ran.loss, ran.right) if task.watch is None else _validate(model, task, task.watch, state, how)
        _check_finite(ran.loss, seen, epoch, how.lr, task)
        schedule(seen)
        better = best.offer(seen, right, epoch, ran.loss, state)
        if how.look is not None:
            looks.append(how.look(model, epoch) or -math.inf)
        held += how.objective.stop is not None and ran.right >= how.objective.stop
        if how.objective.stop is not None and held >= how.objective.stop_times and epoch + 1 >= how.objective.stop_from:
            stopped = f"{100 * ran.right:.1f} % of the training rows right"
            break
        if better:
            if task.watch is None and ran.fitted and keep != "last":
                stopped = "every training row fitted"
                break
        elif how.patience is not None and epoch - best.epoch >= how.patience:
            which = "training" if task.watch is None else "held-out"
            stopped = f"no better {which} {keep} for {how.patience} epochs"
            break
    best.put_back()
    model.eval()
    notes = {"epochs": epoch + 1, "best_epoch": best.epoch + 1, "stopped": stopped, "loss": best.train_loss}
    if task.watch is not None:
        notes["held_out_loss"] = best.seen
        if keep == "accuracy":
            notes["held_out_accuracy"] = best.right
    if how.look is not None:
        notes["looked"] = max(looks)
    return Trained(best.state, notes)


class _Ran(NamedTuple):
    """What one epoch gave."""

    state: State
    loss: float
    fitted: bool  # every row that counts is classified right, with little loss
    right: float  # share of the rows that are classified right


def _epoch(model: nn.Module, task: Task, how: Training, step: Step, state: State, key: Key, epoch: int) -> _Ran:
    model.train()
    steps: list[Stepped] = []
    batches = _batches(task.at, how.batch, key.fold("order", epoch), state.get("rate"))
    index_n = torch.cat(batches).to(step.device)  # once for all: a device waits for each copy
    indices = index_n.split([len(place_B) for place_B in batches])
    for number, (place_B, index_B) in enumerate(zip(batches, indices)):
        steps.append(step(place_B, index_B, key.fold("augment", epoch, number), state))
        if how.objective.when == "batch":
            state = how.objective.after(steps[-1].given, index_B, state)
        elif how.objective.when == "sweep" and step.taken % how.objective.every == 0:
            state = _swept(model, task, how, state)
    loss_n, given_n, hit_n = (torch.cat(column) for column in zip(*steps))
    if how.objective.when == "epoch":
        state = how.objective.after(given_n, index_n, state)
    weight_n = state["weight"][index_n]
    with torch.no_grad():
        loss = _mean(loss_n, weight_n) + float(step.penalty()) / len(task.at)
    # Where there is a penalty it is worth going on after every row is fitted.
    fitted = not step.penalised and loss < FITTED and bool(hit_n[weight_n > 0].all())
    return _Ran(state, loss, fitted, float(hit_n.double().mean()))


def _swept(model: nn.Module, task: Task, how: Training, state: State) -> State:
    """The state after a look at all rows that are trained on."""
    output_nC = outputs_at(model, task.rows, task.at, task.loss, how)
    at_n = task.at.to(output_nC.device)
    label_n = task.labels.to(output_nC.device)[at_n]
    loss_n = task.loss.rows(output_nC, label_n)
    return how.objective.after(how.objective.losses(loss_n, output_nC, label_n), at_n, state)


def outputs_at(model: nn.Module, rows: LabelledInputs, at: Tensor, loss: Loss, how: Training) -> Tensor:
    """Outputs (M, C) of the rows at these places, in eval mode, on the model's device."""
    parts = []
    with eval_mode(model):
        for at_B in at.split(_rows(rows.held)):
            parts.append(loss.output(forward(model, rows.take(at_B), how.autocast), how.output, len(at_B)))
    return torch.cat(parts)


def _rows(held: Any) -> int:
    """Rows of a batch without gradients: more of small inputs that are on an accelerator, which is idle otherwise."""
    if not isinstance(held, Tensor) or held.device.type == "cpu" or not len(held):
        return _READ
    return max(_READ, min(16 * _READ, (1 << 22) // max(1, held[0].numel())))


class _Best:
    """The weights to keep of the epochs so far, and the loss, accuracy and objective state that belong to them."""

    def __init__(self, model: nn.Module, keep: Keep):
        self.model = model
        self.keep = keep
        self.seen = self.train_loss = math.inf
        self.right = -math.inf
        self.epoch = -1
        self.state: State = {}
        self._weights: list[Tensor] = []
        self._newest = False

    def offer(self, seen: float, right: float, epoch: int, train_loss: float, state: State) -> bool:
        """Keep the weights as they are now if this epoch is the best so far; return whether it is."""
        better = {"loss": seen < self.seen, "accuracy": right >= self.right, "last": True}
        self._newest = better[self.keep]
        if self._newest:
            self.seen, self.right, self.epoch, self.train_loss, self.state = seen, right, epoch, train_loss, state
            if self.keep == "last":
                return True
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


def _batches(at: Tensor, size: int, key: Key, rate_n: Tensor | None) -> list[Tensor]:
    """The places `at` in the order of one epoch, in batches. No batch holds one row: batch norm has no use for it."""
    shuffled = torch.randperm(len(at), generator=key.generator())
    order = at[shuffled] if rate_n is None else drawn_order(at, rate_n, key)
    if len(order) == 1:
        return [order.repeat(2)]
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _validate(model: nn.Module, task: Task, watch: Watch, state: State, how: Training) -> tuple[float, float]:
    """Mean loss on the validation rows, and their accuracy where the weights to keep are chosen by it (else 0)."""
    output_MC = outputs_at(model, watch.rows, watch.at, task.loss, how)
    label_M = watch.labels.to(output_MC.device)
    loss_M = task.loss.rows(output_MC, label_M)
    weight_n = state.get("rate", state["weight"])  # held-out rows are not drawn: there the weights count
    weight_M = weight_n[watch.at.to(loss_M.device)] if watch.weighed else torch.ones_like(loss_M)
    right = _mean(task.loss.right(output_MC, label_M).double(), weight_M) if how.keep == "accuracy" else 0.0
    return _mean(loss_M, weight_M), right


def _mean(loss_B: Tensor, weight_B: Tensor) -> float:
    """The weighted mean loss; rows that all count nothing are a plain mean."""
    total = float(weight_B.sum())
    return float((loss_B * weight_B).sum()) / total if total > 0 else float(loss_B.mean())


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
