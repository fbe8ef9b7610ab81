"""Basis: the four maps, whitening on the pool, rank, rho and the condition number."""

import itertools
import math

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.basis import FUNCTIONS, basis_features
from labelwise.signals.rows import Rows
from labelwise.signals.spec import ACTIVATIONS, Basis, Embedding, Features, Signal, stored
from labelwise.strategies.leverage.reference import features, with_constant
from labelwise.strategies.leverage.reference import whitened as by_svd
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened, whiten, whitened

MAPS = [
    Basis(),
    Basis(map="random_features", width=9),
    Basis(map="tangent", width=9, hidden=33),
    Basis(map="polynomial", degree=3),
]


def _pool(x: np.ndarray, signal: Signal, count: int = 1, ids: np.ndarray | None = None) -> Shards:
    ids = np.arange(len(x)) if ids is None else ids
    return shards_of(torch.as_tensor(ids), {signal: torch.as_tensor(x)}, count)


def _v(pool: Shards, basis: Whitened, n: int) -> np.ndarray:
    return basis.transform(pool.take(torch.arange(n))).numpy()


def test_what_each_map_reads():
    assert [stored((signal,)) for signal in MAPS] == [(Embedding(),), (Features(),), (Features(),), (Features(),)]
    assert [signal.constant for signal in MAPS] == [True, False, False, True]
    assert Basis() == Basis("last_layer")


def test_last_layer_is_the_embedding_and_a_constant():
    x = torch.randn(5, 3, generator=Key(0).generator())
    psi = Rows(torch.arange(5), {Embedding(): x}).tensor(Basis())
    assert torch.equal(psi, torch.cat([x, torch.ones(5, 1)], 1))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_slopes_are_derivatives(activation: str):
    phi, slope = FUNCTIONS[activation]
    z = torch.linspace(-2, 2, 40, dtype=torch.float64)
    step = 1e-6
    assert torch.allclose((phi(z + step) - phi(z - step)) / (2 * step), slope(z), atol=1e-6)


def test_random_features_have_the_kernel_of_their_law():
    """E phi(w.x) phi(w.y) for ReLU is the arc-cosine kernel; the mean over many weights comes near it."""
    x = np.array([[0.6, 0.0, 0.2], [0.1, 0.7, 0.0]])
    psi = basis_features(Basis(map="random_features", width=200_000), torch.from_numpy(x)).numpy()
    norm = np.linalg.norm(x, axis=1)
    angle = math.acos(x[0] @ x[1] / norm.prod())
    expected = norm.prod() / (2 * math.pi) * (math.sin(angle) + (math.pi - angle) * math.cos(angle))
    assert np.mean(psi[0] * psi[1]) == pytest.approx(expected, rel=0.03)


def test_tangent_features_keep_the_inner_products_of_the_gradients():
    """The gradient of (1/sqrt m) sum_r a_r phi(w_r.x) by all w_r, by autograd, against its reduction."""
    m, d, width = 40, 3, 60_000
    signal = Basis(map="tangent", activation="tanh", hidden=m, width=width)
    x = torch.tensor([[0.5, 0.1, -0.3], [0.2, 0.6, 0.1]], dtype=torch.float64)
    psi = basis_features(signal, x)
    from labelwise.signals.basis import _normal

    w = _normal(0, d, m).clone().requires_grad_()
    a = torch.where(torch.arange(m) % 2 == 0, 1.0, -1.0).double()
    gradients = []
    for row in x:
        (torch.tanh(row @ w) @ a / math.sqrt(m)).backward()
        assert w.grad is not None
        gradients.append(w.grad.clone().flatten())
        w.grad = None
    exact = torch.stack(gradients) @ torch.stack(gradients).T
    assert torch.allclose(psi @ psi.T, exact, atol=0.03 * float(exact.max()))


def test_monomials():
    x = torch.tensor([[2.0, 3.0], [0.5, -1.0]], dtype=torch.float64)
    psi = basis_features(Basis(map="polynomial", degree=3), x).numpy()
    powers = [p for p in itertools.product(range(4), repeat=2) if 0 < sum(p) <= 3]
    for row, found in zip(x.numpy(), psi):
        assert sorted(found[:-1]) == pytest.approx(sorted(row[0] ** a * row[1] ** b for a, b in powers))
        assert found[-1] == 1
    with pytest.raises(ArgumentError, match="lower degree"):
        basis_features(Basis(map="polynomial", degree=4), torch.zeros(2, 60))


def test_weights_depend_on_the_seed_alone():
    x = torch.randn(6, 4, generator=Key(0).generator()).double()
    for signal in MAPS[1:3]:
        a, b = basis_features(signal, x), basis_features(signal, x[:2])
        assert torch.allclose(a[:2], b)
        other = Basis(map=signal.map, width=signal.width, hidden=signal.hidden, seed=1)
        assert not torch.allclose(a, basis_features(other, x))


@pytest.mark.parametrize(
    "bad",
    [{"map": "ntk"}, {"activation": "step"}, {"width": 0}, {"hidden": 1.5}, {"degree": True}, {"scale": -1.0}],
)
def test_bad_parameters_are_named(bad: dict):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        Basis(**bad)


# --- whitening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", MAPS, ids=lambda s: s.map)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cap", [3, 64])
def test_columns_are_orthonormal_on_the_pool(signal: Basis, dtype: type, cap: int):
    x = features("heavy", 300, 4, np.random.default_rng(0)).astype(dtype)
    pool = _pool(x, signal.stored()[0])
    with whitened(pool, signal, cap, None, Key(1)) as basis:
        v = _v(pool, basis, 300)
        leverage = torch.cat(pool.map(lambda shard: shard.state[LEVERAGE])).numpy()
    assert v.shape[1] == basis.rank <= cap
    assert np.allclose(v.T @ v / 300, np.eye(basis.rank), atol=1e-8)
    assert np.allclose(leverage, (v**2).sum(1))
    assert basis.condition_number == pytest.approx(leverage.max())
    assert basis.condition_number >= basis.rank
    assert basis.rho < 1e-8
    if signal.constant:
        assert np.allclose(v[:, 0], 1)


def test_the_span_is_that_of_the_singular_vectors():
    h = features("singular", 200, 6, np.random.default_rng(0))
    pool = _pool(h, Embedding())
    for cap in (1, 3, 7):
        expected = with_constant(h, cap)
        v = _v(pool, whiten(pool, Basis(), cap, None, Key(0)), 200)
        assert np.allclose(v @ v.T, expected @ expected.T, atol=1e-6)
    given = _pool(h, Basis())  # an array is taken as it is, without a constant
    v = _v(given, whiten(given, Basis(), 4, None, Key(0)), 200)
    assert np.allclose(v @ v.T, by_svd(h, 4) @ by_svd(h, 4).T, atol=1e-6)


def test_rank_by_tolerance():
    h = np.random.default_rng(0).normal(size=(200, 3))
    copies = np.hstack([h, h[:, :1] + h[:, 1:2], 1e-4 * np.random.default_rng(1).normal(size=(200, 1))])
    for tol, rank in ((None, 5), (1e-6, 4), (0.9999, 2)):
        assert whiten(_pool(copies, Embedding()), Basis(), 99, tol, Key(0)).rank == rank
    assert whiten(_pool(copies.astype(np.float32), Embedding()), Basis(), 99, None, Key(0)).rank == 4
    assert whiten(_pool(np.full((50, 4), 1234.567), Embedding()), Basis(), 99, None, Key(0)).rank == 1


def test_rows_far_from_the_origin_lose_nothing():
    h = np.random.default_rng(0).normal(size=(400, 3))
    near, far = (whiten(_pool(x, Embedding()), Basis(), 9, None, Key(0)) for x in (h, h + 1e6))
    assert far.rank == near.rank == 4
    a, b = _v(_pool(h, Embedding()), near, 400), _v(_pool(h + 1e6, Embedding()), far, 400)
    assert np.allclose((a**2).sum(1), (b**2).sum(1), rtol=1e-6)


def test_a_cut_through_equal_eigenvalues_does_not_hang_on_rounding():
    """Exactly whitened features have no leading direction; the one kept must not depend on order or shards."""
    v = by_svd(np.random.default_rng(0).normal(size=(300, 8)))
    order = np.random.default_rng(1).permutation(300)
    a = whiten(_pool(v, Basis()), Basis(), 3, None, Key(0))
    b = whiten(_pool(v[order], Basis(), 4, order), Basis(), 3, None, Key(0))
    x, y = (_v(_pool(v, Basis()), basis, 300) for basis in (a, b))
    assert np.allclose(x @ x.T, y @ y.T, atol=1e-4)


def test_inputs_are_scaled_to_length_one():
    x = np.random.default_rng(0).normal(size=(100, 4)) * 50
    found = whiten(_pool(x, Features()), Basis(map="random_features", width=5), 9, None, Key(0)).signal
    assert found.scale is not None
    longest = np.linalg.norm(x, axis=1).max()
    assert longest * (1 - 1e-6) <= found.scale <= longest * 1.008
    given = Basis(map="random_features", width=5, scale=7.0)
    assert whiten(_pool(x, Features()), given, 9, None, Key(0)).signal.scale == 7.0


def test_rho_on_fresh_rows_is_that_of_rows_held_out():
    h = features("heavy", 400, 3, np.random.default_rng(0))
    pool = _pool(h, Basis())
    found = whiten(pool, Basis(), 3, None, Key(5))
    held_out = (Key(5).fold("hold out").uniform(torch.arange(400)) < 0.2).numpy()
    fitted_on = h[~held_out]
    root = np.linalg.inv(np.linalg.cholesky(fitted_on.T @ fitted_on / len(fitted_on))).T
    # rho depends on which orthonormal basis of the span it is: ours is along the eigenvectors
    lam, u = np.linalg.eigh(fitted_on.T @ fitted_on / len(fitted_on))
    fresh = h[held_out] @ (u / np.sqrt(lam))
    gram = fresh.T @ fresh / held_out.sum()
    assert found.rho_holdout == pytest.approx(np.abs(gram - np.diag(np.diag(gram))).max())
    assert found.rho_holdout > 1e3 * found.rho
    assert np.allclose(root.T @ (fitted_on.T @ fitted_on / len(fitted_on)) @ root, np.eye(3))
    assert whiten(_pool(h[:1], Basis()), Basis(), 3, None, Key(0)).rho_holdout is None


@pytest.mark.parametrize("map_", ["random_features", "tangent", "polynomial"])
@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_selection_without_a_model(map_: str, name: str):
    x = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    kind = lw.strategies.ALL[name]
    strategy = kind(basis=Basis(map=map_, width=12))
    got = lw.select(strategy, 40, embedding=x)
    order = np.random.default_rng(1).permutation(120)
    again = lw.select(strategy, 40, embedding=x[order], ids=order)
    assert got.ids.tolist() == again.ids.tolist()
    assert np.allclose(got.weights, again.weights, rtol=1e-5)
    session = lw.Session(x, None, strategy, classes=2)
    assert len(session.ask(30)) == 30  # before any label, from the raw rows
