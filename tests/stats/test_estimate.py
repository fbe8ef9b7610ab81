"""The estimate of a model's pool loss from new labels: its value, its interval, and when there is none."""

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor

import labelwise as lw
from labelwise.pool import Ledger
from labelwise.selection import Selection
from labelwise.session.pending import PendingBatch
from labelwise.stats.estimate import (
    SHARED,
    Interval,
    _student,
    design_of,
    factor_of,
    heaviness,
    out_of_fold_losses,
    pool_mean,
    unlikely,
)

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
    for end, sign in ((found.low, -1), (found.high, 1)):
        g = np.sort(weights * (values - found.value))[::-1] - np.median(weights * (values - found.value))
        tail = max(np.log(g[:30] / g[30]).mean() - 0.55, 0) if sign > 0 else 0  # exponential: the long side is above
        q = point * (1 - 0.5 / math.sqrt(effective) + min(12 * effective**-0.25 * tail, 2))
        assert unlikely(weights * (values - end)) == pytest.approx(0.8 * q * q, rel=3e-3)
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


def test_heaviness_grows_with_the_tail_and_not_with_its_unit():
    rng = np.random.default_rng(0)
    normal, heavy = rng.normal(size=20_000), rng.standard_t(3, size=20_000) ** 2
    found = [heaviness(g) for g in (rng.uniform(size=20_000), normal, rng.exponential(size=20_000), heavy)]
    assert found == pytest.approx([0.28, 0.46, 0.64, 1.06], abs=0.03)
    assert heaviness(1e100 * heavy) == pytest.approx(found[-1])
    assert heaviness(heavy + 5) == pytest.approx(found[-1])
    assert heaviness(-heavy) < 0.55  # the lower arm is not longer for a tail above
    assert heaviness(np.r_[np.zeros(90), np.arange(1, 11)]) == math.inf
    assert heaviness(np.zeros(9)) == heaviness(np.zeros(1)) == 0


def test_no_sample_is_too_odd_for_an_interval():
    for values in ([1.0], [0.0, 0.0], [0.0, 1.0], [0.0] * 9 + [5.0], [1e-300, 2e-300, 1e300]):
        found = pool_mean(values, np.ones(len(values)))
        assert found.low <= found.value <= found.high


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
            assert al.batch_estimate is None  # there was no model
    return al


@pytest.mark.parametrize("recipe", ["bss", "leverage"])
def test_a_session_estimates_the_model_that_drew_the_batch(recipe: str):
    al = lw.Session(X, LogisticRegression(), recipe, classes=2, seed=1)
    first = al.ask(40)
    al.tell(first.ids, Y[first.ids])
    picks = al.ask(60)
    model = al.fit()
    al.tell(picks.ids[:20], Y[picks.ids[:20]])
    assert al.batch_estimate is None  # not before every row of the batch has its answer
    al.tell(picks.ids[20:], Y[picks.ids[20:]])
    found = al.batch_estimate
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
    for recipe in ("margin", "badge", "kcenter", lw.strategies.Volume(rule="greedy")):
        assert _after_two_batches(recipe).batch_estimate is None
    kinds = [name for name, kind in lw.strategies.ALL.items() if kind.known_law]
    assert sorted(kinds) == ["bss", "leverage", "random", "volume"]


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
    assert al.batch_estimate is not None
    assert al.batch_estimate["mse"]["low"] < 0.0105 < al.batch_estimate["mse"]["high"] * 1.5
    assert set(al.batch_estimate) == {"labels", "pool", "mse"}


def test_too_few_labels_or_filled_batches_give_none():
    al = lw.Session(X, LogisticRegression(), "random", classes=2)
    for k in (40, 5):
        picks = al.ask(k)
        al.tell(picks.ids, Y[picks.ids])
    assert al.batch_estimate is None
    plain = Selection(np.arange(20), np.ones(20), np.ones(20), {"filled": 3})
    whole = Selection(plain.ids, plain.weights, plain.scores)
    for picks, model, law, can in (
        (plain, True, "", False),
        (whole, False, "replaced", False),
        (whole, True, "replaced", True),
    ):
        found = PendingBatch.of(lw.strategies.Leverage(), picks, 1, 40, 100, model, 140)
        assert (found.estimator, found.can_estimate) == (law, can)
    assert PendingBatch.of(lw.strategies.Random(), whole, 1, 40, 100, True, 140).estimator == "once"
    assert PendingBatch.of(lw.strategies.Margin(), whole, 1, 40, 100, True, 140).estimator == ""


# --- the running estimate --------------------------------------------------------------------------------------------


def _add(
    ledger: Ledger, ids: object, weights: object = None, law: bool = True, n: int = 30, factor: float = 1.0
) -> None:
    rows = list(ids)
    free = n - len(ledger.labelled)
    notes = {"law": {"rows": len(rows), "free": free, "pool": n, "factor": factor}} if law else {}
    ledger.add(len(ledger), rows, [0] * len(rows), weights, "some", notes)


def test_the_design_of_rounds_with_a_law_is_that_of_joint_weights():
    ledger, rng = Ledger(), np.random.default_rng(0)
    for ids in (range(5), range(5, 12), range(12, 15)):
        _add(ledger, ids, rng.exponential(size=len(ids)), factor=0.5)
    found = design_of(ledger, 30)
    assert found is not None
    joint = ledger.joint_weights(30).numpy()
    assert found.weights == pytest.approx(joint)
    assert found.ids.tolist() == list(range(15))
    left = 15 / np.repeat([25, 18, 15], [5, 7, 3])  # free now over free after the round
    assert found.factor == pytest.approx(0.5 * ((left * ledger.weights.numpy()) ** 2).sum() / (joint**2).sum())


def test_uniform_rounds_have_the_factor_of_one_draw_of_them_all():
    ledger = Ledger()
    for ids in (range(5), range(5, 12), range(12, 15)):
        _add(ledger, ids, factor=1 - len(ids) / (30 - len(ledger.labelled)))
    found = design_of(ledger, 30)
    assert found is not None
    assert found.weights == pytest.approx(np.ones(15))
    assert found.factor == pytest.approx(1 - 15 / 30)


@pytest.mark.parametrize("order", ["law chosen law", "chosen law law", "law law chosen"])
def test_the_mean_is_unbiased_whatever_is_chosen_between_the_draws(order: str):
    """The largest free rows are chosen without a law; the pool's mean is estimated from the rest."""
    n, total, runs = 30, 0.0, 1000
    f = np.random.default_rng(1).exponential(size=n)
    for run in range(runs):
        rng, ledger = np.random.default_rng(run), Ledger()
        for kind in order.split():
            free = np.setdiff1d(np.arange(n), ledger.labelled.numpy())
            if kind == "chosen":
                _add(ledger, free[np.argsort(-f[free])[:4]], law=False)
                continue
            for number, group in enumerate(groups := np.array_split(rng.permutation(free), 6)):  # a row of each
                p = (0.2 + f[group]) / (0.2 + f[group]).sum()
                groups[number] = (pick := rng.choice(len(group), p=p), group[pick], 6 / (p[pick] * len(free)))
            _add(ledger, [int(row) for _, row, _ in groups], [weight for _, _, weight in groups])
        design = design_of(ledger, n)
        assert design is not None
        total += float(design.weights @ f[design.ids.numpy()] / len(design.ids))
    assert total / runs == pytest.approx(f.mean(), rel=0.02)


def test_a_batch_counts_when_all_of_it_is_answered():
    al = lw.Session(X, LogisticRegression(), "random", classes=2, seed=4)
    picks = al.ask(30)
    assert al.estimate is None
    al.tell(picks.ids[:20], Y[picks.ids[:20]])
    assert al.estimate is None
    al.tell(picks.ids[20:], Y[picks.ids[20:]])
    assert al.estimate is not None
    other = al.free[:25]
    al.tell(other, Y[other])  # not asked for: it may have any reason
    assert al.estimate is not None
    assert al.estimate["labels"] == 30
    al.retract(picks.ids[:1])
    assert al.estimate is None


@pytest.mark.parametrize(
    "recipe", ["random", "bss", "leverage", "leverage(random_features)", "random+margin", "margin"]
)
def test_a_session_estimates_its_model_from_all_labels(recipe: str, tmp_path: Path):
    basis = lw.strategies.Leverage(basis="random_features")
    how = {"classes": 2, "seed": 1, "folder": tmp_path / "al"}
    al = lw.Session(X, LogisticRegression(), basis if "(" in recipe else recipe, **how)
    for k in (40, 60):
        picks = al.ask(k)
        al.tell(picks.ids, Y[picks.ids])
    found = al.estimate
    assert found is not None
    assert (found["labels"], found["pool"]) == (40 if "margin" in recipe else 100, 400)
    truth = (al.predict(ids=al.free) == Y[al.free]).mean()
    assert abs(found["accuracy"]["value"] - truth) < 0.12
    for interval in (found["accuracy"], found["nll"]):
        assert interval["low"] < interval["value"] < interval["high"]
    assert al.estimate is found  # nothing is trained again
    assert lw.Session.load(tmp_path / "al", X, LogisticRegression()).estimate == found
    other = lw.Session(X, LogisticRegression(), recipe="kcenter", classes=2)
    other.tell(range(30), Y[:30])
    assert other.estimate is None
    assert lw.Session(X, recipe="random").estimate is None  # no learner


def test_the_running_estimate_is_of_rows_that_were_not_trained_on():
    """A nearest neighbour is right on every row it was trained on."""
    from sklearn.neighbors import KNeighborsClassifier

    noise = np.random.default_rng(3).integers(0, 2, 400)
    al = lw.Session(X, KNeighborsClassifier(1), "random", classes=2)
    ids = al.ask(120).ids
    al.tell(ids, noise[ids])
    assert al.score(ids=ids, labels=noise[ids]) == 1
    assert al.estimate is not None
    assert al.estimate["accuracy"]["low"] < 0.5 < al.estimate["accuracy"]["high"]


@pytest.mark.parametrize(
    ("model", "times"),
    [
        (DummyRegressor(strategy="constant", constant=0.0), 1.0),
        (KNeighborsRegressor(1), SHARED),
        (KNeighborsRegressor(40), None),
    ],
)
def test_models_that_fit_their_labels_closely_have_wider_intervals(model: object, times: float | None):
    y = X[:, 0] + np.random.default_rng(0).normal(size=400)
    al = lw.Session(X, model, "random", task="regress", seed=0)
    ids = al.ask(100).ids
    al.tell(ids, y[ids])
    assert al.learner is not None
    key = al.key.fold("estimate", 100)
    outside, inside = out_of_fold_losses(al.learner, al.pool, al.ledger, 0, key)
    if times is None:
        times = outside["mse"].mean() / inside["mse"].mean()
        assert 1.01 < times < 1.2
    assert al.estimate is not None
    expected = pool_mean(outside["mse"], np.ones(100), factor=times * (1 - 100 / 400))
    assert al.estimate["mse"] == pytest.approx(expected.to_json())


def test_the_running_estimate_of_numbers_has_the_rmse():
    y = X[:, 0] + 0.1 * np.random.default_rng(0).normal(size=400)
    al = lw.Session(X, LinearRegression(), "random+bss", task="regress", seed=0)
    for k in (40, 80):
        ids = al.ask(k).ids
        al.tell(ids, y[ids])
    found = al.estimate
    assert found is not None
    assert set(found) == {"labels", "pool", "mse", "rmse"}
    assert found["rmse"]["low"] < 0.105
    assert found["rmse"]["high"] > 0.095
    assert found["rmse"]["value"] == pytest.approx(math.sqrt(found["mse"]["value"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["light", "heavy"])
def test_the_running_estimate_covers(kind: str):
    """A small version of benchmarks/estimate.py: 40 sessions, of which 95 % less three deviations are 34."""
    hits, runs = 0, 40
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(600, 3))
        y = x[:, 0] + (rng.normal(size=600) if kind == "light" else rng.standard_t(3, size=600))
        al = lw.Session(x, LinearRegression(), "random", task="regress", seed=seed)
        for _ in range(2):
            ids = al.ask(50).ids
            al.tell(ids, y[ids])
        found = al.estimate
        assert found is not None
        truth = float(((al.predict(ids=al.free) - y[al.free]) ** 2).mean())
        hits += found["mse"]["low"] <= truth <= found["mse"]["high"]
    assert hits >= 34
