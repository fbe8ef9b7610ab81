"""Draws shared by all rows, from every source: what LogProbs keep, whoever gives them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import labelwise as lw
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.draws.draws import HeadDraws
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, LabelProbs, LogProbs, Probs

RNG = np.random.default_rng(0)
N, D, C = 60, 5, 3
X = RNG.normal(size=(N, D)).astype("float32")
X[31] = X[7]  # two copies of a row
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
IDS = torch.arange(N)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, C))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, C))


def binary() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 1))


SOURCES = {
    "bayesian": lambda: lw.TorchLearner(lw.bayesian(net, draws=12, hidden=8), epochs=20, lr=1e-2),
    "dropout": lambda: lw.TorchLearner(dropped, epochs=20, lr=1e-2),
    "ensemble": lambda: lw.ensemble(lw.TorchLearner(net, epochs=20, lr=1e-2), members=3),
    "laplace": lambda: lw.laplace(lw.TorchLearner(net, epochs=20, lr=1e-2), draws=12),
    "forest": lambda: RandomForestClassifier(n_estimators=12),
}
K = {"bayesian": 12, "dropout": 9, "ensemble": 3, "laplace": 12, "forest": 12}
EVERY = pytest.mark.parametrize("source", SOURCES)


def fitted(source: str, key: int = 0, rows: int = 40):
    learner = lw.train.learner_of(SOURCES[source]())
    return learner.fit(Pool.of(X), IDS[:rows], torch.tensor(Y[:rows]), classes=C, key=Key(key))


def log_probs(reader, batch: int = N, ids: torch.Tensor = IDS) -> torch.Tensor:
    return torch.cat([rows.tensor(LogProbs(9)) for rows in read(reader, Pool.of(X), ids, (LogProbs(9),), batch)])


@EVERY
def test_one_set_of_draws_for_all_rows(source: str):
    reader = fitted(source).reader
    found = log_probs(reader)
    assert found.shape == (N, K[source], C)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp().sum(2), torch.ones(N, K[source]))
    torch.testing.assert_close(found[7], found[31])
    assert (found.exp().std(1) > 1e-4).any()  # draws differ
    for batch in (1, 17):
        torch.testing.assert_close(log_probs(reader, batch), found, rtol=1e-4, atol=1e-5)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(log_probs(reader, 11, IDS[order]), found[order], rtol=1e-4, atol=1e-5)


@EVERY
def test_draws_follow_from_the_key_of_the_fit(source: str):
    torch.manual_seed(1)
    first = log_probs(fitted(source, key=3).reader)
    torch.manual_seed(2)
    assert torch.equal(log_probs(fitted(source, key=3).reader), first)
    assert not torch.allclose(log_probs(fitted(source, key=4).reader), first, atol=1e-3)


@EVERY
def test_a_read_of_everything_is_the_same_as_one_by_one(source: str):
    reader = fitted(source).reader
    signals = (Probs(), LabelProbs(), LogProbs(9), Embedding())
    (rows,) = read(reader, Pool.of(X), IDS, signals, N)
    torch.testing.assert_close(rows.tensor(LogProbs(9)), log_probs(reader), rtol=1e-5, atol=1e-6)
    for signal in (Probs(), Embedding()):
        (alone,) = read(reader, Pool.of(X), IDS, (signal,), N)
        torch.testing.assert_close(rows.tensor(signal), alone.tensor(signal))


@pytest.mark.parametrize("source", ["ensemble", "forest"])
def test_the_prediction_is_the_mean_of_the_softmaxes(source: str):
    reader = fitted(source).reader
    (rows,) = read(reader, Pool.of(X), IDS, (Probs(), LogProbs(9)), N)
    torch.testing.assert_close(rows.tensor(Probs()), rows.tensor(LogProbs(9)).exp().mean(1), rtol=1e-4, atol=1e-6)


def probs(reader, batch: int, ids: torch.Tensor = IDS) -> torch.Tensor:
    return torch.cat([rows.tensor(Probs()) for rows in read(reader, Pool.of(X), ids, (Probs(),), batch)])


def test_the_prediction_of_a_bayesian_network_follows_from_the_key_of_the_fit_and_the_row():
    reader = fitted("bayesian", key=3).reader
    found = probs(reader, N)
    torch.manual_seed(5)
    assert torch.equal(probs(fitted("bayesian", key=3).reader, N), found)
    assert not torch.equal(probs(fitted("bayesian", key=4).reader, N), found)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(probs(reader, 7, IDS[order]), found[order], rtol=1e-5, atol=1e-6)
    drawn = log_probs(reader).exp()  # 12 draws of the weights; the prediction has 12 draws of the outputs
    error = (2 * drawn.var(1) / drawn.shape[1]).sqrt()
    assert float(((found - drawn.mean(1)).abs() / error.clamp_min(1e-4)).max()) < 6
    assert not torch.allclose(found, drawn.mean(1), atol=1e-5)


@pytest.mark.parametrize("source", ["dropout", "laplace"])
def test_the_prediction_of_the_model_is_left_as_it_is(source: str):
    fit = fitted(source)
    (rows,) = read(fit.reader, Pool.of(X), IDS, (Probs(),), N)
    with torch.no_grad():
        expected = fit.reader.model(torch.tensor(X)).softmax(1)
    torch.testing.assert_close(rows.tensor(Probs()), expected)


@EVERY
@pytest.mark.parametrize("recipe", ["bald", "batchbald", "acs-fw"])
def test_every_source_walks_the_road(source: str, recipe: str):
    records = list(lw.rounds(X, Y, SOURCES[source](), recipe, k=4, n=2, start=20, test=0.2, seed=1))
    assert [record.labels for record in records] == [20, 24, 28]
    assert all(record.metrics["nll"] < 5 for record in records)
    again = list(lw.rounds(X, Y, SOURCES[source](), recipe, k=4, n=2, start=20, test=0.2, seed=1))
    assert [record.picked for record in again] == [record.picked for record in records]


@pytest.mark.parametrize(
    "learner",
    [
        lambda: lw.TorchLearner(lw.bayesian(net, draws=7), restart=False, epochs=5),
        lambda: lw.TorchLearner(dropped, restart=False, epochs=5),
        lambda: lw.ensemble(lw.TorchLearner(net, restart=False, epochs=5), members=3),
        lambda: lw.laplace(lw.TorchLearner(net, restart=False, epochs=5), draws=7),
    ],
)
def test_a_session_goes_on_with_the_same_draws(learner, tmp_path):
    al = lw.Session(X, learner(), "bald", classes=C, folder=tmp_path / "s", seed=2)
    for _ in range(2):
        picks = al.ask(5)
        al.tell(picks.ids, Y[picks.ids])
    expected = al.ask(5)
    al.fit()
    again = lw.Session.load(tmp_path / "s", X, learner())
    got = again.ask(5)
    assert got.ids.tolist() == expected.ids.tolist()
    assert got.scores == pytest.approx(expected.scores, abs=1e-6)


def test_a_plain_model_says_how_to_get_draws():
    al = lw.Session(X, net, "bald", classes=C)
    al.tell([0, 1, 2], Y[:3])
    with pytest.raises(lw.errors.NeedError, match=r"lw\.bayesian.*lw\.ensemble.*lw\.laplace.*nn\.Dropout"):
        al.ask(3)
    al = lw.Session(X, LogisticRegression(), "bald", classes=C)
    al.tell([0, 1, 2, 3], [0, 1, 1, 0])
    with pytest.raises(lw.errors.NeedError, match=r"EstimatorReader does not give LogProbs\(draws=100\)"):
        al.ask(3)


# --- ensembles -------------------------------------------------------------------------------------------------------


def test_members_differ_and_are_kept_apart():
    fit = fitted("ensemble")
    weights = [member.model[0].weight for member in fit.reader.members]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert fit.notes["members"] == len(fit.notes["each"]) == 3
    assert fit.state is None  # training again gives the same
    (rows,) = read(fit.reader, Pool.of(X), IDS, (Probs(), LogProbs(9), Embedding()), N)
    (first,) = read(fit.reader.members[0], Pool.of(X), IDS, (Probs(), Embedding()), N)
    torch.testing.assert_close(rows.tensor(LogProbs(9))[:, 0].exp(), first.tensor(Probs()))
    assert torch.equal(rows.tensor(Embedding()), first.tensor(Embedding()))


def test_an_ensemble_goes_on_from_its_own_members():
    learner = lw.ensemble(lw.TorchLearner(net, restart=False, epochs=1, lr=1e-9), members=2)
    given = (Pool.of(X), IDS[:10], torch.tensor(Y[:10]))
    first = learner.fit(*given, classes=C, key=Key(0))
    second = learner.fit(*given, classes=C, key=Key(1), previous=first)
    for a, b in zip(first.reader.members, second.reader.members):
        torch.testing.assert_close(a.model[0].weight, b.model[0].weight)
    restored = learner.restore(first.state, first.ids)
    assert torch.equal(log_probs(restored.reader), log_probs(first.reader))


@pytest.mark.parametrize("members", [0, 1, True, 2.0])
def test_an_ensemble_has_two_members_at_least(members: object):
    with pytest.raises(lw.errors.ArgumentError, match="at least 2, not"):
        lw.ensemble(net, members=members)


def test_members_of_scikit_learn():
    forest = make_pipeline(StandardScaler(), RandomForestClassifier(8))
    bagging = BaggingClassifier(DecisionTreeClassifier(), 8, max_features=0.6, max_samples=10)
    for model in (forest, bagging):
        # Class 1 is never labelled: its column is there, and it has no chance.
        known = IDS[torch.tensor(Y != 1)]
        fit = lw.train.SklearnLearner(model).fit(Pool.of(X), known, torch.tensor(Y)[known], classes=C, key=Key(0))
        found = log_probs(fit.reader)
        assert found.shape == (N, 8, C)
        assert (found[:, :, 1] == -torch.inf).all()
        (rows,) = read(fit.reader, Pool.of(X), IDS, (Probs(),), N)
        torch.testing.assert_close(rows.tensor(Probs()), found.exp().mean(1), rtol=1e-4, atol=1e-6)
    boosted = lw.train.SklearnLearner(AdaBoostClassifier()).fit(Pool.of(X), IDS, torch.tensor(Y), classes=C, key=Key(0))
    assert not boosted.reader.gives(LogProbs())


def test_a_forest_before_its_second_class():
    al = lw.Session(X, RandomForestClassifier(5), "bald", classes=C)
    al.tell([0, 1], [1, 1])
    assert len(al.ask(3)) == 3


# --- draws of a last layer -------------------------------------------------------------------------------------------


def test_rows_in_parts_give_the_same():
    made = HeadDraws(torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 3))
    whole = made.of_embedding(torch.tensor(X))
    expected = torch.stack([(torch.tensor(X) @ w.T).log_softmax(1) for w in made.weight_KOD], 1)
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(replace(made, part=30).of_embedding(torch.tensor(X)), whole)


@pytest.mark.parametrize("source", ["bayesian", "laplace"])
def test_one_output_is_two_classes(source: str):
    learner = lw.bayesian(binary, draws=6) if source == "bayesian" else lw.laplace(binary, draws=6)
    labels = torch.tensor(X[:, 0] > 0).long()
    fit = lw.train.learner_of(learner).fit(Pool.of(X), IDS, labels, classes=2, key=Key(0))
    found = log_probs(fit.reader)
    assert found.shape == (N, 6, 2)
    torch.testing.assert_close(found.exp().sum(2), torch.ones(N, 6))
    (rows,) = read(fit.reader, Pool.of(X), IDS, (Probs(),), N)
    assert (rows.tensor(Probs()).argmax(1) == labels).double().mean() > 0.8
    assert (found.exp().mean(1).argmax(1) == labels).double().mean() > 0.8


@pytest.mark.parametrize("draws", [0, -1, 1.5, True])
def test_the_number_of_draws_is_checked(draws: object):
    for make in (lw.bayesian, lw.laplace):
        with pytest.raises(lw.errors.ArgumentError, match="draws is a whole number"):
            make(net(), draws=draws)


def test_too_many_draws_to_keep_are_refused():
    with pytest.raises(lw.errors.ArgumentError, match="Take fewer draws"):
        lw.bayesian(nn.Sequential(nn.Linear(4, 4096), nn.Linear(4096, 1000)), draws=1000, hidden=None)
