"""Models of a configuration: training arguments reach the learner."""

import pytest

from labelwise.bench.data.load import load
from labelwise.bench.models.registry import learner_for, read_model
from labelwise.errors import ArgumentError


def test_training_arguments_reach_the_learner():
    entry = {"name": "linear", "keep": "last", "weight_decay": 0.01, "epochs": 3, "holdout": 0}
    learner = learner_for(read_model(entry, "models"), load("digits"), None, device="cpu")
    options = learner.options
    assert (options.keep, options.weight_decay, options.epochs, learner.holdout) == ("last", 0.01, 3, 0)
    with pytest.raises(ArgumentError, match="models: linear: keep is"):
        read_model({"name": "linear", "keep": "best"}, "models")


def test_a_parameter_of_an_estimator_is_cross_validated():
    entry = {
        "name": "logistic",
        "class": "sklearn.linear_model.LogisticRegression",
        "max_iter": 300,
        "cross_validate": "C",
    }
    learner = learner_for(read_model(entry, "models"), load("digits"), None, device="cpu")
    assert (learner.estimator.max_iter, learner.cross_validate) == (300, "C")
