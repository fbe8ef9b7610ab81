"""Fallback for parameters without a rule: whole gradients of a few rows at a time, by torch.func.

`vmap` of `grad` is tried first, then one row at a time. The inner product alone needs no gradients of single rows: it
takes one forward-mode pass, or a central difference where a layer has no forward mode.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from labelwise.signals.gradients.pieces import row_slices
from labelwise.signals.model.forward import take_rows

Parameters = dict[str, Tensor]
Forward = Callable[[Parameters, Any], Tensor]  # outputs (B, C) of a batch of inputs with these parameters

STEP = 1e-3  # of a central difference, relative to the length of the parameters; see `difference`


def row_gradients(
    forward: Forward, parameters: Parameters, inputs: Any, cotangent_BC: Tensor
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """For slices of the batch, the gradients (b, P) of <outputs, cotangent> of each row by every parameter."""

    def loss(parameters: Parameters, row: Any, cotangent_C: Tensor) -> Tensor:
        return (forward(parameters, _mapped(row, lambda x: x[None]))[0] * cotangent_C).sum()

    by_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    # The intermediates of vmap are several times its result.
    numbers = 4 * sum(parameter.numel() for parameter in parameters.values()) + 1
    for part in row_slices(len(cotangent_BC), numbers, cotangent_BC.device):
        try:
            with warnings.catch_warnings():
                # An operation without a batching rule runs row by row inside vmap: slower, same result.
                warnings.filterwarnings("ignore", message=".*batching rule", category=UserWarning)
                found = by_row(parameters, take_rows(inputs, part), cotangent_BC[part])
        except (RuntimeError, ValueError, TypeError, AttributeError):
            found = _one_by_one(forward, parameters, inputs, cotangent_BC, part)
        yield part, {name: g.reshape(len(g), -1) for name, g in found.items()}


def _one_by_one(
    forward: Forward, parameters: Parameters, inputs: Any, cotangent_BC: Tensor, part: slice
) -> dict[str, Tensor]:
    """Gradients of single rows, for models with a control flow that vmap does not support."""
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    found: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for row in range(part.start, part.stop):
        with torch.enable_grad():
            outputs_1C = forward(leaves, take_rows(inputs, slice(row, row + 1)))
            gradients = torch.autograd.grad(
                (outputs_1C * cotangent_BC[row]).sum(), list(leaves.values()), allow_unused=True
            )
        for (name, leaf), g in zip(leaves.items(), gradients):
            found[name].append(torch.zeros_like(leaf) if g is None else g)
    return {name: torch.stack(each) for name, each in found.items()}


def inner_products(
    forward: Forward, parameters: Parameters, along: Mapping[str, Tensor], inputs: Any, cotangent_BC: Tensor
) -> Tensor:
    """<gradient of each row, along> (B,) for these parameters: the change of the outputs along it, by forward mode."""
    tangents = {name: along[name].to(parameter) for name, parameter in parameters.items()}
    try:
        with warnings.catch_warnings():
            # torch's forward mode scripts functions on first use, and warns about it.
            warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
            change_BC: Tensor = torch.func.jvp(lambda p: forward(p, inputs), (parameters,), (tangents,))[1]
    except (RuntimeError, ValueError, TypeError):
        change_BC = difference(forward, parameters, tangents, inputs)
    return (change_BC * cotangent_BC).sum(1)


def difference(forward: Forward, parameters: Parameters, tangents: Mapping[str, Tensor], inputs: Any) -> Tensor:
    """The change (B, C) of the outputs along the tangents, by a central difference.

    The step is STEP |parameters| / |tangents| in float32 and smaller in float64: near the cube root of the rounding
    error, where errors of rounding and of curvature are about equal.
    """
    size = math.sqrt(sum(float(p.double().square().sum()) for p in parameters.values()))
    length = math.sqrt(sum(float(t.double().square().sum()) for t in tangents.values()))
    if length == 0:
        return torch.zeros_like(forward(parameters, inputs))
    wide = next(iter(parameters.values())).dtype == torch.float64
    step = (STEP * 1e-2 if wide else STEP) * max(size, 1e-3) / length
    up = forward({name: p + step * tangents[name] for name, p in parameters.items()}, inputs)
    down = forward({name: p - step * tangents[name] for name, p in parameters.items()}, inputs)
    return (up - down) / (2 * step)


def _mapped(inputs: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _mapped(value, fn) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return [_mapped(value, fn) for value in inputs]
    return fn(inputs)
