"""Laplace approximation of the last layer: draws from a Gaussian around its trained weights. Training is unchanged."""

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
from labelwise.signals.model.forward import device_and_dtype
from labelwise.signals.model.head import named_module
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, Probs
from labelwise.train.learner import Fit, Learner, TrainingData, WrappingLearner
from labelwise.train.make_learner import learner_of


class LaplaceLearner(WrappingLearner):
    """Trains by another learner, then measures the curvature of the loss in the last layer on the rows it trained on.

    LogProbs come from draws of the last layer; Probs and all else are those of the trained model.
    """

    def __init__(self, learner: Learner, draws: int = 100, precision: float | None = None):
        """Make a learner with draws; arguments as for `laplace`."""
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

    def fit_data(self, data: TrainingData) -> Fit:
        """Train the model, then draw last layers."""
        fit = data.fit(self.learner)
        if not isinstance(fit.reader, ModelReader):
            raise ArgumentError(f"laplace() takes a torch model; the fit is read by {type(fit.reader).__name__}.")
        trained = data.ids[~torch.isin(data.ids, fit.held_out)]
        draws, precision = self._draw(fit.reader, data.pool, trained, data.key.fold("laplace"))
        notes = {**fit.notes, "precision": precision, "draws": self.draws}
        state = fit.state
        if state is not None:
            state = {**state, "laplace.weight": draws.weight_KOD}
            if draws.bias_KO is not None:
                state["laplace.bias"] = draws.bias_KO
        return Fit(_with_draws(fit.reader, draws), data.ids, fit.published, notes, state, fit.held_out)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Rebuild a fit from its `state`; `ids` (n,) are the rows it was trained on."""
        rest = {name: value for name, value in state.items() if not name.startswith("laplace.")}
        fit = self.learner.restore(rest, ids)
        assert isinstance(fit.reader, ModelReader), "only fits of torch models were saved"
        draws = HeadDraws(state["laplace.weight"], state.get("laplace.bias"))
        return Fit(_with_draws(fit.reader, draws), ids, fit.published, fit.notes, state, fit.held_out)

    def _draw(self, reader: ModelReader, pool: Pool, ids: Tensor, key: Key) -> tuple[HeadDraws, float]:
        """Draws of the last layer, and the precision of its prior."""
        curvature: Curvature | None = None
        for rows in read(reader, pool, ids, (Probs(), Embedding())):
            weight_OD, has_bias = _last_layer(reader)
            h_BD = rows.tensor(Embedding())
            h_BD = torch.cat([h_BD, torch.ones_like(h_BD[:, :1])], 1) if has_bias else h_BD
            if curvature is None:
                check_draws(self.draws, weight_OD.numel())
                curvature = Curvature(len(weight_OD), weight_OD.shape[1])
            curvature.add(rows.tensor(Probs()), h_BD)
        assert curvature is not None, "a fit has labelled rows"
        spectrum = curvature.spectrum()
        precision = spectrum.precision(weight_OD) if self.precision is None else float(self.precision)
        draws_KOD = spectrum.draws(weight_OD, precision, self.draws, key).to(weight_OD.dtype)
        if not has_bias:
            return HeadDraws(draws_KOD, None), precision
        return HeadDraws(draws_KOD[:, :, :-1].contiguous(), draws_KOD[:, :, -1].contiguous()), precision


def laplace(model: Any, draws: int = 100, precision: float | None = None) -> LaplaceLearner:
    """Make a learner whose trained model has draws of its last layer, by a Laplace approximation.

    Args:
        model: a torch module, a function that makes one, or a TorchLearner.
        draws: how many draws LogProbs have.
        precision: of the Gaussian prior of the last layer's weights; None takes the value under which the labelled
            rows are most probable (the marginal likelihood).

    Returns:
        The learner.

    Raises:
        ArgumentError: the model is no torch model for classes, or a number is out of range.

    >>> laplace(nn.Linear(2, 2), draws=20).draws
    20
    """
    return LaplaceLearner(learner_of(model), draws, precision)


def _last_layer(reader: ModelReader) -> tuple[Tensor, bool]:
    """The weights (O, D) of the last layer on the CPU, with its bias as one more column, and whether it has a bias."""
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
