"""The dual regression head: from the embedding of a row to its dual, learnt on labelled rows, asked of all others.

A small network, D-64-32-16-1, each hidden layer Linear, batch norm, ReLU, dropout, as in ALLY's programme. Its output
is a softplus, which is above zero and always has a gradient (a ReLU there can die, and every score is then 0). Duals
are learnt in units of their standard deviation. It is written out here on plain tensors in float64, with chance from
a key alone, so that it is the same on every device and leaves torch's own generators as they are.
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

FEWEST = 8  # labelled rows below which there is nothing to learn a network from
HOLD_FROM = 50  # labelled rows from which a part is held out to stop by
WATCHED = 8192  # rows whose error is computed at once
MOMENTUM = 0.1  # of batch norm's averages


@dataclass(frozen=True)
class DualHead:
    """How the head is made and trained.

    Attributes:
        hidden: widths of the hidden layers.
        dropout: share of each hidden layer that is left out in a step.
        lr: of Adam.
        batch: rows of a step.
        epochs: at most so many passes.
        patience: stop after so many passes without a lower error.
        holdout: share of the labelled rows that the error is watched on, from 50 labelled rows on; with fewer the
            training error is watched.
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
        """The head that fits these labelled rows, on the CPU; whatever order they come in."""
        order = ids_L.cpu().argsort()
        ids_L = ids_L.cpu()[order]
        x_LD = embedding_LD.detach().to("cpu", torch.float64)[order]
        y_L = dual_L.detach().to("cpu", torch.float64)[order]
        notes: dict[str, Any] = {"head_rows": len(y_L)}
        spread = float(y_L.std(correction=0)) if len(y_L) else 0.0
        size = float(y_L.abs().max()) if len(y_L) else 0.0
        if spread <= 1e-12 * size:
            notes["head"] = "all labelled duals are the same: rows are told apart by cluster and chance alone"
            return FittedHead(None, float(y_L[0]) if len(y_L) else 0.0, notes)
        if len(y_L) < FEWEST:
            notes["head"] = f"fewer than {FEWEST} labelled rows: rows are told apart by cluster and chance alone"
            return FittedHead(None, float(y_L.mean()), notes)
        units = _Units(x_LD.mean(0), float(x_LD.std(0, correction=0).square().mean().sqrt()) or 1.0, spread)
        net = _Net(units, _first_weights(x_LD.shape[1], self, float(y_L.mean()) / spread, key.fold("weights")))
        held = round(self.holdout * len(y_L)) if len(y_L) >= HOLD_FROM else 0
        draw = key.fold("holdout").uniform(ids_L).argsort()
        notes |= self._train(net, x_LD, y_L / spread, draw[held:].sort().values, draw[:held].sort().values, key)
        return FittedHead(net, 0.0, notes)

    def _train(self, net: _Net, x_LD: Tensor, y_L: Tensor, at: Tensor, out: Tensor, key: Key) -> dict[str, Any]:
        """Train `net` in place on the rows `at`; it ends with the weights of the lowest error on `out`."""
        optimiser = torch.optim.Adam(net.weights, lr=self.lr, fused=True)
        watched = out if len(out) else at
        best, best_epoch, kept = math.inf, 0, net.tensors()
        epoch = 0
        for epoch in range(1, self.epochs + 1):
            chance = key.fold("epoch", epoch).generator()
            for place in _batches(at[torch.randperm(len(at), generator=chance)], self.batch):
                loss = (net.run(x_LD[place], self.dropout, chance) - y_L[place]).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            error = _error(net, x_LD, y_L, watched)
            if error < best:
                best, best_epoch, kept = error, epoch, net.tensors()
            elif epoch - best_epoch >= self.patience:
                break
        net.put(kept)
        # In units of the duals' variance: 1 is no better than their mean.
        name = "head_held_out_error" if len(out) else "head_error"
        return {"head_epochs": epoch, name: best}


@torch.no_grad()
def _error(net: _Net, x_LD: Tensor, y_L: Tensor, at: Tensor) -> float:
    """The mean square of what the net is off by on these rows, in parts: its layers are wider than most rows."""
    off = [(net.run(x_LD[part]) - y_L[part]).square() for part in at.split(WATCHED)]
    return float(torch.cat(off).mean())


class FittedHead:
    """Predicts duals from embeddings: (B, D) to (B,), differentiable, on the device of what it is given."""

    def __init__(self, net: _Net | None, constant: float, notes: dict[str, Any]):
        self._net = net
        self._constant = constant
        self.notes = notes

    @property
    def constant(self) -> bool:
        """Whether it says the same of every row."""
        return self._net is None

    def __call__(self, embedding_BD: Tensor) -> Tensor:
        x_BD = embedding_BD.double()
        if self._net is None:
            return torch.full((len(x_BD),), self._constant, dtype=torch.float64, device=x_BD.device)
        net = self._net.on(x_BD.device)
        return net.run(x_BD) * net.units.dual


@dataclass(frozen=True)
class _Units:
    """What embeddings and duals are measured in."""

    mean_D: Tensor
    size: float  # of the embeddings around their mean, one number: single columns keep their proportions
    dual: float


@dataclass
class _Net:
    """Weights as plain tensors: for each hidden layer matrix, bias, scale, shift; at last matrix and bias."""

    units: _Units
    weights: list[Tensor]
    averages: list[Tensor] = field(default_factory=list)  # mean and variance of each hidden layer

    def __post_init__(self) -> None:
        if not self.averages:
            for matrix in self.weights[:-2:4]:
                self.averages += [matrix.new_zeros(len(matrix)), matrix.new_ones(len(matrix))]

    def run(self, x_BD: Tensor, dropout: Sequence[float] = (), chance: torch.Generator | None = None) -> Tensor:
        """Outputs (B,), above zero; with `chance` in the manner of training."""
        x = (x_BD - self.units.mean_D) / self.units.size
        for layer in range(len(self.averages) // 2):
            matrix, bias, scale, shift = self.weights[4 * layer : 4 * layer + 4]
            mean, var = self.averages[2 * layer : 2 * layer + 2]
            x = F.linear(x, matrix, bias)
            x = F.relu(F.batch_norm(x, mean, var, scale, shift, training=chance is not None, momentum=MOMENTUM))
            if chance is not None and dropout[layer]:
                keep = torch.rand(x.shape, generator=chance, dtype=x.dtype) >= dropout[layer]
                x = x * keep / (1 - dropout[layer])
        return F.softplus(F.linear(x, *self.weights[-2:])[:, 0])

    def tensors(self) -> list[Tensor]:
        """A copy of everything that training changes."""
        return [tensor.detach().clone() for tensor in (*self.weights, *self.averages)]

    def put(self, kept: list[Tensor]) -> None:
        """Take these for its own, without gradients: training is over."""
        self.weights, self.averages = kept[: len(self.weights)], kept[len(self.weights) :]

    def on(self, device: torch.device) -> _Net:
        """The same net on a device."""
        if device == self.units.mean_D.device:
            return self
        units = _Units(self.units.mean_D.to(device), self.units.size, self.units.dual)
        return _Net(units, [one.to(device) for one in self.weights], [one.to(device) for one in self.averages])


def _first_weights(inputs: int, how: DualHead, mean: float, key: Key) -> list[Tensor]:
    """Weights drawn as torch's own layers draw them; the last bias makes the first outputs the mean dual."""
    chance = key.generator()
    weights = []
    for a, b in pairwise((inputs, *how.hidden)):
        weights += [_uniform((b, a), a, chance), _uniform((b,), a, chance)]
        weights += [torch.ones(b, dtype=torch.float64), torch.zeros(b, dtype=torch.float64)]
    weights += [_uniform((1, how.hidden[-1]), how.hidden[-1], chance)]
    weights += [torch.tensor([math.log(math.expm1(max(mean, 1e-3)))], dtype=torch.float64)]
    return [weight.requires_grad_() for weight in weights]


def _uniform(shape: tuple[int, ...], inputs: int, chance: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=chance, dtype=torch.float64) * 2 - 1) / math.sqrt(inputs)


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """Batches of an epoch, the last partial one too; never one of a single row, which batch norm has no use for."""
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
