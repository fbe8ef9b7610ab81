"""SABAL's weights on a fixed support: the optimum of a convex problem, whatever solves it."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.reference import support_weights
from labelwise.strategies.sabal.support import Support
from second_device import AWAY, second_device


def rows(seed, count=30, a=3, b=6, pool=400):
    """Factors of the gradients of a pool, of which the first `count` rows are labelled; heavy-tailed."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(pool, a)) - 0.5, rng.standard_t(2.5, size=(pool, b)) + 0.3
    g = np.einsum("na,nb->nab", left, right)
    return torch.from_numpy(left[:count]), torch.from_numpy(right[:count]), g[:count].reshape(count, -1), g.mean(0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("relative", [1e-4, 0.1, 1.0, 100.0])
def test_the_weights_are_those_of_convex_solvers(seed, relative):
    left, right, g, v = rows(seed)
    phi = g.T / len(g)
    support = Support.of(Factored(left, right), torch.from_numpy(v))
    beta = relative * support.scale
    found = support.solve(beta)
    w = found.weight_M.numpy()
    root = np.sqrt(beta)
    other, _ = nnls(np.vstack([phi, root * np.eye(len(g))]), np.concatenate([v.ravel(), np.full(len(g), root)]))
    np.testing.assert_allclose(w, other, atol=1e-6)
    if relative >= 0.1:  # below it plain projected gradients take millions of steps
        np.testing.assert_allclose(support_weights(phi, v.ravel(), beta), other, atol=1e-6)
    assert found.after == pytest.approx(((v.ravel() - phi @ w) ** 2).sum() + beta * ((w - 1) ** 2).sum())
    assert found.before == pytest.approx(((v.ravel() - phi.sum(1)) ** 2).sum())
    assert (w >= 0).all()


def test_small_beta_leaves_some_weights_at_zero_and_large_beta_none():
    left, right, _, v = rows(1)
    support = Support.of(Factored(left, right), torch.from_numpy(v))
    assert (support.solve(1e-4 * support.scale).weight_M == 0).sum() > 3
    np.testing.assert_allclose(support.solve(1e6 * support.scale).weight_M, 1, atol=1e-4)


def test_without_a_table_of_products_the_weights_are_the_same():
    left, right, _, v = rows(2)
    one, other = (Support.of(Factored(left, right), torch.from_numpy(v), most) for most in (10_000, 5))
    for beta in (0.1 * one.scale, one.scale):
        np.testing.assert_allclose(one.solve(beta).weight_M, other.solve(beta).weight_M, atol=1e-7)


def test_rows_without_gradients_keep_equal_weights():
    support = Support.of(Factored(torch.zeros(5, 2), torch.ones(5, 3)), torch.ones(2, 3, dtype=torch.float64))
    assert support.scale == 0
    assert support.solve(0.0).weight_M.tolist() == [1.0] * 5


def test_rows_of_a_second_device_have_the_same_weights():
    left, right, _, v = rows(3)
    expected = Support.of(Factored(left, right), torch.from_numpy(v)).solve(0.01).weight_M
    with second_device() as second:
        support = Support.of(Factored(left.to(AWAY), right.to(AWAY)), torch.from_numpy(v).to(AWAY))
        found = support.solve(0.01)
    np.testing.assert_array_equal(found.weight_M, expected)
    waits = sum(count for line, count in second.waits.items() if line.startswith("support.py"))
    assert waits <= 4  # the solver runs on the host: it waits for its arguments alone
