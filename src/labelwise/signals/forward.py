"""Probs, LabelProbs and Embedding (and so HeadGrad) of any nn.Module, from one plain forward pass."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, ModelError, NeedError
from labelwise.signals import head as heads
from labelwise.signals.head import Output
from labelwise.signals.read import settled
from labelwise.signals.spec import Embedding, LabelProbs, Probs, Signal


class ModelReader:
    """Reads a trained nn.Module.

    Probs is the softmax of the logits, in float32 at least. LabelProbs is softmax(logits / temperature). Embedding is
    the flattened input of the last linear layer, which is found by itself. A binary model with one logit is read as
    one of two classes with Probs (1 - p, p), p its sigmoid.

    The model runs in eval mode without gradients on its own device, and is left exactly as it was found.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str | None = None,
        output: Output | None = None,
        autocast: torch.dtype | None = None,
        temperature: float = 1.0,
    ):
        """`head` and `output` are for models whose last layer or logits cannot be found; see the errors of `read`.

        With `autocast`, the forward pass runs in that precision where torch deems it safe.
        """
        if not temperature > 0:
            raise ArgumentError(f"temperature is above 0, not {temperature}.")
        self.model = model
        self.head = head
        self.output = output
        self.autocast = autocast
        self.temperature = temperature
        self._found: str | None = None
        self._checked = False

    def gives(self, signal: Signal) -> bool:
        return all(isinstance(part, Probs | LabelProbs | Embedding) for part in signal.stored())

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        rows = count(inputs)
        embed = any(isinstance(signal, Embedding) for signal in signals)
        with at_rest(self.model), heads.watched(self._watch() if embed else {}) as calls:
            output = forward(self.model, inputs, self.autocast)
        logits_BC = heads.logits_of(output, self.output, rows)
        if not self._checked:
            heads.check_not_probabilities(logits_BC)
            self._checked = True
        columns: dict[Signal, Tensor] = {}
        for signal in signals:
            if isinstance(signal, Probs):
                columns[signal] = settled(logits_BC.softmax(1))
            elif isinstance(signal, LabelProbs):
                columns[signal] = settled((logits_BC / self.temperature).softmax(1))
            elif isinstance(signal, Embedding):
                columns[signal] = settled(self._embedding(calls, output, rows))
            else:
                raise NeedError(f"{signal!r} is not given by ModelReader; it gives Probs, LabelProbs, Embedding.")
        return columns

    def logits(self, inputs: Any) -> Tensor:
        """The logits (B, C) of a batch, on the CPU."""
        with at_rest(self.model):
            output = forward(self.model, inputs, self.autocast)
        return settled(heads.logits_of(output, self.output, count(inputs)))

    def _watch(self) -> dict[str, nn.Module]:
        """The modules to look at: the head once it is known, before that every linear layer."""
        name = self.head if self.head is not None else self._found
        return heads.linear_layers(self.model) if name is None else {name: heads.named_module(self.model, name)}

    def _embedding(self, calls: heads.Calls, output: Any, rows: int) -> Tensor:
        if self.head is None and self._found is None:
            logits = heads.raw_logits(output, self.output)
            self._found = heads.head_of(calls, logits)
        name = self.head if self.head is not None else str(self._found)
        return heads.embedding_of(calls, name, heads.named_module(self.model, name), rows)


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for the block; each module's own mode is put back after it, also after an error.

    no_grad and not inference_mode: what a model keeps from a forward pass (a table of positions, say) must still be
    usable when it is trained on.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training


def forward(model: nn.Module, inputs: Any, autocast: torch.dtype | None = None) -> Any:
    """What the model returns for a batch of inputs, which is moved to the model's device and precision.

    A mapping (tokenised text, say) goes in by name where the names are parameters of the model's forward.
    """
    device, dtype = home(model)
    batch = moved(inputs, device, dtype)
    # Without the argument a surrounding autocast of the user's own stays in force.
    precision = contextlib.nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
    with precision:
        if isinstance(batch, Mapping) and _by_name(model, batch):
            return model(**batch)
        return model(batch)


def home(model: nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """The device of a model and the precision of its parameters; None where it has none."""
    first: Tensor | None = None
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        first = tensor if first is None else first
        if tensor.is_floating_point():
            return first.device, tensor.dtype
    return (torch.device("cpu") if first is None else first.device), None


def moved(inputs: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Inputs on `device`, real numbers in `dtype`; whole numbers (token ids) and texts stay as they are."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else None)
    if isinstance(inputs, Mapping):
        return {name: moved(value, device, dtype) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and any(isinstance(value, Tensor | Mapping) for value in inputs):
        return [moved(value, device, dtype) for value in inputs]
    return inputs


def count(inputs: Any) -> int:
    """The number of rows in a batch of inputs."""
    if isinstance(inputs, Mapping) and inputs:
        return count(next(iter(inputs.values())))
    if isinstance(inputs, tuple | list) and inputs and isinstance(inputs[0], Tensor | Mapping):
        return count(inputs[0])
    if isinstance(inputs, Tensor | tuple | list) and not (isinstance(inputs, Tensor) and inputs.ndim == 0):
        return len(inputs)
    raise ModelError(f"a batch of inputs is a tensor, texts, or a mapping of them, not {type(inputs).__name__}.")


def _by_name(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    parameters = inspect.signature(model.forward).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return anything or set(batch) <= set(parameters)
