"""A sticky hold-out: the same rows in every round, by (key, id), and never trained on with a warm start."""

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
    learner = TorchLearner(net, epochs=2, holdout=0.2, sticky_holdout=True, objective=spy, **options)
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
    learner = TorchLearner(net, epochs=1, holdout=0.2, sticky_holdout=True).with_holdout_key(Key(7))
    part = learner.fit(POOL, POOL.ids[order], Y[order], classes=2, key=Key(0))
    assert torch.equal(part.held_out, whole[torch.isin(whole, POOL.ids[order])])


def test_a_session_gives_its_key_also_to_the_model_inside_and_a_stored_one_continues(tmp_path) -> None:
    learner = TorchLearner(net, epochs=1, holdout=0.2, holdout_from=10, sticky_holdout=True)
    one, other = (lw.Session(X, learner, "random", classes=2, seed=seed) for seed in (0, 1))
    assert one.learner.holdout_key != other.learner.holdout_key
    for wrapped in (lw.ensemble(learner, 2), lw.laplace(learner)):
        al = lw.Session(X, wrapped, "random", classes=2)
        al.tell(range(100), Y[:100])
        assert al.learner.learner.holdout_key == one.learner.holdout_key
        one.tell(range(100), Y[:100])
        assert torch.equal(al.fit().held_out, one.fit().held_out)
    warm = TorchLearner(net, epochs=1, holdout=0.2, holdout_from=10, sticky_holdout=True, restart=False)
    stored = lw.Session(X, warm, "random", classes=2, folder=tmp_path / "stored")
    stored.tell(range(100), Y[:100])
    held_out = stored.fit().held_out
    again = lw.Session.load(tmp_path / "stored", X, warm)
    assert torch.equal(again.state().fit.held_out, held_out)


def test_gradients_of_the_labelled_rows_are_summed_over_those_that_are_trained_on() -> None:
    learner = TorchLearner(net, epochs=3, holdout=0.2, sticky_holdout=True)
    al = lw.Session(X, learner, "dynamical", classes=2)
    al.tell(range(60), Y[:60])
    fit = al.fit()
    assert len(fit.held_out) > 0
    summed: Labelled = rows_for_gradients(al.ledger, al.recipe.strategy.needs, al.fit)
    assert sorted([*summed.ids.tolist(), *fit.held_out.tolist()]) == list(range(60))
    assert torch.equal(summed.labels, Y[summed.ids])
    picks = al.ask(5)
    drawn_each_round = lw.Session(X, TorchLearner(net, epochs=3, holdout=0.2), "dynamical", classes=2)
    drawn_each_round.tell(range(60), Y[:60])
    assert not len(drawn_each_round.fit().held_out)
    assert len(picks) == 5


def test_when_every_labelled_row_is_held_out() -> None:
    row = POOL.ids[Key(7).uniform(POOL.ids) < 0.2][:1]
    learner = TorchLearner(net, epochs=1, holdout=0.2, holdout_from=1, sticky_holdout=True)
    fit = learner.with_holdout_key(Key(7)).fit(POOL, row, torch.tensor([0]), classes=2, key=Key(0))
    assert not len(fit.held_out)  # new weights next round
    warm = TorchLearner(net, epochs=1, holdout=0.2, sticky_holdout=True, restart=False).with_holdout_key(Key(7))
    with pytest.raises(LabelError, match="all 1 labelled rows are held out"):
        warm.fit(POOL, row, torch.tensor([0]), classes=2, key=Key(0))
