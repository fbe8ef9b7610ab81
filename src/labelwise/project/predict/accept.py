"""Accept: which predictions can be taken without a person, so that no more than a given share of them is wrong.

Rows are taken from the most probable prediction on, down to a bar at which two things hold. The mean of 1 - p of the
rows above it is at most the share. And so few of the held-out rows above it are wrong, w of n, that (w + 1)/(n + 2),
Laplace's rule of succession, is at most the share: a few rows that happen to be right are no evidence. Held-out rows
are the test slice and the training rows by cross-validation; strategies choose the latter because they are hard.

The errors to expect are the mean of 1 - p of the accepted rows. Their interval (Wilson's) comes from the test slice
alone: random rows, with labels that no model was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise.stats.estimate import pool_mean

HeldOut = tuple[np.ndarray, np.ndarray]  # probability of the predicted class, and whether the prediction is right


@dataclass(frozen=True)
class Accepted:
    """Which rows are accepted, and how many of them may be wrong.

    Attributes:
        bar: the probability from which on a prediction is accepted; above 1 if none is.
        rows: accepted rows.
        expected: errors among them by the calibrated probabilities.
        low, high: 95 % interval of the errors by the test slice; None where no test row is accepted.
        tests, wrong: accepted test rows, and how many of them are predicted wrongly.
    """

    bar: float
    rows: int
    expected: float
    low: float | None
    high: float | None
    tests: int
    wrong: int


def accept(p_N: np.ndarray, max_error: float, test: HeldOut, cross: HeldOut) -> Accepted:
    """Choose the bar.

    Args:
        p_N: probability of the predicted class of each row without a label.
        max_error: the share of the accepted rows that may be wrong.
        test: the labelled test rows.
        cross: the training rows, each by a model that was not trained on it.

    >>> sure = np.linspace(0.95, 1, 60), np.ones(60, bool)
    >>> accept(np.array([0.99, 0.98, 0.6]), 0.02, sure, sure).rows
    2
    """
    bar = max(_bar(p_N, max_error), _evident(max_error, *(np.concatenate(both) for both in zip(test, cross))))
    in_N, (p_M, right_M) = p_N >= bar, test
    in_M = p_M >= bar
    rows, expected = int(in_N.sum()), float((1 - p_N[in_N]).sum())
    tests, wrong = int(in_M.sum()), int((in_M & ~right_M).sum())
    if not tests or not rows:
        return Accepted(bar, rows, expected, None, None, tests, wrong)
    share = pool_mean((~right_M[in_M]).astype(np.float64), np.ones(tests), share=True)
    return Accepted(bar, rows, expected, rows * share.low, rows * share.high, tests, wrong)


def _evident(max_error: float, p_H: np.ndarray, right_H: np.ndarray) -> float:
    """The lowest probability such that so few held-out rows from it on are wrong that the share is credible."""
    order = np.argsort(-p_H, kind="stable")
    wrong_H = np.cumsum(~right_H[order])
    good = np.flatnonzero((wrong_H + 1) / (np.arange(len(order)) + 3) <= max_error)
    if not len(good):
        return 2.0
    # Below the last held-out row there is no evidence, except where that row is the least certain of all.
    return 0.0 if good[-1] == len(order) - 1 else float(p_H[order[good[-1]]])


def _bar(p_N: np.ndarray, max_error: float) -> float:
    """The lowest probability such that the rows from it on have a mean of 1 - p of at most `max_error`."""
    sorted_N = np.sort(p_N)[::-1]
    mean_N = np.cumsum(1 - sorted_N) / np.arange(1, len(sorted_N) + 1)
    ends_N = (
        np.append(sorted_N[1:] < sorted_N[:-1], True) if len(sorted_N) else np.empty(0, bool)
    )  # equal rows go together
    good = np.flatnonzero((mean_N <= max_error) & ends_N)
    return float(sorted_N[good[-1]]) if len(good) else 2.0
