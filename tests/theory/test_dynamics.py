"""Training dynamics: the definition by kernels, the identities of Delta, the ratio, the empirical kernel."""

import itertools

import pytest
import torch
from test_ghost_models import Twice
from test_ghost_rules import inputs, wide
from torch import nn

from labelwise.bench.models.networks import pooled_cnn
from labelwise.errors import RowError
from labelwise.strategies.dynamical.reference import dynamics_by_kernels, jacobian, row_gradients
from labelwise.theory.dynamics import Dynamics, product
from labelwise.theory.ntk import empirical_ntk


def problem(seed: int, rows: int = 7, squared: bool = False):
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double().eval()
    x = torch.randn(rows, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (rows,), generator=draw)
    return model, x, y


@pytest.mark.parametrize("seed", range(6))
def test_dynamics_are_the_kernel_sums_of_equation_8(seed):
    model, x, y = problem(seed)
    assert Dynamics(model, batch=3).of(x, y) == pytest.approx(dynamics_by_kernels(model, x, y), rel=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_the_change_is_a_difference_of_dynamics(seed):
    model, x, y = problem(seed)
    found = Dynamics(model)
    before, after = found.of(x[:4], y[:4]), found.of(x, y)
    assert found.change((x[4:], y[4:]), (x[:4], y[:4])) == pytest.approx(after - before, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_one_row_changes_the_dynamics_by_norm_and_twice_the_inner_product(seed):
    """The norm enters once; equation 15 as printed, with the norm inside a sum over S, is something else."""
    model, x, y = problem(seed)
    found, behind = Dynamics(model), (x[:5], y[:5])
    along = found.gradient(*behind)
    changes = found.changes(x[5:], y[5:], along)
    for row in (5, 6):
        one = (x[row : row + 1], y[row : row + 1])
        true = found.of(torch.cat([x[:5], one[0]]), torch.cat([y[:5], one[1]])) - found.of(*behind)
        assert float(changes[row - 5]) == pytest.approx(true, rel=1e-9)
        g_u, g_S = row_gradients(model, *one)[0], row_gradients(model, *behind)
        literal = float(sum(g_u @ g_u + 2 * g_u @ g for g in g_S))
        assert abs(literal - true) > 0.1 * abs(true)


@pytest.mark.parametrize("seed", range(4))
def test_equation_13_sums_over_ordered_pairs(seed):
    model, x, y = problem(seed)
    found, behind = Dynamics(model), (x[:4], y[:4])
    along = found.gradient(*behind)
    g = row_gradients(model, x[4:], y[4:])
    pairs = sum(float(g[a] @ g[b]) for a, b in itertools.permutations(range(3), 2))
    singles = float(found.changes(x[4:], y[4:], along).sum())
    assert found.change((x[4:], y[4:]), behind) == pytest.approx(singles + pairs, rel=1e-9)
    ratio = found.ratio((x[4:], y[4:]), along)
    assert ratio.summed == pytest.approx(singles)
    assert ratio.value == pytest.approx(singles / (singles + pairs), rel=1e-9)


def test_the_ratio_of_one_row_is_one():
    model, x, y = problem(0)
    found = Dynamics(model)
    assert found.ratio((x[:1], y[:1]), found.gradient(x[1:], y[1:])).value == pytest.approx(1.0)


def test_dynamics_of_a_squared_error():
    model, x, y = problem(1)
    g_S = row_gradients(model, x, y, squared=True).sum(0)
    assert Dynamics(model, loss="squared").of(x, y) == pytest.approx(float(g_S @ g_S))
    targets = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    g_S = row_gradients(model, x, targets, squared=True).sum(0)
    assert Dynamics(model, loss="squared").of(x, targets) == pytest.approx(float(g_S @ g_S))


def test_guesses_and_labels():
    model, x, y = problem(2)
    assert torch.equal(Dynamics(model, batch=2).pseudo_labels(x), model(x).argmax(1))
    with pytest.raises(RowError, match="one label for each of 7 rows"):
        Dynamics(model).of(x, y[:3])
    g = Dynamics(model).gradient(x, y)
    assert product(g, g) == pytest.approx(Dynamics(model).of(x, y))


@pytest.mark.parametrize("make", [lambda: problem(0)[0], Twice], ids=["ruled", "with a fallback"])
@pytest.mark.parametrize("numbers", [1, 200, 1 << 26])
def test_the_kernel_is_the_mean_over_outputs(make, numbers):
    torch.manual_seed(0)
    model, x = wide(make()), inputs(4)
    jac = jacobian(model, x)
    expected = torch.einsum("ncp,mcp->nm", jac, jac) / jac.shape[1]
    torch.testing.assert_close(empirical_ntk(model, x, numbers=numbers, batch=2), expected)
    torch.testing.assert_close(empirical_ntk(model, x[:2], x[1:], numbers=numbers, batch=2), expected[:2, 1:])


def test_the_kernel_of_a_convolutional_network_and_of_one_output():
    torch.manual_seed(0)
    model, x = wide(pooled_cnn(widths=(4, 6, 8))()), inputs(3, 6, 6)
    jac = jacobian(model, x)
    torch.testing.assert_close(empirical_ntk(model, x), torch.einsum("ncp,mcp->nm", jac, jac) / 10)
    model, x = wide(nn.Linear(4, 1)), inputs(4)
    torch.testing.assert_close(empirical_ntk(model, x), x @ x.T + 1)
