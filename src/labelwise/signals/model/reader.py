"""ModelReader: probabilities, embeddings, draws and gradients of any nn.Module, from one forward pass."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, NeedError
from labelwise.signals.draws.draws import Draws, LastLayerDraws
from labelwise.signals.gradients.columns import GradientColumns
from labelwise.signals.model import head as heads
from labelwise.signals.model.forward import (
    count_rows,
    device_and_dtype,
    eval_mode,
    forward,
    gradient_parts,
    take_rows,
)
from labelwise.signals.model.head import Output
from labelwise.signals.read import Labelled, as_column
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


class ModelReader:
    """Reads a trained nn.Module.

    Probs is the softmax of the logits, at least in float32. LabelProbs is softmax(logits / temperature). Embedding is
    the flattened input of the last linear layer, which is detected. A binary model with one logit has two classes with
    Probs (1 - p, p), p the sigmoid of its logit. LogProbs come from `draws`, if there are any.

    The model runs in eval mode without gradients on its own device, and its state is restored.
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
        """Read `model`.

        Args:
            model: a trained network.
            head: the name of the last linear layer, where it cannot be detected.
            output: where the logits are in the model's output, where they cannot be detected: a key, an index or a
                function.
            autocast: the precision of the forward pass, for the operations that torch considers safe in it.
            temperature: of LabelProbs.
            units: mean and spread of the labels of a regression model, whose Prediction is its output times spread
                plus mean; None for a classifier.
            draws: draws of the weights, for LogProbs.
        """
        if not temperature > 0:
            raise ArgumentError(f"temperature must be above 0, found {temperature}")
        self.model = model
        self.head = head
        self.output = output
        self.autocast = autocast
        self.temperature = temperature
        self.units = units
        self.draws = draws
        self._detected_head: str | None = None
        self._is_checked = False
        self._gradients: GradientColumns | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the gradient columns: a copy may be on another device."""
        return {**self.__dict__, "_gradients": None}

    def gives(self, signal: Signal) -> bool:
        known = Prediction | Embedding if self.units is not None else Probs | LabelProbs | Embedding
        if self.draws is not None and self.units is None:
            known = known | LogProbs
        return all(isinstance(part, known | GradNorm | LossJvp | GradSketch) for part in signal.stored())

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        rows = count_rows(inputs)
        by_gradient = any(isinstance(signal, GradNorm | LossJvp | GradSketch) for signal in signals)
        parts = list(gradient_parts(rows, device_and_dtype(self.model)[0])) if by_gradient else []
        if len(parts) > 1:
            found = [self.read(take_rows(inputs, part), signals) for part in parts]
            return {signal: torch.cat([one[signal] for one in found]) for signal in found[0]}
        draws_head = isinstance(self.draws, LastLayerDraws)
        embed = any(
            isinstance(signal, Embedding) or (draws_head and isinstance(signal, LogProbs)) for signal in signals
        )
        watch = self._recorded_modules() if embed else {}
        columns: dict[Signal, Tensor] = {}
        if by_gradient:
            result, columns = self._gradient_columns().read(inputs, signals, watch)
            output, calls = result.output, result.calls
        else:
            with eval_mode(self.model), heads.record_calls(watch) as calls:
                output = forward(self.model, inputs, self.autocast)
        signals = tuple(signal for signal in signals if signal not in columns)
        if self.units is not None:
            return columns | self._regression_columns(output, calls, rows, signals)
        logits_BC = heads.logits_of(output, self.output, rows)
        if not self._is_checked:
            heads.check_not_probabilities(logits_BC)
            self._is_checked = True
        for signal in signals:
            if isinstance(signal, Probs):
                columns[signal] = as_column(logits_BC.softmax(1))
            elif isinstance(signal, LabelProbs):
                columns[signal] = as_column((logits_BC / self.temperature).softmax(1))
            elif isinstance(signal, Embedding):
                columns[signal] = as_column(self._embedding(calls, output, rows))
            elif isinstance(signal, LogProbs) and self.draws is not None:
                embedding = self._embedding(calls, output, rows) if draws_head else None
                columns[signal] = as_column(self._log_probs(embedding, inputs, rows, signal.draws))
            else:
                raise NeedError(f"ModelReader does not give {signal!r}; it gives Probs, LabelProbs, Embedding")
        return columns

    def _log_probs(self, embedding: Tensor | None, inputs: Any, rows: int, draws: int) -> Tensor:
        """Log probabilities (B, K, C) under each draw: from the embedding, or by a forward pass for each."""
        weights = self.draws
        assert weights is not None, "called for models with draws only"
        if isinstance(weights, LastLayerDraws):
            assert embedding is not None, "read for draws of the last layer"
            return weights.of_embedding(embedding)
        with eval_mode(self.model):
            run = functools.partial(forward, self.model, inputs, self.autocast)
            return weights.of_model(self.model, lambda: heads.logits_of(run(), self.output, rows), draws)

    def read_labelled(self, labelled: Labelled, batches: Any) -> None:
        """Sum the loss gradients of the labelled rows, for LossJvp; `batches()` gives their inputs and labels."""
        self._gradient_columns().read_labelled(labelled, batches)

    def notes(self) -> dict[str, Any]:
        """How signals were read: parameters whose gradients took the fallback."""
        return {} if self._gradients is None else self._gradients.notes()

    def _gradient_columns(self) -> GradientColumns:
        if self._gradients is None:
            self._gradients = GradientColumns(self.model, self.output, self.autocast, self.units is not None)
        return self._gradients

    def _regression_columns(
        self, output: Any, calls: heads.Calls, rows: int, signals: tuple[Signal, ...]
    ) -> dict[Signal, Tensor]:
        """The columns of a regression model."""
        assert self.units is not None, "called for regression models only"
        mean, spread = self.units
        columns: dict[Signal, Tensor] = {}
        for signal in signals:
            if isinstance(signal, Prediction):
                columns[signal] = as_column(heads.values_of(output, self.output, rows) * spread + mean)
            elif isinstance(signal, Embedding):
                columns[signal] = as_column(self._embedding(calls, output, rows))
            else:
                raise NeedError(f"a regression model does not give {signal!r}; it gives Prediction, Embedding")
        return columns

    def logits(self, inputs: Any) -> Tensor:
        """The logits (B, C) of a batch, on the CPU."""
        with eval_mode(self.model):
            output = forward(self.model, inputs, self.autocast)
        return as_column(heads.logits_of(output, self.output, count_rows(inputs)), "cpu")

    @property
    def head_name(self) -> str | None:
        """The name of the last linear layer; None before Embedding was read once."""
        return self.head if self.head is not None else self._detected_head

    def _recorded_modules(self) -> dict[str, nn.Module]:
        """The modules to record: the head once it is known, before that every linear layer."""
        name = self.head if self.head is not None else self._detected_head
        return heads.linear_layers(self.model) if name is None else {name: heads.named_module(self.model, name)}

    def _embedding(self, calls: heads.Calls, output: Any, rows: int) -> Tensor:
        logits = heads.raw_logits(output, self.output)
        if self.head is None and self._detected_head is None:
            self._detected_head = heads.head_of(calls, logits)
        name = self.head if self.head is not None else str(self._detected_head)
        return heads.embedding_of(calls, name, heads.named_module(self.model, name), rows, logits)
