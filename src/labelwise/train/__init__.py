"""Training: learners of torch models and scikit-learn estimators, and the objectives that they minimise."""

from labelwise.train.evaluate import evaluate
from labelwise.train.learner import Fit, Learner
from labelwise.train.make_learner import learner_of
from labelwise.train.objectives.objective import Mean, Objective, Weighted
from labelwise.train.objectives.primal_dual import PrimalDual
from labelwise.train.sklearn import SklearnLearner
from labelwise.train.torch.learner import TorchLearner

__all__ = [
    "Fit",
    "Learner",
    "Mean",
    "Objective",
    "PrimalDual",
    "SklearnLearner",
    "TorchLearner",
    "Weighted",
    "evaluate",
    "learner_of",
]
