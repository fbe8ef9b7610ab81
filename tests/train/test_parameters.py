"""Learners in the manner of scikit-learn: get_params, set_params, clone, repr, and loops over parameters."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.train import Fit, SklearnLearner
from labelwise.train.learner import BaseLearner, TrainingData

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def net() -> nn.Module:
    return nn.Linear(4, 2)


LEARNERS = [
    SklearnLearner(make_pipeline(StandardScaler(), LogisticRegression(C=3)), cross_validate="logisticregression__C"),
    lw.TorchLearner(net, lr=0.1, epochs=3, valid=(X[:8], Y[:8])),
    lw.TorchLearner(nn.Linear(4, 2), fit=lambda *given: None),
    lw.ensemble(lw.TorchLearner(net, epochs=2), members=3),
    lw.laplace(net, draws=7),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_a_clone_has_the_same_parameters_and_trains_alike(learner: Any) -> None:
    other = clone(learner)
    assert type(other) is type(learner)
    assert other is not learner
    assert repr(other) == repr(learner)
    assert other.get_params(deep=False).keys() == learner.get_params(deep=False).keys()
    one, two = (lw.Session(X, made, "random", classes=2, seed=1) for made in (learner, other))
    for al in (one, two):
        al.tell(np.arange(20), Y[:20])
    np.testing.assert_array_equal(one.predict_proba(), two.predict_proba())


def test_parameters_are_the_arguments_as_given() -> None:
    learner = lw.TorchLearner(net, lr=0.1, valid=(X, Y))
    given = learner.get_params()
    assert list(given) == list(inspect.signature(lw.TorchLearner).parameters)
    assert (given["model"], given["lr"], given["momentum"]) == (net, 0.1, 0.9)
    assert given["valid"][0] is X
    assert given["fit"] is None
    assert SklearnLearner(LogisticRegression(C=3)).get_params()["estimator__C"] == 3


def test_set_params() -> None:
    learner = lw.ensemble(SklearnLearner(LogisticRegression()), members=2)
    assert learner.set_params(members=4, learner__estimator__C=7.0) is learner
    assert (learner.members, learner.learner.estimator.C) == (4, 7.0)
    with pytest.raises(ArgumentError, match=r"no parameter 'member'; did you mean 'members'\? it has learner, "):
        learner.set_params(member=3)
    with pytest.raises(ArgumentError, match="at least 2, not"):
        learner.set_params(members=1)
    assert learner.members == 4
    torchy = lw.TorchLearner(net, lr=0.1).set_params(lr=0.2)
    assert torchy.options.lr == 0.2


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(lw.TorchLearner(net, lr=0.1)) == "TorchLearner(net, lr=0.1)"
    assert repr(lw.TorchLearner(nn.Linear(4, 2), restart="given")) == "TorchLearner(Linear, restart='given')"
    assert repr(lw.ensemble(LogisticRegression(C=2), 3)) == (
        "EnsembleLearner(SklearnLearner(LogisticRegression(C=2)), members=3)"
    )
    al = lw.Session(X, SklearnLearner(LogisticRegression(C=2)), "random", classes=2)
    assert "SklearnLearner(LogisticRegression(C=2))" in al._repr_html_()


def test_a_loop_over_a_grid() -> None:
    base = SklearnLearner(LogisticRegression())
    scores = {}
    for parameters in ParameterGrid({"estimator__C": [1e-6, 1.0]}):
        records = list(lw.rounds(X, Y, clone(base).set_params(**parameters), "random", k=5, n=1))
        scores[parameters["estimator__C"]] = records[-1].metrics["nll"]
    assert scores[1.0] < scores[1e-6]
    assert base.estimator.C == 1.0


def test_a_learner_as_the_step_of_a_pipeline() -> None:
    pipeline = Pipeline([("learner", SklearnLearner(LogisticRegression()))])
    assert clone(pipeline).set_params(learner__estimator__C=2.0).get_params()["learner__estimator__C"] == 2.0
    with pytest.raises(ArgumentError, match="an object of type Pipeline is none of these"):
        lw.Session(X, pipeline, "random")


def test_the_learner_of_a_session_is_not_changed() -> None:
    """A recipe adapts a copy; setting a parameter of it would undo what the recipe set."""
    given = lw.TorchLearner(net, epochs=2)
    al = lw.Session(X, given, "ally", classes=2)
    with pytest.raises(ArgumentError, match="adapted by a session; call set_params of the learner that you made"):
        al.learner.set_params(epochs=3)
    assert given.set_params(epochs=3).options.epochs == 3
    assert al.learner.options.epochs == 2


def test_copies_keep_their_parameters() -> None:
    learner = lw.TorchLearner(net, lr=0.1)
    for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        assert repr(other) == repr(learner)
        assert other.set_params(lr=0.3).options.lr == 0.3


@dataclass
class Own(BaseLearner):
    """A learner of one's own, as a dataclass."""

    size: int = 3

    def fit_data(self, data: TrainingData) -> Fit:
        raise NotImplementedError

    def restore(self, state: dict[str, torch.Tensor], ids: torch.Tensor) -> Fit:
        raise NotImplementedError


class Wider(Own):
    """One with more arguments than it names."""

    def __init__(self, name: str, **more: Any):
        super().__init__(**more)
        self.name = name


def test_learners_of_ones_own() -> None:
    assert clone(Own(5)) == Own(5)
    assert Own(5).get_params() == {"size": 5}
    wider = Wider("a", size=9)
    assert wider.get_params() == {"name": "a", "size": 9}
    assert clone(wider).set_params(size=4).size == 4
