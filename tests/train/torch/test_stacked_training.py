"""Training several networks at once: each gets what it gets alone, whatever else is in the stack."""

import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.bench.models.networks import lenet5, mlp, resnet18, tutorial_cnn, vgg11, vgg16
from labelwise.bench.models.paper_training import Until
from labelwise.bench.suite.job import repeatable
from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.spec import Duals
from labelwise.train import PrimalDual, Weighted
from labelwise.train.objectives.primal_dual import WeightedPrimalDual
from labelwise.train.torch.stack import Stack
from labelwise.train.torch.together import run_together

ROWS, CLASSES = 37, 4


def rows(channels=1, side=12, count=60):
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(count, channels, side, side, generator=chance, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=chance)


def double(make):
    return lambda: make().double()


def small(dropout=0.0):
    return double(
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, stride=2), nn.Tanh()),
            *(nn.Flatten(), nn.Linear(16, 10), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(10, CLASSES)),
        )
    )


def fits(make, seeds, together=True, slots=0, data=None, count=ROWS, **how):
    x, y = data or rows()
    pool = Pool.of(x)
    how = {"epochs": 4, "batch": 16, "optimiser": "sgd", "lr": 0.05, **how}
    learner = lw.TorchLearner(make, **how)

    def one(seed):
        ids = torch.arange(len(x)).roll(7 * seed)[:count].sort().values
        weights = torch.linspace(0.5, 2, count)
        return learner.fit(pool, ids, y[ids], weights=weights, classes=CLASSES, key=Key(seed))

    if not together:
        return [one(seed) for seed in seeds]
    found = {}
    for outcome in run_together([lambda seed=seed: one(seed) for seed in seeds], slots):
        if outcome is not None:
            if outcome.error is not None:
                raise outcome.error
            found[outcome.number] = outcome.value
    return [found[number] for number in range(len(seeds))]


def same(one, other, within=1e-7):
    for name, value in one.model.state_dict().items():
        compared = other.model.state_dict()[name]
        assert torch.allclose(value.double(), compared.double(), within, within / 100), name


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (small(), {}),
        (small(), {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.01, "schedule": None}),
        (small(), {"optimiser": "adamw", "clamp": 0.01, "objective": Weighted()}),
        (small(), {"keep": "loss", "holdout": 0.0, "epochs": 8, "lr": 0.5, "patience": 2}),
        (small(), {"keep": "accuracy", "valid": (rows()[0][:20], rows()[1][:20]), "epochs": 8, "lr": 0.3}),
        (small(), {"valid": (rows()[0][:20], rows()[1][:20])}),
        (small(), {"objective": Until(0.4, 2, 3), "epochs": 20, "lr": 0.1}),
        (small(dropout=0.5), {}),
        (double(mlp(144, CLASSES, (8,))), {}),
    ],
)
def test_each_network_trains_as_it_does_alone(make, how):
    for one, other in zip(fits(make, range(3), **how), fits(make, range(3), together=False, **how)):
        assert one.notes["stacked"] == 3
        same(one, other)
        for name, value in other.notes.items():
            assert one.notes[name] == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lenet5(CLASSES, 1, 28), (1, 28, 28)),
        (tutorial_cnn(CLASSES, 3, 32), (3, 32, 32)),
        (vgg11(CLASSES, 3, width=2), (3, 32, 32)),
        (vgg16(CLASSES, 3, width=2), (3, 32, 32)),
        (resnet18(CLASSES, 3, width=2), (3, 32, 32)),
    ],
)
@pytest.mark.parametrize("layout", ["rows", "channels"])
def test_the_networks_of_the_papers_in_both_layouts(make, size, layout):
    models = [double(make)() for _ in range(2)]
    stack = Stack(models, layout)
    x = torch.randn(2, 5, *size, dtype=torch.float64)
    alone = torch.stack([model(one) for model, one in zip(models, x)])
    out = stack(x)
    assert torch.allclose(out, alone)
    out.square().sum().backward()
    alone.square().sum().backward()
    stacked = sorted(float(value.grad.square().sum()) for value in stack.parameters())
    single = zip(*[model.parameters() for model in models])
    assert stacked == pytest.approx(sorted(sum(float(v.grad.square().sum()) for v in vs) for vs in single))


@pytest.mark.parametrize("kind", [PrimalDual, WeightedPrimalDual])
def test_duals_are_those_of_a_training_alone(kind):
    how = {"objective": kind(epsilon=0.3, stop=0.6), "epochs": 30, "optimiser": "adam", "lr": 0.01}
    for one, other in zip(fits(small(), range(3), **how), fits(small(), range(3), together=False, **how)):
        same(one, other)
        assert one.notes["epochs"] == other.notes["epochs"]
        assert torch.allclose(one.published[Duals()], other.published[Duals()])
    assert len({one.notes["epochs"] for one in fits(small(), range(3), **how)}) > 1  # each had its own end


def test_a_result_does_not_depend_on_the_other_networks():
    """But for the last bits: products of MKL differ in them by where a matrix begins in memory."""
    two, all_of_them = fits(small(), [2, 5], slots=4), fits(small(), [5, 0, 2, 1])
    same(two[0], all_of_them[2], within=1e-12)
    same(two[1], all_of_them[0], within=1e-12)


def test_different_label_counts_are_trained_in_groups():
    x, y = rows()
    learner = lw.TorchLearner(small(), epochs=2, batch=16)
    counts = [20, 31, 20, 31, 45]

    def one(number):
        ids = torch.arange(counts[number])
        return learner.fit(Pool.of(x), ids, y[ids], classes=CLASSES, key=Key(number))

    found = [o.value for o in run_together([lambda n=n: one(n) for n in range(5)]) if o is not None]
    assert sorted(len(fit.ids) for fit in found) == sorted(counts)
    for fit in found:
        alone = learner.fit(Pool.of(x), fit.ids, y[fit.ids], classes=CLASSES, key=Key(counts.index(len(fit.ids))))
        assert fit.notes["stacked"] == 5
        if counts.count(len(fit.ids)) == 1:
            same(fit, alone)


def test_what_cannot_be_stacked_is_trained_alone():
    def flip(x, chance):
        return x.flip(2)

    for one, other in zip(fits(small(), range(2), augment=flip), fits(small(), range(2), together=False, augment=flip)):
        assert "stacked" not in one.notes
        same(one, other, within=0)


class Odd(nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        self.last = nn.Linear(144, CLASSES)

    def forward(self, x):
        return self.last(x.flatten(1))


@pytest.mark.filterwarnings("ignore:networks are trained one by one")
def test_an_unknown_network_is_trained_alone():
    with pytest.raises(ArgumentError, match="Odd cannot be stacked"):
        Stack([Odd(), Odd()])
    for one, other in zip(fits(double(Odd), range(2)), fits(double(Odd), range(2), together=False)):
        same(one, other, within=0)


def test_an_error_in_one_function_leaves_the_others():
    def broken():
        raise ValueError("this one")

    outcomes = [o for o in run_together([lambda: 1, broken, lambda: 3]) if o is not None]
    assert [o.value for o in outcomes] == [1, None, 3]
    assert isinstance(outcomes[1].error, ValueError)


@pytest.mark.gpu
def test_a_stack_on_a_gpu_trains_as_one_network_and_repeats_to_the_bit(monkeypatch):
    replays = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    x, y = rows(side=28)

    def make():
        return lenet5(CLASSES)().cuda()

    how = {"data": (x.float(), y), "epochs": 6}
    with repeatable("cuda"):
        first, again = fits(make, range(3), **how), fits(make, range(3), **how)
        assert replays
        more = fits(make, [2], slots=3, **how)
        alone = fits(make, range(3), together=False, **how)
    for one, other in zip([*first, first[2]], [*again, more[0]]):
        same(one, other, within=0)
    for one, other in zip(first, alone):
        for a, b in zip(one.model.parameters(), other.model.parameters()):
            assert torch.allclose(a, b, rtol=1e-2, atol=1e-3)
