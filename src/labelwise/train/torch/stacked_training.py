"""Train several networks at once: the training loop on a Stack, each network with its own rows, order and end.

Each network gets what `train` gives it alone, up to rounding: its batches come from its own key, it ends by its own
rule, and its kept weights are saved then. All have as many labelled rows, so that their batches are equally large;
`together.py` groups them so. A stack is filled up to `slots` networks with copies of the first, because kernels are
chosen by the size of their operands: the bits of a result do not depend on which other networks are in the stack.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.signals.model.forward import device_and_dtype
from labelwise.train.objectives.loss import CrossEntropy
from labelwise.train.objectives.objective import Objective, State
from labelwise.train.torch.captured import CapturedStep, rates
from labelwise.train.torch.data import TrainSet, split_epoch
from labelwise.train.torch.options import TrainOptions, penalised_modules
from labelwise.train.torch.stack import Layout, Stack, pairs, signature
from labelwise.train.torch.training_loop import FITTED, TrainResult, _EpochResult, _weights_warning

_READ = 512  # rows of a batch without gradients, of each network


@dataclass(frozen=True)
class Request:
    """The arguments of `train`."""

    model: nn.Module
    data: TrainSet
    options: TrainOptions
    weights: Tensor | None
    key: Key


def why_not_stacked(one: Request) -> str | None:
    """Why a training cannot be part of a stack; None if it can."""
    options, data = one.options, one.data
    objective = options.objective
    checks = {
        "it augments its inputs": options.augment is not None,
        "it looks at the model after each epoch": options.look is not None,
        "it averages weights": options.keep == "average" and not objective.last,
        "it draws rows by weight": options.sampler != "shuffle",
        "its optimiser is a function": callable(options.optimiser),
        "its schedule is a function": callable(options.schedule),
        "it trains in float16": options.autocast == torch.float16,
        "its inputs are no tensor": not isinstance(data.inputs.cache, Tensor),
        "its loss is not cross-entropy": not isinstance(data.loss, CrossEntropy),
        "it has fewer than two rows": len(data.index) < 2,
        "it holds out labelled rows": data.validation is not None and data.validation.among_labelled,
        "its objective measures more than a loss": type(objective).losses is not Objective.losses
        and not _is_plain(objective),
        "its objective sweeps over all rows": objective.when != "batch",
        "its network has a penalty of its own": bool(penalised_modules(one.model)),
        "its network has frozen parameters": any(not value.requires_grad for value in one.model.parameters()),
    }
    return next((why for why, found in checks.items() if found), None)


def group_of(one: Request) -> tuple[Any, ...]:
    """What trainings must have equal to be in one stack."""
    options, validation = one.options, one.data.validation
    settings = [(name, value) for name, value in vars(options).items() if name != "objective"]
    objective = type(options.objective), repr(sorted(vars(options.objective).items()))
    valid = () if validation is None else (id(validation.inputs.pool), len(validation.index))
    cache = one.data.inputs.cache
    rows = tuple(cache.shape), cache.dtype, str(cache.device), len(one.data.index), one.data.loss
    return signature(one.model), repr(settings), objective, valid, rows


def train_stacked(requests: Sequence[Request], slots: int = 0, layout: Layout | None = None) -> list[TrainResult]:
    """Train the models of these requests in place; all are of one group.

    Args:
        requests: what to train; `why_not_stacked` has nothing against any of them.
        slots: the number of networks that the stack is filled up to.
        layout: of images in the stack; None leaves it to the stack.

    Raises:
        ArgumentError: the networks cannot be stacked.
        NumericsError: a loss became infinite.
    """
    began = time.perf_counter()
    training = _Stacked([*requests, *[requests[0]] * (slots - len(requests))], layout)
    results = training.run()[: len(requests)]
    with torch.no_grad():
        for best, own in zip(training.best, training.own):
            for value, target in zip(best, own[: len(requests)]):
                target.copy_(value)
    for one in requests:
        one.model.eval()
    share = (time.perf_counter() - began) / len(requests)
    return [
        TrainResult(result.state, {**result.notes, "stacked": len(training.requests), "seconds": share})
        for result in results
    ]


@dataclass
class _Ending:
    """How the training of one network has gone: its best epoch so far, and why it ended."""

    loss: float = float("inf")
    accuracy: float = float("-inf")
    train_loss: float = float("inf")
    train_accuracy: float = float("-inf")
    epoch: int = -1
    state: dict[str, Tensor] = field(default_factory=dict)
    epochs_right: int = 0
    epochs: int = 0
    stopped: str = ""
    last: _EpochResult | None = None


class _Stacked:
    """One training of a stack."""

    def __init__(self, requests: list[Request], layout: Layout | None):
        self.requests = requests
        first = requests[0]
        self.options, self.loss = first.options, first.data.loss
        self.device = device_and_dtype(first.model)[0]
        self.stack = Stack([one.model for one in requests], layout, self._noise())
        found = list(pairs(self.stack, [one.model for one in requests]))
        self.now, self.own = [value for value, _ in found], [own for _, own in found]
        self.best = [value.clone() for value in self.now]
        self.optimiser = self.options.make_optimiser(self.stack)
        self.schedule = self.options.make_schedule(self.optimiser)
        self.inputs = torch.stack([one.data.inputs.cache for one in requests])  # (S, n, ...)
        self.labels_Sn = torch.stack([one.data.labels for one in requests]).to(self.device)
        states = [one.options.objective.init(len(one.data.labels), one.weights) for one in requests]
        self.state: dict[str, Tensor] = {
            name: torch.stack([state[name] for state in states]).to(self.device) for name in states[0]
        }
        n = self.inputs.shape[1]
        self.first_S1 = (torch.arange(len(requests), device=self.device) * n)[:, None]
        self.has_after = type(self.options.objective).after is not Objective.after
        step: Callable[[Tensor], tuple[Tensor, ...]] = self._step
        if self.device.type == "cuda" and not self.stack.has_dropout:
            step = CapturedStep(self._step, self.device, partial(rates, self.optimiser))
        self.step = step

    def run(self) -> list[TrainResult]:
        """Train all networks to their ends."""
        options, objective = self.options, self.options.objective
        keep = "last" if objective.last else options.keep
        endings = [_Ending() for _ in self.requests]
        active = list(range(len(endings)))
        order = self._order(0)
        for epoch in range(options.epochs):
            self.stack.train()
            loss_nS, right_nS, index_nS = self._epoch(order)
            if epoch + 1 < options.epochs:
                order = self._order(epoch + 1)  # drawn while the device works
            weight_nS = self.state["weight"].gather(1, index_nS.t()).t().double()
            measured = [_mean(loss_nS, weight_nS), right_nS.double().mean(0)]
            measured.append(((right_nS | (weight_nS <= 0)).all(0)).double())
            valid = self._validate() if keep in ("loss", "accuracy") and self._has_validation() else None
            rows = torch.stack([*measured, *(valid or ())]).tolist()
            self.schedule(0.0)
            taken, ended = [], []
            for s in active:
                result = _EpochResult({}, rows[0][s], rows[0][s] < FITTED and rows[2][s] > 0, rows[1][s])
                loss, accuracy = (rows[3][s], rows[4][s]) if valid else (result.loss, result.accuracy)
                if not (abs(result.loss) < float("inf") and abs(loss) < float("inf")):
                    raise NumericsError(f"the loss of network {s} became {result.loss} in epoch {epoch + 1}.")
                one = endings[s]
                better = {"loss": loss < one.loss, "accuracy": accuracy >= one.accuracy, "last": True}[keep]
                if better:
                    one.loss, one.accuracy, one.epoch = loss, accuracy, epoch
                    one.train_loss, one.train_accuracy = result.loss, result.accuracy
                one.last, one.epochs = result, epoch + 1
                one.stopped = self._why_ended(one, result, better, keep, epoch)
                if better and (keep != "last" or one.stopped):
                    taken.append(s)
                if one.stopped:
                    ended.append(s)
            self._keep(taken, endings)
            active = [s for s in active if s not in ended]
            if not active:
                break
        return self._results(endings, keep)

    def _why_ended(self, one: _Ending, result: _EpochResult, better: bool, keep: str, epoch: int) -> str:
        """Why the training of a network ends after this epoch; "" if it continues. The rules of `train`."""
        options, objective = self.options, self.options.objective
        one.epochs_right += objective.stop is not None and result.accuracy >= objective.stop
        enough = objective.stop is not None and one.epochs_right >= objective.stop_times
        if enough and epoch + 1 >= objective.stop_from:
            return f"{100 * result.accuracy:.1f} % of the training rows right"
        if better:
            if not self._has_validation() and result.is_fitted and keep != "last":
                return "every training row fitted"
        elif options.patience is not None and epoch - one.epoch >= options.patience:
            which = "held-out" if self._has_validation() else "training"
            return f"no better {which} {keep} for {options.patience} epochs"
        return f"all {options.epochs} epochs run" if epoch + 1 == options.epochs else ""

    def _keep(self, networks: list[int], endings: list[_Ending]) -> None:
        """Save the weights and the objective's state of these networks."""
        if not networks:
            return
        at = torch.tensor(networks).to(self.device)
        for best, now in zip(self.best, self.now):
            best.index_copy_(0, at, now.index_select(0, at))
        for s in networks:
            endings[s].state = {name: value[s].clone() for name, value in self.state.items()}

    def _results(self, endings: list[_Ending], keep: str) -> list[TrainResult]:
        with torch.no_grad():
            for best, now in zip(self.best, self.now):
                now.copy_(best)
        valid = None
        if self._has_validation():
            valid = torch.stack(self._validate()).tolist() if keep == "last" else [[one.loss for one in endings]]
        results = []
        for s, (one, request) in enumerate(zip(endings, self.requests)):
            notes = {"epochs": one.epochs, "best_epoch": one.epoch + 1, "stopped": one.stopped, "loss": one.train_loss}
            if valid is not None:
                notes["held_out_loss"] = valid[0][s]
                if keep == "accuracy":
                    notes["held_out_accuracy"] = one.accuracy
            assert one.last is not None, "an epoch has run"
            warning = _weights_warning(one, one.last, request.data, keep, False)  # type: ignore[arg-type]
            results.append(TrainResult(one.state, {**notes, **({"warning": warning} if warning else {})}))
        return results

    def _order(self, epoch: int) -> list[Tensor]:
        """The batches (B, S) of an epoch, as positions of rows."""
        options = self.options
        batches = [
            split_epoch(one.data.index, options.batch, one.key.fold("order", epoch), None) for one in self.requests
        ]
        sizes = [len(one) for one in batches[0]]
        index_nS = torch.stack([torch.cat(one) for one in batches], 1)
        if self.device.type == "cuda":
            index_nS = index_nS.pin_memory()
        return list(index_nS.to(self.device, non_blocking=True).split(sizes))

    def _epoch(self, order: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        loss, right = (torch.cat(column) for column in zip(*(self.step(index_BS) for index_BS in order)))
        return loss, right, torch.cat(order)

    def _step(self, index_BS: Tensor) -> tuple[Tensor, ...]:
        """One step of every network on its rows: losses (B, S), and which rows were right."""
        options, index_SB = self.options, index_BS.t()
        shape = index_SB.shape
        rows = self.inputs.flatten(0, 1)[(index_SB + self.first_S1).flatten()].unflatten(0, shape)
        output = self.loss.output(self._forward(rows).flatten(0, 1), None, index_SB.numel())
        label = self.labels_Sn.gather(1, index_SB).flatten()
        loss_SB = self.loss.rows(output, label).view(shape)
        total = torch.vmap(options.objective.reduce)(loss_SB, index_SB, self.state).sum()
        self.optimiser.zero_grad()
        total.backward()
        if options.clamp is not None:
            nn.utils.clip_grad_value_(list(self.stack.parameters()), options.clamp)
        self.optimiser.step()
        if self.has_after:
            after: State = torch.vmap(options.objective.after)(loss_SB.detach(), index_SB, self.state)
            for name, value in self.state.items():
                value.copy_(after[name])
        return loss_SB.detach().t(), self.loss.right(output, label).view(shape).t()

    def _forward(self, rows: Tensor) -> Tensor:
        dtype = self.options.autocast
        precision = contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)
        with precision:
            output: Tensor = self.stack(rows)
        return output

    def _has_validation(self) -> bool:
        return self.requests[0].data.validation is not None

    def _validate(self) -> list[Tensor]:
        """Loss and accuracy (S,) of each network on the validation rows, which are the same for all."""
        data = self.requests[0].data.validation
        assert data is not None
        S, total = len(self.requests), len(data.index)
        inputs, labels = data.inputs.take(data.index), data.labels.to(self.device)
        loss_S = torch.zeros(S, dtype=torch.float64, device=self.device)
        right_S = loss_S.clone()
        self.stack.eval()
        with torch.no_grad():
            for rows, label_B in zip(inputs.to(self.device).split(_READ), labels.split(_READ)):
                out = self._forward(rows.expand(S, *rows.shape)).flatten(0, 1)
                output, label = self.loss.output(out, None, S * len(rows)), label_B.repeat(S)
                loss_S += self.loss.rows(output, label).view(S, -1).double().sum(1)
                right_S += self.loss.right(output, label).view(S, -1).double().sum(1)
        return [loss_S / total, right_S / total]

    def _noise(self) -> list[torch.Generator] | None:
        """A generator for each network, seeded as torch's own is when the network is trained alone."""
        return [
            torch.Generator(self.device).manual_seed(one.key.fold("noise").generator().initial_seed())
            for one in self.requests
        ]


def _is_plain(objective: Objective) -> bool:
    """Whether an objective is given the losses alone."""
    return getattr(objective, "secondary", None) is None and not callable(getattr(objective, "epsilon", None))


def _mean(value_nS: Tensor, weight_nS: Tensor) -> Tensor:
    """The weighted mean of each column; the plain one where all weights are 0."""
    total_S, value_nS = weight_nS.sum(0), value_nS.double()
    plain_S = value_nS.mean(0)
    return torch.where(total_S > 0, (value_nS * weight_nS).sum(0) / total_S.clamp_min(1e-300), plain_S)
