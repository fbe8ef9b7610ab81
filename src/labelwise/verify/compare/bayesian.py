"""The Bayesian strategies: information enumerated label by label, Frank-Wolfe by explicit vectors."""

from __future__ import annotations

import numpy as np

from labelwise.strategies.bayesian import reference as slow
from labelwise.strategies.uncertainty.reference import top_k
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import by_lot, expect_close, expect_ids


@checks("bald")
def bald(case: Case) -> None:
    """H[mean p] - mean H[p] of each row, by loops."""
    for turn, scale in enumerate((0.5, 1.0, 3.0, 2.0)):
        rng = case.rng("bald", turn)
        log_probs = slow.random_log_probs(rng, 30, 7, 4, scale)
        ids, k = by_lot(rng.permutation(300)[:30]), int(rng.integers(1, 31))
        got = case.select(k, {"log_probs": log_probs}, ids)
        scores = slow.bald(log_probs)
        expect_ids(got.ids, top_k(ids, [round(s, 11) for s in scores], k), "highest information")
        expect_close(np.sort(got.scores), np.sort(scores)[::-1][:k][::-1], "scores", 0.0, 1e-12)


@checks("batchbald")
def batchbald(case: Case) -> None:
    """Greedy with every joint entropy enumerated."""
    for turn in range(4):
        rng = case.rng("batchbald", turn)
        log_probs = slow.random_log_probs(rng, 9, int(rng.integers(3, 7)), 2 + turn % 2)
        rows, gains = slow.batchbald(log_probs, 4)
        got = case.select(4, {"log_probs": log_probs}, strategy=case.with_parameters({"strict": True}))
        expect_ids(got.ids, rows, "greedy by enumeration")
        expect_close(got.scores, gains, "gains", 0.0, 1e-10)
        expect_close(
            got.notes["information"], slow.batch_information(np.exp(log_probs[rows])), "information", 0.0, 1e-10
        )


@checks("acs-fw")
def acs_fw(case: Case) -> None:
    """The indices that Frank-Wolfe visits, their weights and what is left over."""
    for turn in range(6):
        rng = case.rng("acs-fw", turn)
        n, draws, classes = int(rng.integers(15, 45)), int(rng.integers(3, 12)), int(rng.integers(2, 6))
        log_probs = slow.random_log_probs(rng, n, draws, classes)
        k, entropy = int(rng.integers(1, 12)), (0.0, 0.7)[turn % 2]
        sequence, weights, left = slow.acs_fw(slow.acs_vectors(log_probs, entropy), k)
        got = case.select(k, {"log_probs": log_probs}, strategy=case.with_parameters({"entropy": entropy}))
        distinct = int(got.notes["distinct"])
        expect_ids(got.ids[:distinct], [i for i in dict.fromkeys(sequence) if i in weights], "steps of Frank-Wolfe")
        expected = np.array([weights[i] for i in got.ids[:distinct].tolist()])
        expect_close(got.weights[:distinct] / got.weights[0], expected / expected[0], "weights", 1e-7)
        expect_close(got.notes["objective"], left, "what is left over", 1e-6, 1e-9)
