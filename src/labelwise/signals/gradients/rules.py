"""Rules: how the gradients of a layer's parameters follow from its input and output gradient, by layer type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.signals.gradients.pieces import Piece


class MisfitError(Exception):
    """A rule does not fit the inputs of a layer; the fallback computes the layer instead."""

    def __init__(self, reason: str):
        self.reason = reason
        self.module = ""  # its name, set by the hook


@dataclass(frozen=True)
class Call:
    """One call of a layer: its detached arguments, the gradient of its output, and the number of rows."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    d: Tensor
    rows: int

    def given(self, position: int, name: str) -> Any:
        """The argument at `position`, or of this name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name)

    def input(self) -> Tensor:
        """The first argument, with the rows as its first axis, at least in float32."""
        found = self.args[0] if self.args else next(iter(self.kwargs.values()), None)
        if not isinstance(found, Tensor):
            raise MisfitError("its input is not a tensor")
        return self.by_row(found)

    def gradient(self) -> Tensor:
        """The gradient of the output, with the rows as its first axis."""
        return self.by_row(self.d)

    def by_row(self, x: Tensor) -> Tensor:
        """x at least in float32; MisfitError unless its first axis is the rows of the batch."""
        if x.ndim == 0 or len(x) != self.rows:
            raise MisfitError(f"its input or output of shape {tuple(x.shape)} does not have the rows as its first axis")
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def fits_any(module: nn.Module) -> bool:
    """For rules that fit every layer of their type."""
    return True


@dataclass(frozen=True)
class Rule:
    """How to compute the gradients of a layer's parameters.

    Attributes:
        parameters: their names in the module.
        pieces: function of (module, call, wanted names) that returns a Piece for each wanted parameter.
        fits: whether the rule holds for a module.
    """

    parameters: tuple[str, ...]
    pieces: Callable[[nn.Module, Call, frozenset[str]], dict[str, Piece]]
    fits: Callable[[nn.Module], bool] = fits_any


RULES: dict[type[nn.Module], Rule] = {}


def register(*kinds: type[nn.Module], rule: Rule) -> None:
    """Use `rule` for layers of exactly these types; a subclass may compute something else and needs its own rule."""
    for kind in kinds:
        RULES[kind] = rule
