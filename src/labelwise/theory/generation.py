"""Most informative inputs: gradient ascent on the input, towards a high predicted dual.

Elenter et al., NeurIPS 2022, section 4.4 and figure 1: from rows with a low predicted dual,

    x <- clip(x + step g / max |g|, low, high),    g = gradient by x of head(embedding of x)

with the model in eval mode. The result shows which inputs the score prefers: images between classes, and outliers. The
paper gives neither step nor count; 200 steps of 0.01 move a pixel of [0, 1] at most twice through its range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError
from labelwise.signals.model import head as heads
from labelwise.signals.model.forward import device_and_dtype, eval_mode, forward
from labelwise.signals.model.reader import ModelReader


@dataclass(frozen=True)
class Generated:
    """Snapshots of the ascent: `inputs` (S, B, ...), predicted `duals` (S, B), and their numbers of `steps` (S,)."""

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
    """Raise the predicted duals of inputs by gradient ascent.

    Args:
        model: a trained network, or the reader of a fit (`session.fit().reader`).
        head: function from embeddings (B, D) to duals (B,), such as the result of `DualHead().fit(...)`.
        x: inputs (B, ...) to start from, within the bounds.
        steps: how many steps to take.
        step: the change of the entry with the steepest slope in one step.
        low: lower bound of every entry.
        high: upper bound of every entry.
        snapshots: how many states to return after the first, evenly spaced; the last is the end.

    Returns:
        A Generated, whose first state is `x`. The model is restored.

    Raises:
        ArgumentError: steps, snapshots or bounds are impossible, or `x` is not within the bounds.
    """
    if steps < 1 or not 1 <= snapshots <= steps or not step > 0 or not low < high:
        raise ArgumentError(
            f"steps and snapshots must be at least 1, snapshots at most steps, step above 0, and low below high; found "
            f"steps={steps}, snapshots={snapshots}, step={step}, low={low}, high={high}."
        )
    if not x.is_floating_point() or bool((x < low).any()) or bool((x > high).any()):
        raise ArgumentError(
            f"x must hold real numbers from {low} to {high}; found {x.dtype}, {float(x.min())} to {float(x.max())}."
        )
    reader = model if isinstance(model, ModelReader) else ModelReader(model)
    device, dtype = device_and_dtype(reader.model)
    current = x.detach().to(device, dtype or x.dtype)
    snapshot_steps = {round(number * steps / snapshots) for number in range(snapshots + 1)}
    states: list[tuple[int, Tensor, Tensor]] = []
    with eval_mode(reader.model), torch.enable_grad():
        for number in range(steps + 1):
            inputs = current.detach().requires_grad_()
            dual_B = head(embedding_with_gradient(reader, inputs))
            if number in snapshot_steps:
                states.append((number, current.cpu(), dual_B.detach().cpu()))
            if number == steps:
                break
            (slope,) = torch.autograd.grad(dual_B.sum(), inputs)
            steepest_B = slope.flatten(1).abs().amax(1).clamp_min(torch.finfo(slope.dtype).tiny)
            current = (current + step * slope / steepest_B.view(-1, *[1] * (slope.ndim - 1))).clamp(low, high)
    numbers, states_SB, duals_SB = zip(*states)
    return Generated(torch.stack(states_SB), torch.stack(duals_SB), numbers)


def embedding_with_gradient(reader: ModelReader, inputs: Tensor) -> Tensor:
    """The embedding (B, D) of a batch, with its gradient by the inputs."""
    model = reader.model
    named_head = {reader.head: heads.named_module(model, reader.head)} if reader.head is not None else None
    with heads.record_calls(named_head or heads.linear_layers(model)) as calls:
        output = forward(model, inputs, reader.autocast)
    name = reader.head if reader.head is not None else heads.head_of(calls, heads.raw_logits(output, reader.output))
    return heads.embedding_of(calls, name, heads.named_module(model, name), len(inputs))
