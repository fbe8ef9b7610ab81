"""Deep ensembles: the same model trained several times from different initial weights; each member is one draw.

Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017. Members differ in their initial weights and in the order of the
data; all are trained on all labelled rows. A classifier without chance in its fit gives copies of one member.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.io.arguments import check_whole
from labelwise.signals.draws.ensemble import EnsembleReader
from labelwise.train.learner import Fit, Learner, TrainingData, WrappingLearner
from labelwise.train.make_learner import learner_of


class EnsembleLearner(WrappingLearner):
    """Trains several models by one learner, each with its own key, and reads them as one.

    What training publishes about the labelled rows, such as their duals, is the mean over the members.
    """

    def __init__(self, learner: Learner, members: int = 5):
        """Make an ensemble.

        Args:
            learner: trains each member.
            members: how many, at least 2.
        """
        self.learner = learner
        self.members = check_whole("ensemble(members=...)", members, 2)
        self.task = getattr(learner, "task", "classify")

    def fit_data(self, data: TrainingData) -> Fit:
        """Train every member."""
        previous = _previous_members(data.previous, self.members)
        fits = [
            replace(data, key=data.key.fold("member", i), previous=previous[i]).fit(self.learner)
            for i in range(self.members)
        ]
        return self._combine(fits, data.ids)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Rebuild a fit from its `state`; `ids` (n,) are the rows it was trained on."""
        states: list[dict[str, Tensor]] = [{} for _ in range(self.members)]
        for name, value in state.items():
            number, _, member_name = name.partition(".")
            states[int(number)][member_name] = value
        return self._combine([self.learner.restore(one, ids) for one in states], ids)

    def _combine(self, fits: list[Fit], ids: Tensor) -> Fit:
        published = {
            signal: torch.stack([fit.published[signal].double() for fit in fits]).mean(0)
            for signal in fits[0].published
        }
        notes: dict[str, Any] = {"members": self.members, "each": [dict(fit.notes) for fit in fits]}
        temperature_notes = [fit.notes["temperature_note"] for fit in fits if "temperature_note" in fit.notes]
        if temperature_notes:
            notes["temperature_note"] = f"of {len(temperature_notes)} of {self.members} members: {temperature_notes[0]}"
        states = [fit.state for fit in fits if fit.state is not None]
        saved = {f"{i}.{name}": value for i, state in enumerate(states) for name, value in state.items()}
        reader = EnsembleReader([fit.reader for fit in fits])
        return Fit(reader, ids, published, notes, saved or None, fits[0].held_out, tuple(fit.model for fit in fits))


def ensemble(model: Any, members: int = 5, *, task: Literal["classify", "regress"] | None = None) -> EnsembleLearner:
    """Make a learner that trains a model several times.

    Probs are the mean of the members; LogProbs, which bald and other Bayesian strategies need, hold each member.

    Args:
        model: anything a learner can be made of: a torch module, a scikit-learn estimator, a Learner.
        members: how many models are trained.
        task: "regress" makes a torch model learn numbers; their prediction is the mean of the members too.

    Returns:
        The learner.

    Raises:
        ArgumentError: no learner can be made of the model, or `members` is below 2.

    >>> from torch import nn
    >>> ensemble(nn.Linear(2, 2), members=3).members
    3
    """
    return EnsembleLearner(learner_of(model, task), members)


def _previous_members(previous: Fit | None, count: int) -> list[Fit | None]:
    """The fit of each member in the round before; None for each if there was no such round."""
    if previous is None or not isinstance(previous.reader, EnsembleReader):
        return [None] * count
    return [Fit(reader, previous.ids, previous.published) for reader in previous.reader.members]
