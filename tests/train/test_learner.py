"""`learner` takes what people have; `evaluate` is right; training does not import scikit-learn."""

import math
import subprocess
import sys

import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch import nn

from labelwise.errors import ArgumentError, LabelError, ModelError
from labelwise.pool import Pool
from labelwise.signals.spec import Probs
from labelwise.train import Learner, SklearnLearner, TorchLearner, evaluate, learner_of


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Small, lambda: Small()])
def test_torch_models_and_factories(model):
    assert isinstance(learner_of(model), TorchLearner)
    assert learner_of(model).model is model


def test_classifiers_and_learners():
    assert isinstance(learner_of(LogisticRegression()), SklearnLearner)
    own = TorchLearner(Small)
    assert learner_of(own) is own
    assert isinstance(own, Learner)
    assert isinstance(SklearnLearner(LogisticRegression()), Learner)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (RidgeClassifier(), "type RidgeClassifier"),
        (LogisticRegression, "the class LogisticRegression"),
        (3, "type int"),
    ],
)
def test_anything_else_is_told_what_is_accepted(model, found):
    with pytest.raises(ArgumentError, match=rf"nn.Module.*fit and\s*predict_proba.*{found}"):
        learner_of(model)


class Told:
    """A reader that gives the rows themselves as probabilities."""

    def gives(self, signal):
        return signal == Probs()

    def read(self, inputs, signals):
        return {Probs(): inputs}


def test_accuracy_and_nll_of_a_hand_made_case():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    pool = Pool.of(p)
    found = evaluate(Told(), pool, pool.ids, torch.tensor([0, 1, 1, 2]), batch=3)
    eps = torch.finfo(torch.float64).eps
    assert found["accuracy"] == 0.5
    assert found["nll"] == pytest.approx(-(math.log(0.5) + math.log(0.8) + math.log(0.25) + math.log(eps)) / 4)
    with pytest.raises(ModelError, match="gives 3 classes; a row has the label 3"):
        evaluate(Told(), pool, pool.ids, torch.tensor([0, 1, 1, 3]))
    with pytest.raises(LabelError, match="row id 1 has -1"):
        evaluate(Told(), pool, pool.ids, torch.tensor([0, -1, 1, 0]))


@pytest.mark.slow
def test_importing_training_imports_no_optional_package():
    code = (
        "import sys, labelwise.train\n"
        "print([name for name in ('sklearn', 'scipy', 'matplotlib', 'pyarrow', 'PIL') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
