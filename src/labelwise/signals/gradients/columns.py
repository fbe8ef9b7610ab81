"""Columns of GradNorm, LossJvp and GradSketch of a batch, from one forward and one backward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import NeedError
from labelwise.signals.gradients.collect import GradientRequest
from labelwise.signals.gradients.read_gradients import Gradient, GradientResult, RowGradients
from labelwise.signals.model.forward import count_rows
from labelwise.signals.model.head import Output
from labelwise.signals.read import Labelled, as_column
from labelwise.signals.spec import GradNorm, GradSketch, LossJvp, Signal

Batches = Callable[[], Iterable[tuple[Any, Tensor]]]


class GradientColumns:
    """Computes gradient signals of a model; caches its rules and the summed gradient of its labelled rows.

    A regression model has no most probable label: its gradients are those of labels at distance one from the
    prediction, on either side with equal probability, so its LossJvp is 0.
    """

    def __init__(self, model: nn.Module, output: Output | None, autocast: torch.dtype | None, regression: bool):
        self.gradients = RowGradients(model, output, autocast)
        self.regression = regression
        self._labelled_gradient: Gradient | None = None
        self._labelled_digest = ""

    def read_labelled(self, labelled: Labelled, batches: Batches) -> None:
        """Sum the loss gradients of the labelled rows; cached for the same rows and labels."""
        content = (labelled.ids, labelled.labels)
        digest = hashlib.blake2b(b"".join(x.cpu().contiguous().numpy().tobytes() for x in content)).hexdigest()
        if digest != self._labelled_digest:
            self._labelled_gradient = None if self.regression else self.gradients.sum_over(batches())
            self._labelled_digest = digest

    def read(
        self, inputs: Any, signals: tuple[Signal, ...], watch: Mapping[str, nn.Module]
    ) -> tuple[GradientResult, dict[Signal, Tensor]]:
        """The model's output with the calls of the modules in `watch`, and a column for each gradient signal."""
        sketches: list[GradSketch | None] = [signal for signal in signals if isinstance(signal, GradSketch)]
        norm = any(isinstance(signal, GradNorm) for signal in signals)
        jvp = any(isinstance(signal, LossJvp) for signal in signals)
        columns: dict[Signal, Tensor] = {}
        first, *more = sketches or [None]
        request = GradientRequest(norm, self._along(jvp), _size(first))
        result = self._add(inputs, request, signals, first, watch, columns)
        for other in more:  # each width is a pass of its own; two are rare
            self._add(inputs, GradientRequest(sketch=_size(other)), (), other, {}, columns)
        return result, columns

    def notes(self) -> dict[str, Any]:
        """Parameters computed by the fallback, and the length of the gradient of the labelled rows."""
        found: dict[str, Any] = {}
        without_rule = self.gradients.notes()
        if without_rule:
            found["gradients_without_a_rule"] = without_rule
        if self._labelled_gradient is not None:
            length = sum(float(g.double().square().sum()) for g in self._labelled_gradient.values()) ** 0.5
            found["training_gradient_length"] = length
        return found

    def _add(
        self,
        inputs: Any,
        request: GradientRequest,
        signals: tuple[Signal, ...],
        sketch: GradSketch | None,
        watch: Mapping[str, nn.Module],
        columns: dict[Signal, Tensor],
    ) -> GradientResult:
        if self.regression:
            result = self.gradients.compute(inputs, request, "squared", "spread", watch)
        else:
            result = self.gradients.compute(inputs, request, "cross-entropy", "argmax", watch)
        zero_B = torch.zeros(count_rows(inputs), dtype=torch.float64)
        for signal in signals:
            if isinstance(signal, GradNorm) and result.sq_norm is not None:
                columns[signal] = self._column(result.sq_norm)
            elif isinstance(signal, LossJvp):
                columns[signal] = self._column(zero_B if result.dot is None else result.dot)
        if sketch is not None and result.sketch is not None:
            columns[sketch] = self._column(result.sketch)
        return result

    def _along(self, jvp: bool) -> Gradient | None:
        if not jvp or self.regression:
            return None
        if self._labelled_gradient is None:
            raise NeedError(
                "LossJvp needs the gradient of the labelled rows, and none were given; pass labelled=Labelled(ids, "
                "labels) to read"
            )
        return self._labelled_gradient

    def _column(self, values: Tensor) -> Tensor:
        """Sums (float64) in the precision of the model, or a selection would compute in float64."""
        first = next(iter(self.gradients.model.parameters()))
        return as_column(values if first.dtype == torch.float64 else values.float())


def _size(sketch: GradSketch | None) -> tuple[int, int] | None:
    return None if sketch is None else (sketch.width, sketch.seed)
