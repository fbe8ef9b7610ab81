"""SABAL against its algorithms with explicit vectors and a dense matrix, in both forms."""

from __future__ import annotations

import numpy as np

from labelwise.strategies.sabal import reference as slow
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import expect_close, expect_ids


def softmax(z: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    e = np.exp(z - z.max(-1, keepdims=True))
    p: np.ndarray = e / e.sum(-1, keepdims=True)
    return p


def inputs(rng: np.random.Generator, form: str, n: int = 60) -> dict[str, np.ndarray]:
    """Arrays of one of the two forms."""
    if form == "bayesian":
        z = rng.normal(size=(n, 1, 3)) * 2 + rng.normal(size=(n, 12, 3))
        return {"log_probs": np.log(softmax(z))}
    z = rng.normal(size=(n, 3)) * 2
    return {"probs": softmax(z), "label_probs": softmax(z / 1.7), "embedding": rng.normal(size=(n, 4)) + 0.3}


def vectors(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Expected vectors and their spread, from the loss for every label."""
    if "log_probs" in arrays:
        return slow.loss_vectors(arrays["log_probs"])
    return slow.gradient_vectors(arrays["probs"], arrays["label_probs"], arrays["embedding"])


@checks("sabal-greedy")
def greedy(case: Case) -> None:
    """Algorithm 1: picks, weights, scores and the objective, with alpha and with a share of the variance."""
    settings: list[tuple[float | None, float, float, float | None]] = [
        (1e-2, 1e-1, 1.0, None),
        (3e3, 1e-1, 1.0, None),
        (1e2, 1e-4, 1.0, None),
        (0.0, 1e-2, 2.0, None),
        (None, 1e-1, 0.5, 0.3),
    ]
    for turn, (alpha, beta, tau, share) in enumerate(settings):
        for form in ("gradient", "bayesian"):
            arrays = inputs(case.rng("sabal-greedy", turn, form), form)
            b = (5, 17, 30)[turn % 3]
            second = turn == 3
            parameters = {"alpha": alpha, "beta": beta, "tau": tau, "second_order": second, "variance_share": share}
            got = case.select(b, arrays, strategy=case.with_parameters(parameters))
            problem = slow.Problem.of(*vectors(arrays), b, alpha or 0.0, beta)
            if share is not None:
                problem.alpha = problem.alpha_of_share(share, problem.greedy_rest(np.zeros(60), tau))
            picks, w, scores = slow.greedy(problem, b, tau, second)
            expect_ids(got.ids, picks, f"algorithm 1, {form} form, alpha = {alpha}, beta = {beta}")
            expect_close(got.weights, w[picks], "weights", 1e-7, 1e-9)
            expect_close(got.scores, scores, "scores", 1e-8, 1e-11)
            expect_close(got.notes["objective"], problem.f(w), "objective", 1e-8)


@checks("sabal-iht")
def iht(case: Case) -> None:
    """Algorithm 2: the support, the weights and the objective, with both rules of line 6."""
    # Loose problems (small beta) amplify rounding from one iteration to the next, so they get few.
    settings: list[tuple[float | None, float, int, float | None]] = [
        (1e-8, 1e-6, 3, None),
        (1e-2, 1e-1, 50, None),
        (1e2, 1e-3, 3, None),
        (3e3, 1e-1, 50, None),
        (None, 1e-1, 50, 0.3),
    ]
    for turn, (alpha, beta, most, share) in enumerate(settings):
        for form in ("gradient", "bayesian"):
            arrays = inputs(case.rng("sabal-iht", turn, form), form)
            b, rule = (5, 17)[turn % 2], ("exact", "exact", "paper", "paper", "exact")[turn]
            parameters = {"alpha": alpha, "beta": beta, "iterations": most, "prox": rule, "variance_share": share}
            got = case.select(b, arrays, strategy=case.with_parameters(parameters))
            problem = slow.Problem.of(*vectors(arrays), b, alpha or 0.0, beta)
            if share is not None:
                problem.alpha = problem.alpha_of_share(share, problem.iht_rest(np.zeros(60)))
            support, w, _ = slow.iht(problem, b, most, 1e-5, rule)
            expect_ids(got.ids, support, f"algorithm 2, {form} form, alpha = {alpha}, beta = {beta}, rule {rule}")
            expect_close(got.weights, w[support], "weights", 1e-5, 1e-7)
            expect_close(got.notes["objective"], problem.f(w), "objective", 1e-6)
