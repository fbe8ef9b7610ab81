"""Draws of scikit-learn's ensembles (forests, bagging, voting): each fitted member is one. It is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def has_members(classifier: Any) -> bool:
    """Whether a fitted classifier is an ensemble whose members were fitted beside each other, not on each other."""
    members = getattr(classifier, "estimators_", None)
    boosted = hasattr(classifier, "estimator_weights_")
    return isinstance(members, list | tuple) and not boosted and all(hasattr(one, "predict_proba") for one in members)


def member_log_probs(classifier: Any, features: Any, classes: int) -> Tensor:
    """Log probabilities (n, K, classes) in float64 of each of K members; -inf for a class it gives no chance."""
    seen_S = np.asarray(classifier.classes_).astype(np.int64)
    subsets = getattr(classifier, "estimators_features_", None)  # which columns a member of a bagging ensemble takes
    drawn = []
    for number, member in enumerate(classifier.estimators_):
        given_NS = np.asarray(member.predict_proba(features if subsets is None else features[:, subsets[number]]))
        # Members are fitted on the numbers of the classes that the ensemble saw.
        p_NC = np.zeros((len(given_NS), classes))
        p_NC[:, seen_S[np.asarray(member.classes_).astype(np.int64)]] = given_NS
        drawn.append(torch.from_numpy(p_NC / p_NC.sum(1, keepdims=True)))
    return torch.stack(drawn, 1).log()
