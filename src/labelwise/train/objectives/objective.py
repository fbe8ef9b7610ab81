"""Objective: what training minimises. The losses of single rows go in, one number to minimise comes out.

An objective holds parameters and no state. What it knows about the rows is a dictionary of tensors that `init` makes
and `after` replaces; every state holds "weight" (n,), what a row counts in the mean loss that early stopping watches.
Rows are named by their place 0..n-1 among the labelled rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, RowError
from labelwise.signals.spec import Signal

State = Mapping[str, Tensor]


class Objective(ABC):
    """Makes one scalar of the losses of a batch of rows.

    Training calls `losses`, then `reduce` for each batch and takes a step; then `after` with the losses of that same
    forward pass, for each batch or once for all rows of the epoch (`when`), or after each step (each `every`-th) with
    losses measured anew on all rows ("sweep"); at the end `publish` with the state that belongs to the weights that
    were kept.
    """

    when: Literal["batch", "epoch", "sweep"] = "batch"
    every: int = 1  # steps from one sweep to the next
    whole: ClassVar[bool] = False  # whether every labelled row has to be trained on: none is held out then
    stop: float | None = None  # training ends once this share of the rows is classified right; None: by the loss alone
    stop_times: int = 1  # epochs in which that has to be so
    stop_from: int = 0  # epochs that are run in any case
    last: bool = False  # whether the weights of the last epoch are kept, and not those of the lowest loss

    @abstractmethod
    def init(self, n: int, weights: Tensor | None) -> State:
        """The state before training, for n labelled rows with these weights (n,), on the CPU."""

    def losses(self, loss_B: Tensor, output_BC: Tensor, label_B: Tensor) -> Tensor:
        """What `reduce` and `after` are given: the losses of a batch, or more columns computed from the outputs."""
        return loss_B

    @abstractmethod
    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        """The number to minimise, from the losses of the rows at `index_B`."""

    def after(self, loss_B: Tensor, index_B: Tensor, state: State) -> State:
        """A new state, given losses without gradient; the old one may still be in use and is not written to."""
        return state

    def publish(self, state: State) -> dict[Signal, Tensor]:
        """What training knows about the labelled rows: a column (n, ...) for each signal it can give."""
        return {}

    def probe(self) -> Objective | None:
        """An objective to train by first, where a parameter of this one is to be measured."""
        return None

    def settled(self, loss: float) -> tuple[Objective, dict[str, float]]:
        """This objective with its parameters measured, from the mean training loss under `probe`; and what to note."""
        return self, {}


class Mean(Objective):
    """Every labelled row counts the same; weights are left aside."""

    def init(self, n: int, weights: Tensor | None) -> State:
        return {"weight": torch.ones(n)}

    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        return loss_B.mean()


class Weighted(Objective):
    """A row counts by its weight; weights are scaled to a mean of 1 over the labelled rows."""

    def init(self, n: int, weights: Tensor | None) -> State:
        return {"weight": scaled(weights, n)}

    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        return (loss_B * state["weight"][index_B].to(loss_B)).mean()


def scaled(weights: Any, n: int) -> Tensor:
    """Weights (n,) scaled to a mean of 1; a missing one (None, or NaN in the array) counts as 1 before scaling.

    >>> scaled(torch.tensor([3.0, torch.nan, 0.0]), 3)
    tensor([2.2500, 0.7500, 0.0000])
    """
    if weights is None:
        return torch.ones(n)
    weight_n = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if weight_n.shape != (n,):
        raise RowError(
            f"one weight for each of {n} labelled rows was expected, shape {tuple(weight_n.shape)} was found."
        )
    weight_n = weight_n.masked_fill(weight_n.isnan(), 1.0)
    bad_n = ~torch.isfinite(weight_n) | (weight_n < 0)
    if bool(bad_n.any()):
        row = int(bad_n.nonzero()[0])
        raise ArgumentError(f"weights are finite and at least 0; labelled row {row} has {float(weight_n[row])}.")
    if not bool(weight_n.any()):
        raise ArgumentError("all weights of the labelled rows are 0: there is nothing to train on.")
    return (weight_n / weight_n.mean()).float()
