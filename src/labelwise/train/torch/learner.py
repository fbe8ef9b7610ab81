"""TorchLearner: trains any nn.Module on the labelled rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, LabelError
from labelwise.io.arguments import check_real
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.draws import posterior_draws
from labelwise.signals.draws.variational import reseed
from labelwise.signals.model.calibration import note_temperature
from labelwise.signals.model.forward import device_and_dtype, move_inputs
from labelwise.signals.model.head import Output
from labelwise.signals.model.reader import ModelReader
from labelwise.train.cross_val import out_of_fold_logits
from labelwise.train.learner import BaseLearner, Fit, TrainingData, check_labels, check_targets
from labelwise.train.objectives.loss import CrossEntropy, Loss, LossChoice, SquaredError, Target
from labelwise.train.objectives.objective import Mean, Objective, Sampled, State
from labelwise.train.torch.cross_validate import Choice, choose_options
from labelwise.train.torch.data import LabelledInputs, TrainSet, ValidationRows, check_validation, holdout_rows
from labelwise.train.torch.initialise import Factory, make_model, reinitialise, seeded
from labelwise.train.torch.options import (
    EPOCHS,
    LEAST_STEPS,
    CrossValidated,
    Keep,
    OptimiserChoice,
    SamplerChoice,
    ScheduleChoice,
    TrainOptions,
    is_of_transformers,
)
from labelwise.train.torch.stacked_training import Request
from labelwise.train.torch.together import train_in_group
from labelwise.train.torch.training_loop import TrainResult, read_outputs

CustomFit = Callable[[nn.Module, Any, Tensor, Tensor | None], None]


class TorchLearner(BaseLearner):
    """Trains a torch model by cross-entropy or squared error, from new weights each round or by a warm start.

    The model given is never changed: a copy is trained, and the trained one is at `fit.reader.model`. The same key and
    the same labels give the same weights, bit for bit, on the same machine (on a GPU as far as its kernels allow).

    >>> from labelwise.pool import Pool
    >>> pool = Pool.of(torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
    >>> learner = TorchLearner(lambda: nn.Linear(1, 2), lr=0.1, epochs=50, keep="last")
    >>> fit = learner.fit(pool, pool.ids, torch.tensor([0, 0, 1, 1]), classes=2, key=Key(0))
    >>> fit.notes["epochs"]
    50
    """

    def __init__(
        self,
        model: nn.Module | Factory,
        *,
        restart: bool | Literal["given"] | None = None,
        epochs: int | None = None,
        batch: int = 32,
        lr: float = 1e-3,
        weight_decay: float | None = None,
        momentum: float = 0.9,
        optimiser: OptimiserChoice = "adam",
        schedule: ScheduleChoice = "cosine",
        patience: int | None = 20,
        keep: Keep = "last",
        holdout: float | None = None,
        holdout_from: int = 200,
        valid: tuple[Any, Any] | None = None,
        cross_validate: CrossValidated | None = None,
        clamp: float | None = None,
        augment: Callable[[Any, torch.Generator], Any] | None = None,
        look: Callable[[nn.Module, int], float | None] | None = None,
        objective: Objective | None = None,
        sampler: SamplerChoice = "shuffle",
        loss: LossChoice = "cross_entropy",
        head: str | None = None,
        output: Output | None = None,
        autocast: torch.dtype | None = None,
        fit: CustomFit | None = None,
    ):
        """Make a learner of `model`.

        Args:
            model: an nn.Module, or a function without arguments that makes one.
            restart: True initialises the weights again each round, by the function or by `reset_parameters` of every
                layer; "given" starts each round from the weights of the module as given, which is right for
                pretrained ones; False starts from the weights of the round before (warm start). None is "given" for a
                module of the package transformers, else True.
            epochs: passes over the labelled rows; with early stopping the largest number of them. None is 100, and more
                for few rows, so that there are 1,000 gradient steps (but not for models of the package transformers).
            batch: rows in a gradient step.
            lr: the learning rate.
            weight_decay: the weight decay of the optimiser. None is 0.005, in proportion less for rows of numbers whose
                mean square is below 0.1, such as vectors of length 1, and 0 where the model is one of the package
                transformers or holds one. Embeddings, and layers with a penalty of their own, such as variational
                ones, have none.
            momentum: the momentum of "sgd".
            optimiser: "adam", "adamw", "sgd", or a function of the parameters that returns an optimiser.
            schedule: of the learning rate, stepped once an epoch: "cosine" lets it fall to 0 in `epochs`, None keeps
                it, or a function of the optimiser.
            patience: stop after this many epochs without a better one; only for keep="loss" and "accuracy". None never
                stops early.
            keep: which epoch's weights the fit ends with. "last": the last epoch. "average": the mean of the weights of
                the second half of the epochs. "loss": the epoch of lowest loss, on the held-out rows if there are any,
                else on the training rows. "accuracy": the epoch of highest accuracy on the same rows, the later of two
                that are equal; classes only.
            holdout: share of the labelled rows that are held out: those whose hash of (key of the session, id) is
                below it, the same in every round. "loss" and "accuracy" choose the epoch by them, and the temperature
                of LabelProbs is fitted on them. None is 0.1 for "loss" and "accuracy", else 0. Without held-out rows
                the temperature is 1, or comes from five-fold cross-validation where the strategy needs LabelProbs.
                With a warm start a held-out row is never trained on. With new weights each round none is held out
                below `holdout_from`, and never a class as a whole.
            holdout_from: the number of labelled rows from which on they are validated on.
            valid: (inputs or Pool, labels) to validate on in place of a hold-out.
            cross_validate: choose "epochs" (at most `epochs`) or "weight_decay" (0, 0.001, 0.01 or 0.1) by five-fold
                cross-validation inside the labelled rows, by accuracy and then by loss; in regression by loss. One fit
                on all labelled rows follows and ends with its last epoch; `keep`, `patience` and `holdout` have no
                effect, and with "epochs" the learning rate is constant. The same folds give the temperature of
                LabelProbs. It takes about 5 and 17 times as long.
            clamp: gradients are clipped to [-clamp, clamp], entry by entry; None leaves them as they are.
            augment: a function of (batch of inputs, generator) that returns the batch to train on.
            look: a function of (model, epoch) called after each epoch; the highest number it returns is noted as
                "looked".
            objective: what is minimised, from the losses of single rows: Mean() ignores weights, Weighted() uses
                them, PrimalDual() bounds every row's loss and holds out no rows. None is Mean().
            sampler: "shuffle" takes every row once an epoch; "weights" draws rows in proportion to their weights, with
                replacement, and minimises their plain losses. Weighted() and this are never combined.
            loss: "cross_entropy" for classes; "mse", the squared error, for numbers: the model has one output and
                learns (label - mean) / standard deviation of the labelled rows, which predictions undo.
            head: the name of the layer whose input is the embedding, where it cannot be found.
            output: where the logits are in what the model returns: a key, an index, or a function of it.
            autocast: a precision for mixed-precision training and reading, such as torch.bfloat16.
            fit: your own training in place of this one: a function of (model, inputs, labels, weights) that trains the
                model in place. It is given all labelled rows.

        Raises:
            ArgumentError: an argument is out of range, or does not fit another one.
            LabelError: `valid` does not have one label for each row.
        """
        if not isinstance(model, nn.Module) and not callable(model):
            raise ArgumentError(f"an nn.Module or a function that makes one was expected, not {model!r}.")
        if isinstance(model, nn.Module) and any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
            raise ArgumentError(
                "a copy of a TorchScript module cannot be trained. Pass the nn.Module that it was made from, or a "
                "function that makes the TorchScript module."
            )
        if restart not in (True, False, "given", None):
            raise ArgumentError(f'restart is True, False, "given" or None, not {restart!r}.')
        if holdout is None:
            holdout = 0.1 if keep in ("loss", "accuracy") else 0.0
        if not 0 <= check_real("holdout", holdout) < 1:
            raise ArgumentError(f"holdout is a share from 0 up to below 1, not {holdout}.")
        if loss not in ("cross_entropy", "mse"):
            raise ArgumentError(f'loss is "cross_entropy" or "mse", not {loss!r}.')
        if keep == "accuracy" and loss == "mse":
            raise ArgumentError('keep="accuracy" needs class labels; for numbers use keep="loss" or keep="last".')
        if cross_validate not in (None, "epochs", "weight_decay"):
            raise ArgumentError(f'cross_validate is "epochs", "weight_decay" or None, not {cross_validate!r}.')
        if cross_validate is not None and (valid is not None or fit is not None):
            raise ArgumentError("cross_validate= chooses by the labelled rows; leave valid= and fit= out.")
        if cross_validate == "epochs":
            if callable(schedule):
                raise ArgumentError('cross_validate="epochs" needs a constant learning rate; leave schedule= out.')
            schedule = None
        if cross_validate == "weight_decay" and callable(optimiser):
            raise ArgumentError('cross_validate="weight_decay" needs optimiser= by name: "adam", "adamw" or "sgd".')
        self.task = "regress" if loss == "mse" else "classify"
        self.model = model
        self.restart = ("given" if is_of_transformers(model) else True) if restart is None else restart
        self.warm_start = False  # set by a recipe that trains on from the round before
        self.calibrate = False  # set by a recipe whose strategy needs LabelProbs
        self.holdout = holdout
        self.holdout_from = holdout_from
        self.holdout_key = Key(0)  # a session sets its own
        self.valid = None if valid is None else check_validation(valid)
        self.cross_validate = cross_validate
        self.head = head
        self.custom_fit = fit
        self.options = TrainOptions(
            epochs=EPOCHS if epochs is None else epochs,
            least_steps=LEAST_STEPS if epochs is None else 0,
            batch=batch,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            optimiser=optimiser,
            schedule=schedule,
            patience=patience,
            keep=keep,
            augment=augment,
            objective=Mean() if objective is None else objective,
            output=output,
            autocast=autocast,
            sampler=sampler,
            clamp=clamp,
            look=look,
        )

    def fit_data(self, data: TrainingData) -> Fit:
        """Train on the labelled rows: classes, or numbers where the loss is "mse".

        Args:
            data: pool, ids, labels and weights of the labelled rows, classes and key.

        Returns:
            The fit.

        Raises:
            ArgumentError: the weights are all 0, the factory makes no module, or a warm start follows another kind of
                model.
            LabelError: a label is none of the classes or not finite, or none is left to train on.
            RowError: there is not one label or weight for each id.
        """
        ids, key = data.ids, data.key
        labels, target, loss = self._standard_labels(ids, data.labels, data.classes)
        model, draws = self._initial_model(key, data.previous), Key(key.fold("draws").small())
        reseed(model, draws)
        device, dtype = device_and_dtype(model)
        inputs = LabelledInputs(data.pool, ids)
        if self.options.augment is None:
            inputs.cache = move_inputs(inputs.cache, device, dtype)
        index, validation = self._split(inputs, labels, loss, target)
        if validation is not None and validation.inputs is not inputs:  # read after every epoch
            validation.inputs.cache = move_inputs(validation.inputs.cache, device, dtype)
        train_set = TrainSet(inputs, labels, index, loss, validation)
        choice = Choice(self.options, None, {})
        if self.cross_validate is not None:
            train_fold = partial(self._train_fold, train_set, data)
            options = self.options.for_rows(len(index), model)
            choice = choose_options(self.cross_validate, train_set, options, key, train_fold)
        if self.custom_fit is not None:
            with seeded(key.fold("noise"), device):
                self.custom_fit(model, move_inputs(inputs.take(index), device, dtype), labels.to(device), data.weights)
            model.eval()
            result = TrainResult({}, {"stopped": "trained by the function given as fit="})
        else:
            result = self._train(model, train_set, choice.options, data.weights, key, data.previous)
        notes, held_out = result.notes, ids[~torch.isin(torch.arange(len(ids)), index)]
        notes["warm_start"] = self._starts_warm() and data.previous is not None
        notes["held_out"] = len(held_out) if validation is None else len(validation.index)
        notes |= choice.notes
        if target is not None:
            temperature = 1.0
        elif self.cross_validate is not None:
            temperature = note_temperature(choice.logits, notes)
        else:
            temperature = self._fit_temperature(model, train_set, data, notes)
        is_repeatable = not self._starts_warm() and self.custom_fit is None and device.type == "cpu"
        state = None if is_repeatable else _save_state(model, temperature, result.state, target, draws, held_out)
        reader = self._make_reader(model, temperature, target, draws)
        return Fit(reader, ids, self._publish(result.state), notes, state, held_out)

    def with_objective(self, objective: Objective) -> TorchLearner:
        """Return a copy that minimises `objective`, or this learner if its own is of the same kind.

        Args:
            objective: what to minimise.

        Returns:
            A learner.

        Raises:
            ArgumentError: the learner trains by another objective, or by a function of the user's own.
        """
        current = self.options.objective
        if type(current) is type(objective):
            return self
        if self.custom_fit is not None:
            wants = "draw the minibatches" if isinstance(objective, Sampled) else "see the loss of every row"
            raise ArgumentError(
                f"{type(objective).__name__} has to {wants} while training, but this learner trains by the function "
                "given as fit=; leave fit= out."
            )
        if type(current) is not Mean:
            raise ArgumentError(
                f"the recipe trains by {type(objective).__name__}, the learner by {type(current).__name__}; leave "
                f"objective= out, or pass objective={type(objective).__name__}(...)."
            )
        if isinstance(objective, Sampled):
            return self.adapted(options=replace(self.options, objective=Mean(), sampler="weights"))
        return self.adapted(options=replace(self.options, objective=objective))

    def with_warm_start(self) -> TorchLearner:
        """Return a copy that starts each round from the weights of the round before, whatever `restart` is."""
        return self.adapted(warm_start=True)

    def with_calibration(self) -> TorchLearner:
        """Return a copy that fits the temperature of LabelProbs even if it holds out no rows."""
        return self.adapted(calibrate=True)

    def with_holdout_key(self, key: Key) -> TorchLearner:
        """Return a copy whose hold-out is drawn from `key`.

        Args:
            key: of the session.

        Returns:
            A learner.
        """
        return self.adapted(holdout_key=key)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Rebuild a fit from its `state`; `ids` (n,) are the rows it was trained on.

        Args:
            state: that of the fit.
            ids: (n,) of the rows it was trained on.

        Returns:
            The fit.
        """
        model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else make_model(self.model, Key(0))
        model.load_state_dict(_with_prefix(state, "model."))
        model.eval()
        temperature = float(state["temperature"])
        published = self._publish(_with_prefix(state, "objective."))
        target = Target(*state["target"].tolist()) if "target" in state else None
        reader = self._make_reader(model, temperature, target, Key(int(state["draws"])))
        return Fit(reader, ids, published, {"temperature": temperature}, state, state.get("held_out", ids[:0]))

    def _standard_labels(self, ids: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Target | None, Loss]:
        """Labels as they are trained on, their units if they are numbers, and the loss."""
        if self.task == "classify":
            return check_labels(ids, labels, classes), None, CrossEntropy(classes)
        values = check_targets(ids, labels)
        target = Target(0.0, 1.0) if self.custom_fit is not None else Target.of(values)
        return target.standard(values), target, SquaredError()

    def _initial_model(self, key: Key, previous: Fit | None) -> nn.Module:
        """The model at the start of a round."""
        if self._starts_warm() and previous is not None:
            reader = previous.reader
            if not isinstance(reader, ModelReader):
                raise ArgumentError(
                    "restart=False starts from a fit of a torch model; the fit of the round before was read by "
                    f"{type(reader).__name__}."
                )
            return copy.deepcopy(reader.model)
        if not isinstance(self.model, nn.Module):
            return make_model(self.model, key.fold("init"))
        return reinitialise(self.model, key.fold("init")) if self.restart is True else copy.deepcopy(self.model)

    def _starts_warm(self) -> bool:
        return self.restart is False or self.warm_start

    def _is_holdout(self, ids: Tensor, groups: Tensor) -> Tensor:
        """Which of the labelled rows (n,) are left out of training."""
        is_off = self.valid is not None or self.custom_fit is not None or self.cross_validate is not None
        is_warm = self._starts_warm()  # a row that was trained on once must never be validated on
        too_few = len(ids) < self.holdout_from and not is_warm
        if self.holdout == 0 or is_off or too_few or self.options.objective.whole:
            return torch.zeros(len(ids), dtype=torch.bool)
        is_out = holdout_rows(ids, groups, self.holdout, self.holdout_key, strict=is_warm)
        if bool(is_out.all()):
            raise LabelError(
                f"all {len(ids)} labelled rows are held out; label more rows, or lower holdout={self.holdout}."
            )
        return is_out

    def _split(
        self, inputs: LabelledInputs, labels: Tensor, loss: Loss, target: Target | None
    ) -> tuple[Tensor, ValidationRows | None]:
        """Positions of the labelled rows that are trained on, and the rows to validate on."""
        if self.valid is not None:
            return torch.arange(len(labels)), self._given_validation(self.valid, loss, target)
        groups = labels if target is None else torch.zeros(len(labels), dtype=torch.int64)
        is_out = self._is_holdout(inputs.ids, groups)
        index, out = (~is_out).nonzero()[:, 0], is_out.nonzero()[:, 0]
        if len(out) == 0 or len(labels) < self.holdout_from:
            return index, None
        return index, ValidationRows(inputs, out, labels[out], among_labelled=True)

    def _given_validation(self, valid: tuple[Pool, Tensor], loss: Loss, target: Target | None) -> ValidationRows:
        pool, labels = valid
        if isinstance(loss, CrossEntropy):
            labels = check_labels(pool.ids, labels, loss.classes)
        elif target is not None:
            labels = target.standard(check_targets(pool.ids, labels))
        every = torch.arange(len(labels))
        return ValidationRows(LabelledInputs(pool, pool.ids), every, labels, among_labelled=False)

    def _train(
        self,
        model: nn.Module,
        data: TrainSet,
        options: TrainOptions,
        weights: Tensor | None,
        key: Key,
        previous: Fit | None,
    ) -> TrainResult:
        """Train `model`; if the objective has a parameter to be measured, train another one for that first."""
        measured: dict[str, float] = {}
        index = data.index if weights is None else data.index[weights[data.index] > 0]
        rows = data.inputs.take(index) if isinstance(data.inputs.cache, Tensor) else None  # no row is read for this
        options = options.for_rows(len(data.index), model).for_inputs(rows, model)
        options.objective.check(data.labels)
        probe = options.objective.probe()
        if probe is not None:
            first = self._initial_model(key, previous)
            probed = train_in_group(Request(first, data, replace(options, objective=probe), weights, key))
            objective, measured = options.objective.settled(probed.notes["loss"])
            options = replace(options, objective=objective)
        result = train_in_group(Request(model, data, options, weights, key))
        return TrainResult(result.state, {**result.notes, **measured})

    def _fit_temperature(
        self, model: nn.Module, train_set: TrainSet, data: TrainingData, notes: dict[str, Any]
    ) -> float:
        """The temperature of LabelProbs, with a note where nothing determines it."""
        rows = train_set.validation
        if rows is not None:
            logits = read_outputs(model, rows.inputs, rows.index, train_set.loss, self.options).cpu()
            return note_temperature((logits, rows.labels), notes)
        if not self.calibrate or self.custom_fit is not None:
            return note_temperature(None, notes)
        predict = partial(self._predict_fold, train_set, data)
        logits_and_labels = out_of_fold_logits(data.ids, train_set.labels, data.key, predict)
        notes["left_out"] = 0 if logits_and_labels is None else len(logits_and_labels[1])
        return note_temperature(logits_and_labels, notes)

    def _predict_fold(self, train_set: TrainSet, data: TrainingData, index: Tensor, test: Tensor) -> Tensor:
        """Logits of the rows at `test` by a model trained on those at `index` alone."""
        model = self._train_fold(train_set, data, index, replace(self.options, look=None))
        return read_outputs(model, train_set.inputs, test, train_set.loss, self.options).cpu()

    def _train_fold(self, train_set: TrainSet, data: TrainingData, index: Tensor, options: TrainOptions) -> nn.Module:
        """A model with new weights, trained on the rows at `index` alone."""
        key = data.key.fold("left out")
        model = self._initial_model(key, None)
        reseed(model, Key(key.fold("draws").small()))
        self._train(model, replace(train_set, index=index), options, data.weights, key, None)
        return model

    def _make_reader(self, model: nn.Module, temperature: float, target: Target | None, key: Key) -> ModelReader:
        return ModelReader(
            model,
            head=self.head,
            output=self.options.output,
            autocast=self.options.autocast,
            temperature=temperature,
            units=None if target is None else (target.mean, target.spread),
            draws=posterior_draws(model, key),
        )

    def _publish(self, state: State) -> dict[Any, Tensor]:
        columns = self.options.objective.publish(state) if state else {}
        return {signal: column.detach().cpu() for signal, column in columns.items()}


def _save_state(
    model: nn.Module, temperature: float, state: State, target: Target | None, draws: Key, held_out: Tensor
) -> dict[str, Tensor]:
    """All that `TorchLearner.restore` needs, as one flat dict of tensors."""
    saved = {"temperature": torch.tensor(temperature, dtype=torch.float64), "draws": torch.tensor(draws.seed)}
    if len(held_out):
        saved["held_out"] = held_out
    if target is not None:
        saved["target"] = torch.tensor([target.mean, target.spread], dtype=torch.float64)
    saved |= {f"model.{name}": value.detach().cpu().clone() for name, value in model.state_dict().items()}
    return saved | {f"objective.{name}": value.detach().cpu().clone() for name, value in state.items()}


def _with_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose name begins with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
