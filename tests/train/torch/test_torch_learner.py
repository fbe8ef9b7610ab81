"""TorchLearner: restart, early stopping, weights, determinism, and what it refuses."""

import json
import random
import re

import numpy as np
import pytest
import torch
from torch import nn

from labelwise.errors import ArgumentError, LabelError, ModelError, NumericsError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.draws.variational import VariationalLinear, bayesian
from labelwise.signals.model.calibration import fit_temperature
from labelwise.signals.spec import Embedding, LabelProbs, Probs, Signal
from labelwise.train import Mean, Objective, TorchLearner, Weighted, evaluate
from labelwise.train.torch.data import LabelledInputs, assign_folds, holdout_rows
from labelwise.train.torch.options import TrainOptions

C = 3


def blobs(n: int = 60, noise: float = 0.3, seed: int = 0) -> tuple[Pool, torch.Tensor]:
    """Three Gaussian clouds on a circle."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % C
    angle = labels * 2.1
    centre = torch.stack([angle.cos(), angle.sin()], 1)
    return Pool.of(centre + noise * torch.randn(n, 2, generator=generator), ids=torch.arange(n) + 100), labels


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, C))


def weights_of(fit) -> list[torch.Tensor]:
    return [p.detach().clone() for p in fit.reader.model.parameters()]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights_of(a), weights_of(b)))


def fitted(learner, pool, labels, key=0, classes=C, **more):
    return learner.fit(pool, pool.ids, labels, classes=classes, key=Key(key), **more)


def test_it_learns_and_says_how():
    pool, labels = blobs(200)
    fit = fitted(TorchLearner(net, lr=1e-2, holdout=0.1), pool, labels)
    test, truth = blobs(300, seed=1)
    assert evaluate(fit.reader, test, test.ids, truth)["accuracy"] > 0.97
    assert torch.equal(fit.ids, pool.ids)
    assert fit.notes["held_out"] == len(fit.held_out) > 10
    assert {"epochs", "best_epoch", "stopped", "loss", "held_out_loss", "temperature"} <= set(fit.notes)
    json.dumps(fit.notes)
    assert fit.state is None  # fitting again gives the same
    assert not fit.reader.model.training


@pytest.mark.parametrize("factory", [True, False])
def test_same_key_same_weights_and_another_key_others(factory):
    pool, labels = blobs()

    def dropped():
        return nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, C))

    learner = TorchLearner(dropped if factory else dropped(), epochs=5)
    torch.manual_seed(1)
    first = fitted(learner, pool, labels)
    torch.manual_seed(2)
    assert equal(first, fitted(learner, pool, labels, previous=first))
    assert not equal(first, fitted(learner, pool, labels, key=1))


def test_global_random_state_is_left_alone():
    pool, labels = blobs()
    shared = net()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    fitted(TorchLearner(net, epochs=3, augment=lambda x, g: x + torch.randn(x.shape, generator=g)), pool, labels)
    fitted(TorchLearner(shared, epochs=3), pool, labels)
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


def test_the_module_given_is_not_touched():
    pool, labels = blobs()
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    for restart in (True, "given", False):
        fit = fitted(TorchLearner(model, restart=restart, epochs=3), pool, labels)
        assert fit.reader.model is not model
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert model.training


def test_ctrl_c_passes_through_and_leaves_nothing_behind():
    pool, labels = blobs()
    model = net()
    before = torch.get_rng_state(), [p.detach().clone() for p in model.parameters()]

    def interrupt(batch, generator):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(TorchLearner(model, augment=interrupt), pool, labels)
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before[1], model.parameters()))


def test_restart_continue_and_given():
    pool, labels = blobs()
    model = net()
    short = {"epochs": 1, "lr": 1e-9}  # next to no training: the weights show where it began
    given = fitted(TorchLearner(model, restart="given", **short), pool, labels)
    assert torch.allclose(given.reader.model[0].weight, model[0].weight, atol=1e-6)
    anew = fitted(TorchLearner(model, restart=True, **short), pool, labels, previous=given)
    assert not torch.allclose(anew.reader.model[0].weight, model[0].weight, atol=1e-2)
    first = fitted(TorchLearner(model, restart=False, epochs=30, lr=1e-2), pool, labels)
    on = fitted(TorchLearner(model, restart=False, **short), pool, labels, previous=first)
    assert torch.allclose(on.reader.model[0].weight, first.reader.model[0].weight, atol=1e-6)
    assert on.reader.model is not first.reader.model
    other = fitted(TorchLearner(net, restart=True, **short), pool, labels, key=5)
    assert not torch.equal(other.reader.model[0].weight, anew.reader.model[0].weight)


def test_a_continued_fit_is_saved_and_restored():
    pool, labels = blobs(80, noise=0.8)
    learner = TorchLearner(net, restart=False, epochs=20, lr=1e-2)
    fit = fitted(learner, pool, labels)
    assert fit.state is not None
    back = TorchLearner(net, restart=False, epochs=20, lr=1e-2).restore(fit.state, fit.ids)
    inputs = pool.inputs(pool.ids)
    for signal in (Probs(), LabelProbs(), Embedding()):
        assert torch.equal(back.reader.read(inputs, (signal,))[signal], fit.reader.read(inputs, (signal,))[signal])
    on = (fitted(learner, pool, labels, key=9, previous=one) for one in (fit, back))
    assert equal(*on)


def test_parameters_that_cannot_be_drawn_anew_are_named():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.fc = nn.Linear(2, C)

        def forward(self, x):
            return self.fc(x * self.scale)

    pool, labels = blobs()
    with pytest.raises(ModelError, match=r"the model itself \(Own\).*'scale'.*factory"):
        fitted(TorchLearner(Own()), pool, labels)
    fitted(TorchLearner(Own, epochs=1), pool, labels)
    frozen = net()
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(ArgumentError, match=r"'0.weight' is frozen.*restart=\"given\""):
        fitted(TorchLearner(frozen), pool, labels)
    continuing = fitted(TorchLearner(frozen, restart="given", epochs=5), pool, labels)
    assert torch.equal(continuing.reader.model[0].weight, frozen[0].weight)
    assert not torch.equal(continuing.reader.model[2].weight, frozen[2].weight)


def test_a_weight_of_zero_is_as_if_the_row_were_not_there():
    pool, labels = blobs(30)
    wrong = labels.clone()
    wrong[4] = (wrong[4] + 1) % C
    weights = torch.ones(30, dtype=torch.float64)
    weights[4] = 0
    how = {"epochs": 60, "lr": 1e-2, "batch": 100, "weight_decay": 0, "schedule": None}
    without = torch.arange(30) != 4
    few = pool.ids[without]
    apart = TorchLearner(net, **how).fit(pool, few, labels[without], classes=C, key=Key(0))
    zero = fitted(TorchLearner(net, objective=Weighted(), **how), pool, wrong, weights=weights)
    inputs = pool.inputs(pool.ids)
    p = [fit.reader.read(inputs, (Probs(),))[Probs()] for fit in (apart, zero)]
    torch.testing.assert_close(p[0], p[1], rtol=1e-3, atol=1e-4)
    assert zero.notes["epochs"] == apart.notes["epochs"]
    plain = fitted(TorchLearner(net, **how), pool, wrong, weights=weights)
    assert float((plain.reader.read(inputs, (Probs(),))[Probs()] - p[0]).abs().max()) > 0.05


def test_rows_that_count_nothing_do_not_stop_training():
    pool, labels = blobs(30)
    wrong, weights = labels.clone(), torch.ones(30)
    wrong[:15] = (wrong[:15] + 1) % C  # their loss rises while the others are learnt
    weights[:15] = 0
    fit = fitted(
        TorchLearner(net, objective=Weighted(), lr=3e-2, weight_decay=0, keep="loss"), pool, wrong, weights=weights
    )
    assert fit.notes["stopped"] == "every training row fitted"
    assert evaluate(fit.reader, pool, pool.ids[15:], labels[15:])["accuracy"] == 1.0


def test_early_stopping_watches_the_held_out_rows_and_keeps_the_best_weights():
    pool, labels = blobs(100, noise=1.5)  # the clouds overlap: a net trained for long is surer than right
    big = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, C))
    fit = fitted(TorchLearner(big, keep="loss", lr=1e-2, patience=8, holdout=0.3, holdout_from=50), pool, labels)
    assert fit.notes["stopped"] == "no better held-out loss for 8 epochs"
    assert fit.notes["epochs"] == fit.notes["best_epoch"] + 8
    assert fit.notes["held_out"] == len(fit.held_out) > 15
    out = fit.held_out
    again = evaluate(fit.reader, pool, out, labels[out - 100])
    assert again["nll"] == pytest.approx(fit.notes["held_out_loss"], rel=1e-4)
    z = fit.reader.logits(pool.inputs(out))
    assert fit.notes["temperature"] == pytest.approx(fit_temperature(z, labels[out - 100]), rel=1e-6)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, C))


def test_keep_last_runs_every_epoch_and_keeps_the_last_weights():
    pool, labels = blobs(100, noise=1.5)
    how = {"lr": 1e-2, "epochs": 30, "holdout": 0.3, "holdout_from": 50}
    fit = fitted(TorchLearner(wide, keep="last", patience=3, **how), pool, labels)
    assert fit.notes["best_epoch"] == fit.notes["epochs"] == 30
    assert fit.notes["stopped"] == "all 30 epochs run"
    out = fit.held_out
    found = evaluate(fit.reader, pool, out, labels[out - 100])
    assert found["nll"] == pytest.approx(fit.notes["held_out_loss"], rel=1e-4)
    lowest = fitted(TorchLearner(wide, keep="loss", **how), pool, labels)
    assert lowest.notes["held_out_loss"] < fit.notes["held_out_loss"]
    few, easy = blobs(12)  # rows that are fitted do not end it either
    assert fitted(TorchLearner(net, keep="last", lr=3e-2, epochs=100), few, easy).notes["epochs"] == 100


@pytest.mark.parametrize(("rows", "expected"), [(12, 1000), (100, 250), (400, 100)])
def test_few_rows_are_passed_over_more_often_by_default(rows, expected):
    """100 epochs, or 1,000 steps of 32 rows where those are more."""
    pool, labels = blobs(rows)
    assert fitted(TorchLearner(net), pool, labels).notes["epochs"] == expected
    assert fitted(TorchLearner(net, epochs=3), pool, labels).notes["epochs"] == 3


def test_keep_accuracy_keeps_the_latest_of_the_best_epochs():
    pool, labels = blobs(100, noise=1.5)
    seen = []
    out = pool.ids[holdout_rows(pool.ids, labels, 0.3, Key(0), strict=False)]
    x = pool.inputs(out)

    def look(model, epoch):
        with torch.no_grad():
            seen.append(float((model.eval()(x).argmax(1) == labels[out - 100]).double().mean()))

    how = {"lr": 1e-2, "epochs": 40, "patience": None, "holdout": 0.3, "holdout_from": 50}
    fit = fitted(TorchLearner(wide, keep="accuracy", look=look, **how), pool, labels)
    assert fit.notes["held_out_accuracy"] == max(seen)
    assert fit.notes["best_epoch"] == max(range(40), key=lambda epoch: (seen[epoch], epoch)) + 1
    assert evaluate(fit.reader, pool, out, labels[out - 100])["accuracy"] == max(seen)
    stopped = fitted(TorchLearner(wide, keep="accuracy", **{**how, "patience": 4}), pool, labels)
    assert stopped.notes["stopped"] == "no better held-out accuracy for 4 epochs"
    with pytest.raises(ArgumentError, match='keep="accuracy" needs class labels'):
        TorchLearner(net, loss="mse", keep="accuracy")


def test_keep_average_ends_with_the_mean_weights_of_the_second_half():
    pool, labels = blobs(40, noise=1.0)
    seen: list[list[torch.Tensor]] = []

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, C))

    def look(model, epoch):
        seen.append([tensor.detach().clone() for tensor in model.state_dict().values()])

    fit = fitted(TorchLearner(normed, keep="average", epochs=9, lr=1e-2, patience=1, look=look), pool, labels)
    assert fit.notes["epochs"] == fit.notes["best_epoch"] == len(seen) == 9
    for name, *epochs in zip(fit.reader.model.state_dict(), *seen[4:]):
        found = fit.reader.model.state_dict()[name]
        expected = torch.stack(epochs).mean(0) if found.is_floating_point() else epochs[-1]
        torch.testing.assert_close(found, expected)
    own = evaluate(fit.reader, pool, pool.ids, labels)["nll"]
    assert fit.notes["loss"] == pytest.approx(own, rel=1e-4)  # of the mean weights, which no epoch had
    given = fitted(TorchLearner(normed, keep="average", epochs=9, lr=1e-2, valid=(pool, labels)), pool, labels)
    assert given.notes["held_out_loss"] == pytest.approx(own, rel=1e-4)


def test_mean_weights_that_are_no_good_say_so():
    """The weights change their sign after each epoch: every epoch is good, and the mean is almost zero."""
    pool, labels = blobs(60)

    def flip(model, epoch):
        with torch.no_grad():
            for weight in model.parameters():
                weight.neg_()

    def two_layers() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16, bias=False), nn.Linear(16, C, bias=False))

    how = {"epochs": 40, "lr": 1e-2, "schedule": None, "look": flip}
    assert "warning" not in fitted(TorchLearner(two_layers, keep="last", **how), pool, labels).notes
    found = fitted(TorchLearner(two_layers, keep="average", **how), pool, labels).notes["warning"]
    assert "equal probabilities 1.10" in found or found.startswith("the mean weights classify")


def test_weights_that_have_hardly_begun_to_learn_say_so():
    pool, labels = blobs(100, noise=1.5)
    fit = fitted(TorchLearner(net, epochs=1, lr=1e-6), pool, labels)
    assert re.match(
        r"the kept weights have hardly begun to learn: .* equal probabilities 1\.10; try", fit.notes["warning"]
    )
    wild = fitted(TorchLearner(net, epochs=3, lr=1e3), pool, labels).notes["warning"]
    assert wild.endswith("try more epochs or another lr"), "a higher one would make it worse"
    how = {"lr": 1e-2, "patience": None, "epochs": 150, "holdout": 0.3, "holdout_from": 50}
    generator = torch.Generator().manual_seed(0)
    noise = Pool.of(torch.randn(100, 2, generator=generator)), torch.randint(C, (100,), generator=generator)
    assert "of the last epoch" in fitted(TorchLearner(wide, keep="loss", **how), *noise).notes["warning"]
    assert "warning" not in fitted(TorchLearner(wide, keep="last", **how), *noise).notes
    assert "warning" not in fitted(TorchLearner(net, lr=1e-2), *blobs(60)).notes


def test_few_rows_are_trained_until_they_fit():
    pool, labels = blobs(12)
    fit = fitted(TorchLearner(net, keep="loss", lr=3e-2, weight_decay=0), pool, labels)
    assert fit.notes["stopped"] == "every training row fitted"
    assert fit.notes["epochs"] < 200
    assert fit.notes["held_out"] == 0
    assert fit.notes["temperature"] == 1.0
    assert "no held-out rows" in fit.notes["temperature_note"]
    assert evaluate(fit.reader, pool, pool.ids, labels)["accuracy"] == 1.0


def test_held_out_rows_that_are_all_right_leave_the_temperature_at_one():
    pool, labels = blobs(60, noise=0.05)
    fit = fitted(TorchLearner(net, lr=1e-2, holdout=0.1, holdout_from=50), pool, labels)
    assert fit.notes["temperature"] == 1.0
    assert "do not determine it" in fit.notes["temperature_note"]


@pytest.mark.parametrize("as_pool", [True, False])
def test_validation_rows_can_be_given(as_pool):
    pool, labels = blobs(12)
    test, truth = blobs(90, noise=0.9, seed=1)
    inputs = test.inputs(test.ids)
    fit = fitted(TorchLearner(net, valid=(test if as_pool else inputs, truth)), pool, labels)
    assert fit.notes["held_out"] == 90
    assert fit.notes["temperature"] != 1.0
    with pytest.raises(LabelError, match="90 labels were expected"):
        TorchLearner(net, valid=(test, truth[:5]))


def test_folds_spread_every_class_and_do_not_depend_on_order():
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    ids = torch.arange(100) * 7
    fold = assign_folds(ids, labels, 5, Key(3))
    assert torch.bincount(fold).tolist() == [20] * 5
    assert all(torch.bincount(fold[labels == c]).tolist() == [n] * 5 for c, n in enumerate((10, 6, 4)))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(assign_folds(ids[order], labels[order], 5, Key(3)), fold[order])
    assert not torch.equal(assign_folds(ids, labels, 5, Key(4)), fold)


def test_the_cosine_schedule_is_that_of_torch_for_numbers_and_for_tensors():
    layer = nn.Linear(2, 2)
    options = TorchLearner(layer, epochs=7, lr=0.3).options
    theirs = torch.optim.SGD(layer.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=7)
    numbers, tensors = torch.optim.SGD(layer.parameters(), lr=0.3), torch.optim.Adam(layer.parameters(), lr=0.3)
    on_device = tensors.param_groups[0]["lr"] = torch.tensor(0.3)
    steps = options.make_schedule(numbers), options.make_schedule(tensors)
    for _ in range(7):
        theirs.step()
        schedule.step()
        for step in steps:
            step(0.0)
        rate = schedule.get_last_lr()[0]
        assert numbers.param_groups[0]["lr"] == pytest.approx(rate, abs=1e-12)
        assert float(on_device) == pytest.approx(rate, abs=1e-7)


def test_weight_decay_leaves_out_layers_with_a_penalty_of_their_own():
    model = bayesian(net(), draws=3, hidden=None)
    groups = TorchLearner(model).options.make_optimiser(model).param_groups
    assert [group["weight_decay"] for group in groups] == [0.005, 0.0]
    variational = [module for module in model.modules() if isinstance(module, VariationalLinear)]
    assert {id(p) for p in groups[1]["params"]} == {id(p) for module in variational for p in module.parameters()}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_own_fit_in_one_line():
    pool, labels = blobs(30)
    seen = {}

    def my_fit(model, inputs, targets, weights):
        seen.update(rows=len(inputs), labels=targets, weights=weights)
        with torch.no_grad():
            model[2].bias.fill_(7.0)

    weights = torch.full((30,), 2.0)
    fit = fitted(TorchLearner(net, fit=my_fit), pool, labels, weights=weights)
    assert seen["rows"] == 30
    assert torch.equal(seen["labels"], labels)
    assert torch.equal(seen["weights"], weights)
    assert fit.reader.model[2].bias.tolist() == [7.0] * C
    assert fit.state is not None  # who knows whether it would do the same again


def test_objective_is_given_the_losses_of_its_rows_and_publishes():
    class Seen(Signal):
        array = "seen"

    class Counting(Objective):
        when = "batch"

        def init(self, n, weights):
            return {"weight": torch.ones(n), "count": torch.zeros(n)}

        def reduce(self, loss_B, index_B, state):
            return loss_B.mean()

        def after(self, loss_B, index_B, state):
            assert not loss_B.requires_grad
            return {**state, "count": state["count"].index_add(0, index_B, torch.ones_like(loss_B))}

        def publish(self, state):
            return {Seen(): state["count"]}

    class AtTheEnd(Counting):
        when = "epoch"

    pool, labels = blobs(30)
    for objective in (Counting(), AtTheEnd()):
        fit = fitted(TorchLearner(net, epochs=4, batch=7, objective=objective), pool, labels)
        # the state that belongs to the best weights, not to the last epoch
        assert fit.published[Seen()].tolist() == [fit.notes["best_epoch"]] * 30
    continuing = TorchLearner(net, restart=False, epochs=4, objective=Counting())
    fit = fitted(continuing, pool, labels)
    assert fit.state is not None
    assert torch.equal(continuing.restore(fit.state, fit.ids).published[Seen()], fit.published[Seen()])


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd", lambda p: torch.optim.RMSprop(p, lr=1e-2)])
@pytest.mark.parametrize(
    "schedule", [None, "cosine", lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=3)]
)
def test_optimisers_and_schedules(optimiser, schedule):
    pool, labels = blobs(40)
    learner = TorchLearner(net, optimiser=optimiser, schedule=schedule, lr=1e-2, weight_decay=1e-4, epochs=60)
    assert evaluate(fitted(learner, pool, labels).reader, pool, pool.ids, labels)["accuracy"] > 0.9


def test_a_model_in_float16_that_cannot_be_trained_is_named():
    pool, labels = blobs(20)
    with pytest.raises(NumericsError, match="Parameters in float16 cannot be trained: pass model"):
        fitted(TorchLearner(net().half(), restart="given", epochs=10), pool, labels)


def test_weight_decay_leaves_out_embeddings():
    """A token that no labelled row has keeps its vector; with weight decay, Adam would take it to zero."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(6, 3), nn.Linear(3, C)

        def forward(self, x):
            return self.head(self.words(x.long()).mean(1))

    torch.manual_seed(0)
    model = Words()
    rows = torch.randint(0, 5, (20, 4)).float()  # never token 5
    pool = Pool.of(rows)
    fit = fitted(TorchLearner(model, restart="given", epochs=50), pool, (rows[:, 0] > 2).long())
    assert fit.model.words.weight[5].tolist() == model.words.weight[5].tolist()
    assert fit.model.words.weight[0].tolist() != model.words.weight[0].tolist()


def test_models_of_transformers_have_no_weight_decay_unless_it_is_set(monkeypatch):
    model = nn.Sequential(net())
    assert _decays(model) == [0.005]
    monkeypatch.setattr(nn.Sequential, "__module__", "transformers.models.some")
    assert _decays(nn.ModuleList([net()])) == [0.0]  # one inside another module counts
    assert _decays(nn.ModuleList([net()]), weight_decay=0.01) == [0.01]


def _decays(model, **how):
    return [group["weight_decay"] for group in TorchLearner(model, **how).options.make_optimiser(model).param_groups]


def test_the_default_weight_decay_is_for_inputs_of_size_one_and_less_for_smaller_ones():
    options, model = TorchLearner(nn.Linear(4, 2)).options, nn.Linear(4, 2)
    ones = torch.ones(6, 4)
    assert options.for_inputs(ones, model) is options
    assert options.for_inputs(ones / 2, model) is options
    assert options.for_inputs(ones / 10, model).weight_decay == pytest.approx(0.005 / 100)
    for other in (ones.long(), ones[:, None, None] / 10, [ones / 10], {"x": ones / 10}):  # images, tokens, several
        assert options.for_inputs(other, model) is options
    assert options.for_inputs(torch.zeros(0, 4), model) is options
    given = TorchLearner(nn.Linear(4, 2), weight_decay=0.01).options
    assert given.for_inputs(ones / 10, model) is given


def test_rows_without_weight_do_not_change_the_default_weight_decay():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)) / 20
    x[30:] *= 100
    labels, weights = (x[:, 0] > 0).long(), (torch.arange(40) < 30).float()

    def options_of(rows: int) -> float:
        seen = []

        def optimiser(self, model):
            seen.append(self.weight_decay)
            return torch.optim.SGD(model.parameters(), lr=0.1)

        learner = TorchLearner(nn.Linear(4, 2), epochs=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainOptions, "make_optimiser", optimiser)
            learner.fit(Pool.of(x), torch.arange(rows), labels[:rows], weights=weights[:rows], classes=2, key=Key(0))
        return seen[0]

    assert options_of(40) == options_of(30) == pytest.approx(0.005 / 400, rel=0.3)


def test_vectors_of_length_one_with_many_classes_are_learnt():
    """As sentence encoders and CLIP give them; a weight decay of 0.005 leaves two thirds of these rows wrong."""
    rng, classes = np.random.default_rng(0), 150
    y = np.repeat(np.arange(classes), 3)
    x = rng.normal(size=(classes, 128))[y] + rng.normal(size=(len(y), 128))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype("float32")

    def accuracy(**options):
        learner = TorchLearner(lambda: nn.Sequential(nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, classes)), **options)
        fit = learner.fit(Pool.of(x), torch.arange(len(y)), torch.as_tensor(y), classes=classes, key=Key(0))
        return (fit.predict(x) == y).mean()

    assert accuracy() > 0.7
    assert accuracy(weight_decay=0.005) < 0.5


def test_weight_decay_and_schedule_reach_the_optimiser():
    pool, labels = blobs(40)

    def size(**how) -> float:
        fit = fitted(TorchLearner(net, lr=1e-2, epochs=60, patience=None, **how), pool, labels)
        return float(sum(w.square().sum() for w in weights_of(fit)))

    assert size(weight_decay=0.1) < 0.8 * size(weight_decay=0.0)
    assert size(schedule=None) != size()


def test_augmentation_is_drawn_from_the_key_and_used():
    pool, labels = blobs(30)
    batches = []

    def shift(batch, generator):
        noise = torch.randn(batch.shape, generator=generator)
        batches.append(noise)
        return batch + noise

    learner = TorchLearner(net, augment=shift, epochs=3)
    first = fitted(learner, pool, labels)
    drawn = [*batches]
    batches.clear()
    assert equal(first, fitted(learner, pool, labels))
    assert all(torch.equal(a, b) for a, b in zip(drawn, batches))
    assert not torch.equal(drawn[0], drawn[1])
    assert not equal(first, fitted(TorchLearner(net, epochs=3), pool, labels))


def test_the_order_of_the_rows_comes_from_the_key_and_changes_each_epoch():
    pool, labels = blobs(30)
    orders: list[torch.Tensor] = []

    def note(batch, generator):
        orders.append(batch.clone())
        return batch

    for key in (0, 0, 1):
        fitted(TorchLearner(net, augment=note, epochs=2), pool, labels, key=key)
    assert torch.equal(orders[0], orders[2])
    assert torch.equal(orders[1], orders[3])
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[4])


def test_batch_norm_and_a_last_batch_of_one_row():
    def normed():
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, C))

    for n in (1, 2, 9):
        pool, labels = blobs(n)
        assert fitted(TorchLearner(normed, batch=8, epochs=2), pool, labels).notes["epochs"] == 2


def test_float64_and_mixed_precision():
    pool, labels = blobs(60)
    double = fitted(TorchLearner(lambda: net().double(), lr=1e-2), pool, labels)
    assert double.reader.read(pool.inputs(pool.ids), (Probs(),))[Probs()].dtype == torch.float64
    half = fitted(TorchLearner(net, lr=1e-2, autocast=torch.bfloat16), pool, labels)
    assert evaluate(half.reader, pool, pool.ids, labels)["accuracy"] > 0.95


def test_binary_model_with_one_logit():
    pool, labels = blobs(60)
    two = (labels == 0).long()
    fit = fitted(TorchLearner(lambda: nn.Linear(2, 1), lr=5e-2), pool, two, classes=2)
    assert evaluate(fit.reader, pool, pool.ids, two)["accuracy"] > 0.95


def test_classes_without_a_label_and_one_single_class_are_fine():
    pool, labels = blobs(30)
    some = labels != 2
    fit = TorchLearner(net, epochs=5).fit(pool, pool.ids[some], labels[some], classes=C, key=Key(0))
    assert fit.reader.read(pool.inputs(pool.ids), (Probs(),))[Probs()].shape == (30, C)
    one = fitted(TorchLearner(net, epochs=5), pool, torch.zeros(30, dtype=torch.int64))
    assert one.reader.read(pool.inputs(pool.ids), (Probs(),))[Probs()].shape == (30, C)


def test_texts_and_mappings_are_sliced_by_row():
    class Letters(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, texts):
            return self.fc(torch.tensor([[t.count("a"), t.count("b")] for t in texts]).float())

    pool = Pool.of(["aa", "b", "aab", "bb", "aaa", "abb"])
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    fit = fitted(TorchLearner(Letters, lr=5e-2, batch=4), pool, labels, classes=2)
    assert evaluate(fit.reader, pool, pool.ids, labels)["accuracy"] == 1.0


def test_rows_that_are_too_many_are_read_batch_by_batch():
    pool, _ = blobs(30)
    cached, streamed = LabelledInputs(pool, pool.ids), LabelledInputs(pool, pool.ids, cache_bytes=10)
    assert streamed.cache is None
    at = torch.tensor([4, 2, 9])
    assert torch.equal(cached.take(at), streamed.take(at))


def test_a_factory_that_needs_arguments_is_refused_in_words():
    class Net(nn.Linear):
        pass

    pool = Pool.of(np.eye(2, dtype=np.float32))
    with pytest.raises(ArgumentError, match=r"Net is called without arguments.*'in_features'.*lambda: Net\(\.\.\.\)"):
        TorchLearner(Net).fit(pool, pool.ids, torch.tensor([0, 1]), classes=2, key=Key(0))


def test_what_cannot_be_trained_is_named():
    pool, labels = blobs(30)
    bad = labels.clone()
    bad[3] = 3
    with pytest.raises(LabelError, match=r"from 0 to 2; row id 103 has 3"):
        fitted(TorchLearner(net), pool, bad)
    with pytest.raises(LabelError, match=r"row id 100 has 0\.5"):
        fitted(TorchLearner(net), pool, labels + 0.5)
    with pytest.raises(LabelError, match="no labelled row"):
        TorchLearner(net).fit(pool, pool.ids[:0], labels[:0], classes=C, key=Key(0))
    with pytest.raises(ModelError, match="one output for each of 5 classes was expected, the model has 3"):
        fitted(TorchLearner(net), pool, labels, classes=5)
    with pytest.raises(NumericsError, match=r"became (nan|inf) in epoch \d+ with lr=1e\+30"):
        fitted(TorchLearner(net, lr=1e30, optimiser="sgd"), pool, labels)
    x = pool.inputs(pool.ids)
    x[5, 0] = torch.nan
    with pytest.raises(NumericsError, match="input of row id 5 holds NaN"):
        fitted(TorchLearner(net), Pool.of(x), labels)
    with pytest.raises(ModelError, match="look like probabilities"):
        fitted(TorchLearner(lambda: nn.Sequential(net(), nn.Softmax(1))), pool, labels)
    with pytest.raises(ArgumentError, match="returned str"):
        fitted(TorchLearner(lambda: "net"), pool, labels)


@pytest.mark.parametrize(
    "wrong",
    [
        {"restart": "yes"},
        {"epochs": 0},
        {"batch": 0},
        {"patience": 0},
        {"keep": "best"},
        {"lr": 0.0},
        {"holdout": 1.0},
        {"optimiser": "lbfgs"},
        {"schedule": "steps"},
        {"valid": torch.zeros(3)},
    ],
)
def test_arguments_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        TorchLearner(net, **wrong)


def test_mean_is_the_default_objective():
    assert isinstance(TorchLearner(net).options.objective, Mean)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_module_is_taken_as_a_function_that_makes_it():
    def made() -> nn.Module:
        return torch.jit.script(nn.Linear(2, 2))

    with pytest.raises(ArgumentError, match="a copy of a TorchScript module cannot be trained"):
        TorchLearner(nn.Sequential(made()))
    pool = Pool.of(torch.randn(12, 2, generator=torch.Generator().manual_seed(0)))
    fit = TorchLearner(made, epochs=1).fit(pool, pool.ids, torch.arange(12) % 2, classes=2, key=Key(0))
    assert fit.predict_proba(pool).shape == (12, 2)
