"""Rules: for a layer type, how the gradient of each parameter follows from the layer's input and output gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.signals.gradients.pieces import Piece


class MisfitError(Exception):
    """A rule does not fit what a layer was given; the layer is then left to the fallback."""

    def __init__(self, reason: str):
        self.reason = reason
        self.module = ""  # its name, known to whoever hooked it


@dataclass(frozen=True)
class Call:
    """One call of a layer: its arguments without history, the gradient of its output, and the number of rows."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    d: Tensor
    rows: int

    def given(self, place: int, name: str) -> Any:
        """The argument at `place`, or of this name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)

    def input(self) -> Tensor:
        """The first argument, one entry for each row, in the number type that products are computed in."""
        found = self.args[0] if self.args else next(iter(self.kwargs.values()), None)
        if not isinstance(found, Tensor):
            raise MisfitError("its input is not a tensor")
        return self.by_row(found)

    def gradient(self) -> Tensor:
        """The gradient of the output, one entry for each row."""
        return self.by_row(self.d)

    def by_row(self, x: Tensor) -> Tensor:
        """x, whose first axis has to be the rows of the batch."""
        if x.ndim == 0 or len(x) != self.rows:
            raise MisfitError(f"its input or output has shape {tuple(x.shape)}, the first axis is not the rows")
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def always(module: nn.Module) -> bool:
    """For rules that fit every layer of their type."""
    return True


@dataclass(frozen=True)
class Rule:
    """`pieces(module, call, wanted)` gives a Piece for each wanted parameter (names inside the module)."""

    parameters: tuple[str, ...]
    pieces: Callable[[nn.Module, Call, frozenset[str]], dict[str, Piece]]
    fits: Callable[[nn.Module], bool] = always


RULES: dict[type[nn.Module], Rule] = {}


def register(*kinds: type[nn.Module], rule: Rule) -> None:
    """Use `rule` for layers of exactly these types; a subclass may compute something else and needs its own."""
    for kind in kinds:
        RULES[kind] = rule
