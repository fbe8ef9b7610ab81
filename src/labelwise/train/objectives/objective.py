"""Objective: turns the losses of single rows into the one number that training minimises.

An objective holds parameters and no state. What it knows about the rows is a dictionary of tensors that `init` makes
and `after` replaces; every state holds "weight" (n,), the weights of the rows in the mean loss of early stopping.
Rows are named by their position 0..n-1 among the labelled rows.
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
    """Makes one scalar of the losses of a batch of rows. Subclass it to train by an objective of your own.

    Training calls `check` and `init` first. For each batch it calls `losses`, then `reduce`, and takes a step. It calls
    `after` with the losses of that same forward pass, for each batch or once for all rows of the epoch (`when`); or
    after every `every`-th step with the losses of all rows, measured again ("sweep"). At the end it calls `publish`
    with the state that belongs to the weights that were kept.

    Attributes:
        when: when `after` is called: for each "batch", once an "epoch", or after a "sweep" over all rows.
        every: steps from one sweep to the next.
        whole: whether every labelled row has to be trained on, so that none is held out.
        stop: training ends once this share of the rows is classified right; None for no such rule.
        stop_times: in how many epochs that has to be so.
        stop_from: how many epochs are run in any case.
        last: whether the weights of the last epoch are kept, whatever the learner's `keep`.
    """

    when: Literal["batch", "epoch", "sweep"] = "batch"
    every: int = 1
    whole: ClassVar[bool] = False
    stop: float | None = None
    stop_times: int = 1
    stop_from: int = 0
    last: bool = False

    def check(self, labels: Tensor) -> None:  # noqa: B027  most objectives have nothing to check
        """Raise ArgumentError if a parameter does not fit the labels (n,), which are on the CPU.

        Args:
            labels: (n,) class numbers, or numbers.
        """

    @abstractmethod
    def init(self, n: int, weights: Tensor | None) -> State:
        """Return the state before training, on the CPU.

        Args:
            n: how many labelled rows there are.
            weights: (n,) their weights; None for equal ones.

        Returns:
            A dictionary of tensors.
        """

    def losses(self, loss_B: Tensor, output_BC: Tensor, label_B: Tensor) -> Tensor:
        """Return what `reduce` and `after` are given: the losses, or more columns computed from the outputs.

        Args:
            loss_B: (B,) the loss of each row of the batch.
            output_BC: (B, C) the outputs of the model.
            label_B: (B,) the labels.

        Returns:
            A tensor (B,), or (B, columns).
        """
        return loss_B

    @abstractmethod
    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        """Return the scalar to minimise.

        Args:
            loss_B: what `losses` returned, (B,) or more columns.
            index_B: (B,) positions of these rows among the labelled rows.
            state: the current state.

        Returns:
            A tensor without dimensions.

        Raises:
            ArgumentError: a number of the objective is measured before training, and was not yet.
        """

    def after(self, loss_B: Tensor, index_B: Tensor, state: State) -> State:
        """Return a new state, from the same arguments without gradients. Never write to the old one.

        Args:
            loss_B: what `losses` returned, detached.
            index_B: (B,) positions of these rows among the labelled rows.
            state: the state of the objective.

        Returns:
            The new state.

        Raises:
            ArgumentError: a number of the objective is measured before training, and was not yet.
        """
        return state

    def publish(self, state: State) -> dict[Signal, Tensor]:
        """Return what training knows about the labelled rows: a column (n, ...) for each signal.

        Args:
            state: the state of the objective.

        Returns:
            A dictionary; empty if there is nothing to publish.
        """
        return {}

    def probe(self) -> Objective | None:
        """Return an objective to train by first, if a parameter of this one has to be measured; else None."""
        return None

    def settled(self, loss: float) -> tuple[Objective, dict[str, float]]:
        """Return this objective with its parameter set from the mean training loss under `probe`, and notes.

        Args:
            loss: the mean training loss under `probe`.

        Returns:
            The objective, and notes for the fit.
        """
        return self, {}


class Mean(Objective):
    """The plain mean of the losses; weights are ignored.

    >>> Mean().reduce(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]), Mean().init(2, None))
    tensor(2.)
    """

    def init(self, n: int, weights: Tensor | None) -> State:
        return {"weight": torch.ones(n)}

    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        return loss_B.mean()


class Weighted(Objective):
    """The weighted mean of the losses; weights are scaled to a mean of 1 over the labelled rows.

    >>> state = Weighted().init(2, torch.tensor([3.0, 1.0]))
    >>> Weighted().reduce(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]), state)
    tensor(1.5000)
    """

    def init(self, n: int, weights: Tensor | None) -> State:
        return {"weight": scaled(weights, n)}

    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        return (loss_B * state["weight"][index_B].to(loss_B)).mean()


class Sampled(Mean):
    """The plain mean of the losses of rows that a torch learner draws in proportion to their weights.

    `TorchLearner.with_objective(Sampled())` is the learner with `sampler="weights"`.
    """


def scaled(weights: Any, n: int) -> Tensor:
    """Scale weights (n,) to a mean of 1; a missing one (None, or NaN in the array) counts as 1 before scaling.

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
