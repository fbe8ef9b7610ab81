"""The estimate of a model's pool loss from new labels: its value, its interval, and when there is none."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

import labelwise as lw
from labelwise.selection import Selection
from labelwise.session.pending import PendingBatch
from labelwise.stats.estimate import Interval, _student, factor_of, pool_mean, unlikely

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)).astype("f4")
Y = (X[:, 0] + 0.5 * RNG.normal(size=400) > 0).astype(int)


def test_the_quantile_of_student():
    from scipy.stats import t

    for freedom in (5, 10, 30, 1000):
        assert _student(freedom) == pytest.approx(t.ppf(0.975, freedom), abs=4e-3)


@pytest.mark.parametrize("seed", range(6))
def test_the_likelihood_ratio_is_that_of_a_slow_search(seed: int):
    """max sum log(k p_i) over p with sum p = 1 and sum p g = 0, by its dual over a fine grid and then bisection."""
    rng = np.random.default_rng(seed)
    g = rng.exponential(size=20) * rng.uniform(0.2, 3, size=20) - [0.3, 0.8, 1.5][seed % 3]
    low, high = -1 / g.max() * (1 - 1e-12), -1 / g.min() * (1 - 1e-12)
    for _ in range(200):  # the sum falls in lam
        middle = (low + high) / 2
        low, high = (middle, high) if sum(x / (1 + middle * x) for x in g) > 0 else (low, middle)
    p = np.array([1 / (20 * (1 + low * x)) for x in g])
    assert p.sum() == pytest.approx(1)
    assert float(p @ g) == pytest.approx(0, abs=1e-9)
    assert unlikely(g) == pytest.approx(-2 * np.log(20 * p).sum(), rel=1e-7)
    assert unlikely(g - g.mean()) == pytest.approx(0, abs=1e-12)
    assert unlikely(np.abs(g)) == math.inf


def test_the_ends_of_the_interval_are_as_unlikely_as_they_should_be():
    from scipy.stats import t

    rng = np.random.default_rng(1)
    values, weights = rng.exponential(size=150), rng.uniform(0.5, 2, size=150)
    effective = weights.sum() ** 2 / (weights**2).sum()
    found = pool_mean(values, weights, factor=0.8)
    assert found.value == pytest.approx(np.average(values, weights=weights))
    point = t.ppf(0.975, effective - 1)
    arms = {found.low: point * (1 - 0.5 / math.sqrt(effective)), found.high: point * (1 + 3.5 / math.sqrt(effective))}
    for end, q in arms.items():
        assert unlikely(weights * (values - end)) == pytest.approx(0.8 * q * q, rel=1e-3)
    assert pool_mean(values, weights, factor=0.0) == Interval(found.value, *[pytest.approx(found.value)] * 2)
    scaled = pool_mean(1e6 * values, weights, factor=0.8)
    assert (scaled.low, scaled.high) == pytest.approx((1e6 * found.low, 1e6 * found.high))


def test_equal_weights_are_the_textbook():
    values = np.random.default_rng(1).normal(size=20_000)
    found = pool_mean(values, np.ones(20_000))
    half = 1.96 * values.std() / math.sqrt(20_000)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05 * half)
    from scipy.stats import binomtest

    share = pool_mean(np.arange(500) < 80, np.ones(500), share=True)
    wilson = binomtest(80, 500).proportion_ci(method="wilson")
    assert (share.low, share.high) == pytest.approx((wilson.low, wilson.high), abs=2e-3)


def test_weights_move_the_estimate_and_widen_the_interval():
    values = np.array([1.0] * 50 + [0.0] * 50)
    weights = np.array([3.0] * 50 + [1.0] * 50)
    found = pool_mean(values, weights, share=True)
    assert found.value == pytest.approx(0.75)
    assert pool_mean(values, 7 * weights, share=True) == found  # the scale of the weights does not matter
    one = np.where(np.arange(100) == 0, 60.0, 1.0)
    wide, narrow = pool_mean(values, one), pool_mean(values, np.ones(100))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_skewed_losses_have_a_longer_upper_arm():
    values = np.random.default_rng(0).exponential(size=100)
    found = pool_mean(values, np.ones(100))
    assert found.high - found.value > 1.1 * (found.value - found.low)
    mirrored = pool_mean(-values, np.ones(100))
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_all_rows_right_is_not_certainty():
    found = pool_mean(np.ones(100), np.ones(100), share=True)
    assert found.high == pytest.approx(1.0)
    assert 0.95 < found.low < 0.975
    assert pool_mean(np.full(100, 0.3), np.ones(100)).low == pytest.approx(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bss", "leverage", "random"])
def test_coverage_in_simulation(name: str):
    """A few hundred draws; benchmarks/bss.py has thousands, and the page its table."""
    rng = np.random.default_rng(3)
    n, k, runs = 1200, 100, 60 if name == "bss" else 120
    x = rng.standard_t(2.5, size=(n, 4))
    right = (rng.uniform(size=n) < 1 / (1 + np.exp(-1 - np.abs(x[:, 0])))).astype(float)
    loss = rng.exponential(size=n) * (1.5 - right)
    hits = np.zeros(2)
    for seed in range(runs):
        s = lw.select(lw.strategies.get(name), k, embedding=x, seed=seed)
        factor = 1 - k / n if name == "random" else factor_of(s.notes)
        for i, (f, share) in enumerate(((right, True), (loss, False))):
            found = pool_mean(f[s.ids], s.weights, share=share, factor=factor)
            hits[i] += found.low <= f.mean() <= found.high
    assert (hits / runs > 0.88).all()
    assert (hits / runs < 1).any() or name == "random"


# --- sessions and rounds ---------------------------------------------------------------------------------------------


def _after_two_batches(recipe: object, **how: object) -> lw.Session:
    al = lw.Session(X, LogisticRegression(), recipe, classes=2, seed=1, **how)
    for k in (40, 60):
        picks = al.ask(k)
        al.tell(picks.ids, Y[picks.ids])
        if k == 40:
            assert al.estimate is None  # there was no model
    return al


@pytest.mark.parametrize("recipe", ["bss", "leverage"])
def test_a_session_estimates_the_model_that_drew_the_batch(recipe: str):
    al = lw.Session(X, LogisticRegression(), recipe, classes=2, seed=1)
    first = al.ask(40)
    al.tell(first.ids, Y[first.ids])
    picks = al.ask(60)
    model = al.fit()
    al.tell(picks.ids[:20], Y[picks.ids[:20]])
    assert al.estimate is None  # not before every row of the batch has its answer
    al.tell(picks.ids[20:], Y[picks.ids[20:]])
    found = al.estimate
    assert found is not None
    assert (found["labels"], found["pool"]) == (60, 360)
    p = model.reader.classifier.predict_proba(X[picks.ids])  # the model before the new labels
    right = p.argmax(1) == Y[picks.ids]
    nll = -np.log(p[np.arange(60), Y[picks.ids]])
    assert found["accuracy"]["value"] == pytest.approx(np.average(right, weights=picks.weights))
    assert found["nll"]["value"] == pytest.approx(np.average(nll, weights=picks.weights), rel=1e-5)
    for interval in (found["accuracy"], found["nll"]):
        assert interval["low"] < interval["value"] < interval["high"]


def test_no_estimate_without_a_law():
    for recipe in ("margin", "badge", "kcenter", "volume"):
        assert _after_two_batches(recipe).estimate is None
    kinds = [name for name, kind in lw.strategies.ALL.items() if kind.known_law]
    assert sorted(kinds) == ["bss", "leverage", "random"]


def test_records_hold_the_estimate_beside_the_truth():
    test = (X, Y)
    records = list(lw.rounds(X, Y, LogisticRegression(), "random", k=80, n=2, start=40, test=test, classes=2))
    assert all("estimate" in record.notes for record in records[:-1])
    assert "estimate" not in records[-1].notes  # the last model chose nothing
    for record in records[:-1]:
        found = record.notes["estimate"]["accuracy"]
        assert abs(found["value"] - record.metrics["accuracy"]) < 0.15
        assert len(record.picked) == record.notes["estimate"]["labels"] == 80
        record.to_json()
    none = list(lw.rounds(X, Y, LogisticRegression(), "margin", k=80, n=1, start=40, test=test, classes=2))
    assert "estimate" not in none[0].notes


def test_regression_estimates_the_squared_error():
    y = X[:, 0].astype(float) + 0.1 * np.random.default_rng(0).normal(size=400)
    al = lw.Session(X, LinearRegression(), "leverage", task="regress", seed=0)
    for k in (40, 80):
        picks = al.ask(k)
        al.tell(picks.ids, y[picks.ids])
    assert al.estimate is not None
    assert al.estimate["mse"]["low"] < 0.0105 < al.estimate["mse"]["high"] * 1.5
    assert set(al.estimate) == {"labels", "pool", "mse"}


def test_too_few_labels_or_filled_batches_give_none():
    al = lw.Session(X, LogisticRegression(), "random", classes=2)
    for k in (40, 5):
        picks = al.ask(k)
        al.tell(picks.ids, Y[picks.ids])
    assert al.estimate is None
    plain = Selection(np.arange(20), np.ones(20), np.ones(20), {"filled": 3})
    whole = Selection(plain.ids, plain.weights, plain.scores)
    for picks, model, law in ((plain, True, ""), (whole, False, ""), (whole, True, "replaced")):
        assert PendingBatch.of(lw.strategies.Leverage(), picks, 1, 40, 100, model).estimator == law
    assert PendingBatch.of(lw.strategies.Random(), whole, 1, 40, 100, True).estimator == "once"
    assert PendingBatch.of(lw.strategies.Margin(), whole, 1, 40, 100, True).estimator == ""
