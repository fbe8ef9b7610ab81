"""dynamicAL: scores from explicit gradients."""

from __future__ import annotations

import math

import numpy as np

from labelwise.strategies.dynamical import reference as slow_dynamical
from labelwise.strategies.uncertainty.reference import top_k
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import by_lot, expect_close, expect_ids


@checks("dynamical")
def dynamical(case: Case) -> None:
    """|g_u|^2 + gamma g_u . g_S for several gamma, and the terms between picks."""
    for turn, gamma in enumerate((2.0, 0.0, 1.0, 0.5, math.inf, 2.0)):
        rng = case.rng("dynamical", turn)
        n = int(rng.integers(8, 40))
        g = rng.normal(size=(n, 6))
        arrays = {"grad_sqnorm": (g * g).sum(1), "grad_dot": 3 * g @ rng.normal(size=6)}
        ids, k = by_lot(rng.permutation(1000)[:n]), int(rng.integers(1, n + 1))
        strategy = case.with_parameters({"gamma": gamma})
        scores = slow_dynamical.delta(arrays["grad_sqnorm"], arrays["grad_dot"], gamma)
        got = case.select(k, arrays, ids, strategy=strategy)
        expect_ids(got.ids, top_k(ids, scores.tolist(), k), f"gamma = {gamma}")
        expect_close(got.scores, np.sort(scores)[::-1][:k], "scores", 1e-9, 1e-12)
        if not math.isinf(gamma):
            k = min(k, 6)
            whole = case.with_parameters({"gamma": gamma, "diverse": True})
            got = case.select(k, {**arrays, "grad_sketch": g}, ids, strategy=whole)
            expect_ids(
                got.ids, slow_dynamical.greedy_batch(scores, g, ids, k), f"gamma = {gamma}, with terms between picks"
            )
