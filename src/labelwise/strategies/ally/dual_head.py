"""The dual regression head: predicts the dual variable of a row from its embedding; fitted on labelled rows.

A small network, D-64-32-16-1, each hidden layer Linear, batch norm, ReLU, dropout, as in ALLY's programme. The output
is a softplus, which is positive and always has a gradient (a ReLU can die there, and every score is then 0). Duals are
in units of their standard deviation. The network consists of plain float64 tensors and draws from a key, so that it is
the same on every device and does not change torch's global generators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.rng import Key

MIN_ROWS = 8  # fewer labelled rows do not determine a network
MIN_ROWS_HOLDOUT = 50
ERROR_BLOCK = 8192  # rows whose error is computed at once
MOMENTUM = 0.1  # of batch norm's averages


@dataclass(frozen=True)
class DualHead:
    """How the head is built and trained.

    Args:
        hidden: widths of the hidden layers.
        dropout: the dropout probability of each hidden layer.
        lr: learning rate of Adam.
        batch: rows of a step.
        epochs: maximum number of epochs.
        patience: epochs without a lower error after which training stops.
        holdout: share of the labelled rows for early stopping, from 50 labelled rows on; with fewer rows the training
            error is used.

    Raises:
        ArgumentError: a parameter is out of range.
    """

    hidden: tuple[int, ...] = (64, 32, 16)
    dropout: tuple[float, ...] = (0.3, 0.25, 0.25)
    lr: float = 1e-2
    batch: int = 64
    epochs: int = 200
    patience: int = 20
    holdout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("hidden", "dropout"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.hidden or len(self.hidden) != len(self.dropout) or min(self.hidden) < 1:
            raise ArgumentError(
                f"DualHead(hidden=..., dropout=...) are widths and shares of the same layers, at least one; found "
                f"{self.hidden} and {self.dropout}"
            )
        shares = (*self.dropout, self.holdout)
        if not all(0 <= share < 1 for share in shares) or not self.lr > 0:
            raise ArgumentError(f"DualHead: shares are from 0 up to below 1 and lr is above 0, found {self}")
        if min(self.batch, self.epochs, self.patience) < 1:
            raise ArgumentError(f"DualHead: batch, epochs and patience are at least 1, found {self}")

    def fit(self, embedding_LD: Tensor, dual_L: Tensor, ids_L: Tensor, key: Key) -> FittedHead:
        """Fit the head on labelled rows, on the CPU; the result does not depend on their order.

        Args:
            embedding_LD: embeddings (L, D).
            dual_L: duals (L,).
            ids_L: row ids (L,).
            key: for first weights, dropout, the order of rows and the hold-out.

        Returns:
            The head; a constant one where the duals are all equal or there are fewer than 8 rows.
        """
        order = ids_L.cpu().argsort()
        ids_L = ids_L.cpu()[order]
        x_LD = embedding_LD.detach().to("cpu", torch.float64)[order]
        y_L = dual_L.detach().to("cpu", torch.float64)[order]
        notes: dict[str, Any] = {"head_rows": len(y_L)}
        spread = float(y_L.std(correction=0)) if len(y_L) else 0.0
        largest = float(y_L.abs().max()) if len(y_L) else 0.0
        if spread <= 1e-12 * largest:
            notes["head"] = "all labelled duals are equal: rows are selected by cluster and at random"
            return FittedHead(None, float(y_L[0]) if len(y_L) else 0.0, notes)
        if len(y_L) < MIN_ROWS:
            notes["head"] = f"fewer than {MIN_ROWS} labelled rows: rows are selected by cluster and at random"
            return FittedHead(None, float(y_L.mean()), notes)
        units = _Units(x_LD.mean(0), float(x_LD.std(0, correction=0).square().mean().sqrt()) or 1.0, spread)
        net = _Net(units, _initial_weights(x_LD.shape[1], self, float(y_L.mean()) / spread, key.fold("weights")))
        count = round(self.holdout * len(y_L)) if len(y_L) >= MIN_ROWS_HOLDOUT else 0
        shuffled = key.fold("holdout").uniform(ids_L).argsort()
        train_rows, holdout_rows = shuffled[count:].sort().values, shuffled[:count].sort().values
        notes |= self._train(net, x_LD, y_L / spread, train_rows, holdout_rows, key)
        return FittedHead(net, 0.0, notes)

    def _train(
        self, net: _Net, x_LD: Tensor, y_L: Tensor, train_rows: Tensor, holdout_rows: Tensor, key: Key
    ) -> dict[str, Any]:
        """Train `net` in place; it ends with the weights of the lowest hold-out error. Returns notes."""
        optimiser = torch.optim.Adam(net.weights, lr=self.lr, fused=True)
        error_rows = holdout_rows if len(holdout_rows) else train_rows
        best, best_epoch, best_tensors = math.inf, 0, net.copy_tensors()
        epoch = 0
        for epoch in range(1, self.epochs + 1):
            generator = key.fold("epoch", epoch).generator()
            for rows in _batches(train_rows[torch.randperm(len(train_rows), generator=generator)], self.batch):
                loss = (net.run(x_LD[rows], self.dropout, generator) - y_L[rows]).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            error = _mean_squared_error(net, x_LD, y_L, error_rows)
            if error < best:
                best, best_epoch, best_tensors = error, epoch, net.copy_tensors()
            elif epoch - best_epoch >= self.patience:
                break
        net.load_tensors(best_tensors)
        # In units of the duals' variance: 1 is no better than their mean.
        name = "head_held_out_error" if len(holdout_rows) else "head_error"
        return {"head_epochs": epoch, name: best}


@torch.no_grad()
def _mean_squared_error(net: _Net, x_LD: Tensor, y_L: Tensor, rows: Tensor) -> float:
    errors = [(net.run(x_LD[part]) - y_L[part]).square() for part in rows.split(ERROR_BLOCK)]
    return float(torch.cat(errors).mean())


class FittedHead:
    """Predicts duals from embeddings: (B, D) to (B,), differentiable, on the device of its input."""

    def __init__(self, net: _Net | None, constant: float, notes: dict[str, Any]):
        self._net = net
        self._constant = constant
        self.notes = notes

    def __call__(self, embedding_BD: Tensor) -> Tensor:
        x_BD = embedding_BD.double()
        if self._net is None:
            return torch.full((len(x_BD),), self._constant, dtype=torch.float64, device=x_BD.device)
        net = self._net.to(x_BD.device)
        return net.run(x_BD) * net.units.dual


@dataclass(frozen=True)
class _Units:
    """Units of embeddings and duals."""

    mean_D: Tensor
    size: float  # of the centred embeddings; one number, so that columns keep their proportions
    dual: float


@dataclass
class _Net:
    """Weights as plain tensors: matrix, bias, scale, shift of each hidden layer; last the output matrix and bias."""

    units: _Units
    weights: list[Tensor]
    averages: list[Tensor] = field(default_factory=list)  # mean and variance of each hidden layer

    def __post_init__(self) -> None:
        if not self.averages:
            for matrix in self.weights[:-2:4]:
                self.averages += [matrix.new_zeros(len(matrix)), matrix.new_ones(len(matrix))]

    def run(self, x_BD: Tensor, dropout: Sequence[float] = (), generator: torch.Generator | None = None) -> Tensor:
        """Outputs (B,), positive; with a generator in training mode."""
        x = (x_BD - self.units.mean_D) / self.units.size
        for layer in range(len(self.averages) // 2):
            matrix, bias, scale, shift = self.weights[4 * layer : 4 * layer + 4]
            mean, var = self.averages[2 * layer : 2 * layer + 2]
            x = F.linear(x, matrix, bias)
            x = F.relu(F.batch_norm(x, mean, var, scale, shift, training=generator is not None, momentum=MOMENTUM))
            if generator is not None and dropout[layer]:
                mask = torch.rand(x.shape, generator=generator, dtype=x.dtype) >= dropout[layer]
                x = x * mask / (1 - dropout[layer])
        return F.softplus(F.linear(x, *self.weights[-2:])[:, 0])

    def copy_tensors(self) -> list[Tensor]:
        """A copy of everything that training changes."""
        return [tensor.detach().clone() for tensor in (*self.weights, *self.averages)]

    def load_tensors(self, tensors: list[Tensor]) -> None:
        """Use these tensors, which have no gradients."""
        self.weights, self.averages = tensors[: len(self.weights)], tensors[len(self.weights) :]

    def to(self, device: torch.device) -> _Net:
        if device == self.units.mean_D.device:
            return self
        units = _Units(self.units.mean_D.to(device), self.units.size, self.units.dual)
        return _Net(units, [one.to(device) for one in self.weights], [one.to(device) for one in self.averages])


def _initial_weights(inputs: int, head: DualHead, mean: float, key: Key) -> list[Tensor]:
    """First weights, drawn as torch's layers draw them; the output bias makes the first outputs the mean dual."""
    generator = key.generator()
    weights = []
    for a, b in pairwise((inputs, *head.hidden)):
        weights += [_uniform((b, a), a, generator), _uniform((b,), a, generator)]
        weights += [torch.ones(b, dtype=torch.float64), torch.zeros(b, dtype=torch.float64)]
    weights += [_uniform((1, head.hidden[-1]), head.hidden[-1], generator)]
    weights += [torch.tensor([math.log(math.expm1(max(mean, 1e-3)))], dtype=torch.float64)]
    return [weight.requires_grad_() for weight in weights]


def _uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1) / math.sqrt(inputs)


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """The batches of an epoch with the last partial one; never one of a single row, on which batch norm fails."""
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
