"""Alignment, the inequalities of theorems 1 and 2, the discrepancy of eq. 32, the rank correlation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import ArgumentError, NumericsError, RowError
from labelwise.strategies.dynamical.reference import kendall
from labelwise.theory.alignment import (
    alignment,
    bound_term,
    error_after,
    kendall_tau,
    one_hot,
    squared_dynamics,
    theorem_1,
    theorem_2,
)
from labelwise.theory.mmd import mmd, mmd_squared


def problem(seed: int, n: int, c: int, rank: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, rank, generator=draw, dtype=torch.float64)
    scale = torch.logspace(0, -float(torch.rand(1, generator=draw)) * 2, rank, dtype=torch.float64)
    return (x * scale) @ (x * scale).T, one_hot(torch.randint(0, c, (n,), generator=draw), c)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(2, 20),
    c=st.integers(1, 4),
    share=st.floats(0.01, 1.0),
    t=st.integers(1, 30),
)
def test_theorem_1_holds(seed, n, c, share, t):
    theta, y = problem(seed, n, c)
    eta = share / float(torch.linalg.eigvalsh(theta)[-1])
    bounds = theorem_1(theta, y, eta, t)
    assert bounds.holds
    step = torch.linalg.matrix_power(torch.eye(n).double() - eta * theta, t) @ y
    assert bounds.value == pytest.approx(float(step.square().sum()), rel=1e-8, abs=1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 20), c=st.integers(1, 4))
def test_theorem_2_holds(seed, n, c):
    theta, y = problem(seed, n, c)
    assert theorem_2(theta, y).holds


def test_the_bounds_can_fail():
    theta, y = problem(0, 6, 2)
    true = theorem_2(theta, y)
    assert not true._replace(value=true.high * 1.01).holds
    assert not true._replace(value=true.low * 0.99).holds
    with pytest.raises(ArgumentError, match="lambda_max"):
        theorem_1(theta, y, 2 / float(torch.linalg.eigvalsh(theta)[-1]), 1)


def test_an_identity_kernel_by_hand():
    y = one_hot(torch.tensor([0, 1, 1]), 2)
    assert alignment(torch.eye(3), y) == 3
    assert bound_term(torch.eye(3), y) == pytest.approx(2**0.5)
    assert error_after(torch.eye(3), y, 0.5, 2) == pytest.approx(3 * 0.5**4)
    f = torch.full((3, 2), 0.5)
    assert squared_dynamics(torch.eye(3), f, y) == pytest.approx(6 * 0.25)
    assert theorem_2(torch.eye(3), y).low == pytest.approx(theorem_2(torch.eye(3), y).high) == pytest.approx(3)


def test_alignment_is_a_sum_over_eigenvectors():
    theta, y = problem(3, 8, 3)
    values, vectors = torch.linalg.eigh(theta)
    assert alignment(theta, y) == pytest.approx(float((values[:, None] * (vectors.T @ y).square()).sum()))


def test_kernels_without_an_inverse():
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[5] = x[4]
    y = one_hot(torch.tensor([0, 1, 0, 1, 0, 0]), 2)
    assert np.isfinite(bound_term(x @ x.T, y))  # rows twice: a little is added to the diagonal
    with pytest.raises(NumericsError, match="cannot be inverted"):
        bound_term(-torch.eye(6), y)
    with pytest.raises(RowError, match="kernel"):
        alignment(torch.eye(5), y)


# --- discrepancy -----------------------------------------------------------------------------------------------------


def features(seed: int, n: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def test_the_estimate_is_unbiased_for_equal_laws_and_the_printed_one_is_not():
    found, literal = [], []
    for seed in range(600):
        x = features(seed, 20)
        kernel = (x @ x.T + 1).square()
        found.append(mmd_squared(kernel, 8))
        literal.append(mmd_squared(kernel, 8, literal=True))
    found, literal = np.array(found), np.array(literal)
    error = found.std() / len(found) ** 0.5
    assert abs(found.mean()) < 4 * error
    assert 0.2 < (found < 0).mean() < 0.8
    assert abs(literal.mean()) > 20 * error


def test_the_estimate_sees_a_shift_and_agrees_with_its_definition():
    x = torch.cat([features(0, 30), features(1, 60, 1.5)])
    kernel = x @ x.T
    m, n = 30, 90
    a = np.mean([float(kernel[i, j]) for i in range(m) for j in range(m) if i != j])
    b = np.mean([float(kernel[i, j]) for i in range(n) for j in range(n) if i != j])
    c = np.mean([float(kernel[i, j]) for i in range(m) for j in range(n) if i != j])
    assert mmd_squared(kernel, m) == pytest.approx(a + b - 2 * c)
    assert mmd(kernel, m) == pytest.approx((a + b - 2 * c) ** 0.5)
    assert mmd(kernel, m) == pytest.approx(1.5 * 3**0.5 * 60 / 90, rel=0.2)


def test_an_estimate_below_zero_is_a_discrepancy_of_zero():
    seed = next(s for s in range(50) if mmd_squared(features(s, 12) @ features(s, 12).T, 5) < 0)
    assert mmd(features(seed, 12) @ features(seed, 12).T, 5) == 0.0
    for m in (1, 12):
        with pytest.raises(RowError, match="first m rows"):
            mmd_squared(torch.eye(12), m)


# --- rank correlation -------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=20))
def test_kendall(pairs):
    x, y = np.array(pairs, float).T
    if len(set(x)) == 1 or len(set(y)) == 1:
        with pytest.raises(NumericsError, match="all equal"):
            kendall_tau(x, y)
        return
    assert kendall_tau(x, y) == pytest.approx(kendall(x, y))


def test_kendall_against_scipy():
    from scipy.stats import kendalltau

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60))
    assert kendall_tau(x, x) == 1.0
    assert kendall_tau(x, -x) == -1.0
    assert kendall_tau(x, y) == pytest.approx(kendalltau(x, y).statistic)
    with pytest.raises(RowError, match="the same length"):
        kendall_tau(x, y[:5])
