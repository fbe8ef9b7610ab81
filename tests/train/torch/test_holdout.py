"""The hold-out: the same rows in every round, by (key, id), and never trained on with a warm start."""

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.errors import LabelError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.read import Labelled
from labelwise.train import Mean, TorchLearner
from labelwise.train.labelled_columns import rows_for_gradients
from labelwise.train.torch.data import holdout_rows

generator = torch.Generator().manual_seed(0)
X = torch.randn(400, 3, generator=generator)
Y = (X[:, 0] > 0).long()
POOL = Pool.of(X, ids=torch.arange(400) + 1000)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


class Spy(Mean):
    """Remembers the positions of the rows that steps are taken on."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def reduce(self, loss_B, index_B, state):
        self.seen |= set(index_B.tolist())
        return Mean.reduce(self, loss_B, index_B, state)


def fitted(n: int, previous=None, key: int = 7, **options):
    spy = Spy()
    learner = TorchLearner(net, epochs=2, holdout=0.2, objective=spy, **options)
    learner = learner.with_holdout_key(Key(key))
    fit = learner.fit(POOL, POOL.ids[:n], Y[:n], classes=2, key=Key(n), previous=previous)
    return fit, set(fit.ids[sorted(spy.seen)].tolist())


@pytest.mark.parametrize("warm", [True, False])
def test_rows_that_were_held_out_once_are_never_trained_on(warm: bool) -> None:
    fit, trained_in_any, out_in_any = None, set(), set()
    for n in (20, 90, 200, 400):
        fit, trained = fitted(n, fit, holdout_from=90, restart=not warm)
        out = set(fit.held_out.tolist())
        assert not trained & out
        assert trained | out == set(POOL.ids[:n].tolist())
        assert fit.notes["held_out"] == len(out)
        assert ("held_out_loss" in fit.notes) == (n >= 90)
        assert bool(out) == (warm or n >= 90)
        if warm or n >= 90:
            assert out_in_any <= out
            trained_in_any |= trained
            out_in_any |= out
    assert not trained_in_any & out_in_any
    assert 0.1 < len(out_in_any) / 400 < 0.3


def test_it_depends_on_the_key_and_the_id_alone() -> None:
    whole = fitted(400)[0].held_out
    assert not torch.equal(whole, fitted(400, key=8)[0].held_out)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))[:300].sort().values
    learner = TorchLearner(net, epochs=1, holdout=0.2).with_holdout_key(Key(7))
    part = learner.fit(POOL, POOL.ids[order], Y[order], classes=2, key=Key(0))
    assert torch.equal(part.held_out, whole[torch.isin(whole, POOL.ids[order])])


def test_a_session_gives_its_key_also_to_the_model_inside_and_a_stored_one_continues(tmp_path) -> None:
    learner = TorchLearner(net, epochs=1, holdout=0.2, holdout_from=10)
    one, other = (lw.Session(X, learner, "random", classes=2, seed=seed) for seed in (0, 1))
    assert one.learner.holdout_key != other.learner.holdout_key
    for wrapped in (lw.ensemble(learner, 2), lw.laplace(learner)):
        al = lw.Session(X, wrapped, "random", classes=2)
        al.tell(range(100), Y[:100])
        assert al.learner.learner.holdout_key == one.learner.holdout_key
        one.tell(range(100), Y[:100])
        assert torch.equal(al.fit().held_out, one.fit().held_out)
    warm = TorchLearner(net, epochs=1, holdout=0.2, holdout_from=10, restart=False)
    stored = lw.Session(X, warm, "random", classes=2, folder=tmp_path / "stored")
    stored.tell(range(100), Y[:100])
    held_out = stored.fit().held_out
    again = lw.Session.load(tmp_path / "stored", X, warm)
    assert torch.equal(again.state().fit.held_out, held_out)


@pytest.mark.parametrize("training", ["warm", "restart"])
def test_gradients_of_the_labelled_rows_are_summed_over_those_that_are_trained_on(training) -> None:
    learner = TorchLearner(net, epochs=3, holdout=0.2, holdout_from=10)
    al = lw.Session(X, learner, lw.recipes.get("dynamical").with_training(training), classes=2)
    al.tell(range(60), Y[:60])
    fit = al.fit()
    assert len(fit.held_out) > 0
    summed: Labelled = rows_for_gradients(al.ledger, al.recipe.strategy.needs, al.fit)
    assert sorted([*summed.ids.tolist(), *fit.held_out.tolist()]) == list(range(60))
    assert torch.equal(summed.labels, Y[summed.ids])
    picks = al.ask(5)
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(
        nn.functional.cross_entropy(fit.model(X[summed.ids]), summed.labels, reduction="sum"), fit.model.parameters()
    )])  # fmt: skip
    dots = []
    for row in al.pool.ids[~torch.isin(al.pool.ids, al.ledger.labelled)].tolist():
        logits = fit.model(X[[row]])
        own = torch.autograd.grad(nn.functional.cross_entropy(logits, logits.argmax(1)), fit.model.parameters())
        dots.append(float(torch.cat([part.flatten() for part in own]) @ gradient))
    assert picks.notes["mean_grad_dot"] == pytest.approx(np.mean(dots), rel=1e-4)


def test_the_curvature_of_laplace_is_of_the_rows_that_are_trained_on() -> None:
    learner = lw.laplace(TorchLearner(net, epochs=3, holdout=0.3, holdout_from=10), draws=5, precision=1.0)
    learner = learner.with_holdout_key(Key(7))
    one = learner.fit(POOL, POOL.ids[:60], Y[:60], classes=2, key=Key(0))
    changed = X.clone()
    changed[one.held_out - 1000] *= 5
    other = learner.fit(Pool.of(changed, ids=POOL.ids), POOL.ids[:60], Y[:60], classes=2, key=Key(0))
    assert len(one.held_out) > 5
    assert torch.equal(one.reader.draws.weight_KOD, other.reader.draws.weight_KOD)
    changed[:60] *= 5
    third = learner.fit(Pool.of(changed, ids=POOL.ids), POOL.ids[:60], Y[:60], classes=2, key=Key(0))
    assert not torch.equal(one.reader.draws.weight_KOD, third.reader.draws.weight_KOD)


def test_a_fit_says_whether_it_began_from_the_last_weights() -> None:
    for training, expected in (("warm", [False, True]), ("restart", [False, False])):
        al = lw.Session(X, TorchLearner(net, epochs=1), lw.recipes.get("dynamical").with_training(training), classes=2)
        found = []
        for rows in (range(20), range(20, 40)):
            al.tell(rows, Y[rows])
            found.append(al.fit().notes["warm_start"])
        assert found == expected


def test_when_every_labelled_row_is_held_out() -> None:
    row = POOL.ids[Key(7).uniform(POOL.ids) < 0.2][:1]
    learner = TorchLearner(net, epochs=1, holdout=0.2, holdout_from=1)
    fit = learner.with_holdout_key(Key(7)).fit(POOL, row, torch.tensor([0]), classes=2, key=Key(0))
    assert not len(fit.held_out)  # new weights next round
    warm = TorchLearner(net, epochs=1, holdout=0.2, restart=False).with_holdout_key(Key(7))
    with pytest.raises(LabelError, match="all 1 labelled rows are held out"):
        warm.fit(POOL, row, torch.tensor([0]), classes=2, key=Key(0))


def test_with_new_weights_each_round_no_class_is_held_out_as_a_whole() -> None:
    labels, ids = torch.tensor([0] * 60 + [1] * 30 + [2, 2, 3]), torch.arange(93) * 7
    low = Key(3).uniform(ids).argsort()
    rare = torch.tensor([3, 2, 2])  # the lowest draws of all belong to the rare classes
    labels[low] = torch.cat([rare, labels[:90]])
    out = holdout_rows(ids, labels, 0.2, Key(3), strict=False)
    assert torch.bincount(labels[out], minlength=4)[2:].tolist() == [1, 0]
    strict = holdout_rows(ids, labels, 0.2, Key(3), strict=True)
    assert torch.equal(strict, Key(3).uniform(ids) < 0.2)
    assert int((strict & ~out).sum()) == 2
    order = torch.randperm(93, generator=torch.Generator().manual_seed(0))
    assert torch.equal(holdout_rows(ids[order], labels[order], 0.2, Key(3), strict=False), out[order])


def test_rows_are_held_out_only_where_early_stopping_needs_them() -> None:
    assert TorchLearner(net).holdout == 0
    assert TorchLearner(net, keep="average").holdout == 0
    assert TorchLearner(net, keep="accuracy").holdout == TorchLearner(net, keep="loss").holdout == 0.1
