"""Confidence, margin, entropy and random: the k highest scores of a loop, ties by lot."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.strategies.uncertainty import reference as slow
from labelwise.verify.case import Case, checks
from labelwise.verify.chi_square import ALARM, chi_square_p
from labelwise.verify.problems import by_lot, expect, expect_close, expect_ids

TRIES = 6
TURNS = 600


def of_probs(case: Case, score: Callable[[np.ndarray], list[float]], exact_ties: bool) -> None:
    """Picks and scores of a function of the class probabilities."""
    for turn in range(TRIES):
        rng = case.rng("probs", turn)
        n, classes = int(rng.integers(5, 60)), int(rng.integers(2, 8))
        p = rng.dirichlet(np.full(classes, 0.5), n)
        if turn == 0 and exact_ties:  # quarters: exact in every precision, and full of ties
            p = np.array([np.bincount(rng.integers(0, 3, 4), minlength=3) for _ in range(n)]) / 4
        ids, k = by_lot(rng.permutation(500)[:n]), int(rng.integers(1, n + 1))
        got = case.select(k, {"probs": p}, ids)
        values = dict(zip(ids.tolist(), score(p)))
        expect_ids(got.ids, slow.top_k(ids, [round(values[int(i)], 12) for i in ids], k), "highest scores")
        expect_close(got.scores, [values[i] for i in got.ids.tolist()], "scores", 1e-12, 1e-300)


@checks("confidence")
def confidence(case: Case) -> None:
    of_probs(case, slow.confidence, True)


@checks("margin")
def margin(case: Case) -> None:
    of_probs(case, slow.margin, True)


@checks("entropy")
def entropy(case: Case) -> None:
    of_probs(case, slow.entropy, False)


@checks("random")
def random_replayed(case: Case) -> None:
    """The k highest hashes of (seed, id)."""
    for turn in range(TRIES):
        rng = case.rng("random", turn)
        ids, k = rng.permutation(5000)[:80] - 1000, int(rng.integers(1, 81))
        got = case.select(k, {}, ids, seed=turn)
        noise = Key(turn).uniform(torch.from_numpy(ids)).tolist()
        expect_ids(got.ids, slow.top_k(ids, noise, k), "highest hashes")


@checks("random", "law")
def random_law(case: Case) -> None:
    """Every ordered pair of rows is equally likely."""
    ids = np.array([7, 8, 9, 10])
    start = 1000 * case.seed
    seen = Counter(tuple(case.select(2, {}, ids, seed=start + turn).ids.tolist()) for turn in range(TURNS))
    pairs = list(itertools.permutations(ids.tolist(), 2))
    p = chi_square_p([seen[pair] for pair in pairs], np.full(len(pairs), 1 / len(pairs)))
    expect(p > ALARM, f"pairs of rows are not equally likely: chi-square p = {p:.2g}")
