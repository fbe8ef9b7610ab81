"""`learner`: a Learner of whatever model a caller has."""

from __future__ import annotations

from typing import Any

from torch import nn

from labelwise.errors import ArgumentError
from labelwise.train.fit import Learner
from labelwise.train.sklearn_learner import SklearnLearner
from labelwise.train.torch_learner import TorchLearner


def learner_of(model: Any) -> Learner:
    """A Learner stays; an nn.Module or a function that makes one is trained by torch; fit and predict_proba is enough.

    >>> type(learner_of(nn.Linear(2, 2))).__name__
    'TorchLearner'
    """
    if isinstance(model, nn.Module) or (isinstance(model, type) and issubclass(model, nn.Module)):
        return TorchLearner(model)
    if not isinstance(model, type):
        if isinstance(model, Learner):
            return model
        if hasattr(model, "fit") and hasattr(model, "predict_proba"):
            return SklearnLearner(model)
        if callable(model) and not hasattr(model, "fit"):
            return TorchLearner(model)
    what = f"the class {model.__name__}" if isinstance(model, type) else f"an object of type {type(model).__name__}"
    raise ArgumentError(
        "a learner is a torch nn.Module, a function without arguments that makes one, a classifier with fit and "
        f"predict_proba (scikit-learn), or an object with fit and restore (a Learner); {what} is none of these. A "
        "classifier without probabilities becomes one by CalibratedClassifierCV(classifier)."
    )
