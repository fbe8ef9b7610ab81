"""Weights end to end: from the selection through the ledger into training, by the objective or by the sampler."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train.torch.data import weighted_order
from labelwise.verify.chi_square import chi_square_p

X = np.random.default_rng(0).standard_t(2.5, size=(300, 4)).astype("f4")
Y = (X[:, 0] > 0).astype(int)


def test_the_ledger_keeps_the_weights_and_training_gets_them(tmp_path):
    seen = []

    def my_fit(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> None:
        seen.append(weights.clone())

    learner = lw.TorchLearner(nn.Linear(4, 2), fit=my_fit)
    al = lw.Session(X, learner, "bss", classes=2, folder=tmp_path / "s")
    first = al.ask(30)
    al.tell(first.ids, Y[first.ids])
    picks = al.ask(60)
    al.tell(picks.ids, Y[picks.ids])
    al.ask(10)
    by_id = dict(zip(picks.ids.tolist(), picks.weights.tolist()))
    expected = [by_id.get(i, 1.0) for i in sorted(al.labelled.tolist())]
    assert seen[-1].tolist() == pytest.approx(expected)
    assert picks.weights.std() > 0.1
    again = lw.Session.load(tmp_path / "s", X, learner)
    assert again.ledger.weights.tolist() == pytest.approx(al.ledger.weights.tolist())


def test_a_random_first_batch_and_draws_mix_as_the_digest_says():
    """n0 rows of weight 1 and k of weight k u: scaled to a sum of 1 that is 1/(n0 + k) and k/(n0 + k) u."""
    al = lw.Session(X, LogisticRegression(), "bss", classes=2, seed=2)
    for k in (30, 60):
        picks = al.ask(k)
        al.tell(picks.ids, Y[picks.ids])
    u = picks.weights / 60
    weights = al.ledger.weights
    assert weights[:30].tolist() == [1.0] * 30
    share = weights / (30 + 60)
    assert share[30:].tolist() == pytest.approx((60 / 90 * u).tolist())
    assert abs(float(share.sum()) - 1) < 0.25


def test_scikit_learn_gets_sample_weights():
    al = lw.Session(X, lw.SklearnLearner(LogisticRegression(), use_weights=True), "leverage", classes=2)
    for k in (30, 60):
        picks = al.ask(k)
        al.tell(picks.ids, Y[picks.ids])
    order = al.ledger.labelled.argsort()
    ids, weights = al.ledger.labelled[order].numpy(), al.ledger.weights[order].numpy()
    fitted = LogisticRegression().fit(X[ids], Y[ids], sample_weight=weights / weights.mean())
    found = al.fit().reader.classifier
    assert np.allclose(found.coef_, fitted.coef_, atol=1e-3)
    plain = LogisticRegression().fit(X[ids], Y[ids])
    assert not np.allclose(found.coef_, plain.coef_, atol=1e-2)


# --- the sampler -----------------------------------------------------------------------------------------------------


def test_the_recipe_is_algorithm_1_and_unweighted_training_is_the_variant():
    """Step 6 is a weighted fit: with the joint weights of all rounds, by default for this recipe alone."""
    rng = np.random.default_rng(3)
    x = rng.standard_t(2.5, size=(400, 3)).astype("f4")
    y = x @ np.ones(3) + np.abs(x[:, 0]) * x[:, 0] + rng.normal(size=400)
    for recipe, weights, weighted in (("bss", None, True), ("bss", False, False), ("leverage", None, False)):
        al = lw.Session(x, LinearRegression(), recipe, task="regress", seed=0, weights=weights)
        for _ in range(3):
            picks = al.ask(30)
            al.tell(picks.ids, y[picks.ids])
        ids = al.ledger.labelled.numpy()
        joint = al.ledger.joint_weights(400).numpy()
        assert joint.std() > 0.2
        wanted = LinearRegression().fit(x[ids], y[ids], sample_weight=joint if weighted else None)
        other = LinearRegression().fit(x[ids], y[ids], sample_weight=None if weighted else joint)
        found = np.asarray(al.predict(ids=np.arange(400)))
        assert np.abs(found - wanted.predict(x)).max() < 1e-3
        assert np.abs(found - other.predict(x)).max() > 0.1


def test_rows_are_drawn_in_proportion_to_their_weights():
    rate = torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0])
    at = torch.tensor([0, 1, 3, 4])
    counts = np.zeros(5)
    for seed in range(600):
        order = weighted_order(at, rate, Key(seed))
        assert len(order) == 4
        np.add.at(counts, order.numpy(), 1)
    assert chi_square_p(counts[[0, 1, 3, 4]], np.array([0, 1, 5, 9]) / 15) > 1e-6
    assert torch.equal(weighted_order(at, rate, Key(3)), weighted_order(at, rate, Key(3)))
    with pytest.raises(ArgumentError, match="nothing to draw"):
        weighted_order(torch.tensor([0]), rate, Key(0))


def test_sampler_and_weighted_objective_learn_the_same_and_not_what_plain_training_does():
    """Two inputs, contradicting labels: the answer is the weighted share of each label."""
    inputs = np.repeat(np.eye(2, dtype="f4"), 40, 0)
    labels = torch.tensor(([0] * 20 + [1] * 20) * 2)
    weights = torch.ones(80, dtype=torch.float64)
    weights[20:40] = 4.0  # of the first input, label 1 weighs four times as much
    options = {"epochs": 100, "lr": 0.08, "patience": None, "batch": 40}
    pool = Pool.of(inputs)

    def share(learner: lw.TorchLearner) -> float:
        fit = learner.fit(pool, pool.ids, labels, weights=weights, classes=2, key=Key(0))
        with torch.no_grad():
            return float(fit.reader.model(torch.eye(2)).softmax(1)[0, 1])

    net = lambda: nn.Linear(2, 2)  # noqa: E731
    assert share(lw.TorchLearner(net, **options)) == pytest.approx(0.5, abs=0.05)
    assert share(lw.TorchLearner(net, objective=lw.Weighted(), **options)) == pytest.approx(0.8, abs=0.05)
    assert share(lw.TorchLearner(net, sampler="weights", **options)) == pytest.approx(0.8, abs=0.12)


def test_never_both():
    with pytest.raises(ArgumentError, match="count twice"):
        lw.TorchLearner(nn.Linear(2, 2), sampler="weights", objective=lw.Weighted())
    with pytest.raises(ArgumentError, match="shuffle"):
        lw.TorchLearner(nn.Linear(2, 2), sampler="importance")  # type: ignore[arg-type]
    lw.TorchLearner(nn.Linear(2, 2), sampler="weights", objective=lw.Mean())


def test_the_sampler_repeats_itself_and_watches_held_out_rows_by_weight():
    pool = Pool.of(X)
    labels, weights = torch.from_numpy(Y), torch.rand(300, generator=Key(0).generator(), dtype=torch.float64)
    learner = lw.TorchLearner(nn.Linear(4, 2), sampler="weights", epochs=5, holdout=0.1, holdout_from=100)
    fits = [learner.fit(pool, pool.ids, labels, weights=weights, classes=2, key=Key(1)).reader.model for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(fits[0].parameters(), fits[1].parameters()))
    fit = learner.fit(pool, pool.ids, labels, weights=weights, classes=2, key=Key(1))
    out = fit.held_out
    with torch.no_grad():
        loss = nn.functional.cross_entropy(fit.reader.model(torch.from_numpy(X[out])), labels[out], reduction="none")
    expected = float((loss * weights[out]).sum() / weights[out].sum())
    assert fit.notes["held_out_loss"] == pytest.approx(expected, rel=1e-4)
