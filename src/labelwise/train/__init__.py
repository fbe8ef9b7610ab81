"""Training: learners of torch models and scikit-learn estimators, and the objectives that they minimise.

A learner fits the user's model to the labelled rows: losses by row go into an objective, one number comes out. It
returns a `Fit`, which predicts and from which the next round reads its signals.
"""

from labelwise.train.evaluate import evaluate
from labelwise.train.learner import Fit, Learner
from labelwise.train.make_learner import learner_of
from labelwise.train.objectives.objective import Mean, Objective, Weighted
from labelwise.train.objectives.primal_dual import PrimalDual
from labelwise.train.sklearn import SklearnLearner, is_of_trees
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
    "is_of_trees",
    "learner_of",
]
