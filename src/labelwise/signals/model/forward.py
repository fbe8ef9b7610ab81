"""Probs, LabelProbs and Embedding (and so HeadGrad) of any nn.Module, from one plain forward pass."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, ModelError, NeedError
from labelwise.signals.draws.draws import Draws, LastLayerDraws
from labelwise.signals.model import head as heads
from labelwise.signals.model.head import Output
from labelwise.signals.read import Labelled, settled
from labelwise.signals.spec import (
    Embedding,
    GradNorm,
    GradSketch,
    LabelProbs,
    LogProbs,
    LossJvp,
    Prediction,
    Probs,
    Signal,
)

if TYPE_CHECKING:
    from labelwise.signals.gradients.columns import GradientColumns

# Rows of one backward on the CPU: it is as quick as a larger one there, and what it keeps of every layer stays small.
GRADIENT_ROWS = 64


class ModelReader:
    """Reads a trained nn.Module.

    Probs is the softmax of the logits, in float32 at least. LabelProbs is softmax(logits / temperature). Embedding is
    the flattened input of the last linear layer, which is found by itself. A binary model with one logit is read as
    one of two classes with Probs (1 - p, p), p its sigmoid. LogProbs come from `draws`, where the model has any.

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
        units: tuple[float, float] | None = None,
        draws: Draws | None = None,
    ):
        """`head` and `output` are for models whose last layer or logits cannot be found; see the errors of `read`.

        With `autocast`, the forward pass runs in that precision where torch deems it safe. `units` (mean, spread)
        makes it a regression model: Prediction, its one output times spread plus mean, is given in place of Probs.
        """
        if not temperature > 0:
            raise ArgumentError(f"temperature is above 0, not {temperature}.")
        self.model = model
        self.head = head
        self.output = output
        self.autocast = autocast
        self.temperature = temperature
        self.units = units
        self.draws = draws
        self._found: str | None = None
        self._checked = False
        self._gradients: GradientColumns | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What was found of gradients is found again by a copy, which may be on another device."""
        return {**self.__dict__, "_gradients": None}

    def gives(self, signal: Signal) -> bool:
        known = Prediction | Embedding if self.units is not None else Probs | LabelProbs | Embedding
        if self.draws is not None and self.units is None:
            known = known | LogProbs
        return all(isinstance(part, known | GradNorm | LossJvp | GradSketch) for part in signal.stored())

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        rows = count(inputs)
        by_gradient = any(isinstance(signal, GradNorm | LossJvp | GradSketch) for signal in signals)
        parts = list(small_parts(rows, home(self.model)[0])) if by_gradient else []
        if len(parts) > 1:
            found = [self.read(rows_of(inputs, part), signals) for part in parts]
            return {signal: torch.cat([one[signal] for one in found]) for signal in found[0]}
        drawn = isinstance(self.draws, LastLayerDraws)
        embed = any(isinstance(signal, Embedding) or (drawn and isinstance(signal, LogProbs)) for signal in signals)
        watch = self._watch() if embed else {}
        columns: dict[Signal, Tensor] = {}
        if by_gradient:
            answer, columns = self._by_gradient().read(inputs, signals, watch)
            output, calls = answer.output, answer.calls
        else:
            with at_rest(self.model), heads.watched(watch) as calls:
                output = forward(self.model, inputs, self.autocast)
        signals = tuple(signal for signal in signals if signal not in columns)
        if self.units is not None:
            return columns | self._numbers(output, calls, rows, signals)
        logits_BC = heads.logits_of(output, self.output, rows)
        if not self._checked:
            heads.check_not_probabilities(logits_BC)
            self._checked = True
        for signal in signals:
            if isinstance(signal, Probs):
                columns[signal] = settled(logits_BC.softmax(1))
            elif isinstance(signal, LabelProbs):
                columns[signal] = settled((logits_BC / self.temperature).softmax(1))
            elif isinstance(signal, Embedding):
                columns[signal] = settled(self._embedding(calls, output, rows))
            elif isinstance(signal, LogProbs) and self.draws is not None:
                embedding = self._embedding(calls, output, rows) if drawn else None
                columns[signal] = settled(self._log_probs(embedding, inputs, rows, signal.draws))
            else:
                raise NeedError(f"{signal!r} is not given by ModelReader; it gives Probs, LabelProbs, Embedding.")
        return columns

    def _log_probs(self, embedding: Tensor | None, inputs: Any, rows: int, draws: int) -> Tensor:
        """Log probabilities (B, K, C) under each draw: from the embedding, or by a forward pass for each."""
        draws_of = self.draws
        assert draws_of is not None, "asked of models with draws only"
        if isinstance(draws_of, LastLayerDraws):
            assert embedding is not None, "read for draws of the last layer"
            return draws_of.of_embedding(embedding)
        with at_rest(self.model):
            run = functools.partial(forward, self.model, inputs, self.autocast)
            return draws_of.of_model(self.model, lambda: heads.logits_of(run(), self.output, rows), draws)

    def look_back(self, labelled: Labelled, batches: Any) -> None:
        """Sum the gradient of the labelled rows, for LossJvp; `batches()` gives their inputs and labels."""
        self._by_gradient().look_back(labelled, batches)

    def notes(self) -> dict[str, Any]:
        """What there is to say about how signals were read."""
        return {} if self._gradients is None else self._gradients.notes()

    def _by_gradient(self) -> GradientColumns:
        if self._gradients is None:
            # Here and not above: that file runs models by the functions of this one.
            from labelwise.signals.gradients.columns import GradientColumns

            self._gradients = GradientColumns(self.model, self.output, self.autocast, self.units is not None)
        return self._gradients

    def _numbers(self, output: Any, calls: heads.Calls, rows: int, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        """The columns of a regression model."""
        assert self.units is not None, "asked of regression models only"
        mean, spread = self.units
        columns: dict[Signal, Tensor] = {}
        for signal in signals:
            if isinstance(signal, Prediction):
                columns[signal] = settled(heads.values_of(output, self.output, rows) * spread + mean)
            elif isinstance(signal, Embedding):
                columns[signal] = settled(self._embedding(calls, output, rows))
            else:
                raise NeedError(f"{signal!r} is not given by a regression model; it gives Prediction, Embedding.")
        return columns

    def logits(self, inputs: Any) -> Tensor:
        """The logits (B, C) of a batch, on the CPU."""
        with at_rest(self.model):
            output = forward(self.model, inputs, self.autocast)
        return settled(heads.logits_of(output, self.output, count(inputs)), "cpu")

    @property
    def head_name(self) -> str | None:
        """The name of the last linear layer; None while it is not known, before Embedding was read once."""
        return self.head if self.head is not None else self._found

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


def forward(
    model: nn.Module,
    inputs: Any,
    autocast: torch.dtype | None = None,
    parameters: dict[str, Tensor] | None = None,
) -> Any:
    """What the model returns for a batch of inputs, which is moved to the model's device and precision.

    A mapping (tokenised text, say) goes in by name where the names are parameters of the model's forward. With
    `parameters`, those take the place of the model's own of the same names.
    """
    device, dtype = home(model)
    batch = moved(inputs, device, dtype)
    # Without the argument a surrounding autocast of the user's own stays in force.
    precision = contextlib.nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
    with precision:
        by_name = isinstance(batch, Mapping) and _by_name(model, batch)
        if parameters is not None:
            given = ((), dict(batch)) if by_name else ((batch,), None)
            return torch.func.functional_call(model, parameters, *given)
        return model(**batch) if by_name else model(batch)


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


def small_parts(rows: int, device: torch.device) -> Iterator[slice]:
    """Parts of a batch for one backward pass each; all of it on an accelerator."""
    step = GRADIENT_ROWS if device.type == "cpu" else rows
    for start in range(0, rows, max(1, step)):
        yield slice(start, min(start + step, rows))


def rows_of(inputs: Any, part: slice) -> Any:
    """Some rows of a batch of inputs."""
    if isinstance(inputs, Mapping):
        return {name: rows_of(value, part) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], Tensor | Mapping):
        return [rows_of(value, part) for value in inputs]
    return inputs[part]


def _by_name(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    parameters = inspect.signature(model.forward).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return anything or set(batch) <= set(parameters)
