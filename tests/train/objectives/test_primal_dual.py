"""PrimalDual: duals are the written recursion, belong to the kept weights, and are the sensitivities of theory."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.spec import Duals, Embedding
from labelwise.strategies.ally.reference import duals as slow_duals
from labelwise.train import Mean, PrimalDual, TorchLearner, Weighted
from labelwise.train.torch.initialise import make_model

LOSSES = [[2.3, 0.1, 0.25, 0.2], [1.0, 0.05, 0.9, 0.2], [0.1, 3.0, 0.0, 0.2], [0.0, 0.0, 0.4, 0.2]]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype("float32")
Y = torch.tensor((X[:, 0] + 0.3 * RNG.normal(size=60) > 0).astype(int))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))


def fitted(learner: TorchLearner, key: int = 0):
    pool = Pool.of(X)
    return learner.fit(pool, pool.ids, Y, classes=2, key=Key(key))


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("eta", [0.05, 1.0])
def test_duals_are_the_recursion_on_a_scripted_sequence_of_losses(epsilon: float, eta: float):
    objective = PrimalDual(epsilon=epsilon, eta=eta)
    state = objective.init(4, None)
    for losses, expected in zip(LOSSES, slow_duals(LOSSES, epsilon, eta)):
        before = state["dual"].clone()
        for place in (torch.tensor([3, 0]), torch.tensor([1, 2])):  # two batches make an epoch
            state = objective.after(torch.tensor(losses, dtype=torch.float64)[place], place, state)
        assert torch.allclose(state["dual"], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
        assert bool((state["dual"] >= 0).all())
        assert not torch.equal(before, state["dual"])
    assert torch.equal(objective.publish(state)[Duals()], state["dual"])


def test_a_scripted_case_by_hand():
    state = PrimalDual(epsilon=0.2, eta=0.5).init(1, None)
    seen = []
    for loss in (1.2, 0.1, 0.0, 5.2):
        state = PrimalDual(epsilon=0.2, eta=0.5).after(torch.tensor([loss]).double(), torch.tensor([0]), state)
        seen.append(float(state["dual"][0]))
    assert seen == pytest.approx([0.5, 0.45, 0.35, 2.85])


def test_the_lagrangian():
    objective = PrimalDual(epsilon=0.3)
    state = {**objective.init(3, None), "dual": torch.tensor([0.0, 2.0, 0.5]).double()}
    loss = torch.tensor([1.0, 0.5])
    assert float(objective.reduce(loss, torch.tensor([1, 2]), state)) == pytest.approx(
        ((1.0 + 2.0 * 0.7) + (0.5 + 0.5 * 0.2)) / 2
    )


def test_a_row_that_is_twice_in_a_batch_moves_once():
    objective = PrimalDual(eta=1.0, epsilon=0.0)
    state = objective.after(torch.tensor([0.5, 0.5]), torch.tensor([0, 0]), objective.init(1, None))
    assert state["dual"].tolist() == [0.5]


def test_the_step_falls_by_schedule():
    place, loss = torch.tensor([0]), torch.tensor([1.0])
    for schedule in (2.0, lambda t: 1 / (1 + t / 2)):
        objective = PrimalDual(epsilon=0.0, eta=0.1, schedule=schedule)
        state, seen = objective.init(2, None), []
        for _ in range(3):
            state = objective.after(loss, place, state)
            seen.append(float(state["dual"][0]))
        assert seen == pytest.approx([0.1, 0.1 + 0.1 / 1.5, 0.1 + 0.1 / 1.5 + 0.05])
        assert state["dual"][1] == 0


def test_loose_bounds_give_zero_duals_and_the_weights_of_plain_training():
    loose = fitted(TorchLearner(net, epochs=10, objective=PrimalDual(epsilon=20, stop=None)))
    assert loose.published[Duals()].tolist() == [0.0] * 60
    plain = fitted(TorchLearner(net, epochs=10, holdout=0))
    for ours, theirs in zip(loose.reader.model.parameters(), plain.reader.model.parameters()):
        assert torch.equal(ours, theirs)


def test_every_labelled_row_has_a_dual_and_none_is_negative():
    pool = Pool.of(np.tile(X, (5, 1)))
    fit = TorchLearner(net, epochs=3, objective=PrimalDual(), lr=1e-2).fit(
        pool, pool.ids, Y.repeat(5), classes=2, key=Key(0)
    )
    assert fit.notes["held_out"] == 0  # 300 rows: plain training would hold 30 out
    assert fit.published[Duals()].shape == (300,)
    assert bool((fit.published[Duals()] >= 0).all())
    assert bool((fit.published[Duals()] > 0).any())


class Spy(PrimalDual):
    """Notes every loss it is given."""

    seen: list = []  # noqa: RUF012

    def after(self, loss_B, index_B, state):
        Spy.seen.append((loss_B.clone(), index_B.clone()))
        return PrimalDual.after(self, loss_B, index_B, state)


def test_duals_in_training_are_those_of_the_kept_epoch_and_of_the_same_forward_pass():
    Spy.seen = []
    how = {"epochs": 12, "batch": 16, "lr": 0.3, "weight_decay": 0, "schedule": None, "keep": "loss", "patience": None}
    fit = fitted(TorchLearner(net, objective=Spy(stop=None), **how))
    best, batches = fit.notes["best_epoch"], math.ceil(60 / 16)
    assert best < 12  # the last epoch is not the best: the state has to be an earlier one
    expected = torch.zeros(60, dtype=torch.float64)
    for loss, index in Spy.seen[: best * batches]:
        expected[index] = (expected[index] + 0.05 * (loss.double() - 0.2)).clamp_min(0)
    assert torch.equal(fit.published[Duals()], expected)
    first_batch = Spy.seen[0]
    model = make_model(net, Key(0).fold("init"))
    logits = model(torch.from_numpy(X)[first_batch[1]])
    assert torch.allclose(nn.functional.cross_entropy(logits, Y[first_batch[1]], reduction="none"), first_batch[0])


def test_duals_begin_at_zero_in_every_round_and_are_saved_where_training_goes_on():
    learner = TorchLearner(net, epochs=4, restart=False, objective=PrimalDual(stop=None))
    pool = Pool.of(X)
    first = learner.fit(pool, pool.ids, Y, classes=2, key=Key(0))
    second = learner.fit(pool, pool.ids, Y, classes=2, key=Key(1), previous=first)
    assert float(second.published[Duals()].max()) <= 4 * 0.05 * 10
    assert float(second.published[Duals()].mean()) < float(first.published[Duals()].mean())
    again = learner.restore(first.state, first.ids)
    assert torch.equal(again.published[Duals()], first.published[Duals()])


def test_full_updates_move_every_dual_after_every_step():
    objective = PrimalDual(update="full", epsilon=0.0, eta=1.0, stop=None)
    fit = fitted(TorchLearner(net, epochs=1, batch=20, lr=1e-30, objective=objective))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(fit.reader.model(torch.from_numpy(X)), Y, reduction="none")
    assert torch.allclose(fit.published[Duals()], 3 * loss.double(), rtol=1e-5)  # 3 steps of 20 rows


@pytest.mark.parametrize("steps", [2, 3])
def test_a_dual_moves_once_in_as_many_visits_as_there_are_primal_steps(steps: int):
    objective = PrimalDual(epsilon=0.2, eta=0.5, schedule=1.0, primal_steps=steps)
    state, expected, moves = objective.init(1, None), 0.0, 0
    for visit, loss in enumerate((1.2, 0.1, 2.0, 0.0, 5.2, 0.7, 0.3), 1):
        state = objective.after(torch.tensor([loss]).double(), torch.tensor([0]), state)
        if visit % steps == 0:
            expected = max(0.0, expected + 0.5 / (1 + moves) * (loss - 0.2))
            moves += 1
        assert float(state["dual"][0]) == pytest.approx(expected)


def test_full_updates_sweep_once_in_as_many_primal_steps_over_the_epochs():
    # 3 steps an epoch, 2 epochs, a sweep after every fourth step: one in all.
    objective = PrimalDual(update="full", epsilon=0.0, eta=1.0, stop=None, primal_steps=4)
    fit = fitted(TorchLearner(net, epochs=2, batch=20, lr=1e-5, objective=objective, patience=None))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(fit.reader.model(torch.from_numpy(X)), Y, reduction="none")
    assert fit.notes["best_epoch"] == 2
    assert torch.allclose(fit.published[Duals()], loss.double(), rtol=1e-3)


def test_gradients_are_clamped_entry_by_entry():
    def moved(clamp: float | None) -> torch.Tensor:
        how = {"epochs": 1, "batch": 60, "lr": 1.0, "optimiser": "sgd", "momentum": 0.0, "weight_decay": 0.0}
        learner = TorchLearner(net, clamp=clamp, **how)
        before, after = make_model(net, Key(0).fold("init")), fitted(learner).reader.model
        return torch.cat([(b - a).flatten() for a, b in zip(after.parameters(), before.parameters())]).detach()

    free = moved(None)
    assert float(free.abs().max()) > 0.05
    assert torch.allclose(moved(0.05), free.clamp(-0.05, 0.05), atol=1e-6)
    with pytest.raises(ArgumentError, match="clamp is a finite number above 0"):
        TorchLearner(net, clamp=0)


def test_training_ends_when_the_rows_are_right():
    fit = fitted(TorchLearner(net, lr=1e-2, objective=PrimalDual(stop=0.9)))
    assert "% of the training rows right" in fit.notes["stopped"]
    longer = fitted(TorchLearner(net, lr=1e-2, objective=PrimalDual()))
    assert longer.notes["epochs"] > fit.notes["epochs"]


def test_auto_is_measured_by_a_fit_without_bounds():
    fit = fitted(TorchLearner(net, epochs=20, lr=1e-2, objective=PrimalDual(epsilon="auto")))
    plain = fitted(TorchLearner(net, epochs=20, lr=1e-2, objective=PrimalDual(epsilon=1e9)))
    assert fit.notes["unconstrained_loss"] == plain.notes["loss"]
    assert fit.notes["epsilon"] == pytest.approx(1.15 * plain.notes["loss"])
    fixed = fitted(TorchLearner(net, epochs=20, lr=1e-2, objective=PrimalDual(epsilon=fit.notes["epsilon"])))
    assert torch.equal(fit.published[Duals()], fixed.published[Duals()])


def test_a_secondary_loss_is_what_is_bounded():
    def sure(output_BC, label_B):
        return 1 - output_BC.softmax(1).gather(1, label_B[:, None])[:, 0]

    objective = PrimalDual(epsilon=0.0, eta=1.0, secondary=sure, stop=None)
    loss = objective.losses(torch.tensor([3.0, 4.0]), torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    assert loss.tolist() == [[3.0, 0.5], [4.0, 0.5]]
    state = objective.after(loss, torch.tensor([0, 1]), objective.init(2, None))
    assert state["dual"].tolist() == [0.5, 0.5]
    assert float(objective.reduce(loss, torch.tensor([0, 1]), state)) == pytest.approx(3.5 + 0.25)
    fit = fitted(TorchLearner(net, epochs=3, objective=objective))
    assert 0 < float(fit.published[Duals()].max()) <= 3.0  # three visits, each below 1
    with pytest.raises(ArgumentError, match=r"one loss for each row, shape \(60,\)"):
        fitted(TorchLearner(net, epochs=1, objective=PrimalDual(secondary=lambda out, label: out.mean()), batch=60))


# --- Theorem 3.2 -----------------------------------------------------------------------------------------------------


def optimum(x: np.ndarray, y: np.ndarray, epsilon: np.ndarray) -> tuple[float, np.ndarray]:
    """min over w of mean (x w - y)^2 + 0.1 w^2, with (x_i w - y_i)^2 <= epsilon_i: an interval, so exact."""
    reach = np.sqrt(epsilon)
    low = np.max(np.where(x > 0, (y - reach) / x, (y + reach) / x))
    high = np.min(np.where(x > 0, (y + reach) / x, (y - reach) / x))
    assert low < high
    free = (x * y).mean() / ((x * x).mean() + 0.1)
    w = min(max(free, low), high)
    return float(((x * w - y) ** 2).mean() + 0.1 * w * w), np.array([w])


def test_duals_at_the_optimum_are_the_sensitivity_of_the_optimal_value():
    """Ridge regression of one weight, strongly convex; one bound is active. Primal and dual steps until they rest."""
    x = np.array([1.0, -0.5, 2.0, 0.8])
    y = np.array([1.0, 0.4, 0.5, -0.3])
    epsilon = 0.4
    objective = PrimalDual(epsilon=epsilon, eta=0.5, update="full")
    state = objective.init(4, None)
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    place, x_n, y_n = torch.arange(4), torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(1500):
        loss = (x_n * weight - y_n).square()
        (slope,) = torch.autograd.grad(objective.reduce(loss, place, state) + 0.1 * weight.square().sum(), weight)
        with torch.no_grad():
            weight -= 0.05 * slope
            state = objective.after((x_n * weight - y_n).square(), place, state)
    value, w = optimum(x, y, np.full(4, epsilon))
    assert float(weight.detach()) == pytest.approx(float(w[0]), abs=1e-6)
    slopes = []
    for i in range(4):
        step = np.zeros(4)
        step[i] = 1e-6
        up, down = (optimum(x, y, np.full(4, epsilon) + sign * step)[0] for sign in (1, -1))
        slopes.append((up - down) / 2e-6)
    # The Lagrangian is a mean over rows, so a dual counts 1/n of what its bound costs.
    assert (state["dual"] / 4).tolist() == pytest.approx([-slope for slope in slopes], abs=1e-5)
    assert sum(dual > 1e-3 for dual in state["dual"].tolist()) == 1
    assert value > optimum(x, y, np.full(4, 100.0))[0]


# --- recipes and arguments -------------------------------------------------------------------------------------------


def test_the_recipe_trains_by_it_and_leaves_the_learner_alone():
    learner = TorchLearner(net, epochs=5)
    al = lw.Session(X, learner, "ally", classes=2, seed=1)
    assert isinstance(learner.options.objective, Mean)
    for _ in range(2):
        picks = al.ask(10)
        al.tell(picks.ids, Y.numpy()[picks.ids])
    assert set(al.fit().published) == {Duals()}
    assert (al.fit().ids.numpy() == np.sort(al.labelled)).all()
    own = TorchLearner(net, objective=PrimalDual(epsilon=0.05))
    assert lw.Session(X, own, "ally", classes=2).learner.options.objective.epsilon == 0.05
    assert lw.recipes.get("typiclust+ally").objective == PrimalDual()
    assert lw.recipes.get(lw.strategies.Ally(clusters=3)).objective == PrimalDual()
    assert lw.recipes.get("badge").objective is None


def test_learners_that_cannot_be_trained_so_are_told():
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(ArgumentError, match=r"'ally' trains by PrimalDual.*SklearnLearner cannot"):
        lw.Session(X, LogisticRegression(), "ally", classes=2)
    with pytest.raises(ArgumentError, match="the learner by Weighted"):
        lw.Session(X, TorchLearner(net, objective=Weighted()), "ally", classes=2)
    with pytest.raises(ArgumentError, match="leave fit= out"):
        lw.Session(X, TorchLearner(net, fit=lambda model, x, y, w: None), "ally", classes=2)


class Own:
    """A learner of the user's own, with no more than the protocol asks for."""

    def fit(self, pool, ids, labels, *, weights=None, classes, key, previous=None):
        raise AssertionError("not trained here")

    def restore(self, state, ids):
        raise AssertionError("not restored here")


def test_ensembles_and_laplace_take_the_objective_of_a_recipe_or_refuse_at_the_door():
    from sklearn.linear_model import LogisticRegression

    for wrap in (lw.ensemble, lw.laplace):
        learner = wrap(TorchLearner(net, epochs=3))
        al = lw.Session(X, learner, "ally", classes=2, seed=1)
        assert isinstance(al.learner.learner.options.objective, PrimalDual)
        assert isinstance(learner.learner.options.objective, Mean)  # what was given is as it was
        for _ in range(2):
            picks = al.ask(12)
            al.tell(picks.ids, Y.numpy()[picks.ids])
        assert al.fit().published[Duals()].shape == (24,)
        name = type(learner).__name__
        for inner in (LogisticRegression(), Own()):
            with pytest.raises(ArgumentError, match=rf"'ally' trains by PrimalDual.*{name} cannot"):
                lw.Session(X, wrap(inner), "ally", classes=2)
    with pytest.raises(ArgumentError, match=r"'ally' trains by PrimalDual.*Own cannot"):
        lw.Session(X, Own(), "ally", classes=2)


def test_duals_of_an_ensemble_are_the_mean_of_its_members():
    pool = Pool.of(X)
    learner = lw.ensemble(TorchLearner(net, epochs=3, objective=PrimalDual()), members=2)
    fit = learner.fit(pool, pool.ids, Y, classes=2, key=Key(0))
    each = [
        learner.learner.fit(pool, pool.ids, Y, classes=2, key=Key(0).fold("member", i)).published[Duals()]
        for i in range(2)
    ]
    assert torch.allclose(fit.published[Duals()], (each[0] + each[1]) / 2)
    assert not torch.equal(each[0], each[1])


def test_a_recipe_that_goes_on_reaches_the_model_inside():
    for wrap in (lw.ensemble, lw.laplace):
        al = lw.Session(X, wrap(TorchLearner(net)), lw.recipes.get("dynamical"), classes=2)
        assert al.learner.learner.warm_start
    own = Own()
    assert lw.Session(X, own, lw.recipes.get("dynamical"), classes=2).learner is own


@pytest.mark.parametrize(
    "bad",
    [
        {"primal_steps": 0},
        {"primal_steps": 1.5},
        {"epsilon": -0.1},
        {"epsilon": "loose"},
        {"epsilon": math.inf},
        {"eta": 0.0},
        {"update": "epoch"},
        {"schedule": 0},
        {"stop": 0},
        {"stop": 1.5},
    ],
)
def test_arguments(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        PrimalDual(**bad)


def test_auto_has_no_value_before_it_is_measured():
    with pytest.raises(ArgumentError, match="measured by the learner"):
        PrimalDual(epsilon="auto").reduce(torch.ones(1), torch.tensor([0]), PrimalDual().init(1, None))


def test_duals_of_a_pool_row_are_not_known():
    from labelwise.errors import NeedError
    from labelwise.signals.read import read

    pool = Pool.of(X)
    fit = fitted(TorchLearner(net, epochs=1, objective=PrimalDual()))
    with pytest.raises(NeedError, match="PrimalDual"):
        list(read(fit.reader, pool, pool.ids, (Duals(), Embedding())))


def test_each_row_may_have_its_own_bound() -> None:
    def one_for_all(label_B):
        return torch.full((len(label_B),), 0.2)

    def by_class(label_B):
        return torch.tensor([0.05, 1e9])[label_B]

    options = {"epochs": 12, "lr": 0.05}
    expected = fitted(TorchLearner(net, objective=PrimalDual(), **options)).published[Duals()]
    found = fitted(TorchLearner(net, objective=PrimalDual(epsilon=one_for_all), **options)).published[Duals()]
    assert torch.allclose(found, expected, atol=1e-5)
    duals = fitted(TorchLearner(net, objective=PrimalDual(epsilon=by_class, stop=None), **options)).published[Duals()]
    assert float(duals[Y == 0].min()) > 0
    assert float(duals[Y == 1].max()) == 0
    with pytest.raises(ArgumentError, match="one bound for each label"):
        fitted(TorchLearner(net, objective=PrimalDual(epsilon=lambda label_B: label_B.float().mean())))


def test_a_bound_that_is_a_function_is_not_rebuilt_from_a_folder(tmp_path) -> None:
    recipe = lw.recipes.Recipe(
        "ally", lw.strategies.get("ally"), lw.strategies.Random(), PrimalDual(epsilon=torch.ones_like)
    )
    learner = TorchLearner(net, epochs=2)
    lw.Session(X, learner, recipe, classes=2, folder=tmp_path / "own")
    with pytest.raises(lw.errors.StoreError, match="recipe="):
        lw.Session.load(tmp_path / "own", X, learner)
    assert len(lw.Session.load(tmp_path / "own", X, learner, recipe).labelled) == 0


def test_how_long_to_train_is_the_learners() -> None:
    for objective in (None, PrimalDual(), PrimalDual(epsilon=20)):
        fit = fitted(TorchLearner(net, epochs=60, lr=0.05, keep="last", objective=objective))
        assert fit.notes["epochs"] == 60


def test_a_bound_for_each_row_goes_through_rounds_to_the_picks() -> None:
    free, bounds = 0, torch.tensor([1e9, 0.0])
    learner = TorchLearner(net, epochs=5, objective=PrimalDual(epsilon=lambda label_B: bounds[label_B]))
    session = lw.Session(X, learner, "ally", classes=2, seed=0)
    for _ in range(2):
        picks = session.ask(10)
        session.tell(picks.ids, Y[picks.ids])
    fit = session.fit()
    label_n = Y[fit.ids]
    assert float(fit.published[Duals()][label_n == free].abs().max()) == 0
    assert float(fit.published[Duals()][label_n != free].min()) > 0
    assert len(session.ask(5).ids) == 5


def test_bounds_below_zero_are_refused() -> None:
    learner = TorchLearner(net, epochs=2, objective=PrimalDual(epsilon=lambda label_B: label_B - 1.0))
    with pytest.raises(ArgumentError, match=r"at least 0; it gave -1\.0"):
        fitted(learner)
    with pytest.raises(ArgumentError, match=r"at least 0; it gave nan"):
        PrimalDual(epsilon=lambda label_n: label_n * torch.nan).check(Y)
