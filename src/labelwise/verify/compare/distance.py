"""k-center and BADGE against tables of all distances."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.selection import Strategy
from labelwise.strategies.distance import reference as slow
from labelwise.strategies.distance.nearest import Tuning
from labelwise.verify.case import Case, checks
from labelwise.verify.chi_square import ALARM, chi_square_p
from labelwise.verify.problems import by_lot, expect, expect_close, expect_ids

TRIES = 5
TURNS = 400


@checks("kcenter")
def kcenter(case: Case) -> None:
    """Each pick the farthest from labelled rows and picks; with nothing labelled the first is the highest hash."""
    for turn in range(TRIES):
        rng = case.rng("kcenter", turn)
        x, ids = rng.normal(size=(90, 4)), by_lot(rng.permutation(900)[:90], turn)
        if turn == 0:
            x = np.round(2 * x)  # copies and ties, exact in floats
        x_labelled = rng.normal(size=(6, 4))
        got = case.select(50, {"embedding": x}, ids, {"embedding": x_labelled} if turn else None, seed=turn)
        if turn:
            expected = slow.farthest_first(x, ids.tolist(), x_labelled, 50)
            expect_close(got.scores, [value for _, value in expected], "squared distances", 1e-8)
            expect_ids(got.ids, [row for row, _ in expected], "from labelled rows")
            continue
        first = int(ids[int(Key(turn).uniform(torch.from_numpy(ids)).argmax())])
        expected = slow.farthest_first(x, ids.tolist(), x[:0], 49, taken=[first])
        expect_ids(got.ids, [first, *(row for row, _ in expected)], "from the row of the highest hash")


def _with_lists(strategy: Strategy, first: int, longest: int) -> Strategy:
    """The strategy with candidate lists of this length; lists of one row are the one-by-one form."""
    strategy = copy.copy(strategy)
    vars(strategy)["tuning"] = Tuning(first, longest)
    return strategy


@checks("badge")
def badge_replayed(case: Case) -> None:
    """Explicit gradients; k-means++ one row at a time with the same noise; distances as scores."""
    for turn in range(TRIES):
        rng = case.rng("badge", turn)
        p, h, ids = rng.dirichlet(np.ones(4), 40), rng.normal(size=(40, 3)), rng.permutation(500)[:40]
        arrays = {"probs": p, "embedding": h}
        g = slow.badge_gradients(p, h)
        dist, first = slow.sq_distances(g, g), int(np.argmax((g**2).sum(1)))
        noise = [Key(turn).fold("list", step).gumbel(torch.from_numpy(ids)).numpy() for step in range(14)]
        got = case.select(15, arrays, ids, seed=turn, strategy=_with_lists(case.strategy, 1, 1))
        rows = [first, *slow.kmeans_plus_plus(dist, first, 14, noise)]
        expect_ids(got.ids, ids[rows], "k-means++ with the same noise")
        whole = case.select(30, arrays, ids, seed=turn)
        row_of = {int(i): row for row, i in enumerate(ids)}
        order = [row_of[int(i)] for i in whole.ids]
        near = [dist[row, order[: step + 1]].min() for step, row in enumerate(order[1:])]
        expect_close(whole.scores, [(g[first] ** 2).sum(), *near], "squared distances", 1e-6, 1e-9)


@checks("badge", "law")
def badge_law(case: Case) -> None:
    """Three picks by lists of arrivals: their joint distribution by enumeration."""
    x = np.array([[0.0, 0.0], [1.0, 0.0], [1.2, 0.1], [0.0, 1.5], [0.3, 1.5], [-1.0, -1.0]])
    p = np.tile([0.7, 0.3], (6, 1))
    g = slow.badge_gradients(p, x)
    first = int(np.argmax((g**2).sum(1)))
    law = slow.joint_law(slow.sq_distances(g, g), first, 2)
    strategy, arrays = _with_lists(case.strategy, 3, 4), {"probs": p, "embedding": x}
    seeds = range(1000 * case.seed, 1000 * case.seed + TURNS)
    picks = [case.select(3, arrays, seed=seed, strategy=strategy).ids.tolist() for seed in seeds]
    expect_ids({pick[0] for pick in picks}, [first], "the longest gradient first")
    seen = Counter(tuple(pick[1:]) for pick in picks)
    found = chi_square_p([seen[pair] for pair in law], list(law.values()))
    expect(found > ALARM, f"picks do not follow the distribution of k-means++: chi-square p = {found:.2g}")
