"""Draws of scikit-learn's ensembles (forests, bagging, voting): one for each fitted member; nothing is imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def has_members(classifier: Any) -> bool:
    """Whether a fitted classifier is an ensemble of members that each answer the same question.

    Boosting and stacking are not, nor is one against the rest, whose members each know one class.
    """
    members = getattr(classifier, "estimators_", None)
    others = ("estimator_weights_", "final_estimator_", "label_binarizer_")
    return (
        isinstance(members, list | tuple)
        and not any(hasattr(classifier, name) for name in others)
        and all(hasattr(one, "predict_proba") for one in members)
    )


def member_log_probs(classifier: Any, features: Any, classes: int) -> Tensor:
    """Log probabilities (n, K, classes) of each of K members, in float64; -inf for a probability of 0."""
    seen_S = np.asarray(classifier.classes_).astype(np.int64)
    subsets = getattr(classifier, "estimators_features_", None)  # the columns of each member of a bagging ensemble
    draws = []
    for number, member in enumerate(classifier.estimators_):
        given_NS = np.asarray(member.predict_proba(features if subsets is None else features[:, subsets[number]]))
        # Members are fitted on indices into the classes of the ensemble.
        p_NC = np.zeros((len(given_NS), classes))
        p_NC[:, seen_S[np.asarray(member.classes_).astype(np.int64)]] = given_NS
        draws.append(torch.from_numpy(p_NC / p_NC.sum(1, keepdims=True)))
    return torch.stack(draws, 1).log()
