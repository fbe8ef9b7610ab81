"""Columns of the gradient signals: GradNorm, LossJvp and GradSketch of a batch, from one forward and one backward."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import NeedError
from labelwise.signals.gradients.collect import Asked
from labelwise.signals.gradients.read_gradients import Answer, Gradient, RowGradients
from labelwise.signals.model.forward import count_rows
from labelwise.signals.model.head import Output
from labelwise.signals.read import Labelled, as_column
from labelwise.signals.spec import GradNorm, GradSketch, LossJvp, Signal

Batches = Callable[[], Iterable[tuple[Any, Tensor]]]


class GradientColumns:
    """What a reader keeps to give gradient signals: the model's rules, and the gradient of its labelled rows.

    A regression model has no most probable label: its gradients are those of labels at distance one about the
    prediction, on either side with equal chance, so its LossJvp is 0.
    """

    def __init__(self, model: nn.Module, output: Output | None, autocast: torch.dtype | None, regression: bool):
        self.gradients = RowGradients(model, output, autocast)
        self.regression = regression
        self._training: Gradient | None = None
        self._seen = ""

    def read_labelled(self, labelled: Labelled, batches: Batches) -> None:
        """Sum the gradient of the labelled rows, once for the same rows and labels."""
        content = (labelled.ids, labelled.labels)
        seen = hashlib.blake2b(b"".join(x.cpu().contiguous().numpy().tobytes() for x in content)).hexdigest()
        if seen != self._seen:
            self._training = None if self.regression else self.gradients.training(batches())
            self._seen = seen

    def read(
        self, inputs: Any, signals: tuple[Signal, ...], watch: Mapping[str, nn.Module]
    ) -> tuple[Answer, dict[Signal, Tensor]]:
        """What the model returned, with the calls of modules to watch, and a column for each gradient signal."""
        sketches: list[GradSketch | None] = [signal for signal in signals if isinstance(signal, GradSketch)]
        norm = any(isinstance(signal, GradNorm) for signal in signals)
        jvp = any(isinstance(signal, LossJvp) for signal in signals)
        columns: dict[Signal, Tensor] = {}
        first, *more = sketches or [None]
        asked = Asked(norm, self._along(jvp), _size(first))
        answer = self._add(inputs, asked, signals, first, watch, columns)
        for other in more:  # each width is a pass of its own; nobody asks for two
            self._add(inputs, Asked(sketch=_size(other)), (), other, {}, columns)
        return answer, columns

    def notes(self) -> dict[str, Any]:
        """Which parameters were computed without a rule, and how long the gradient of the labelled rows is."""
        found: dict[str, Any] = {}
        fallen = self.gradients.notes()
        if fallen:
            found["gradients_without_a_rule"] = fallen
        if self._training is not None:
            length = sum(float(g.double().square().sum()) for g in self._training.values()) ** 0.5
            found["training_gradient_length"] = length
        return found

    def _add(
        self,
        inputs: Any,
        asked: Asked,
        signals: tuple[Signal, ...],
        sketch: GradSketch | None,
        watch: Mapping[str, nn.Module],
        columns: dict[Signal, Tensor],
    ) -> Answer:
        if self.regression:
            answer = self.gradients.ask(inputs, asked, "squared", "spread", watch)
        else:
            answer = self.gradients.ask(inputs, asked, "cross-entropy", "argmax", watch)
        zero_B = torch.zeros(count_rows(inputs), dtype=torch.float64)
        for signal in signals:
            if isinstance(signal, GradNorm) and answer.sq_norm is not None:
                columns[signal] = self._settled(answer.sq_norm)
            elif isinstance(signal, LossJvp):
                columns[signal] = self._settled(zero_B if answer.dot is None else answer.dot)
        if sketch is not None and answer.sketch is not None:
            columns[sketch] = self._settled(answer.sketch)
        return answer

    def _along(self, jvp: bool) -> Gradient | None:
        if not jvp or self.regression:
            return None
        if self._training is None:
            raise NeedError(
                "LossJvp is the inner product with the gradient of the labelled rows, and none were given; pass "
                "labelled=Labelled(ids, labels) to read"
            )
        return self._training

    def _settled(self, values: Tensor) -> Tensor:
        """Sums are in float64; the column is in the precision of the model, or everything beside it would widen."""
        first = next(iter(self.gradients.model.parameters()))
        return as_column(values if first.dtype == torch.float64 else values.float())


def _size(sketch: GradSketch | None) -> tuple[int, int] | None:
    return None if sketch is None else (sketch.width, sketch.seed)
