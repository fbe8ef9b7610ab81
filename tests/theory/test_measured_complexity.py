"""Typical labels, K_{alpha,D'}, beta K and epsilon0 against their definitions."""

import math

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.signals.basis import FUNCTIONS
from labelwise.signals.spec import Basis
from labelwise.theory import measured_complexity as measure
from labelwise.theory import reference
from labelwise.theory.sample_complexity import functions, labels_needed

KINDS = {
    "gaussian": lambda rng, n, d: rng.normal(size=(n, d)),
    "heavy": lambda rng, n, d: rng.standard_t(2.5, size=(n, d)),
}


def pool(kind: str = "heavy", n: int = 300, d: int = 3, seed: int = 0) -> torch.Tensor:
    return functions(KINDS[kind](np.random.default_rng(seed), n, d))


@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_whitened_on_their_rows(kind: str):
    v = pool(kind)
    assert v.shape == (300, 4)
    torch.testing.assert_close(v.T @ v / 300, torch.eye(4, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_expected_excess_is_that_of_the_definition(kind: str):
    v, rng = pool(kind, 80), np.random.default_rng(1)
    ids, weights, noise = rng.permutation(80)[:20], rng.exponential(size=20), rng.exponential(size=80)
    found = measure.expected_excess(v, torch.from_numpy(ids), torch.from_numpy(weights), torch.from_numpy(noise))
    assert found == pytest.approx(reference.expected_excess(v.numpy(), ids, weights, noise))
    assert measure.expected_excess(v, torch.tensor([0, 1]), torch.ones(2).double(), torch.ones(80).double()) == math.inf


def test_the_expected_excess_is_the_mean_over_noise():
    v, rng = pool(n=60).numpy(), np.random.default_rng(2)
    ids, weights, noise = rng.permutation(60)[:25], rng.exponential(size=25), rng.exponential(size=60)
    truth, root = v @ rng.normal(size=4), np.sqrt(weights)[:, None]
    inverse = np.linalg.pinv(v[ids] * root)
    labels = truth[ids] + np.sqrt(noise[ids]) * rng.normal(size=(20_000, 25))
    fits = (labels * root[:, 0]) @ inverse.T
    excess = ((fits @ v.T - truth) ** 2).mean() / noise.mean()
    exact = measure.expected_excess(
        torch.from_numpy(v), torch.from_numpy(ids), torch.from_numpy(weights), torch.from_numpy(noise)
    )
    assert excess == pytest.approx(exact, rel=0.03)


def test_typical_labels_are_a_tenth_of_the_bound():
    v = pool("gaussian", 400, 4)
    seen: list[tuple[int, int]] = []
    found = measure.typical_labels(v, 0.2, runs=4, progress=lambda done, total: seen.append((done, total)))
    assert found.runs == 4
    assert not found.is_cut
    assert seen[-1] == (4 * len(found.labels_T),) * 2
    assert 25 <= found.labels() < labels_needed(5, 0.2) / 5
    curve = found.excess["even"].mean(0)
    assert (curve[1:] < curve[:-1]).all()
    again = measure.typical_labels(v, 0.2, runs=4)
    assert torch.equal(again.excess["growing"], found.excess["growing"])


def test_labels_are_read_off_between_the_numbers_that_were_simulated():
    excess = {"even": torch.tensor([[0.4, 0.1]]), "growing": torch.tensor([[0.4, 0.3]])}
    found = measure.Typical(0.2, (100, 400), excess, False)
    assert found.labels() == pytest.approx(200)  # half way, in logarithms
    assert found.labels("growing") == math.inf
    assert measure.Typical(0.5, (100, 400), excess, False).labels() == 100


def test_a_simulation_stops_when_its_time_is_over():
    found = measure.typical_labels(pool(), 0.1, runs=50, seconds=0.0)
    assert found.is_cut
    assert found.runs == 1
    assert len(found.labels_T) == 1


@pytest.mark.parametrize("name", ["leverage", "random"])
def test_other_strategies_can_be_simulated(name: str):
    makers = {"leverage": lambda d: lw.strategies.Leverage(rank=d), "random": lambda d: lw.strategies.Random()}
    found = measure.typical_labels(pool("gaussian", 200, 2), 0.5, runs=2, strategy=makers[name])
    assert math.isfinite(found.labels())


def test_pools_that_are_too_small_are_refused():
    with pytest.raises(ArgumentError, match="15 rows are too few to simulate on: 4 functions need 20"):
        measure.typical_labels(pool(n=15), 0.1)
    with pytest.raises(ArgumentError, match="runs"):
        measure.typical_labels(pool(), 0.1, runs=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_condition_number_of_a_law(kind: str):
    v = pool(kind, 50)
    law = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(50)))
    found = measure.alpha_condition_number(v, law)
    assert found == pytest.approx(reference.alpha_condition_number(v.numpy(), law.numpy()))
    norm = v.square().sum(1)
    assert measure.alpha_condition_number(v, torch.full((50,), 0.02)) == pytest.approx(float(norm.max()), rel=1e-6)
    assert measure.alpha_condition_number(v, norm / norm.sum()) == pytest.approx(4)  # least there can be: d
    assert measure.alpha_condition_number(v, torch.eye(50)[0]) == math.inf


@pytest.mark.parametrize("kind", KINDS)
def test_the_procedure_is_that_of_the_paper(kind: str):
    v = pool(kind, 60, 2)
    found = measure.run_procedure(v, 1.0)  # gamma is 1/3: one draw for each E
    wanted = reference.procedure(v.numpy(), 1.0, found.rows)
    assert found.condition_numbers == pytest.approx(wanted["condition_numbers"])
    assert found.sum_beta == pytest.approx(wanted["sum_beta"])
    assert found.worst == pytest.approx(wanted["worst"])
    assert found.eigenvalues == pytest.approx(wanted["eigenvalues"])
    assert found.limit == 0.5


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_beta_k_is_at_most_half_of_epsilon(kind: str, epsilon: float):
    found = measure.run_procedure(pool(kind), epsilon, seed=3)
    assert found.holds
    assert found.worst <= epsilon / 2
    assert 0.8 < found.sum_beta <= 1
    assert found.condition_numbers[0] >= 4 * (1 - 1e-9)
    assert found.good or epsilon > 0.122


def test_a_procedure_stops_when_its_time_is_over():
    found = measure.run_procedure(pool(), 0.1, seconds=0.0)
    assert found.eigenvalues is None
    assert found.good is None
    assert 0 < len(found.rows) < 10


@pytest.mark.parametrize("activation", ["relu", "sin", "swish"])
def test_networks_are_those_of_definition_31(activation: str):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 3)))
    found = measure.two_layer_outputs(x, activation, width=8, count=2, seed=5)
    generator = lw.rng.key_of(5).fold("two-layer", 1).generator()
    w = torch.randn(3, 8, dtype=torch.float64, generator=generator).numpy()
    a = torch.randint(0, 2, (8,), generator=generator).numpy() * 2.0 - 1
    scaled = x.numpy() / np.linalg.norm(x.numpy(), axis=1).max()
    phi = FUNCTIONS[activation][0]
    wanted = reference.two_layer(scaled, w, a, lambda z: phi(torch.from_numpy(z)).numpy())
    assert found[:, 1].numpy() == pytest.approx(wanted)


def test_the_distance_of_a_basis_is_that_of_the_nearest_function():
    rng = np.random.default_rng(0)
    v, f = pool(), rng.normal(size=(300, 3))
    found = measure.basis_distance(v, torch.from_numpy(f))
    assert found.numpy() == pytest.approx(reference.basis_distance(v.numpy(), f))
    assert float(measure.basis_distance(v, v).max()) < 1e-20


def test_a_wider_basis_is_nearer():
    x = np.random.default_rng(0).normal(size=(400, 3))
    outputs = measure.two_layer_outputs(torch.from_numpy(x), "sin", count=5)
    away = [
        float(measure.basis_distance(functions(x, basis=Basis("polynomial", degree=degree)), outputs).max())
        for degree in (1, 2, 3, 4)
    ]
    assert away == sorted(away, reverse=True)
    assert away[-1] < 0.01 * away[0]


def test_bad_questions_are_named():
    with pytest.raises(ArgumentError, match="activation"):
        measure.two_layer_outputs(torch.ones(3, 2), "step")
    with pytest.raises(ArgumentError, match="300 rows, found 4"):
        measure.basis_distance(pool(), torch.ones(4, 1))
    outputs = torch.ones(300, 2).double()
    outputs[7, 1] = math.nan
    with pytest.raises(ArgumentError, match="row 7 are not finite"):
        measure.basis_distance(pool(), outputs)
