"""Numbers as labels, from end to end: learners, sessions, rounds, strategies that fit and those that do not."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, LabelError, ModelError, NeedError
from labelwise.pool import Pool
from labelwise.report.tables import markdown
from labelwise.rng import Key
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, Prediction, Probs
from labelwise.stats.summary import summarise
from labelwise.train import SklearnLearner, TorchLearner, evaluate, learner_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4)).astype("float32")
Y = 300 + 50 * (X[:, 0] - 0.5 * X[:, 1]) + 5 * RNG.normal(size=240)
FIT = ["random", "kcenter", "ally", "bait", "bss", "typiclust"]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def torch_learner(**options: object) -> TorchLearner:
    return TorchLearner(net, loss="mse", epochs=60, lr=1e-2, **options)


@pytest.mark.parametrize("make", [torch_learner, lambda: SklearnLearner(Ridge(1e-3))])
def test_a_learner_of_numbers_predicts_in_the_units_of_the_labels(make):
    pool = Pool.of(X)
    fit = make().fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    found = evaluate(fit.reader, pool, pool.ids, torch.tensor(Y))
    assert set(found) == {"rmse", "r2"}
    assert found["rmse"] < 15
    assert found["r2"] > 0.9
    predicted = torch.cat([rows.tensor(Prediction()) for rows in read(fit.reader, pool, pool.ids, (Prediction(),))])
    assert predicted.shape == (240,)
    assert found["rmse"] == pytest.approx(float(np.sqrt(np.mean((predicted.numpy() - Y) ** 2))), rel=1e-5)
    with pytest.raises(NeedError, match="Probs"):
        list(read(fit.reader, pool, pool.ids, (Probs(),)))


def test_an_ensemble_learns_numbers_and_laplace_says_that_it_does_not():
    pool = Pool.of(X)
    learner = lw.ensemble(torch_learner(), members=2)
    assert learner.task == lw.Session(X, learner, "kcenter").task == lw.ensemble(net, task="regress").task == "regress"
    fit = learner.fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    (rows,) = read(fit.reader, pool, pool.ids, (Prediction(),), 240)
    each = [next(read(one, pool, pool.ids, (Prediction(),), 240)).tensor(Prediction()) for one in fit.reader.members]
    assert torch.allclose(rows.tensor(Prediction()), (each[0] + each[1]) / 2)
    assert evaluate(fit.reader, pool, pool.ids, torch.tensor(Y))["r2"] > 0.9
    with pytest.raises(ArgumentError, match=r"made for numbers.*lw.ensemble"):
        lw.laplace(torch_learner())
    with pytest.raises(ArgumentError, match="made for 'regress'"):
        lw.Session(X, learner, "random", task="classify")


def test_metrics_of_a_hand_made_case():
    class Told:
        def gives(self, signal):
            return signal == Prediction()

        def read(self, inputs, signals):
            return {Prediction(): inputs[:, 0]}

    pool = Pool.of(torch.tensor([[1.0], [2.0], [6.0]]))
    assert evaluate(Told(), pool, pool.ids, torch.tensor([1.0, 4.0, 4.0]), batch=2) == pytest.approx(
        {"rmse": (8 / 3) ** 0.5, "r2": 1 - 8 / 6}
    )
    assert evaluate(Told(), pool, pool.ids, torch.tensor([5, 5, 5]))["r2"] == 0.0


def test_training_does_not_depend_on_the_units_of_the_labels():
    pool = Pool.of(X)
    near = torch_learner().fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    far = torch_learner().fit(pool, pool.ids, torch.tensor(1024 * Y), classes=0, key=Key(0))
    one, other = (evaluate(f.reader, pool, pool.ids, torch.tensor(s * Y)) for f, s in ((near, 1), (far, 1024)))
    assert other["rmse"] == pytest.approx(1024 * one["rmse"], rel=1e-3)
    same = torch_learner().fit(pool, pool.ids, torch.full((240,), 7.0), classes=0, key=Key(0))
    assert abs(evaluate(same.reader, pool, pool.ids, torch.full((240,), 7.0))["rmse"]) < 0.2


def test_hold_out_validation_and_restored_units():
    pool = Pool.of(X)
    fit = torch_learner(holdout=0.1).fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    assert fit.notes["held_out"] == len(fit.held_out) > 10
    assert fit.notes["held_out_loss"] < 0.3  # in variances of the target
    watched = torch_learner(valid=(X[:40], Y[:40])).fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    assert watched.notes["held_out"] == 40
    assert watched.notes["held_out_loss"] < 0.3
    on = torch_learner(restart=False)
    first = on.fit(pool, pool.ids[:50], torch.tensor(Y[:50]), classes=0, key=Key(0))
    again = on.restore(first.state, first.ids)
    assert evaluate(again.reader, pool, pool.ids, torch.tensor(Y)) == evaluate(
        first.reader, pool, pool.ids, torch.tensor(Y)
    )


def test_a_function_of_ones_own_gets_the_numbers_as_they_are():
    def own(model, inputs, labels, weights):
        with torch.no_grad():
            model.weight.zero_()
            model.bias.fill_(float(labels.mean()))

    pool = Pool.of(X)
    fit = TorchLearner(nn.Linear(4, 1), loss="mse", fit=own).fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    assert evaluate(fit.reader, pool, pool.ids, torch.tensor(Y))["rmse"] == pytest.approx(Y.std(), rel=1e-4)


def test_pipelines_have_the_embedding_of_their_last_step():
    pool = Pool.of(X)
    pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge())
    fit = SklearnLearner(pipeline).fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    rows = next(read(fit.reader, pool, pool.ids, (Embedding(), Prediction())))
    assert rows.tensor(Embedding()).shape == (240, 15)
    assert rows.tensor(Prediction()).dtype == torch.float32
    weighted = SklearnLearner(Ridge(1e-6), use_weights=True)
    weights = torch.zeros(240)
    weights[:20] = 1.0
    few = weighted.fit(pool, pool.ids, torch.tensor(Y), weights=weights, classes=0, key=Key(0))
    alone = SklearnLearner(Ridge(1e-6)).fit(pool, pool.ids[:20], torch.tensor(Y[:20]), classes=0, key=Key(0))
    assert evaluate(few.reader, pool, pool.ids, torch.tensor(Y))["rmse"] == pytest.approx(
        evaluate(alone.reader, pool, pool.ids, torch.tensor(Y))["rmse"], rel=1e-3
    )


@pytest.mark.parametrize("recipe", FIT)
def test_strategies_that_fit_walk_the_road(recipe: str):
    al = lw.Session(X, torch_learner(), recipe, seed=1)
    assert al.task == "regress"
    for _ in range(3):
        picks = al.ask(8)
        al.tell(picks.ids, Y[picks.ids])
    assert len(al.labelled) == 24
    assert al.ledger.labels.dtype == torch.float64
    if recipe == "bait":
        assert al.recipe.strategy.regress


@pytest.mark.parametrize("recipe", ["margin", "badge", "albl", "typiclust+entropy"])
def test_class_strategies_say_which_fit(recipe: str):
    with pytest.raises(NeedError, match=r"class probabilities.*random.*kcenter.*ally.*bait"):
        lw.Session(X, torch_learner(), recipe)


@pytest.mark.parametrize("learner", [torch_learner, lambda: Ridge()])
def test_rounds_record_rmse_and_r2_and_report_them(learner):
    records = [
        *lw.rounds(X, Y, learner(), "kcenter", k=15, n=3, seed=0),
        *lw.rounds(X, Y, learner(), "random", k=15, n=3, seed=0),
    ]
    assert [record.labels for record in records[:4]] == [15, 30, 45, 60]
    assert all(set(record.metrics) == {"rmse", "r2"} for record in records)
    assert records[3].metrics["rmse"] < records[0].metrics["rmse"]
    for metric, higher in (("rmse", False), ("r2", True)):
        table = summarise(records, metric)
        assert [row.strategy for row in table.rows] == ["kcenter", "random"]
        assert table.metric.higher is higher
        assert f"{metric} at 60" in markdown(table)


def test_a_saved_regression_session_goes_on(tmp_path):
    al = lw.Session(X, torch_learner(), "bait", folder=tmp_path / "s", seed=4)
    for _ in range(2):
        picks = al.ask(6)
        al.tell(picks.ids, Y[picks.ids])
    again = lw.Session.load(tmp_path / "s", X, torch_learner())
    assert again.task == "regress"
    assert (again.ledger.labels == al.ledger.labels).all()
    assert again.ask(6) == al.ask(6)


def test_the_task_is_that_of_the_learner_or_as_said():
    assert lw.Session(X, Ridge(), "random").task == "regress"
    assert lw.Session(X, net, "random", task="regress").learner.task == "regress"
    assert lw.Session(X, LogisticRegression(), "margin", classes=2).task == "classify"
    told = lw.Session(X, None, "random", task="regress")
    told.tell([0, 1], [1, 2.5])
    assert told.ledger.labels.tolist() == [1.0, 2.5]
    with pytest.raises(ArgumentError, match="made for 'classify'"):
        lw.Session(X, LogisticRegression(), "random", task="regress")
    with pytest.raises(ArgumentError, match='task is "classify"'):
        lw.Session(X, None, "random", task="rank")
    assert learner_of(Ridge()).task == "regress"
    with pytest.raises(ArgumentError, match="predict_proba"):
        learner_of(RidgeClassifier())


@pytest.mark.parametrize("label", [np.nan, "seven", True, None])
def test_labels_that_are_no_numbers_are_named(label):
    al = lw.Session(X, torch_learner(), "random")
    with pytest.raises(LabelError, match="entry 1"):
        al.tell([3, 4], [1.0, label])
    assert len(al.labelled) == 0


def test_a_model_with_several_outputs_is_told():
    pool = Pool.of(X)
    with pytest.raises(ModelError, match="one number for each of"):
        TorchLearner(nn.Linear(4, 3), loss="mse").fit(pool, pool.ids, torch.tensor(Y), classes=0, key=Key(0))
    bad = torch.tensor(Y)
    bad[2] = torch.nan
    with pytest.raises(LabelError, match="row id 2 has nan"):
        torch_learner().fit(pool, pool.ids, bad, classes=0, key=Key(0))
    with pytest.raises(ArgumentError, match='loss is "cross_entropy" or "mse"'):
        TorchLearner(net, loss="huber")
