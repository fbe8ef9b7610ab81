"""Training dynamics of a model: G(S), the change Delta(Q|S), and how well the changes of single rows add up to it.

Wang et al., "Deep active learning by leveraging training dynamics", NeurIPS 2022, section 3. Along the gradient of the
summed loss of S, that loss falls at the rate G(S) = sum_ij d^i(X, Y)^T K^ij(X, X) d^j(X, Y) (eq. 8). The kernels are
inner products of gradients of logits, and the d turn those into the gradient of the loss (eq. 6), so G(S) = |g_S|^2
with g_S the sum over S of the gradients of the losses. Backward passes alone then give

    Delta(Q|S) = |g_Q|^2 + 2 g_Q . g_S,    R(Q|S) = (sum_u |g_u|^2 + 2 g_Q . g_S) / Delta(Q|S)          (eq. 13, 14)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import RowError
from labelwise.signals.gradients.collect import GradientRequest
from labelwise.signals.gradients.losses import Loss
from labelwise.signals.gradients.read_gradients import Gradient, RowGradients
from labelwise.signals.model.forward import count_rows, eval_mode, forward, take_rows
from labelwise.signals.model.head import Output, logits_of


@dataclass(frozen=True)
class Ratio:
    """The approximation ratio of eq. 14 as numerator and denominator; the denominator may be near 0 or negative."""

    summed: float  # of Delta(u|S) over the rows u of Q
    change: float  # Delta(Q|S)

    @property
    def value(self) -> float:
        """R(Q|S); infinite where the change is 0."""
        return self.summed / self.change if self.change else float("inf")


class Dynamics:
    """Training dynamics of a model at its current parameters, in eval mode; the model is restored after each call.

    Inputs are a batch of the model's inputs; they are read `batch` rows at a time. Labels are class numbers, or real
    numbers if `loss` is "squared" (half the squared distance).
    """

    def __init__(
        self, model: nn.Module, *, loss: Loss = "cross-entropy", output: Output | None = None, batch: int = 256
    ):
        self.model = model
        self.loss: Loss = loss
        self.output = output
        self.batch = batch
        self.gradients = RowGradients(model, output)

    def gradient(self, inputs: Any, labels: Tensor) -> Gradient:
        """g_S: the sum over the rows of the gradients of their losses.

        Raises:
            RowError: there is not one label for each row.
        """
        return self.gradients.sum_over(self._batches(inputs, labels), self.loss)

    def of(self, inputs: Any, labels: Tensor) -> float:
        """G(S) = |g_S|^2."""
        g_S = self.gradient(inputs, labels)
        return product(g_S, g_S)

    def change(self, query: tuple[Any, Tensor], labelled: tuple[Any, Tensor]) -> float:
        """Delta(Q|S) = G(S and Q) - G(S), without the cancellation of that difference."""
        g_Q, g_S = self.gradient(*query), self.gradient(*labelled)
        return product(g_Q, g_Q) + 2 * product(g_Q, g_S)

    def changes(self, inputs: Any, labels: Tensor, along: Gradient, gamma: float = 2.0) -> Tensor:
        """Delta(u|S) = |g_u|^2 + gamma g_u . g_S of each single row (n,), with g_S given as `along`.

        Raises:
            RowError: there is not one label for each row.
        """
        found = []
        for part, labels_B in self._batches(inputs, labels):
            result = self.gradients.compute(part, GradientRequest(norm=True, along=along), self.loss, labels_B)
            assert result.sq_norm is not None
            assert result.dot is not None
            found.append(result.sq_norm + gamma * result.dot)
        return torch.cat(found).cpu()

    def ratio(self, query: tuple[Any, Tensor], along: Gradient) -> Ratio:
        """R(Q|S) of eq. 14, with g_S given as `along`."""
        g_Q = self.gradient(*query)
        summed = float(self.changes(*query, along).sum())
        return Ratio(summed, product(g_Q, g_Q) + 2 * product(g_Q, along))

    def pseudo_labels(self, inputs: Any) -> Tensor:
        """The pseudo-label (n,) of each row: its most probable class."""
        found = []
        with eval_mode(self.model):
            for start in range(0, count_rows(inputs), self.batch):
                part = take_rows(inputs, slice(start, start + self.batch))
                found.append(logits_of(forward(self.model, part), self.output, count_rows(part)).argmax(1).cpu())
        return torch.cat(found)

    def _batches(self, inputs: Any, labels: Tensor) -> Iterator[tuple[Any, Tensor]]:
        rows = count_rows(inputs)
        if rows != len(labels):
            raise RowError(f"expected one label for each of {rows} rows, found {len(labels)}")
        for start in range(0, rows, self.batch):
            part = slice(start, min(start + self.batch, rows))
            yield take_rows(inputs, part), labels[part]


def product(a: Gradient, b: Gradient) -> float:
    """The inner product of two gradients, in float64."""
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)
