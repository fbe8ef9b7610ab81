"""Captured training steps: the weights of steps that run as they are. Needs a CUDA device."""

import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train import Weighted
from labelwise.train.torch.captured import WARM_UP, CapturedStep
from labelwise.train.torch.step import Step

cuda = pytest.mark.gpu


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)),
    ).cuda()


def trained(**how):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(203, 1, 8, 8, generator=generator), torch.randint(5, (203,), generator=generator)
    learner = lw.TorchLearner(network, epochs=6, batch=32, patience=None, holdout=0.1, **how)
    weights = torch.linspace(0.5, 2, 203)
    return learner.fit(Pool.of(x), torch.arange(203), y, weights=weights, classes=5, key=Key(1))


@cuda
@pytest.mark.parametrize(
    "how",
    [
        {"optimiser": "sgd", "lr": 0.05, "weight_decay": 1e-3},
        {"optimiser": "adam", "lr": 1e-2},
        {"optimiser": "adamw", "lr": 1e-2, "schedule": "cosine"},
        {"optimiser": "adam", "objective": Weighted()},
        {"optimiser": "sgd", "lr": 0.05, "clamp": 0.01},
    ],
)
def test_captured_training_is_training(how, monkeypatch):
    replays = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    captured = trained(**how)
    assert len(replays) >= 6 * 6 - 2 * WARM_UP - 2  # five batches of 32 and one of 23
    monkeypatch.setattr(Step, "_can_be_captured", lambda self: False)
    plain = trained(**how)
    assert captured.notes["loss"] == pytest.approx(plain.notes["loss"], rel=1e-4)
    for one, other in zip(captured.reader.model.parameters(), plain.reader.model.parameters()):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


@cuda
def test_a_network_that_looks_at_the_host_runs_as_it_is():
    class Looks(nn.Module):
        def __init__(self):
            nn.Module.__init__(self)
            self.inner = nn.Linear(64, 5)

        def forward(self, x):
            h = self.inner(x.flatten(1))
            return h if float(h.detach().sum()) > -1e9 else -h  # the host waits for a number here

    x, y = torch.randn(100, 1, 8, 8), torch.arange(100) % 5
    learner = lw.TorchLearner(lambda: Looks().cuda(), epochs=4, batch=16)
    fit = learner.fit(Pool.of(x), torch.arange(100), y, weights=None, classes=5, key=Key(1))
    assert fit.notes["loss"] < 2


@cuda
def test_batches_of_another_size_and_a_changed_stamp():
    total, stamp = torch.zeros(4, device="cuda"), [1.0]

    def step(index_B):
        total.index_add_(0, index_B, torch.full((len(index_B),), stamp[0], device="cuda"))
        return (total.clone(),)

    run = CapturedStep(step, torch.device("cuda"), lambda: stamp[0])
    for _ in range(WARM_UP + 3):
        run(torch.tensor([0, 1], device="cuda"))
    run(torch.tensor([2], device="cuda"))
    stamp[0] = 10.0
    (seen,) = run(torch.tensor([0, 3], device="cuda"))
    assert seen.tolist() == [WARM_UP + 13, WARM_UP + 3, 1, 10]
