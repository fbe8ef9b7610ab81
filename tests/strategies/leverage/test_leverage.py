"""Leverage-score sampling: its law, its weights, the exact budget."""

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Basis
from labelwise.strategies.leverage.reference import KINDS, features, leverage
from labelwise.strategies.leverage.reference import whitened as by_svd
from labelwise.strategies.leverage.weighted_batch import Draws
from labelwise.strategies.leverage.weighted_sampling import expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, whitened


@pytest.mark.parametrize("kind", KINDS)
def test_the_selection_is_that_of_the_slow_reference(kind: str):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        psi, ids = features(kind, 60, 3, rng), rng.permutation(500)[:60] - 100
        k = int(rng.integers(10, 50))
        pool = shards_of(torch.as_tensor(ids), {Basis(): torch.as_tensor(psi)}, 2)
        got = lw.strategies.Leverage(rank=2).select(pool, Shards([]), k, Key(seed))
        v = by_svd(psi, 2)
        with whitened(pool, Basis(), 2, None, Key(seed)):
            expected = expected_draws(pool, LEVERAGE, k, Draws.most(k))
        slow = leverage(v, ids.tolist(), k, expected, Key(seed))
        assert got.ids.tolist() == list(slow)
        assert np.allclose(got.weights / k, list(slow.values()), rtol=1e-6)
        design = np.linalg.eigvalsh(
            sum(u * np.outer(v[list(ids).index(i)], v[list(ids).index(i)]) for i, u in slow.items())
        )
        assert got.notes["eigenvalues"] == pytest.approx([design[0], design[-1]], rel=1e-5)


def test_weights_undo_the_law():
    """The weighted mean of any function is near that of the pool, whatever the leverage."""
    rng = np.random.default_rng(0)
    x = rng.standard_t(2.5, size=(2000, 4))
    f = np.cos(x[:, 0])
    found = []
    for seed in range(40):
        got = lw.select("leverage", 120, embedding=x, seed=seed)
        found.append(float((got.weights * f[got.ids]).sum() / 120))
    assert abs(np.mean(found) - f.mean()) < 4 * np.std(found) / np.sqrt(40) + 0.01
    plain = np.mean([f[lw.select("leverage", 120, embedding=x, seed=s).ids].mean() for s in range(20)])
    assert abs(plain - f.mean()) > 0.1  # without weights it is another mean


def test_bad_parameters_are_named():
    with pytest.raises(ArgumentError, match="Leverage"):
        lw.strategies.Leverage(rank=-1)
    with pytest.raises(ArgumentError, match="map"):
        lw.strategies.Leverage(basis="none")
