"""Draws of a model's weights: of a variational last layer, of dropout, of an ensemble, and by Laplace's method."""

from __future__ import annotations

from torch import nn

from labelwise.rng import Key
from labelwise.signals.draws.draws import Draws
from labelwise.signals.draws.dropout import MaskDraws, dropout_layers
from labelwise.signals.draws.variational import VariationalLinear


def posterior_draws(model: nn.Module, key: Key) -> Draws | None:
    """The draws of a trained network; dropout masks follow from `key`, a variational layer has its own seed."""
    layers = [module for module in model.modules() if isinstance(module, VariationalLinear)]
    if layers:
        return layers[-1].weight_draws()
    return MaskDraws(key) if dropout_layers(model) else None
