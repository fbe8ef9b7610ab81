"""Networks of the benchmarks, each made by a function without arguments that the learner calls anew."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn


def mlp(inputs: int, outputs: int, hidden: tuple[int, ...] = (128, 64)) -> Callable[[], nn.Module]:
    """A multi-layer perceptron with ReLU; inputs of any shape are flattened."""

    def make() -> nn.Module:
        widths = (inputs, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    return make
