"""variance_share of SABAL: the alpha it leads to, against the slow reference; notes; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_backend import select
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from labelwise.errors import ArgumentError, NumericsError
from labelwise.strategies import Sabal
from labelwise.strategies.sabal import reference as slow
from labelwise.strategies.sabal.backends import (
    GramGreedy,
    GraphGreedy,
    GraphIht,
    TorchGreedy,
    TorchIht,
)
from labelwise.strategies.sabal.greedy import GRAM_TUNING, ListTuning
from labelwise.strategies.sabal.kernels.tuning import IterationTuning, StepTuning
from labelwise.verify.compare.sabal import inputs, softmax, vectors

BACKENDS = [  # that of Triton is in test_sabal_triton.py
    pytest.param("greedy", TorchGreedy(ListTuning()), id="greedy-torch"),
    pytest.param("greedy", GraphGreedy(StepTuning()), id="greedy-graph"),
    pytest.param("greedy", GramGreedy(GRAM_TUNING), id="greedy-gram"),
    pytest.param("iht", TorchIht(), id="iht-torch"),
    pytest.param("iht", GraphIht(IterationTuning()), id="iht-graph"),
]
FORMS = ("gradient", "bayesian")
K, BETA = 11, 1e-1
Arrays = dict[str, np.ndarray]


def made(seed: int, form: str = "gradient", n: int = 60) -> Arrays:
    return inputs(np.random.default_rng(seed), form, n)


def reference(
    arrays: Arrays, share: float, solver: str, tau: float = 1.0, second: bool = False, scale: float = 1.0
) -> slow.Problem:
    """The problem with the alpha that gives the variance this share at w = 0; `scale` of sigma next to the paper's."""
    g, sigma = vectors(arrays)
    problem = slow.Problem.of(g, sigma * scale, K, 0.0, BETA)
    zero = np.zeros(len(g))
    rest = problem.greedy_rest(zero, tau, second) if solver == "greedy" else problem.iht_rest(zero)
    problem.alpha = problem.alpha_of_share(share, rest)
    return problem


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("solver", "backend"), BACKENDS)
def test_every_backend_is_the_reference(solver: Any, backend: Any, form: Any):
    settings = [(0.01, 1.0, False, "paper"), (0.3, 0.4, False, "none"), (0.8, 1.0, True, "batch")]
    for seed, (share, tau, second, scale) in enumerate(settings):
        arrays, rule = made(seed, form), ("exact", "paper")[seed % 2]
        n = len(next(iter(arrays.values())))
        sigma = {"paper": 1.0, "batch": n / K, "none": n}[scale]
        second = second and solver == "greedy"
        problem = reference(arrays, share, solver, tau, second, sigma)
        strategy = Sabal(
            solver, None, BETA, tau, 30, prox=rule, second_order=second, sigma_scale=scale, variance_share=share
        )  # type: ignore[arg-type]
        got = select(strategy, K, arrays, backend)
        if solver == "greedy":
            picks, w, scores = slow.greedy(problem, K, tau, second)
            np.testing.assert_allclose(got.scores, scores, rtol=1e-8, atol=1e-11)
            after = problem.share(problem.greedy_rest(w, tau, second))
            assert got.notes["share_after"] == pytest.approx(after, rel=1e-5)
        else:
            picks, w, _ = slow.iht(problem, K, 30, 1e-5, rule)
        assert got.ids.tolist() == picks
        np.testing.assert_allclose(got.weights, w[picks], rtol=1e-5, atol=1e-7)
        assert got.notes["alpha"] == problem.alpha
        if solver == "greedy" or rule == "exact":
            assert got.notes["share"] == pytest.approx(share, rel=1e-5)
        assert got.notes["objective"] == pytest.approx(problem.f(w), rel=1e-6)


def test_the_note_is_of_the_alpha_that_is_given():
    arrays = made(6)
    problem = slow.Problem.of(*vectors(arrays), K, 5.0, BETA)
    zero = np.zeros(60)
    greedy = lw.select(Sabal("greedy", 5.0, BETA, tau=0.5), K, **arrays).notes
    assert greedy["share"] == pytest.approx(problem.share(problem.greedy_rest(zero, 0.5)), rel=1e-6)
    iht = lw.select(Sabal("iht", 5.0, BETA, iterations=1), K, **arrays)
    assert iht.notes["share"] == pytest.approx(problem.share(problem.iht_rest(zero)), rel=1e-6)
    w = np.zeros(60)
    w[iht.ids] = iht.weights
    z = w - problem.line_search(w, w) * w
    assert iht.notes["share_after"] == pytest.approx(problem.share(problem.iht_rest(z)), rel=1e-5)
    assert greedy["alpha"] == iht.notes["alpha"] == 5.0


def test_the_printed_rule_has_the_alpha_of_the_exact_one():
    """Where no row is pushed below zero, the printed rule ranks by sigma alone, and the note says so."""
    arrays = made(1)
    exact, printed = (
        lw.select(Sabal("iht", beta=10.0, prox=rule, variance_share=0.2, iterations=1), K, **arrays)
        for rule in ("exact", "paper")
    )  # type: ignore[arg-type]
    assert exact.notes["alpha"] == printed.notes["alpha"]
    assert exact.notes["share"] == pytest.approx(0.2, rel=1e-5)
    assert printed.notes["share"] == 1.0
    assert sorted(printed.ids.tolist()) == sorted(np.argsort(-vectors(arrays)[1])[:K].tolist())


@pytest.mark.parametrize("solver", ["greedy", "iht"])
def test_a_share_means_the_same_at_every_scale(solver: Any):
    """Of the embedding, and of the pool: with every row twice, alpha is another and the share is the same."""
    arrays = made(2)
    one = lw.select(Sabal(solver, iterations=20, beta=BETA, variance_share=0.4), K, **arrays)
    long = lw.select(
        Sabal(solver, iterations=20, beta=BETA * 2.0**20, variance_share=0.4),
        K,
        **{**arrays, "embedding": arrays["embedding"] * 2**10},
    )
    assert long.ids.tolist() == one.ids.tolist()
    assert long.notes["share_after"] == pytest.approx(one.notes["share_after"], rel=1e-5)
    twice = lw.select(
        Sabal(solver, iterations=20, beta=BETA, variance_share=0.4),
        K,
        **{key: np.tile(x, (2, 1)) for key, x in arrays.items()},
    )
    assert twice.notes["share"] == pytest.approx(0.4, rel=1e-5)
    if solver == "greedy":
        assert twice.notes["alpha"] == pytest.approx(4 * one.notes["alpha"], rel=1e-5)


def test_more_share_takes_rows_of_more_variance():
    arrays = made(3, n=400)
    sigma = vectors(arrays)[1]
    for solver in ("greedy", "iht"):
        means = [
            sigma[lw.select(Sabal(solver, iterations=20, variance_share=s), 40, **arrays).ids].mean()
            for s in (0.0, 0.5, 0.99)
        ]  # type: ignore[arg-type]
        assert means == sorted(means)
        assert means[2] > 1.2 * means[0]
    without = lw.select(Sabal(variance_share=0.0), 40, **arrays)
    assert without.ids.tolist() == lw.select(Sabal(alpha=0.0), 40, **arrays).ids.tolist()


@pytest.mark.parametrize("solver", ["greedy", "iht"])
def test_order_and_precision_do_not_change_alpha(solver: Any):
    arrays = {key: x.astype(np.float32).astype(float) for key, x in made(4, n=300).items()}
    arrays["label_probs"] /= arrays["label_probs"].sum(1, keepdims=True)
    arrays["probs"] /= arrays["probs"].sum(1, keepdims=True)
    strategy = Sabal(solver, iterations=30, variance_share=0.3)
    one = lw.select(strategy, K, **arrays)
    order = np.random.default_rng(0).permutation(300)
    other = lw.select(strategy, K, ids=order, **{key: x[order] for key, x in arrays.items()})
    assert other.notes["alpha"] == one.notes["alpha"]
    assert sorted(other.ids.tolist()) == sorted(one.ids.tolist())
    by_alpha = lw.select(Sabal(solver, one.notes["alpha"], iterations=30), K, **arrays)
    assert by_alpha.ids.tolist() == one.ids.tolist()
    assert by_alpha.weights.tolist() == one.weights.tolist()


def test_rows_of_one_sigma_have_no_share():
    """Labels that are certain have sigma 0: no alpha makes a difference."""
    arrays = made(0)
    arrays["label_probs"] = np.eye(3)[np.arange(60) % 3]
    notes = lw.select(Sabal(variance_share=0.5), 5, **arrays).notes
    assert notes["alpha"] == notes["share"] == 0.0


@pytest.mark.parametrize("solver", ["greedy", "iht"])
def test_a_bias_term_that_is_the_same_for_all_rows_is_refused(solver: Any):
    """Two halves of opposite vectors: v is zero, and so is the gradient at w = 0."""
    arrays = made(0)
    whole = {key: np.concatenate([x, x]) for key, x in arrays.items()}
    whole["embedding"][60:] *= -1
    with pytest.raises(NumericsError, match="no alpha gives the variance a share"):
        lw.select(Sabal(solver, variance_share=0.5), 5, **whole)


def test_without_a_bias_term_the_share_is_not_needed():
    arrays = made(0)
    got = lw.select(Sabal(variance_share=0.5), 5, **{**arrays, "label_probs": arrays["probs"]})
    assert got.notes["alpha"] is got.notes["share"] is None
    assert "bias term is zero" in got.notes["note"]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"alpha": 0.1, "variance_share": 0.1}, "both set the weight of the variance; set one"),
        ({"alpha": 0.0, "variance_share": 0.0}, "set one"),
        ({"variance_share": 1.0}, "from 0 to below 1, found 1; for variance alone set bias=False"),
        ({"variance_share": -0.1}, "at least 0"),
        ({"variance_share": "half"}, "at least 0, not 'half'"),
        ({"variance_share": True}, "at least 0, not True"),
        ({"variance_share": 0.1, "bias": False}, "leave variance_share out"),
        ({"variance_share": 0.1, "tau": 0.0}, "set tau above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], match: str):
    with pytest.raises(ArgumentError, match=match):
        Sabal(**wrong)


def test_the_share_holds_for_the_form_that_the_arrays_have():
    strategy = Sabal(variance_share=0.25)
    for form in FORMS:
        assert lw.select(strategy, 5, **made(0, form)).notes["share"] == pytest.approx(0.25, rel=1e-5)
    given = strategy.given(frozenset({"log_probs"}))
    assert (given.alpha, given.beta, given.variance_share) == (None, 1.0, 0.25)


def test_a_session_keeps_the_share(tmp_path: Any):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    learner = lw.SklearnLearner(LogisticRegression())
    strategy = Sabal("iht", variance_share=0.3)
    session = lw.Session(lw.Pool.of(x), learner, strategy, classes=2, folder=tmp_path / "session")
    first = session.ask(20)
    session.tell(first.ids, y[first.ids])
    again = lw.Session.load(tmp_path / "session", lw.Pool.of(x), learner)
    assert again.recipe.strategy == strategy
    assert again.ask(5).ids.tolist() == session.ask(5).ids.tolist()


def test_iht_converges():
    """By default; the limit of 200 iterations that it had was too few here."""
    rng = np.random.default_rng(2)
    embedding = 3 * np.maximum(rng.normal(size=(300, 16)), 0) * np.logspace(0, -2, 16)
    z = rng.normal(size=(300, 4)) * 2
    notes = lw.select("sabal-iht", 20, probs=softmax(z), label_probs=softmax(z / 1.3), embedding=embedding).notes
    assert notes["stopped"] == "tolerance"
    assert notes["iterations"] > 200
