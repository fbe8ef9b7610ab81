"""Most informative inputs: gradient ascent on the input until the model's dual head finds it hard.

Elenter et al., NeurIPS 2022, section 4.4 and figure 1: from rows that are predicted a low dual,

    x <- clip(x + step g / max |g|, low, high),    g = gradient by x of head(embedding of x)

with the model in eval mode. What appears shows what the score calls informative: images between classes, and outliers.
The paper gives neither step nor count; 200 steps of 0.01 move a pixel of [0, 1] twice through its range at the most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError
from labelwise.signals.model import head as heads
from labelwise.signals.model.forward import ModelReader, device_and_dtype, forward


@dataclass(frozen=True)
class Generated:
    """Inputs on their way up: `inputs` (S, B, ...), their predicted `duals` (S, B), after how many `steps` (S,)."""

    inputs: Tensor
    duals: Tensor
    steps: tuple[int, ...]


def most_informative(
    model: nn.Module | ModelReader,
    head: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    steps: int = 200,
    step: float = 0.01,
    low: float = 0.0,
    high: float = 1.0,
    snapshots: int = 4,
) -> Generated:
    """Raise the predicted duals of the inputs `x` (B, ...), each on its own.

    Args:
        model: a trained network, or the reader of a fit (`session.fit().reader`).
        head: from embeddings (B, D) to duals (B,), such as what `DualHead().fit(...)` gives.
        x: inputs to start from, inside the bounds.
        steps: how many steps up.
        step: how far the entry with the steepest slope moves in one of them.
        low: no entry goes below.
        high: no entry goes above.
        snapshots: how many states to give back after the first, evenly spaced; the last is the end.

    Returns:
        A Generated: the first state is `x` itself. The model is left as it was found.
    """
    if steps < 1 or not 1 <= snapshots <= steps or not step > 0 or not low < high:
        raise ArgumentError(
            f"steps and snapshots are at least 1, snapshots at most steps, step above 0 and low below high; found "
            f"steps={steps}, snapshots={snapshots}, step={step}, low={low}, high={high}."
        )
    if not x.is_floating_point() or bool((x < low).any()) or bool((x > high).any()):
        raise ArgumentError(
            f"x holds real numbers from {low} to {high}; found {x.dtype}, {float(x.min())} to {float(x.max())}."
        )
    reader = model if isinstance(model, ModelReader) else ModelReader(model)
    device, dtype = device_and_dtype(reader.model)
    now = x.detach().to(device, dtype or x.dtype)
    kept = {round(number * steps / snapshots) for number in range(snapshots + 1)}
    states: list[tuple[int, Tensor, Tensor]] = []
    with _eval(reader.model):
        for number in range(steps + 1):
            moving = now.detach().requires_grad_()
            dual_B = head(embedded(reader, moving))
            if number in kept:
                states.append((number, now.cpu(), dual_B.detach().cpu()))
            if number == steps:
                break
            (slope,) = torch.autograd.grad(dual_B.sum(), moving)
            steepest_B = slope.flatten(1).abs().amax(1).clamp_min(torch.finfo(slope.dtype).tiny)
            now = (now + step * slope / steepest_B.view(-1, *[1] * (slope.ndim - 1))).clamp(low, high)
    count, inputs, duals = zip(*states)
    return Generated(torch.stack(inputs), torch.stack(duals), count)


def embedded(reader: ModelReader, inputs: Tensor) -> Tensor:
    """The embedding (B, D) of a batch with its gradient, which reading for a strategy leaves out."""
    model = reader.model
    named = {reader.head: heads.named_module(model, reader.head)} if reader.head is not None else None
    with heads.record_calls(named or heads.linear_layers(model)) as calls:
        output = forward(model, inputs, reader.autocast)
    name = reader.head if reader.head is not None else heads.head_of(calls, heads.raw_logits(output, reader.output))
    return heads.embedding_of(calls, name, heads.named_module(model, name), len(inputs))


@contextlib.contextmanager
def _eval(model: nn.Module) -> Iterator[None]:
    """Eval mode for the block; each module's own mode is put back after it."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.enable_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
