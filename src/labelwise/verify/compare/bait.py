"""BAIT by inverses of explicit matrices."""

from __future__ import annotations

import numpy as np

from labelwise.strategies.bait.reference import bait as slow_bait
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import expect_ids


@checks("bait")
def bait(case: Case) -> None:
    """Every trace from an inverse, forward and backward, with and without labelled rows, classes and numbers."""
    for turn in range(4):
        rng = case.rng("bait", turn)
        classes, width = ((2, 3), (3, 2))[turn % 2]
        p, h = rng.dirichlet(np.full(classes, 0.4), 14), rng.normal(size=(14, width))
        q, g = rng.dirichlet(np.ones(classes), turn), rng.normal(size=(turn, width))
        lam, consistent = (1.0, 0.01)[turn % 2], turn >= 2
        taken, left = slow_bait(p, h, 4, (q, g) if turn else None, lam, consistent)
        strategy = case.with_parameters({"lambda_": lam, "consistent": consistent})
        labelled = {"probs": q, "embedding": g} if turn else None
        got = case.select(4, {"probs": p, "embedding": h}, labelled=labelled, strategy=strategy)
        expect_ids(got.ids, [row for row in taken if row in left], f"lambda = {lam}, consistent = {consistent}")
    rng = case.rng("bait", "numbers")
    h, g = rng.normal(size=(20, 3)), rng.normal(size=(4, 3))
    taken, left = slow_bait(None, h, 4, (None, g))
    got = case.select(4, {"embedding": h}, labelled={"embedding": g}, strategy=case.with_parameters({"regress": True}))
    expect_ids(got.ids, [row for row in taken if row in left], "for a model of numbers")
