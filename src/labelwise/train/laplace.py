"""A learner with draws from a Gaussian around the trained last layer; training is left as it is."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, ModelError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.draws.draws import HeadDraws, check_draws
from labelwise.signals.draws.laplace import Curvature
from labelwise.signals.model.forward import ModelReader, device_and_dtype
from labelwise.signals.model.head import named_module
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, Probs
from labelwise.train.fit import Fit, Learner
from labelwise.train.learner import learner_of
from labelwise.train.objectives.objective import Objective
from labelwise.train.training_data import Lesson, Taught, calibrating, going_on, with_objective


class LaplaceLearner(Taught):
    """Trains by another learner, then takes the curvature of the last layer on the labelled rows.

    Probs and all else are those of the trained model; LogProbs come from draws of its last layer.
    """

    def __init__(self, learner: Learner, draws: int = 100, precision: float | None = None):
        check_draws(draws)
        if precision is not None and not 0 < precision < math.inf:
            raise ArgumentError(
                f"precision is a finite number above 0, or None to find it from the labelled rows; found {precision!r}"
            )
        if getattr(learner, "task", "classify") != "classify":
            raise ArgumentError(
                "laplace() draws last layers that give class probabilities; the learner is made for numbers. For "
                "numbers use the learner itself, or lw.ensemble(learner)."
            )
        self.learner = learner
        self.draws = draws
        self.precision = precision

    def learn(self, lesson: Lesson) -> Fit:
        """Train on the rows of the lesson, then draw last layers."""
        own = self.learner.fit(
            *(lesson.pool, lesson.ids, lesson.labels),
            weights=lesson.weights,
            classes=lesson.classes,
            key=lesson.key,
            previous=lesson.previous,
        )
        if not isinstance(own.reader, ModelReader):
            raise ArgumentError(f"laplace() takes a torch model; the fit is read by {type(own.reader).__name__}.")
        draws, precision = self._drawn(own.reader, lesson.pool, lesson.ids, lesson.key.fold("laplace"))
        notes = {**own.notes, "precision": precision, "draws": self.draws}
        state = own.state
        if state is not None:
            state = {**state, "laplace.weight": draws.weight_KOD}
            if draws.bias_KO is not None:
                state["laplace.bias"] = draws.bias_KO
        return Fit(_with_draws(own.reader, draws), lesson.ids, own.published, notes, state)

    def with_objective(self, objective: Objective) -> LaplaceLearner | None:
        """A learner like this one whose own trains by `objective`."""
        learner = with_objective(self.learner, objective)
        return None if learner is None else LaplaceLearner(learner, self.draws, self.precision)

    def going_on(self) -> LaplaceLearner:
        """A learner like this one whose own goes on from the weights of the round before."""
        return LaplaceLearner(going_on(self.learner), self.draws, self.precision)

    def calibrating(self) -> LaplaceLearner:
        """A learner like this one whose own fits a temperature also where it holds no rows out."""
        return LaplaceLearner(calibrating(self.learner), self.draws, self.precision)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """The fit whose `state` this is; `ids` are the rows it was trained on."""
        rest = {name: value for name, value in state.items() if not name.startswith("laplace.")}
        own = self.learner.restore(rest, ids)
        assert isinstance(own.reader, ModelReader), "only fits of torch models were saved"
        draws = HeadDraws(state["laplace.weight"], state.get("laplace.bias"))
        return Fit(_with_draws(own.reader, draws), ids, own.published, own.notes, state)

    def _drawn(self, reader: ModelReader, pool: Pool, ids: Tensor, key: Key) -> tuple[HeadDraws, float]:
        """Draws of the last layer, and the precision of its prior."""
        curvature: Curvature | None = None
        for rows in read(reader, pool, ids, (Probs(), Embedding())):
            weight_OD, biased = _last_layer(reader)
            h_BD = rows.tensor(Embedding())
            h_BD = torch.cat([h_BD, torch.ones_like(h_BD[:, :1])], 1) if biased else h_BD
            if curvature is None:
                check_draws(self.draws, weight_OD.numel())
                curvature = Curvature(len(weight_OD), weight_OD.shape[1])
            curvature.add(rows.tensor(Probs()), h_BD)
        assert curvature is not None, "a fit has labelled rows"
        spectrum = curvature.spectrum()
        precision = spectrum.precision(weight_OD) if self.precision is None else float(self.precision)
        drawn_KOD = spectrum.draws(weight_OD, precision, self.draws, key).to(weight_OD.dtype)
        if not biased:
            return HeadDraws(drawn_KOD, None), precision
        return HeadDraws(drawn_KOD[:, :, :-1].contiguous(), drawn_KOD[:, :, -1].contiguous()), precision


def laplace(model: Any, draws: int = 100, precision: float | None = None) -> LaplaceLearner:
    """A learner whose trained model has `draws` draws of its last layer, by a Laplace approximation.

    Args:
        model: a torch module, a function that makes one, or a TorchLearner.
        draws: how many draws LogProbs have.
        precision: of the Gaussian prior of the last layer's weights; None takes the one under which the labelled rows
            are most probable.
    """
    return LaplaceLearner(learner_of(model), draws, precision)


def _last_layer(reader: ModelReader) -> tuple[Tensor, bool]:
    """The weights (O, D) of the last layer on the CPU, its bias as one more column, and whether it has one."""
    layer = named_module(reader.model, str(reader.head_name))
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"laplace() takes a model whose last layer is an nn.Linear; {reader.head_name!r} is a "
            f"{type(layer).__name__}."
        )
    weight_OD = layer.weight.detach().cpu()
    if layer.bias is None:
        return weight_OD, False
    return torch.cat([weight_OD, layer.bias.detach().cpu()[:, None]], 1), True


def _with_draws(reader: ModelReader, draws: HeadDraws) -> ModelReader:
    other = copy.copy(reader)
    other.draws = draws.on(device_and_dtype(reader.model)[0])
    return other
