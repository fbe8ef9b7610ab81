"""WeighedLearner: which weights the labelled rows get."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.spec import Weight
from labelwise.strategies.sabal.reference import support_weights
from labelwise.train.objectives.objective import Sampled
from labelwise.train.objectives.primal_dual import WeightedPrimalDual
from labelwise.weigh import WeighedLearner
from labelwise.weigh.weighed import sabal_weights

rng = np.random.default_rng(0)
X = rng.standard_t(3, size=(300, 4)).astype("float32")
Y = (X[:, 0] > 0.3).astype(int)
POOL, IDS = Pool.of(X), torch.arange(0, 300, 7)


def fit(learner, weights=None, labels=Y, classes=2):
    answers = torch.from_numpy(np.asarray(labels)[IDS.numpy()])
    return learner.fit(POOL, IDS, answers, weights=weights, classes=classes, key=Key(0))


def test_sabal_weights_are_those_of_the_reference():
    plain = fit(lw.SklearnLearner(LogisticRegression()))
    found, notes = sabal_weights(plain.reader, POOL, IDS)
    h = X.astype(float)
    expected = support_weights(h[IDS.numpy()].T / len(IDS), h.mean(0), notes["beta"])
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-4)
    assert notes["f1"][1] < notes["f1"][0]


def test_the_fit_is_that_of_the_learner_with_these_weights():
    inner = lw.SklearnLearner(LogisticRegression(), use_weights=True)
    weighed = fit(WeighedLearner(inner))
    again = fit(inner, weighed.published[Weight()])
    np.testing.assert_array_equal(weighed.predict_proba(POOL), again.predict_proba(POOL))
    assert weighed.published[Weight()].mean() == pytest.approx(1)
    assert weighed.notes["weigh"]["floor"] == 0.5


def test_weights_match_the_mean_embedding():
    learner = WeighedLearner(lw.SklearnLearner(Ridge(), use_weights=True), beta=1e-8)
    weight = fit(learner, labels=X @ np.arange(4.0), classes=0).published[Weight()].double().numpy()
    some, mean = X[IDS.numpy()].astype(float), X.mean(0)
    before = np.linalg.norm(some.mean(0) - mean)
    assert np.linalg.norm((weight[:, None] * some).mean(0) - mean) < 0.2 * before


def test_the_floor_raises_beta():
    heavy = X.copy()
    heavy[IDS[1:]] *= 1e-3  # one labelled row has nearly all of the gradient
    plain = lw.SklearnLearner(LogisticRegression())
    one = plain.fit(Pool.of(heavy), IDS, torch.from_numpy(Y[IDS]), classes=2, key=Key(0))
    weight, notes = sabal_weights(one.reader, Pool.of(heavy), IDS, beta=0.0)
    assert notes["beta"] > 0
    assert weight.sum() ** 2 / (weight @ weight) >= 0.5 * len(IDS) - 1e-6


def test_law_takes_the_weights_that_are_given():
    learner = WeighedLearner(lw.SklearnLearner(LogisticRegression(), use_weights=True), "law")
    given = torch.linspace(0.8, 1.2, len(IDS), dtype=torch.float64)
    np.testing.assert_allclose(fit(learner, given).published[Weight()], given / given.mean())
    uneven = fit(learner, given**40)
    assert uneven.notes["weigh"]["effective_share"] == pytest.approx(0.5)
    assert 0 < uneven.notes["weigh"]["power"] < 1


def test_a_restored_fit_has_its_weights():
    learner = WeighedLearner(lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=2, restart=False))
    made = fit(learner)
    again = learner.restore(made.state, made.ids)
    assert torch.equal(again.published[Weight()], made.published[Weight()])
    assert torch.equal(again.model.weight, made.model.weight)


def test_copies_keep_the_weights():
    inner = lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=2)
    learner = WeighedLearner(inner, beta=0.5).with_calibration().with_warm_start().with_holdout_key(Key(3))
    assert (learner.beta, learner.learner.calibrate, learner.learner.warm_start) == (0.5, True, True)
    assert learner.with_objective(Sampled()).learner.options.sampler == "weights"
    assert WeighedLearner(lw.SklearnLearner(LogisticRegression())).with_objective(lw.PrimalDual()) is None


def test_arguments_are_checked():
    inner = lw.SklearnLearner(LogisticRegression())
    with pytest.raises(ArgumentError, match='by is "sabal" or "law"'):
        WeighedLearner(inner, "height")
    with pytest.raises(ArgumentError, match="beta"):
        WeighedLearner(inner, beta=-1.0)


def test_weighted_primal_dual_trains_by_both():
    learner = lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=5, objective=WeightedPrimalDual(epsilon=0.1))
    plain, weighted = fit(learner), fit(learner, torch.linspace(0.1, 5, len(IDS)))
    assert not torch.equal(plain.model.weight, weighted.model.weight)
    as_before = fit(lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=5, objective=lw.PrimalDual(epsilon=0.1)))
    assert torch.allclose(plain.model.weight, as_before.model.weight)  # equal weights change nothing
