"""The weighted data sampler: batches whose rows are drawn in proportion to their weights.

Theorem 4.2 of "Sample complexity of deep active learning": what minimises sum_i u_i loss_i is found by drawing rows
with probability u_i / sum_j u_j and minimising their plain loss. An epoch draws as many rows as there are, with
replacement. It is the weighted objective up to a factor, so the two are never combined.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.train.objectives.objective import Mean

SamplerChoice = Literal["shuffle", "weights"]


def check_sampler(sampler: Any, objective: Any) -> None:
    """Raise ArgumentError for an unknown sampler, or one whose weights would count twice."""
    if sampler not in ("shuffle", "weights"):
        raise ArgumentError(f'sampler is "shuffle" or "weights", not {sampler!r}.')
    if sampler == "weights" and objective is not None and not isinstance(objective, Mean):
        raise ArgumentError(
            f'sampler="weights" draws rows by their weights and needs the plain mean of their losses; with '
            f"objective={type(objective).__name__}() the weights would count twice. Take one of the two."
        )


def drawn_order(at: Tensor, rate_n: Tensor, key: Key) -> Tensor:
    """As many of the places `at` as there are, drawn with replacement in proportion to their rates."""
    rate = rate_n.cpu().double()[at]
    if not bool(rate.any()):
        raise ArgumentError("all weights of the rows that are trained on are 0: there is nothing to draw.")
    return at[torch.multinomial(rate, len(at), replacement=True, generator=key.generator())]
