"""What every objective keeps, and what each makes of weights."""

import pytest
import torch

from labelwise.errors import ArgumentError, RowError
from labelwise.train import Mean, Objective, PrimalDual, Weighted
from labelwise.train.objectives.objective import Sampled, scaled
from labelwise.train.objectives.primal_dual import WeightedPrimalDual

OBJECTIVES = [Mean(), Sampled(), Weighted(), PrimalDual(), WeightedPrimalDual()]
N = 8


def losses() -> torch.Tensor:
    return torch.rand(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_every_objective_is_in_this_suite():
    direct = Objective.__subclasses__()
    found = {*direct, *(kind for one in direct for kind in one.__subclasses__())}
    ours = {kind for kind in found if kind.__module__.startswith("labelwise.train")}
    assert {type(objective) for objective in OBJECTIVES} == ours


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("weights", [None, torch.arange(N) + 0.5])
def test_contract(objective, weights):
    state = objective.init(N, weights)
    assert state["weight"].shape == (N,)
    assert float(state["weight"].mean()) == pytest.approx(1.0)
    before = {name: value.clone() for name, value in state.items()}
    loss_n = losses().requires_grad_()
    index = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    value = objective.reduce(loss_n[index], index, state)
    assert value.shape == ()
    assert value.dtype == torch.float64
    (slope_n,) = torch.autograd.grad(value, loss_n)
    assert bool((slope_n >= 0).all())
    assert bool((slope_n > 0).any())
    after = objective.after(loss_n.detach()[index], index, state)
    assert set(after) == set(state)
    assert all(torch.equal(before[name], state[name]) for name in state)  # the old state is not written to
    for column in objective.publish(after).values():
        assert len(column) == N


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_batches_of_an_epoch_add_up_to_the_whole(objective):
    state = objective.init(N, torch.arange(N) + 1.0)
    parts = [objective.reduce(losses()[at], at, state) for at in torch.arange(N).split(2)]
    whole = objective.reduce(losses(), torch.arange(N), state)
    assert float(torch.stack(parts).mean()) == pytest.approx(float(whole))


def test_mean_leaves_weights_aside_and_weighted_does_not():
    weights = torch.tensor([3.0, 1, 0, 0, 0, 0, 0, 0])
    index = torch.arange(N)
    assert float(Mean().reduce(losses(), index, Mean().init(N, weights))) == pytest.approx(float(losses().mean()))
    found = Weighted().reduce(losses(), index, Weighted().init(N, weights))
    assert float(found) == pytest.approx(float(0.75 * losses()[0] + 0.25 * losses()[1]))


def test_weights_without_scale_and_missing_ones():
    weights = torch.rand(N) + 0.1
    assert torch.allclose(scaled(weights, N), scaled(1000 * weights, N))
    assert torch.equal(scaled(None, 3), torch.ones(3))
    assert torch.equal(scaled([torch.nan, 1.0, 1.0], 3), torch.ones(3))


def test_weights_that_cannot_be_used_are_named():
    with pytest.raises(ArgumentError, match=r"labelled row 1 has -2\.0"):
        scaled([1.0, -2.0], 2)
    with pytest.raises(ArgumentError, match="nothing to train on"):
        scaled([0.0, 0.0], 2)
    with pytest.raises(RowError, match=r"each of 3 labelled rows was expected, shape \(2,\)"):
        scaled([1.0, 2.0], 3)
