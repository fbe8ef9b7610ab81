"""TorchLearner: trains any nn.Module on the labelled rows and reads it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, LabelError
from labelwise.keys import Key
from labelwise.pool import Pool
from labelwise.signals.calibrate import label_temperature
from labelwise.signals.forward import ModelReader, home, moved
from labelwise.signals.head import Output
from labelwise.train.epochs import Task, Training, Watch, train, watched_logits
from labelwise.train.fit import Fit, checked_labels
from labelwise.train.labelled import LabelledInputs, held_out
from labelwise.train.objective import Mean, Objective, State
from labelwise.train.optimiser import OptimiserChoice, ScheduleChoice, check_choices
from labelwise.train.restart import Factory, chance, made, redrawn

OwnFit = Callable[[nn.Module, Any, Tensor, Tensor | None], None]


class TorchLearner:
    """Trains a torch model by cross-entropy, anew each round or on from the round before.

    The model given is never changed: a copy is trained, and the trained one is at `fit.reader.model`. Same key and
    same labels give the same weights, bit for bit, on the same machine (on a GPU as far as its kernels allow).
    """

    def __init__(
        self,
        model: nn.Module | Factory,
        *,
        restart: bool | Literal["given"] = True,
        epochs: int = 200,
        batch: int = 64,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        optimiser: OptimiserChoice = "adam",
        schedule: ScheduleChoice = None,
        patience: int | None = 20,
        holdout: float = 0.1,
        holdout_from: int = 200,
        valid: tuple[Any, Any] | None = None,
        augment: Callable[[Any, torch.Generator], Any] | None = None,
        objective: Objective | None = None,
        head: str | None = None,
        output: Output | None = None,
        autocast: torch.dtype | None = None,
        fit: OwnFit | None = None,
    ):
        """A learner of `model`, an nn.Module or a function without arguments that makes one.

        Args:
            restart: True draws the weights anew each round (by the factory, or by `reset_parameters` of every layer);
                "given" starts each round from the weights of the module as given, which is what pretrained ones
                want; False goes on from the weights of the round before.
            epochs: at most so many passes over the labelled rows, `batch` rows in a step.
            optimiser: "adam", "adamw", "sgd" (which uses `momentum`), or a function of the parameters.
            schedule: of the learning rate, stepped once an epoch: "cosine", or a function of the optimiser.
            patience: stop after so many epochs without a lower loss; None never stops early.
            holdout: share of the labelled rows that are not trained on. Early stopping watches their loss, and the
                temperature of LabelProbs is fitted on them. With fewer than `holdout_from` labelled rows, or 0, none
                are held out, early stopping watches the training loss, and the temperature is 1.
            valid: (inputs or Pool, labels) to watch instead of a hold-out.
            augment: a function (batch of inputs, generator) that gives the batch to train on.
            objective: what is minimised, from the losses of single rows; Mean() leaves weights aside.
            head: the name of the layer whose input is the embedding, where it cannot be found.
            output: where the logits are in what the model returns: a key, a place, or a function of it.
            autocast: a precision for mixed-precision training and reading, such as torch.bfloat16.
            fit: your own training instead of all this, a function (model, inputs, labels, weights) that trains the
                model in place. It gets all labelled rows.
        """
        if not isinstance(model, nn.Module) and not callable(model):
            raise ArgumentError(f"an nn.Module or a function that makes one was expected, not {model!r}.")
        _check_numbers(restart, epochs, batch, lr, patience, holdout)
        check_choices(optimiser, schedule)
        self.model = model
        self.restart = restart
        self.holdout = holdout
        self.holdout_from = holdout_from
        self.valid = None if valid is None else _validation(valid)
        self.head = head
        self.own_fit = fit
        self.how = Training(
            epochs,
            batch,
            lr,
            weight_decay,
            momentum,
            optimiser,
            schedule,
            patience,
            augment,
            Mean() if objective is None else objective,
            output,
            autocast,
        )

    def fit(
        self,
        pool: Pool,
        ids: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        classes: int,
        key: Key,
        previous: Fit | None = None,
    ) -> Fit:
        """Train on the rows `ids` with `labels` 0..classes-1."""
        labels = checked_labels(ids, labels, classes)
        model = self._start(key, previous)
        device, dtype = home(model)
        rows = LabelledInputs(pool, ids)
        if self.how.augment is None:
            rows.held = moved(rows.held, device, dtype)
        own = self.own_fit is not None
        at, watch = (torch.arange(len(ids)), self._watch(classes)) if own else self._split(rows, labels, classes, key)
        with chance(key.fold("noise"), device):
            if self.own_fit is not None:
                everything = moved(rows.take(at), device, dtype)
                self.own_fit(model, everything, labels.to(device), weights)
                model.eval()
                state: State = {}
                notes: dict[str, Any] = {"stopped": "trained by the function given as fit="}
            else:
                trained = train(model, Task(rows, labels, at, classes, watch), self.how, weights, key)
                state, notes = trained.state, trained.notes
        notes["held_out"] = 0 if watch is None else len(watch.at)
        temperature = self._temperature(model, watch, notes)
        again = self.restart is not False and not own and device.type == "cpu"
        saved = None if again else _saved(model, temperature, state)
        return Fit(self._reader(model, temperature), ids, self._published(state), notes, saved)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """The fit whose `state` this is; `ids` are the rows it was trained on."""
        model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else made(self.model, Key(0))
        model.load_state_dict(_part(state, "model."))
        model.eval()
        temperature = float(state["temperature"])
        published = self._published(_part(state, "objective."))
        return Fit(self._reader(model, temperature), ids, published, {"temperature": temperature}, state)

    def _start(self, key: Key, previous: Fit | None) -> nn.Module:
        """The model at the start of a round."""
        if self.restart is False and previous is not None:
            reader = previous.reader
            if not isinstance(reader, ModelReader):
                raise ArgumentError(
                    "restart=False goes on from a fit of a torch model; the fit before was read by "
                    f"{type(reader).__name__}."
                )
            return copy.deepcopy(reader.model)
        if not isinstance(self.model, nn.Module):
            return made(self.model, key.fold("init"))
        return redrawn(self.model, key.fold("init")) if self.restart is True else copy.deepcopy(self.model)

    def _split(self, rows: LabelledInputs, labels: Tensor, classes: int, key: Key) -> tuple[Tensor, Watch | None]:
        """Which labelled rows are trained on, and which rows are watched."""
        everything = torch.arange(len(labels))
        if self.valid is not None or self.holdout == 0 or len(labels) < self.holdout_from:
            return everything, self._watch(classes)
        at, out = held_out(rows.ids, labels, self.holdout, key.fold("holdout"))
        return (at, Watch(rows, out, labels[out], weighed=True)) if len(out) else (everything, None)

    def _watch(self, classes: int) -> Watch | None:
        """The validation rows that were given."""
        if self.valid is None:
            return None
        pool, labels = self.valid
        labels = checked_labels(pool.ids, labels, classes)
        return Watch(LabelledInputs(pool, pool.ids), torch.arange(len(labels)), labels, weighed=False)

    def _temperature(self, model: nn.Module, watch: Watch | None, notes: dict[str, Any]) -> float:
        """The temperature of LabelProbs, with a note where nothing determines it."""
        temperature, note = 1.0, "no held-out rows: LabelProbs are Probs"
        if watch is not None:
            logits_MC = watched_logits(model, watch, self.how.output, self.how.autocast)
            temperature, note = label_temperature(logits_MC.cpu(), watch.labels)
        if note:
            notes["temperature_note"] = note
        notes["temperature"] = temperature
        return temperature

    def _reader(self, model: nn.Module, temperature: float) -> ModelReader:
        how = self.how
        return ModelReader(model, head=self.head, output=how.output, autocast=how.autocast, temperature=temperature)

    def _published(self, state: State) -> dict[Any, Tensor]:
        columns = self.how.objective.publish(state) if state else {}
        return {signal: column.detach().cpu() for signal, column in columns.items()}


def _saved(model: nn.Module, temperature: float, state: State) -> dict[str, Tensor]:
    saved = {"temperature": torch.tensor(temperature, dtype=torch.float64)}
    saved |= {f"model.{name}": value.detach().cpu().clone() for name, value in model.state_dict().items()}
    return saved | {f"objective.{name}": value.detach().cpu().clone() for name, value in state.items()}


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _validation(valid: Any) -> tuple[Pool, Tensor]:
    if not isinstance(valid, tuple) or len(valid) != 2:
        raise ArgumentError("valid is a pair (inputs or Pool, labels).")
    inputs, labels = valid
    pool = inputs if isinstance(inputs, Pool) else Pool.of(inputs)
    labels = torch.as_tensor(labels)
    if labels.shape != (len(pool),):
        raise LabelError(f"valid: {len(pool)} labels were expected, shape {tuple(labels.shape)} was found.")
    return pool, labels


def _check_numbers(
    restart: bool | str, epochs: int, batch: int, lr: float, patience: int | None, holdout: float
) -> None:
    if restart not in (True, False, "given"):
        raise ArgumentError(f'restart is True, False or "given", not {restart!r}.')
    for name, value in (("epochs", epochs), ("batch", batch), ("patience", patience)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name} is at least 1, not {value}.")
    if not lr > 0:
        raise ArgumentError(f"lr is above 0, not {lr}.")
    if not 0 <= holdout < 1:
        raise ArgumentError(f"holdout is a share from 0 up to below 1, not {holdout}.")
