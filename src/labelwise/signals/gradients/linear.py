"""Rules of linear layers on vectors and sequences, and of parameters that are added to the input."""

from __future__ import annotations

from torch import Tensor, nn

from labelwise.signals.gradients.pieces import Outer, Piece, Vector
from labelwise.signals.gradients.rules import Call, MisfitError, Rule, register


def _pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
    a, d = call.input(), call.gradient()
    if a.ndim < 2:
        raise MisfitError("its input is a single vector instead of one for each row")
    a_BTI, d_BTO = a.reshape(len(a), -1, a.shape[-1]), d.reshape(len(d), -1, d.shape[-1])
    found: dict[str, Piece] = {}
    if "weight" in wanted:
        found["weight"] = Outer(a_BTI, d_BTO)
    if "bias" in wanted:
        found["bias"] = Vector(d_BTO.sum(1))
    return found


def added(name: str) -> Rule:
    """The rule of a module whose output is its input plus its parameter `name`, broadcast over the missing axes.

    For your own modules: `register(Shift, rule=added("bias"))`.
    """

    def pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
        d, shape = call.gradient(), module.get_parameter(name).shape
        return {name: Vector(summed_to(d, tuple(shape)).flatten(1))} if name in wanted else {}

    return Rule((name,), pieces)


def summed_to(d: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Each row's gradient of a parameter of this shape that was broadcast over the output (B, ...)."""
    if len(shape) > d.ndim or (len(shape) == d.ndim and shape[0] != 1):
        raise MisfitError(f"a parameter of shape {shape} is not broadcast over all rows of {tuple(d.shape)}")
    inner = shape[1:] if len(shape) == d.ndim else shape
    extra = d.ndim - 1 - len(inner)
    if extra:
        d = d.sum(tuple(range(1, 1 + extra)))
    ones = tuple(axis for axis, size in enumerate(inner, 1) if size == 1 and d.shape[axis] != 1)
    return d.sum(ones, keepdim=True) if ones else d


register(nn.Linear, rule=Rule(("weight", "bias"), _pieces))
