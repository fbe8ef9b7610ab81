"""Lesson: what a learner is given to train on. Taught: the learners of this package, with one `fit` for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train.fit import Fit, Learner
from labelwise.train.objectives.objective import Objective


@dataclass(frozen=True)
class Lesson:
    """The labelled rows, and what else a fit depends on.

    Attributes:
        pool: what the rows are of.
        ids: (n,) the labelled rows.
        labels: (n,) classes 0..classes-1, or numbers.
        weights: (n,) what each row counts, where that is known.
        classes: how many classes there are; 0 where labels are numbers.
        key: the only source of chance.
        previous: the fit of the round before.
    """

    pool: Pool
    ids: Tensor
    labels: Tensor
    weights: Tensor | None
    classes: int
    key: Key
    previous: Fit | None


class Taught(ABC):
    """A learner: `learn` is what it has to write."""

    task: Literal["classify", "regress"] = "classify"  # whether its labels are classes or numbers

    def fit(
        self,
        pool: Pool,
        ids: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        classes: int,
        key: Key,
        previous: Fit | None = None,
    ) -> Fit:
        """Train on the rows `ids` with `labels` 0..classes-1, or numbers; `previous` is the fit of the round before."""
        return self.learn(Lesson(pool, ids, labels, weights, classes, key, previous))

    @abstractmethod
    def learn(self, lesson: Lesson) -> Fit:
        """Train on the rows of the lesson."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """The fit whose `state` this is; `ids` are the rows it was trained on."""

    def with_objective(self, objective: Objective) -> Learner | None:
        """A learner like this one that trains by `objective`; None where it cannot show the loss of single rows."""
        return None

    def going_on(self) -> Learner:
        """A learner like this one that goes on from the weights of the round before, where it has weights."""
        return self

    def calibrating(self) -> Learner:
        """A learner like this one that fits the temperature of LabelProbs also where it holds no rows out."""
        return self


def with_objective(learner: Learner, objective: Objective) -> Learner | None:
    """`learner.with_objective(objective)`; None where it has no such method, as a class of the user's own."""
    own = getattr(learner, "with_objective", None)
    return own(objective) if callable(own) else None


def going_on(learner: Learner) -> Learner:
    """`learner.going_on()`, or the learner as it is."""
    own = getattr(learner, "going_on", None)
    return own() if callable(own) else learner


def calibrating(learner: Learner) -> Learner:
    """`learner.calibrating()`, or the learner as it is."""
    own = getattr(learner, "calibrating", None)
    return own() if callable(own) else learner
