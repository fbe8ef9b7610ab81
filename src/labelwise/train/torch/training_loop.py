"""The training loop: epochs over batches of labelled rows, early stopping, and the choice of the weights to keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.signals.model.forward import device_and_dtype, eval_mode, forward
from labelwise.train.objectives.loss import CrossEntropy, Loss
from labelwise.train.objectives.objective import State, scaled
from labelwise.train.progress import report_epoch
from labelwise.train.torch.data import LabelledInputs, TrainSet, ValidationRows, split_epoch
from labelwise.train.torch.options import Keep, TrainOptions
from labelwise.train.torch.step import Step, StepResult

FITTED = 0.01  # a mean loss, in nats, below which rows that are all classified right have no more to teach
NEAR_CHANCE = 0.9  # of log C: a training loss above it is that of a model that has hardly begun to learn
FAR_BELOW = 0.1  # share of the training rows that the last epoch classifies right and the kept one does not
_READ = 256  # rows of a batch without gradients


@dataclass(frozen=True)
class TrainResult:
    """How training went.

    Attributes:
        state: the objective's state that belongs to the kept weights.
        notes: epochs, losses, and why training stopped.
    """

    state: State
    notes: dict[str, Any]


def train(model: nn.Module, data: TrainSet, options: TrainOptions, weights: Tensor | None, key: Key) -> TrainResult:
    """Train `model` in place and leave it with the weights that `options.keep` names.

    Chance in its layers comes from the caller's seed.
    """
    device, dtype = device_and_dtype(model)
    objective = options.objective
    state: State = {name: value.to(device) for name, value in objective.init(len(data.labels), weights).items()}
    if options.sampler == "weights":
        state = {**state, "rate": scaled(weights, len(data.labels)).to(device)}  # what batches are drawn by
    optimiser = options.make_optimiser(model)
    schedule = options.make_schedule(optimiser)
    step = Step(model, data, options, optimiser, state)
    keep: Keep = "last" if objective.last else options.keep
    best = _FinalWeights(model, keep, options.epochs // 2)
    epochs_right, looks = 0, [-math.inf]
    stopped = f"all {options.epochs} epochs run"
    for epoch in range(options.epochs):
        result = _run_epoch(model, data, options, step, state, key, epoch)
        state = result.state
        if data.validation is None:
            loss, accuracy = result.loss, result.accuracy
        else:
            loss, accuracy = _validate(model, data, data.validation, state, options)
        _check_finite(result.loss, loss, epoch, options.lr, data, dtype)
        schedule(loss)
        held_out = {} if data.validation is None else {"held_out_loss": loss}
        report_epoch(epoch + 1, options.epochs, {"loss": result.loss, "accuracy": result.accuracy, **held_out})
        is_better = best.offer(loss, accuracy, epoch, result)
        if options.look is not None:
            looks.append(options.look(model, epoch) or -math.inf)
        epochs_right += objective.stop is not None and result.accuracy >= objective.stop
        enough = objective.stop is not None and epochs_right >= objective.stop_times
        if enough and epoch + 1 >= objective.stop_from:
            stopped = f"{100 * result.accuracy:.1f} % of the training rows right"
            break
        if is_better:
            if data.validation is None and result.is_fitted and keep not in ("last", "average"):
                stopped = "every training row fitted"
                break
        elif options.patience is not None and epoch - best.epoch >= options.patience:
            which = "training" if data.validation is None else "held-out"
            stopped = f"no better {which} {keep} for {options.patience} epochs"
            break
    best.restore()
    model.eval()
    if keep == "average":
        _measure_average(best, model, data, state, options)
        best.train_loss += float(step.penalty()) / len(data.index)
    notes = {"epochs": epoch + 1, "best_epoch": best.epoch + 1, "stopped": stopped, "loss": best.train_loss}
    if data.validation is not None:
        notes["held_out_loss"] = best.loss
        if keep == "accuracy":
            notes["held_out_accuracy"] = best.accuracy
    if options.look is not None:
        notes["looked"] = max(looks)
    warning = _weights_warning(best, result, data, keep, bool(step.penalised))
    if warning:
        notes["warning"] = warning
    return TrainResult(best.state, notes)


class _EpochResult(NamedTuple):
    state: State
    loss: float
    is_fitted: bool  # every row that counts is classified right, with little loss
    accuracy: float  # share of the rows that are classified right


def _run_epoch(
    model: nn.Module, data: TrainSet, options: TrainOptions, step: Step, state: State, key: Key, epoch: int
) -> _EpochResult:
    model.train()
    objective = options.objective
    results: list[StepResult] = []
    batches = split_epoch(data.index, options.batch, key.fold("order", epoch), state.get("rate"))
    index_n = torch.cat(batches).to(step.device)  # once for all: a device waits for each copy
    on_device = index_n.split([len(index_B) for index_B in batches])
    for number, (host_B, index_B) in enumerate(zip(batches, on_device)):
        augment = partial(key.fold, "augment", epoch, number)
        results.append(step(host_B, index_B, augment, state))
        if objective.when == "batch":
            state = objective.after(results[-1].losses, index_B, state)
        elif objective.when == "sweep" and step.count % objective.every == 0:
            state = _after_sweep(model, data, options, state)
    loss_n, losses_n, right_n = (torch.cat(column) for column in zip(*results))
    if objective.when == "epoch":
        state = objective.after(losses_n, index_n, state)
    weight_n = state["weight"][index_n]
    with torch.no_grad():
        loss = _weighted_mean(loss_n, weight_n) + float(step.penalty()) / len(data.index)
    # With a penalty it is worth training on after every row is fitted.
    is_fitted = not step.penalised and loss < FITTED and bool(right_n[weight_n > 0].all())
    return _EpochResult(state, loss, is_fitted, float(right_n.double().mean()))


def _after_sweep(model: nn.Module, data: TrainSet, options: TrainOptions, state: State) -> State:
    """The objective's state after measuring the loss of every row that is trained on."""
    output_nC = read_outputs(model, data.inputs, data.index, data.loss, options)
    index_n = data.index.to(output_nC.device)
    label_n = data.labels.to(output_nC.device)[index_n]
    loss_n = data.loss.rows(output_nC, label_n)
    return options.objective.after(options.objective.losses(loss_n, output_nC, label_n), index_n, state)


def read_outputs(model: nn.Module, inputs: LabelledInputs, index: Tensor, loss: Loss, options: TrainOptions) -> Tensor:
    """Outputs (m, C) of the rows at these positions, in eval mode, on the model's device."""
    parts = []
    with eval_mode(model):
        for index_B in index.split(_rows_to_read(inputs.cache)):
            output = forward(model, inputs.take(index_B), options.autocast)
            parts.append(loss.output(output, options.output, len(index_B)))
    return torch.cat(parts)


def _rows_to_read(cache: Any) -> int:
    """Rows of a batch without gradients: more of small inputs that are on an accelerator, which is idle otherwise."""
    if not isinstance(cache, Tensor) or cache.device.type == "cpu" or not len(cache):
        return _READ
    return max(_READ, min(16 * _READ, (1 << 22) // max(1, cache[0].numel())))


class _FinalWeights:
    """The weights to keep of the epochs so far, and the loss, accuracy and objective state that belong to them.

    "average" has the state of the last epoch and the mean weights from `average_from` on; `_measure_average` gives it
    their loss and accuracy.
    """

    def __init__(self, model: nn.Module, keep: Keep, average_from: int):
        self.model = model
        self.keep = keep
        self.average_from = average_from
        self.loss = self.train_loss = math.inf
        self.accuracy = self.train_accuracy = -math.inf
        self.epoch = -1
        self.state: State = {}
        self._weights: list[Tensor] = []
        self._is_current = False  # whether the model has them

    def offer(self, loss: float, accuracy: float, epoch: int, result: _EpochResult) -> bool:
        """Keep the weights as they are now if this epoch is the best so far; return whether it is."""
        better = {"loss": loss < self.loss, "accuracy": accuracy >= self.accuracy, "last": True, "average": True}
        self._is_current = better[self.keep]
        if self._is_current:
            self.loss, self.accuracy, self.epoch, self.state = loss, accuracy, epoch, result.state
            self.train_loss, self.train_accuracy = result.loss, result.accuracy
            if self.keep == "last":
                return True
            now = self._tensors()
            if self.keep == "average":
                self._average(now, epoch)
            elif len(self._weights) != len(now):
                self._weights = [tensor.clone() for tensor in now]
            else:
                for saved, tensor in zip(self._weights, now):
                    saved.copy_(tensor)
        return self._is_current

    def _average(self, now: list[Tensor], epoch: int) -> None:
        """Move the mean towards the weights of this epoch. Running statistics are averaged, counts are not."""
        if epoch <= self.average_from:
            self._weights = [tensor.clone() for tensor in now]
        for saved, tensor in zip(self._weights, now):
            if saved.is_floating_point():
                saved.lerp_(tensor, 1 / (1 + max(0, epoch - self.average_from)))
            else:
                saved.copy_(tensor)
        self._is_current = False

    def restore(self) -> None:
        """Give the model the weights to keep."""
        if not self._is_current:
            for saved, tensor in zip(self._weights, self._tensors()):
                tensor.copy_(saved)

    def _tensors(self) -> list[Tensor]:
        return [tensor.detach() for tensor in (*self.model.parameters(), *self.model.buffers())]


def _validate(
    model: nn.Module, data: TrainSet, rows: ValidationRows, state: State, options: TrainOptions
) -> tuple[float, float]:
    """Mean loss on the validation rows, and their accuracy if the weights are chosen by it, else 0."""
    output_MC = read_outputs(model, rows.inputs, rows.index, data.loss, options)
    label_M = rows.labels.to(output_MC.device)
    loss_M = data.loss.rows(output_MC, label_M)
    weight_n = state.get("rate", state["weight"])  # held-out rows are not drawn: there the weights count
    weight_M = weight_n[rows.index.to(loss_M.device)] if rows.among_labelled else torch.ones_like(loss_M)
    loss = _weighted_mean(loss_M, weight_M)
    if options.keep != "accuracy":
        return loss, 0.0
    return loss, _weighted_mean(data.loss.right(output_MC, label_M).double(), weight_M)


def _measure_average(
    best: _FinalWeights, model: nn.Module, data: TrainSet, state: State, options: TrainOptions
) -> None:
    """Measure the mean weights, which no epoch had, on the rows that are trained on and on the validation rows."""
    options = replace(options, keep="accuracy")
    every = ValidationRows(data.inputs, data.index, data.labels[data.index], among_labelled=True)
    best.train_loss, best.train_accuracy = _validate(model, data, every, state, options)
    if data.validation is not None:
        best.loss, _ = _validate(model, data, data.validation, state, options)


def _weights_warning(best: _FinalWeights, last: _EpochResult, data: TrainSet, keep: Keep, has_penalty: bool) -> str:
    """What is wrong with the kept weights, or "" if nothing is."""
    if not isinstance(data.loss, CrossEntropy) or data.loss.classes < 2:
        return ""
    chance = math.log(data.loss.classes)
    if last.accuracy - best.train_accuracy > FAR_BELOW:
        which = "the mean weights" if keep == "average" else f"the kept weights, of epoch {best.epoch + 1},"
        better = 'keep="accuracy" or keep="last"' if keep == "loss" else 'keep="last"'
        return (
            f"{which} classify {100 * best.train_accuracy:.0f} % of the training rows right, those of the last epoch "
            f"{100 * last.accuracy:.0f} %; try {better}"
        )
    if best.train_loss > NEAR_CHANCE * chance and not has_penalty:
        rate = "another" if best.train_loss > chance else "a higher"  # above chance, the rate may be too high
        return (
            f"the kept weights have hardly begun to learn: their training loss is {best.train_loss:.2f}, that of equal "
            f"probabilities {chance:.2f}; try more epochs or {rate} lr"
        )
    return ""


def _weighted_mean(value_B: Tensor, weight_B: Tensor) -> float:
    """The weighted mean; the plain one if all weights are 0."""
    total = float(weight_B.sum())
    return float((value_B * weight_B).sum()) / total if total > 0 else float(value_B.mean())


def _check_finite(
    train_loss: float, loss: float, epoch: int, lr: float, data: TrainSet, dtype: torch.dtype | None
) -> None:
    if math.isfinite(train_loss) and math.isfinite(loss):
        return
    inputs = data.inputs.cache
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        bad_n = ~torch.isfinite(inputs.flatten(1)).all(1)
        if bool(bad_n.any()):
            row = int(data.inputs.ids[int(bad_n.nonzero()[0])])
            raise NumericsError(f"the input of row id {row} holds NaN or infinity; correct the row or leave it out.")
    which, value = ("held-out", loss) if math.isfinite(train_loss) else ("training", train_loss)
    advice = "Try a lower lr, and scale inputs to about 1."
    if dtype == torch.float16:  # Adam's epsilon is 0 there
        advice = "Parameters in float16 cannot be trained: pass model.float(), and autocast=torch.float16 or bfloat16."
    raise NumericsError(f"the {which} loss became {value} in epoch {epoch + 1} with lr={lr}. {advice}")
