"""Deep ensembles: the same model trained several times from different starts; each member is one draw.

Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017. Members differ in their first weights and in the order of the
data; all are trained on all labelled rows. A classifier without chance in its fit gives copies of one member.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.signals.draws.ensemble import EnsembleReader
from labelwise.signals.read import Reader
from labelwise.train.fit import Fit, Learner
from labelwise.train.learner import learner_of
from labelwise.train.objectives.objective import Objective
from labelwise.train.training_data import Lesson, Taught, calibrating, going_on, with_objective


class EnsembleLearner(Taught):
    """Trains `members` models by one learner, each with a key of its own, and reads them as one.

    What training publishes about the labelled rows, such as their duals, is the mean over the members.
    """

    def __init__(self, learner: Learner, members: int = 5):
        if isinstance(members, bool) or not isinstance(members, int) or members < 2:
            raise ArgumentError(f"an ensemble has a whole number of at least 2 members, found {members!r}")
        self.learner = learner
        self.members = members
        self.task = getattr(learner, "task", "classify")

    def learn(self, lesson: Lesson) -> Fit:
        """Train every member on the rows of the lesson."""
        fits = [
            self.learner.fit(
                *(lesson.pool, lesson.ids, lesson.labels),
                weights=lesson.weights,
                classes=lesson.classes,
                key=lesson.key.fold("member", i),
                previous=before,
            )
            for i, before in enumerate(_members(lesson.previous, self.members))
        ]
        return self._together(fits, lesson.ids)

    def with_objective(self, objective: Objective) -> EnsembleLearner | None:
        """An ensemble whose members train by `objective`."""
        learner = with_objective(self.learner, objective)
        return None if learner is None else EnsembleLearner(learner, self.members)

    def going_on(self) -> EnsembleLearner:
        """An ensemble whose members go on from their own weights of the round before."""
        return EnsembleLearner(going_on(self.learner), self.members)

    def calibrating(self) -> EnsembleLearner:
        """An ensemble whose members fit temperatures also where they hold no rows out."""
        return EnsembleLearner(calibrating(self.learner), self.members)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """The fit whose `state` this is; `ids` are the rows it was trained on."""
        parts: list[dict[str, Tensor]] = [{} for _ in range(self.members)]
        for name, value in state.items():
            number, _, own = name.partition(".")
            parts[int(number)][own] = value
        return self._together([self.learner.restore(part, ids) for part in parts], ids)

    def _together(self, fits: list[Fit], ids: Tensor) -> Fit:
        published = {
            signal: torch.stack([fit.published[signal].double() for fit in fits]).mean(0)
            for signal in fits[0].published
        }
        notes: dict[str, Any] = {"members": self.members, "each": [dict(fit.notes) for fit in fits]}
        said = [fit.notes["temperature_note"] for fit in fits if "temperature_note" in fit.notes]
        if said:
            notes["temperature_note"] = f"of {len(said)} of {self.members} members: {said[0]}"
        states = [fit.state for fit in fits if fit.state is not None]
        saved = {f"{i}.{name}": value for i, state in enumerate(states) for name, value in state.items()}
        return Fit(EnsembleReader([fit.reader for fit in fits]), ids, published, notes, saved or None)


def ensemble(model: Any, members: int = 5, *, task: Literal["classify", "regress"] | None = None) -> EnsembleLearner:
    """A learner of an ensemble of `model`: whatever a learner can be made of, trained `members` times.

    Probs are the mean of the members; LogProbs, which bald and other Bayesian strategies ask for, hold each member. A
    torch model learns numbers where `task` is "regress"; their prediction is the mean of the members too.

    >>> from torch import nn
    >>> ensemble(nn.Linear(2, 2), members=3).members
    3
    """
    return EnsembleLearner(learner_of(model, task), members)


def _members(previous: Fit | None, count: int) -> list[Fit | None]:
    """The fit of each member in the round before, as far as its model goes."""
    if previous is None or not isinstance(previous.reader, EnsembleReader):
        return [None] * count
    readers: tuple[Reader, ...] = previous.reader.members
    return [Fit(reader, previous.ids, previous.published) for reader in readers]
