"""The step of a perceptron written out by hand: equal to autograd to the bit, and taken only where that holds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train import PrimalDual, TorchLearner, Weighted
from labelwise.train.learner import Fit
from labelwise.train.objectives.primal_dual import WeightedPrimalDual
from labelwise.train.torch.perceptron import PerceptronStep

ROWS, WIDTH = 70, 6


def rows(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Pool, Tensor]:
    made = torch.randn(ROWS, WIDTH, generator=Key(seed).generator(), dtype=dtype)
    return Pool.of(made), made[:, :4].argmax(1)


def perceptron(*widths: int, flat: bool = True) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()] if flat else []
        for before, after in pairwise(widths[:-1]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))

    return make


def fit(learner: TorchLearner, pool: Pool, labels: Tensor, count: int, weights: Tensor | None = None) -> Fit:
    ids = pool.ids[:count]
    classes = 0 if labels.is_floating_point() else 4
    return learner.fit(pool, ids, labels[:count], classes=classes, key=Key(3), weights=weights)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each step by hand."""
    taken: list[int] = []
    run = PerceptronStep.__call__
    monkeypatch.setattr(PerceptronStep, "__call__", lambda self, *given: taken.append(1) or run(self, *given))
    return taken


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PerceptronStep, "of", staticmethod(lambda *given: None))


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "one hidden layer": (perceptron(6, 8, 4), {}),
    "two hidden layers, no Flatten": (perceptron(6, 9, 5, 4, flat=False), {"optimiser": "adamw"}),
    "linear": (perceptron(6, 4), {"batch": 7, "schedule": None}),
    "a bare layer": (lambda: nn.Linear(6, 4), {"weight_decay": 0.0}),
    "more outputs than classes": (perceptron(6, 8, 5), {}),
    "average": (perceptron(6, 8, 4), {"keep": "average"}),
    "hold-out": (perceptron(6, 8, 4), {"keep": "accuracy", "holdout": 0.3, "holdout_from": 10}),
    "drawn by weights": (perceptron(6, 8, 4), {"sampler": "weights"}),
    "weighted": (perceptron(6, 8, 4), {"objective": Weighted()}),
    "primal-dual": (perceptron(6, 8, 4), {"objective": PrimalDual()}),
    "weighted primal-dual": (perceptron(6, 8, 4), {"objective": WeightedPrimalDual()}),
    "a bound for each row": (perceptron(6, 8, 4), {"objective": PrimalDual(epsilon=lambda label_B: 0.1 * label_B)}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 5, 33, 70])
def test_equal_to_autograd_to_the_bit(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options = CASES[name]
    pool, labels = rows()
    weights = torch.rand(count, generator=Key(1).generator()) + 0.1
    learner = TorchLearner(make, epochs=6, **{"batch": 16, **options})
    taken = calls(monkeypatch)
    by_hand = fit(learner, pool, labels, count, weights)
    assert len(taken) >= 5  # all steps but the first
    without(monkeypatch)
    number = len(taken)
    by_autograd = fit(learner, pool, labels, count, weights)
    assert len(taken) == number
    assert by_hand.notes == by_autograd.notes
    same_weights(by_hand, by_autograd)
    for signal, column in by_autograd.published.items():
        assert column.equal(by_hand.published[signal])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hidden", [(), (8,)])
def test_regression_is_equal_to_the_bit(
    dtype: torch.dtype, hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, _ = rows(dtype=dtype)
    targets = pool.inputs(pool.ids).square().sum(1).double()
    learner = TorchLearner(lambda: perceptron(6, *hidden, 1)().to(dtype), epochs=6, loss="mse")
    taken = calls(monkeypatch)
    by_hand = fit(learner, pool, targets, 50)
    assert len(taken) == 11
    without(monkeypatch)
    same_weights(by_hand, fit(learner, pool, targets, 50))


def test_images_are_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.randn(20, 1, 2, 3, generator=Key(0).generator())
    pool, labels = Pool.of(pixels), torch.arange(20) % 4
    taken = calls(monkeypatch)
    by_hand = fit(TorchLearner(perceptron(6, 8, 4), epochs=3), pool, labels, 20)
    assert taken
    without(monkeypatch)
    same_weights(by_hand, fit(TorchLearner(perceptron(6, 8, 4), epochs=3), pool, labels, 20))


def test_gradients_stay_readable_after_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen_by(seen: list[Tensor]) -> TorchLearner:
        def look(model: nn.Module, epoch: int) -> None:
            seen.append(torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None]))

        return TorchLearner(perceptron(6, 8, 4), epochs=3, look=look)

    pool, labels = rows()
    by_hand: list[Tensor] = []
    by_autograd: list[Tensor] = []
    fit(seen_by(by_hand), pool, labels, 40)
    without(monkeypatch)
    fit(seen_by(by_autograd), pool, labels, 40)
    assert all(one.equal(other) for one, other in zip(by_hand, by_autograd, strict=True))


class OwnLinear(nn.Linear):
    """A layer of the user's own."""


def frozen() -> nn.Module:
    model = perceptron(6, 8, 4)()
    next(model.parameters()).requires_grad_(False)
    return model


def with_hook() -> nn.Module:
    model = perceptron(6, 8, 4)()
    model[1].register_forward_hook(lambda module, given, output: 2 * output)  # type: ignore[index]
    return model


def with_gradient_hook() -> nn.Module:
    model = perceptron(6, 8, 4)()
    next(model.parameters()).register_hook(lambda slope: 0 * slope)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def same_layer_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


OTHERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "a layer of a subclass": (lambda: nn.Sequential(OwnLinear(6, 4)), {}),
    "a layer without bias": (lambda: nn.Sequential(nn.Linear(6, 4, bias=False)), {}),
    "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.Linear(6, 4)), {}),
    "another activation": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), {}),
    "a last ReLU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU()), {}),
    "a frozen layer": (frozen, {}),
    "a hook": (with_hook, {}),
    "a hook on a gradient": (with_gradient_hook, {}),
    "tied weights": (tied, {}),
    "one layer twice": (same_layer_twice, {}),
    "another optimiser": (perceptron(6, 8, 4), {"optimiser": "sgd"}),
    "an optimiser of the user's": (perceptron(6, 8, 4), {"optimiser": torch.optim.Adam}),
    "clipping": (perceptron(6, 8, 4), {"clamp": 0.1}),
    "augmented inputs": (perceptron(6, 8, 4), {"augment": lambda batch, generator: batch + 1}),
    "mixed precision": (perceptron(6, 8, 4), {"autocast": torch.bfloat16}),
    "an output of the user's": (perceptron(6, 8, 4), {"output": lambda z: 2 * z}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_left_to_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options = OTHERS[name]
    pool, labels = rows()
    taken = calls(monkeypatch)
    fit(TorchLearner(make, epochs=2, **options), pool, labels, 40)
    assert not taken


def test_a_single_logit_is_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, labels = rows()
    taken = calls(monkeypatch)
    learner = TorchLearner(perceptron(6, 8, 1), epochs=2)
    learner.fit(pool, pool.ids, (labels > 1).long(), classes=2, key=Key(0))
    assert not taken


def test_an_autocast_around_the_call_stays_active(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, labels = rows()
    taken = calls(monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fit(TorchLearner(perceptron(6, 8, 4), epochs=2), pool, labels, 40)
    assert not taken


def same_weights(one: Fit, other: Fit) -> None:
    pairs = zip(one.reader.model.parameters(), other.reader.model.parameters(), strict=True)  # type: ignore[attr-defined]
    assert all(a.equal(b) for a, b in pairs)
