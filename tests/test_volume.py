"""Volume sampling: the law of the spanning rows by enumeration, and the unbiased weighted fit."""

from collections import Counter

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.choose.drawn import Drawn
from labelwise.choose.rings import Rings
from labelwise.choose.whiten import LEVERAGE, whitened
from labelwise.errors import ArgumentError
from labelwise.keys import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Basis
from labelwise.strategies.volume import spread
from references import chi_square_p
from references_bss import features, volume_law
from references_bss import whitened as by_svd


@pytest.mark.parametrize("d", [1, 2, 3])
def test_spanning_rows_follow_the_squared_volume(d: int):
    psi = features("heavy", 8, d, np.random.default_rng(d))
    law = volume_law(by_svd(psi), d)
    pool = shards_of(torch.arange(8), {Basis(): torch.as_tensor(psi)})
    counts: Counter[tuple[int, ...]] = Counter()
    with whitened(pool, Basis(), d, None, Key(0)) as basis:
        for seed in range(300):
            drawn = Drawn(8)
            spread(pool, basis, Rings(pool, LEVERAGE, Key(seed)), drawn)
            assert len(drawn.weight) == d  # never the same row twice
            counts[tuple(sorted(drawn.weight))] += 1
    assert chi_square_p([counts[s] for s in law], list(law.values())) > 1e-6


def test_weights_are_those_of_leverage():
    psi = features("heavy", 200, 3, np.random.default_rng(0))
    got = lw.select(lw.strategies.Volume(rank=3), 40, basis=psi)
    v = by_svd(psi)
    ratio = (v[got.ids] ** 2).sum(1) / 3  # n p_i
    times = got.weights * ratio * got.notes["draws"] / 40
    assert np.allclose(times, times.round(), atol=1e-6)
    assert times.sum() == pytest.approx(got.notes["draws"])
    assert got.notes["volume_rows"] == 3
    assert len(set(got.ids.tolist())) == 40


def test_the_weighted_fit_is_unbiased():
    """Five draws: the mean over seeds of the weighted least-squares fit is the fit on the whole pool."""
    x = np.random.default_rng(0).standard_t(2.5, size=(12, 1))
    y = x[:, 0] ** 2 + 0.3  # far from linear, so that a bias would show
    best = float(x[:, 0] @ y / (x[:, 0] @ x[:, 0]))
    pool = shards_of(torch.arange(12), {Basis(): torch.as_tensor(x)})
    found = []
    with whitened(pool, Basis(), 1, None, Key(0)) as basis:
        for seed in range(250):
            drawn = Drawn(12)
            spread(pool, basis, Rings(pool, LEVERAGE, Key(seed).fold("volume")), drawn)
            window = Rings(pool, LEVERAGE, Key(seed)).window(20.0).ids[:4].tolist()
            w = dict(drawn.weight)
            for row in window:
                w[row] = w.get(row, 0.0) + 1 / (x[row, 0] ** 2 / np.mean(x**2))
            ids, u = list(w), np.array(list(w.values()))
            found.append(float((u * x[ids, 0]) @ y[ids] / ((u * x[ids, 0]) @ x[ids, 0])))
    assert abs(np.mean(found) - best) < 4 * np.std(found) / np.sqrt(len(found))


def test_bad_parameters_are_named():
    with pytest.raises(ArgumentError, match="Volume"):
        lw.strategies.Volume(tol=-1.0)
