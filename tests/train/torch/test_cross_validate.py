"""Epochs and weight decay by cross-validation inside the labelled rows; one fit on all of them."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.spec import LabelProbs, Probs
from labelwise.train import TorchLearner, evaluate
from labelwise.train.cross_val import best_candidate
from labelwise.train.torch.cross_validate import WEIGHT_DECAYS, candidate_epochs

C = 3


def blobs(n: int, noise: float, seed: int = 0) -> tuple[Pool, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % C
    centre = torch.stack([(labels * 2.1).cos(), (labels * 2.1).sin()], 1)
    return Pool.of(centre + noise * torch.randn(n, 2, generator=generator)), labels


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, C))


def fitted(learner, pool, labels, key: int = 0):
    return learner.fit(pool, pool.ids, labels, classes=C, key=Key(key))


@pytest.mark.slow
def test_epochs_are_chosen_and_all_rows_are_trained_on() -> None:
    pool, labels = blobs(90, noise=1.0)
    learner = TorchLearner(wide, lr=1e-2, epochs=160, cross_validate="epochs", holdout_from=10)
    fit = fitted(learner, pool, labels)
    found = fit.notes["cross_validation"]
    assert found["epochs"] in candidate_epochs(160)
    assert fit.notes["epochs"] == fit.notes["best_epoch"] == found["epochs"]
    assert found["epochs"] < 160  # a wide network that is trained for long is worse on overlapping classes
    assert fit.notes["held_out"] == 0
    assert found["rows"] == 90
    test, truth = blobs(600, noise=1.0, seed=1)
    score = evaluate(fit.reader, test, test.ids, truth)
    long = fitted(TorchLearner(wide, lr=1e-2, epochs=160, keep="last", holdout=0), pool, labels)
    assert score["nll"] < evaluate(long.reader, test, test.ids, truth)["nll"]
    assert abs(found["accuracy"] - score["accuracy"]) < 0.15
    assert fit.notes["temperature"] != 1.0
    p, q = (fit.reader.read(pool.inputs(pool.ids), (signal,))[signal] for signal in (Probs(), LabelProbs()))
    assert not torch.equal(p, q)
    json.dumps(fit.notes)
    again = fitted(learner, pool, labels)
    assert again.notes == fit.notes
    pairs = zip(again.reader.model.parameters(), fit.reader.model.parameters())
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "regress"])
def test_weight_decay_is_chosen(task: str) -> None:
    pool, labels = blobs(60, noise=1.5)
    loss = "mse" if task == "regress" else "cross_entropy"
    model = wide if task == "classify" else lambda: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
    truth = labels if task == "classify" else pool.inputs(pool.ids)[:, 0] + 0.0
    learner = TorchLearner(model, lr=1e-2, epochs=40, loss=loss, cross_validate="weight_decay")
    fit = learner.fit(pool, pool.ids, truth, classes=C if task == "classify" else 0, key=Key(0))
    found = fit.notes["cross_validation"]
    assert found["weight_decay"] in WEIGHT_DECAYS
    assert fit.notes["epochs"] == 40
    assert ("accuracy" in found) == (task == "classify")
    assert learner.options.weight_decay is None  # the learner is not changed


def test_the_rows_that_are_predicted_are_not_trained_on() -> None:
    """Labels that cannot be known: a model that had seen them would be right."""
    pool, _ = blobs(120, noise=1.0)
    labels = torch.randint(C, (120,), generator=torch.Generator().manual_seed(5))
    fit = fitted(TorchLearner(wide, lr=2e-2, epochs=80, cross_validate="epochs"), pool, labels)
    assert fit.notes["cross_validation"]["accuracy"] < 0.5


def test_the_best_candidate() -> None:
    right = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    wrong, unsure = right.flip(1), right / 10
    outputs = torch.stack([wrong, unsure, right, unsure], 1)
    assert best_candidate(outputs, torch.tensor([0, 1]), torch.nn.functional.cross_entropy) == 2
    numbers = torch.tensor([[[3.0], [1.1]], [[0.0], [2.0]]])
    assert best_candidate(numbers, torch.tensor([1.0, 2.0]), lambda z, y: (z[:, 0] - y) ** 2) == 1
    assert candidate_epochs(5) == [5]
    assert candidate_epochs(200)[-1] == 200


def test_few_rows_and_recipes() -> None:
    pool, labels = blobs(2, noise=0.1)
    fit = fitted(TorchLearner(wide, epochs=10, cross_validate="epochs"), pool, labels)
    assert "too few labelled rows" in fit.notes["cross_validation"]
    x = np.random.default_rng(0).normal(size=(80, 2)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    model = TorchLearner(lambda: nn.Linear(2, 2), epochs=20, lr=1e-1, cross_validate="epochs")
    for recipe, learner in (("ally", model), ("dynamical", model), ("margin", lw.ensemble(model, 2))):
        al = lw.Session(x, learner, recipe, classes=2)
        al.tell(range(30), y[:30])
        assert len(al.ask(3)) == 3
        assert len(al.ask(3)) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"cross_validate": "lr"},
        {"cross_validate": "epochs", "schedule": lambda o: torch.optim.lr_scheduler.ConstantLR(o)},
        {"cross_validate": "weight_decay", "optimiser": lambda p: torch.optim.SGD(p, lr=0.1)},
        {"cross_validate": "epochs", "valid": (np.zeros((2, 2)), [0, 1])},
    ],
)
def test_what_cannot_be_cross_validated(wrong) -> None:
    with pytest.raises(ArgumentError, match="cross_validate"):
        TorchLearner(wide, **wrong)
