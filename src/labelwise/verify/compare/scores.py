"""Strategies that score each row by itself: the k highest scores of a loop, ties to the smaller id."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.strategies.dynamical import reference as slow_dynamical
from labelwise.strategies.uncertainty import reference as slow
from labelwise.verify.case import Case
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.problems import close, same_ids, true

ALARM = 1e-7  # the chance that a correct strategy fails a chi-square test
TRIES = 6
DRAWN = 600


def of_probs(case: Case, score: Callable[[np.ndarray], list[float]], exact_ties: bool) -> None:
    """Picks and scores of a function of the class probabilities."""
    for turn in range(TRIES):
        rng = case.rng("probs", turn)
        n, classes = int(rng.integers(5, 60)), int(rng.integers(2, 8))
        p = rng.dirichlet(np.full(classes, 0.5), n)
        if turn == 0 and exact_ties:  # quarters: exact in every precision, and full of ties
            p = np.array([np.bincount(rng.integers(0, 3, 4), minlength=3) for _ in range(n)]) / 4
        ids, k = rng.permutation(500)[:n], int(rng.integers(1, n + 1))
        got = case.select(k, {"probs": p}, ids)
        values = dict(zip(ids.tolist(), score(p)))
        same_ids(got.ids, slow.highest_first(ids, [round(values[int(i)], 12) for i in ids], k), "highest scores")
        close(got.scores, [values[i] for i in got.ids.tolist()], "scores", 1e-12, 1e-300)


def confidence(case: Case) -> None:
    of_probs(case, slow.confidence, True)


def margin(case: Case) -> None:
    of_probs(case, slow.margin, True)


def entropy(case: Case) -> None:
    of_probs(case, slow.entropy, False)


def random_replayed(case: Case) -> None:
    """The k highest hashes of (seed, id)."""
    for turn in range(TRIES):
        rng = case.rng("random", turn)
        ids, k = rng.permutation(5000)[:80] - 1000, int(rng.integers(1, 81))
        got = case.select(k, {}, ids, seed=turn)
        noise = Key(turn).uniform(torch.from_numpy(ids)).tolist()
        same_ids(got.ids, slow.highest_first(ids, noise, k), "highest hashes")


def random_law(case: Case) -> None:
    """Every ordered pair of rows is equally likely."""
    ids = np.array([7, 8, 9, 10])
    start = 1000 * case.seed
    seen = Counter(tuple(case.select(2, {}, ids, seed=start + turn).ids.tolist()) for turn in range(DRAWN))
    pairs = list(itertools.permutations(ids.tolist(), 2))
    p = chi_square_p([seen[pair] for pair in pairs], np.full(len(pairs), 1 / len(pairs)))
    true(p > ALARM, f"pairs of rows are not equally likely: chi-square p = {p:.2g}")


def dynamical(case: Case) -> None:
    """|g_u|^2 + gamma g_u . g_S for several gamma, and the terms between picks."""
    for turn, gamma in enumerate((2.0, 0.0, 1.0, 0.5, math.inf, 2.0)):
        rng = case.rng("dynamical", turn)
        n = int(rng.integers(8, 40))
        g = rng.normal(size=(n, 6))
        arrays = {"grad_sqnorm": (g * g).sum(1), "grad_dot": 3 * g @ rng.normal(size=6)}
        ids, k = rng.permutation(1000)[:n], int(rng.integers(1, n + 1))
        strategy = case.having({"gamma": gamma})
        scores = slow_dynamical.delta(arrays["grad_sqnorm"], arrays["grad_dot"], gamma)
        got = case.select(k, arrays, ids, strategy=strategy)
        same_ids(got.ids, slow_dynamical.top(scores, ids, k), f"gamma = {gamma}")
        close(got.scores, np.sort(scores)[::-1][:k], "scores", 1e-9, 1e-12)
        if not math.isinf(gamma):
            k = min(k, 6)
            whole = case.having({"gamma": gamma, "diverse": True})
            got = case.select(k, {**arrays, "grad_sketch": g}, ids, strategy=whole)
            same_ids(got.ids, slow_dynamical.by_batch(scores, g, ids, k), f"gamma = {gamma}, with terms between picks")
