"""TorchLearner: trains any nn.Module on the labelled rows and reads it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.signals.draws.posterior import posterior_draws
from labelwise.signals.draws.variational import reseed
from labelwise.signals.model.calibration import note_temperature
from labelwise.signals.model.forward import ModelReader, device_and_dtype, move_inputs
from labelwise.signals.model.head import Output
from labelwise.train.cross_val import left_out
from labelwise.train.fit import Fit, checked_labels, checked_targets
from labelwise.train.objectives.loss import CrossEntropy, Loss, LossChoice, SquaredError, Target
from labelwise.train.objectives.objective import Mean, Objective, State
from labelwise.train.torch.arguments import check_keep, check_numbers, validation
from labelwise.train.torch.epochs import Trained, outputs_at, train
from labelwise.train.torch.initialise import Factory, chance, made, redrawn
from labelwise.train.torch.inputs import LabelledInputs, held_out
from labelwise.train.torch.optimiser import OptimiserChoice, ScheduleChoice, check_choices
from labelwise.train.torch.sampler import SamplerChoice, check_sampler
from labelwise.train.torch.state import part_of, saved_state
from labelwise.train.torch.task import Keep, Task, Training, Watch
from labelwise.train.training_data import Lesson, Taught

OwnFit = Callable[[nn.Module, Any, Tensor, Tensor | None], None]


class TorchLearner(Taught):
    """Trains a torch model by cross-entropy or squared error, anew each round or on from the round before.

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
        keep: Keep = "loss",
        holdout: float = 0.1,
        holdout_from: int = 200,
        valid: tuple[Any, Any] | None = None,
        clamp: float | None = None,
        augment: Callable[[Any, torch.Generator], Any] | None = None,
        look: Callable[[nn.Module, int], float | None] | None = None,
        objective: Objective | None = None,
        sampler: SamplerChoice = "shuffle",
        loss: LossChoice = "cross_entropy",
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
            patience: stop after so many epochs without a better one, by `keep`; None never stops early.
            keep: which epoch's weights the fit ends with. "loss": the epoch of lowest loss, on the held-out rows where
                there are some, else on the training rows. "accuracy": the epoch of highest accuracy on the same rows,
                the later of two that are equal; classes only. "last": the last epoch; all `epochs` are run, and
                `patience` has no effect. A hold-out is then used for nothing but the temperature and the note
                "held_out_loss", so pass holdout=0 to train on every labelled row.
            holdout: share of the labelled rows that are not trained on. Early stopping watches their loss, and the
                temperature of LabelProbs is fitted on them. With fewer than `holdout_from` labelled rows, or 0, none
                are held out, early stopping watches the training loss, and the temperature is 1; where the strategy
                asks for LabelProbs, five models trained on four fifths of the rows each say what it is.
            valid: (inputs or Pool, labels) to watch instead of a hold-out.
            clamp: no entry of a gradient goes further from 0 in a step; None leaves gradients as they are.
            augment: a function (batch of inputs, generator) that gives the batch to train on.
            look: a function (model, epoch) called after each epoch; the highest number it gives is noted as "looked".
            objective: what is minimised, from the losses of single rows; Mean() leaves weights aside. PrimalDual()
                holds no row out.
            sampler: "shuffle" takes every row once an epoch; "weights" draws rows in proportion to their weights, with
                replacement, and their plain losses are minimised. Weighted() and this are never combined.
            loss: "cross_entropy" for classes; "mse", the squared error, for numbers: the model has one output and
                learns (label - mean) / standard deviation of the labelled rows, which predictions undo.
            head: the name of the layer whose input is the embedding, where it cannot be found.
            output: where the logits are in what the model returns: a key, a place, or a function of it.
            autocast: a precision for mixed-precision training and reading, such as torch.bfloat16.
            fit: your own training instead of all this, a function (model, inputs, labels, weights) that trains the
                model in place. It gets all labelled rows.
        """
        if not isinstance(model, nn.Module) and not callable(model):
            raise ArgumentError(f"an nn.Module or a function that makes one was expected, not {model!r}.")
        check_numbers(restart, epochs, batch, lr, patience, holdout, clamp)
        check_keep(keep, loss)
        check_choices(optimiser, schedule)
        check_sampler(sampler, objective)
        if loss not in ("cross_entropy", "mse"):
            raise ArgumentError(f'loss is "cross_entropy" or "mse", not {loss!r}.')
        self.task = "regress" if loss == "mse" else "classify"
        self.model = model
        self.restart = restart
        self.goes_on = False  # set by a recipe that trains on from the round before
        self.calibrates = False  # set by a recipe whose strategy asks for LabelProbs
        self.holdout = holdout
        self.holdout_from = holdout_from
        self.valid = None if valid is None else validation(valid)
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
            sampler,
            clamp,
            look,
            keep,
        )

    def learn(self, lesson: Lesson) -> Fit:
        """Train on the rows of the lesson: classes, or numbers where the loss is "mse"."""
        ids, key, previous = lesson.ids, lesson.key, lesson.previous
        labels, target, loss = self._labels(ids, lesson.labels, lesson.classes)
        model, draws = self._start(key, previous), Key(key.fold("draws").small())
        reseed(model, draws)
        device, dtype = device_and_dtype(model)
        rows = LabelledInputs(lesson.pool, ids)
        if self.how.augment is None:
            rows.held = move_inputs(rows.held, device, dtype)
        at, watch = self._split(rows, labels, loss, target, key)
        if watch is not None and watch.rows is not rows:  # looked at after every epoch
            watch.rows.held = move_inputs(watch.rows.held, device, dtype)
        task = Task(rows, labels, at, loss, watch)
        if self.own_fit is not None:
            with chance(key.fold("noise"), device):
                self.own_fit(model, move_inputs(rows.take(at), device, dtype), labels.to(device), lesson.weights)
            model.eval()
            trained = Trained({}, {"stopped": "trained by the function given as fit="})
        else:
            trained = self._train(model, task, lesson.weights, key, previous)
        notes = trained.notes
        notes["held_out"] = 0 if watch is None else len(watch.at)
        temperature = 1.0 if target is not None else self._temperature(model, task, lesson, notes)
        again = self.restart is not False and not self.goes_on and self.own_fit is None and device.type == "cpu"
        saved = None if again else saved_state(model, temperature, trained.state, target, draws)
        return Fit(self._reader(model, temperature, target, draws), ids, self._published(trained.state), notes, saved)

    def with_objective(self, objective: Objective) -> TorchLearner:
        """A learner like this one that trains by `objective`; its own stays where it is of the same kind."""
        own = self.how.objective
        if type(own) is type(objective):
            return self
        if self.own_fit is not None:
            raise ArgumentError(
                f"{type(objective).__name__} has to see the loss of every row while training, but this learner trains "
                "by the function given as fit=; leave fit= out."
            )
        if type(own) is not Mean:
            raise ArgumentError(
                f"the recipe trains by {type(objective).__name__}, the learner by {type(own).__name__}; leave "
                f"objective= out, or pass objective={type(objective).__name__}(...)."
            )
        other = copy.copy(self)
        other.how = replace(self.how, objective=objective)
        return other

    def going_on(self) -> TorchLearner:
        """A learner like this one that goes on from the weights of the round before, whatever `restart` says."""
        other = copy.copy(self)
        other.goes_on = True
        return other

    def calibrating(self) -> TorchLearner:
        """A learner like this one that fits the temperature of LabelProbs also where it holds no rows out."""
        other = copy.copy(self)
        other.calibrates = True
        return other

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """The fit whose `state` this is; `ids` are the rows it was trained on."""
        model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else made(self.model, Key(0))
        model.load_state_dict(part_of(state, "model."))
        model.eval()
        temperature = float(state["temperature"])
        published = self._published(part_of(state, "objective."))
        target = Target(*state["target"].tolist()) if "target" in state else None
        reader = self._reader(model, temperature, target, Key(int(state["draws"])))
        return Fit(reader, ids, published, {"temperature": temperature}, state)

    def _labels(self, ids: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Target | None, Loss]:
        """Labels as they are trained on, their units where they are numbers, and the loss."""
        if self.task == "classify":
            return checked_labels(ids, labels, classes), None, CrossEntropy(classes)
        values = checked_targets(ids, labels)
        target = Target(0.0, 1.0) if self.own_fit is not None else Target.of(values)
        return target.standard(values), target, SquaredError()

    def _train(self, model: nn.Module, task: Task, weights: Tensor | None, key: Key, previous: Fit | None) -> Trained:
        """Train `model`, after another one first where the objective has a parameter to be measured."""
        how, device = self.how, device_and_dtype(model)[0]
        measured: dict[str, float] = {}
        probe = how.objective.probe()
        if probe is not None:
            with chance(key.fold("noise"), device):
                first = train(self._start(key, previous), task, replace(how, objective=probe), weights, key)
            objective, measured = how.objective.settled(first.notes["loss"])
            how = replace(how, objective=objective)
        with chance(key.fold("noise"), device):
            trained = train(model, task, how, weights, key)
        return Trained(trained.state, {**trained.notes, **measured})

    def _start(self, key: Key, previous: Fit | None) -> nn.Module:
        """The model at the start of a round."""
        if (self.restart is False or self.goes_on) and previous is not None:
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

    def _split(
        self, rows: LabelledInputs, labels: Tensor, loss: Loss, target: Target | None, key: Key
    ) -> tuple[Tensor, Watch | None]:
        """Which labelled rows are trained on, and which rows are watched."""
        everything = torch.arange(len(labels))
        few = self.holdout == 0 or len(labels) < self.holdout_from
        if few or self.valid is not None or self.own_fit is not None or self.how.objective.whole:
            return everything, self._watch(loss, target)
        groups = labels if target is None else torch.zeros(len(labels), dtype=torch.int64)
        at, out = held_out(rows.ids, groups, self.holdout, key.fold("holdout"))
        return (at, Watch(rows, out, labels[out], weighed=True)) if len(out) else (everything, None)

    def _watch(self, loss: Loss, target: Target | None) -> Watch | None:
        """The validation rows that were given."""
        if self.valid is None:
            return None
        pool, labels = self.valid
        if isinstance(loss, CrossEntropy):
            labels = checked_labels(pool.ids, labels, loss.classes)
        elif target is not None:
            labels = target.standard(checked_targets(pool.ids, labels))
        return Watch(LabelledInputs(pool, pool.ids), torch.arange(len(labels)), labels, weighed=False)

    def _temperature(self, model: nn.Module, task: Task, lesson: Lesson, notes: dict[str, Any]) -> float:
        """The temperature of LabelProbs, with a note where nothing determines it."""
        if task.watch is not None:
            logits = outputs_at(model, task.watch.rows, task.watch.at, task.loss, self.how).cpu()
            return note_temperature((logits, task.watch.labels), notes)
        if not self.calibrates or self.own_fit is not None:
            return note_temperature(None, notes)
        found = left_out(lesson.ids, task.labels, lesson.key, partial(self._left_out, task, lesson))
        notes["left_out"] = 0 if found is None else len(found[1])
        return note_temperature(found, notes)

    def _left_out(self, task: Task, lesson: Lesson, rest: Tensor, out: Tensor) -> Tensor:
        """Logits of the rows at `out` by a model trained on those at `rest` alone."""
        quiet, key = copy.copy(self), lesson.key.fold("left out")
        quiet.how = replace(self.how, look=None)
        model = self._start(key, None)
        reseed(model, Key(key.fold("draws").small()))
        quiet._train(model, replace(task, at=rest), lesson.weights, key, None)
        return outputs_at(model, task.rows, out, task.loss, self.how).cpu()

    def _reader(self, model: nn.Module, temperature: float, target: Target | None, key: Key) -> ModelReader:
        return ModelReader(
            model,
            head=self.head,
            output=self.how.output,
            autocast=self.how.autocast,
            temperature=temperature,
            units=None if target is None else (target.mean, target.spread),
            draws=posterior_draws(model, key),
        )

    def _published(self, state: State) -> dict[Any, Tensor]:
        columns = self.how.objective.publish(state) if state else {}
        return {signal: column.detach().cpu() for signal, column in columns.items()}
