"""`learner_of`: a Learner from whatever model a caller has."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from labelwise.errors import ArgumentError
from labelwise.train.learner import Learner
from labelwise.train.sklearn import HOW_TO_GET_PROBABILITIES, SklearnLearner, gives_probabilities, is_regressor
from labelwise.train.torch.learner import TorchLearner


def learner_of(model: Any, task: Literal["classify", "regress"] | None = None) -> Learner:
    """Make a Learner of a model.

    Args:
        model: a Learner, which is returned as it is; an nn.Module or a function that makes one; or an estimator in
            the manner of scikit-learn.
        task: "regress" makes a torch model learn numbers. A scikit-learn regressor always does.

    Returns:
        The learner.

    Raises:
        ArgumentError: the model is none of these.

    >>> type(learner_of(nn.Linear(2, 2))).__name__
    'TorchLearner'
    """
    if isinstance(model, nn.Module) or (isinstance(model, type) and issubclass(model, nn.Module)):
        return TorchLearner(model, loss="mse" if task == "regress" else "cross_entropy")
    if not isinstance(model, type):
        if isinstance(model, Learner):
            return model
        if hasattr(model, "fit") and (is_regressor(model) or gives_probabilities(model)):
            return SklearnLearner(model)
        if callable(model) and not hasattr(model, "fit"):
            return TorchLearner(model, loss="mse" if task == "regress" else "cross_entropy")
    what = f"the class {model.__name__}" if isinstance(model, type) else f"an object of type {type(model).__name__}"
    raise ArgumentError(
        "a learner is a torch nn.Module, a function without arguments that makes one, a classifier with fit and "
        "predict_proba or a regressor (scikit-learn), or an object with fit and restore (a Learner); "
        f"{what} is none of these. {HOW_TO_GET_PROBABILITIES}"
    )
