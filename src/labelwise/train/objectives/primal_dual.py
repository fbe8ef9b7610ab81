"""PrimalDual: training under a bound on the loss of every labelled row; what each bound costs is the row's dual.

Elenter, NaderiAlizadeh and Ribeiro, "A Lagrangian duality approach to active learning", NeurIPS 2022, algorithm 1:

    minimise mean_i l_i   subject to   l'_i <= epsilon for every labelled row i
    Lagrangian            mean_i [ l_i + dual_i (l'_i - epsilon) ]
    primal step           one step of the optimiser on the Lagrangian of a batch, duals fixed; T_p of them, then a
    dual step             dual_i <- max(0, dual_i + eta (l'_i - epsilon))

Duals begin at 0 in every fit. With update="minibatch" a row's dual moves once an epoch, with the loss of the forward
pass that the step was made from: eta times the running sum of the row's slack, held at zero from below. With
update="full" the loss of every labelled row is measured again after every step and all duals move, as algorithm 1
is written; that is a forward pass over all labelled rows for each step. With T_p = `primal_steps` above 1 a dual moves
after as many of the row's own steps ("minibatch"), or after as many steps of all ("full").
Departs from the paper: by default one bound for all rows, as in its experiments, where its text has one for each; no
labelled row is held out, since a row that is never trained on has no dual; the duals are those of the epoch whose
weights are kept; how long to train is the learner's choice, where the authors' programme stops at `stop=0.99`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_whole
from labelwise.signals.spec import Duals, Signal
from labelwise.train.objectives.objective import Objective, State, scaled

AUTO = 1.15  # times the loss without bounds: midway between the paper's 1.05 and 1.25

Secondary = Callable[[Tensor, Tensor], Tensor]  # outputs (B, C) and labels (B,) to a loss (B,)


@dataclass(frozen=True)
class PrimalDual(Objective):
    """Mean loss under a bound on every row's loss; publishes the duals.

    Attributes:
        epsilon: the bound, in nats (cross-entropy) or in variances of the target (squared error). "auto" is 1.15 times
            the mean training loss of a first fit without bounds, from the same initial weights and with the same
            batches; training then takes twice as long. A function of the labels (B,) gives each row its own bound (B,):
            of class numbers, or of standardised numbers in regression.
        eta: the step of the duals.
        update: "minibatch" as the authors' programme does it, "full" as algorithm 1 is written.
        primal_steps: T_p, the primal steps for each dual step; 1 in the paper's experiments.
        schedule: None for a constant step; a number t0 for eta / (1 + t / t0) after t steps of a row's dual, the
            paper's diminishing step; or a function of t, a tensor (B,), that gives the factor of eta.
        secondary: a function of outputs and labels that gives the bounded loss l' of each row; the loss itself if None.
        stop: None leaves the end of training to the learner, as for every other strategy. With a share, training ends
            after an epoch in which this share of the rows was classified right: 0.99 in the authors' programme, for
            every method. In regression a row is right within a tenth of a standard deviation of the target.

    Raises:
        ArgumentError: a parameter is out of range.

    >>> objective = PrimalDual(epsilon=0.2, eta=0.5)
    >>> state = objective.after(torch.tensor([1.0, 0.1]), torch.tensor([0, 1]), objective.init(2, None))
    >>> state["dual"]
    tensor([0.4000, 0.0000], dtype=torch.float64)
    """

    epsilon: float | Literal["auto"] | Callable[[Tensor], Tensor] = 0.2
    eta: float = 0.05
    update: Literal["minibatch", "full"] = "minibatch"
    schedule: float | Callable[[Tensor], Tensor] | None = None
    secondary: Secondary | None = None
    stop: float | None = None
    primal_steps: int = 1

    whole = True
    weighted: ClassVar[bool] = False  # whether the mean loss has the weights of the rows

    def __post_init__(self) -> None:
        bound = 0.0 if self.epsilon == "auto" or callable(self.epsilon) else self.epsilon
        if isinstance(bound, str) or not 0 <= bound < math.inf:
            raise ArgumentError(
                f'epsilon is a finite number of at least 0, "auto" or a function of labels, not {self.epsilon!r}.'
            )
        if not 0 < self.eta < math.inf:
            raise ArgumentError(f"eta is a number above 0, not {self.eta!r}.")
        if self.update not in ("minibatch", "full"):
            raise ArgumentError(f'update is "minibatch" or "full", not {self.update!r}.')
        if self.schedule is not None and not callable(self.schedule) and not self.schedule > 0:
            raise ArgumentError(f"schedule is None, a number above 0 or a function of t, not {self.schedule!r}.")
        steps = check_whole("primal_steps", self.primal_steps, 1)
        if self.stop is not None and not 0 < self.stop <= 1:
            raise ArgumentError(f"stop is a share above 0 and at most 1, or None, not {self.stop!r}.")
        full = self.update == "full"
        object.__setattr__(self, "when", "sweep" if full else "batch")
        object.__setattr__(self, "every", steps if full else 1)

    def check(self, labels: Tensor) -> None:
        """Raise ArgumentError if the bounds of these labels (n,) are not one for each, of at least 0.

        Args:
            labels: (n,) class numbers, or numbers.

        Raises:
            ArgumentError: the bounds are not one for each label, or one is below 0.
        """
        if not callable(self.epsilon):
            return
        bound_n = self.epsilon(labels)
        if bound_n.shape != labels.shape:
            raise ArgumentError(
                f"epsilon= has to give one bound for each label, shape {tuple(labels.shape)}; it gave "
                f"{tuple(bound_n.shape)}."
            )
        if not bool((bound_n >= 0).all()):
            raise ArgumentError(f"epsilon= has to give bounds of at least 0; it gave {float(bound_n.min())}.")

    def init(self, n: int, weights: Tensor | None) -> State:
        return {
            "weight": scaled(weights, n) if self.weighted else torch.ones(n),
            "dual": torch.zeros(n, dtype=torch.float64),
            "turn": torch.zeros(n, dtype=torch.int64),
        }

    def losses(self, loss_B: Tensor, output_BC: Tensor, label_B: Tensor) -> Tensor:
        """Return the loss and the bounded loss of each row: (B,) if they are the same, else (B, 2).

        A bound of each row's own is subtracted from its bounded loss.

        Args:
            loss_B: (B,) the loss of each row of the batch.
            output_BC: (B, C) the outputs of the model.
            label_B: (B,) the labels.

        Returns:
            A tensor (B,) or (B, 2).

        Raises:
            ArgumentError: the secondary loss does not have one value for each row.
        """
        if self.secondary is None and not callable(self.epsilon):
            return loss_B
        bounded_B = loss_B
        if self.secondary is not None:
            bounded_B = self.secondary(output_BC, label_B).to(loss_B)
            if bounded_B.shape != loss_B.shape:
                raise ArgumentError(
                    f"secondary= has to give one loss for each row, shape {tuple(loss_B.shape)}; it gave "
                    f"{tuple(bounded_B.shape)}. Leave its reduction out."
                )
        if callable(self.epsilon):
            bounded_B = bounded_B - self.epsilon(label_B).to(loss_B)
        return torch.stack([loss_B, bounded_B], 1)

    def reduce(self, loss_B: Tensor, index_B: Tensor, state: State) -> Tensor:
        primary_B, bounded_B = _split_losses(loss_B)
        if self.weighted:
            primary_B = primary_B * state["weight"][index_B].to(primary_B)
        return (primary_B + state["dual"][index_B].to(primary_B) * (bounded_B - self._bound())).mean()

    def after(self, loss_B: Tensor, index_B: Tensor, state: State) -> State:
        slack_B = _split_losses(loss_B)[1].double() - self._bound()
        dual_n, turn_n = state["dual"].clone(), state["turn"].clone()
        turn_B, each = turn_n[index_B], self.primal_steps // self.every  # sweeps come once in T_p steps already
        moved_B = (dual_n[index_B] + self._step(turn_B // each) * slack_B).clamp_min(0)
        dual_n[index_B] = torch.where((turn_B + 1) % each == 0, moved_B, dual_n[index_B])
        turn_n[index_B] = turn_B + 1
        return {**state, "dual": dual_n, "turn": turn_n}

    def publish(self, state: State) -> dict[Signal, Tensor]:
        return {Duals(): state["dual"]}

    def probe(self) -> Objective | None:
        return replace(self, epsilon=_NO_BOUND, update="minibatch") if self.epsilon == "auto" else None

    def settled(self, loss: float) -> tuple[Objective, dict[str, float]]:
        """Return this objective with epsilon set from `loss`, the mean training loss of a fit without bounds.

        Args:
            loss: the mean training loss of a fit without bounds.

        Returns:
            The objective, and notes with the epsilon it has.
        """
        epsilon = AUTO * loss
        return replace(self, epsilon=epsilon), {"unconstrained_loss": loss, "epsilon": epsilon}

    def _bound(self) -> float:
        if isinstance(self.epsilon, str):
            raise ArgumentError('epsilon="auto" is measured by the learner before training; it has no value here.')
        return 0.0 if callable(self.epsilon) else self.epsilon  # `losses` has subtracted it

    def _step(self, turn_B: Tensor) -> Tensor:
        t_B = turn_B.double()
        if self.schedule is None:
            return torch.full_like(t_B, self.eta)
        return self.eta * (self.schedule(t_B) if callable(self.schedule) else 1 / (1 + t_B / self.schedule))


class WeightedPrimalDual(PrimalDual):
    """PrimalDual of the weighted mean loss: the bound on a row's loss, and the step of its dual, have no weight.

    minimise mean_i w_i l_i  subject to  l'_i <= epsilon, with weights of mean 1

    >>> objective = WeightedPrimalDual(epsilon=0.2)
    >>> state = objective.init(2, torch.tensor([3.0, 1.0]))
    >>> objective.reduce(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]), state)
    tensor(1.5000)
    """

    weighted = True


_NO_BOUND = 1e30  # no loss reaches it: every dual stays 0


def _split_losses(loss_B: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and bounded loss of each row."""
    return (loss_B, loss_B) if loss_B.ndim == 1 else (loss_B[:, 0], loss_B[:, 1])
