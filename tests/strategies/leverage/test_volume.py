"""Volume: the law of the spanning rows by enumeration, the unbiased weighted fit, and the greedy design."""

from collections import Counter

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Basis
from labelwise.strategies.leverage.reference import KINDS, features, greedy_design, volume_law
from labelwise.strategies.leverage.reference import whitened as by_svd
from labelwise.strategies.leverage.volume import draw_spanning_rows
from labelwise.strategies.leverage.weighted_batch import Draws
from labelwise.strategies.leverage.weighted_sampling import PoissonSampler
from labelwise.strategies.leverage.whiten import LEVERAGE, whitened
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.problems import by_lot
from tuned import tuned


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 3])
def test_spanning_rows_follow_the_squared_volume(d: int):
    psi = features("heavy", 8, d, np.random.default_rng(d))
    law = volume_law(by_svd(psi), d)
    pool = shards_of(torch.arange(8), {Basis(): torch.as_tensor(psi)})
    counts: Counter[tuple[int, ...]] = Counter()
    with whitened(pool, Basis(), d, None, Key(0)) as basis:
        for seed in range(300):
            draws = Draws(8)
            draw_spanning_rows(pool, basis, PoissonSampler(pool, LEVERAGE, Key(seed)), draws)
            assert len(draws.weight) == d  # never the same row twice
            counts[tuple(sorted(draws.weight))] += 1
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


@pytest.mark.slow
def test_the_weighted_fit_is_unbiased():
    """Five draws: the mean over seeds of the weighted least-squares fit is the fit on the whole pool."""
    x = np.random.default_rng(0).standard_t(2.5, size=(12, 1))
    y = x[:, 0] ** 2 + 0.3  # far from linear, so that a bias would show
    best = float(x[:, 0] @ y / (x[:, 0] @ x[:, 0]))
    pool = shards_of(torch.arange(12), {Basis(): torch.as_tensor(x)})
    found = []
    with whitened(pool, Basis(), 1, None, Key(0)) as basis:
        for seed in range(250):
            draws = Draws(12)
            draw_spanning_rows(pool, basis, PoissonSampler(pool, LEVERAGE, Key(seed).fold("volume")), draws)
            window = PoissonSampler(pool, LEVERAGE, Key(seed)).window(20.0).ids[:4].tolist()
            w = dict(draws.weight)
            for row in window:
                w[row] = w.get(row, 0.0) + 1 / (x[row, 0] ** 2 / np.mean(x**2))
            ids, u = list(w), np.array(list(w.values()))
            found.append(float((u * x[ids, 0]) @ y[ids] / ((u * x[ids, 0]) @ x[ids, 0])))
    assert abs(np.mean(found) - best) < 4 * np.std(found) / np.sqrt(len(found))


# --- the greedy rule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("short", [2, 9, 64])
def test_greedy_picks_are_those_of_the_slow_reference(kind: str, short: int):
    strategy = tuned(lw.strategies.Volume(rank=4, rule="greedy"), list_numbers=0, min_listed=short)
    rng = np.random.default_rng(short)
    psi, ids = features(kind, 90, 4, rng), by_lot(rng.permutation(500)[:90] - 100)
    slow, gains = greedy_design(by_svd(psi), 45)
    for count in (1, 3):
        pool = shards_of(torch.as_tensor(ids), {Basis(): torch.as_tensor(psi)}, count)
        got = strategy.select(pool, Shards([]), 45, Key(0))
        assert got.ids.tolist() == ids[slow].tolist()
        assert np.allclose(got.scores, gains, rtol=1e-7)
        assert got.notes["log_det"] == pytest.approx(np.log1p(gains).sum())
        assert (got.weights == 1).all()
        assert all("d_optimal" not in shard.state for shard in pool._shards)


def test_greedy_breaks_ties_by_lot_and_needs_few_sweeps():
    copies = np.tile(np.eye(3), (40, 1))
    for seed, dtype in ((0, "f8"), (5, "f4")):
        ids = by_lot(np.arange(120), seed)
        got = lw.select(lw.strategies.Volume(rank=3, rule="greedy"), 15, basis=copies.astype(dtype), ids=ids, seed=seed)
        assert got.ids.tolist() == ids[:15].tolist()  # one of each direction in turn
    rare = np.eye(3)[np.array([0] * 300 + [1] * 20 + [2] * 80)]  # rows are equal, directions are not
    slow, _ = greedy_design(by_svd(rare), 60)
    ids = by_lot(np.arange(400))
    for count in (1, 4):
        pool = shards_of(torch.as_tensor(ids), {Basis(): torch.as_tensor(rare)}, count)
        got = lw.strategies.Volume(rank=3, rule="greedy").select(pool, Shards([]), 60, Key(0))
        assert got.ids.tolist() == ids[slow].tolist()
    x = features("heavy", 3000, 10, np.random.default_rng(0))
    many = lw.select(lw.strategies.Volume(rank=10, rule="greedy"), 300, basis=x)
    assert many.notes["sweeps"] == 0  # all are on the short list
    drawn = lw.select(lw.strategies.Volume(rank=10), 300, basis=x)
    v = by_svd(x)
    assert np.linalg.slogdet(v[many.ids].T @ v[many.ids])[1] > np.linalg.slogdet(v[drawn.ids].T @ v[drawn.ids])[1] + 1


def test_greedy_sweeps_far_less_often_than_it_picks():
    strategy = tuned(lw.strategies.Volume(rank=10, rule="greedy"), list_numbers=2000)
    x = features("gaussian", 5000, 10, np.random.default_rng(0))
    got = lw.select(strategy, 400, basis=x)
    assert 0 < got.notes["sweeps"] < 60
    assert len(set(got.ids.tolist())) == 400


def test_the_rule_says_whether_there_are_weights():
    assert lw.strategies.Volume().weighted
    assert not lw.strategies.Volume(rule="greedy").weighted
    settings = lw.recipes.get(lw.strategies.Volume(rule="greedy")).settings()["strategy"]
    assert lw.strategies.Volume(**{k: v for k, v in settings.items() if k != "class"}).rule == "greedy"
    with pytest.raises(ArgumentError, match="sampled"):
        lw.strategies.Volume(rule="best")  # type: ignore[arg-type]


def test_bad_parameters_are_named():
    with pytest.raises(ArgumentError, match="Volume"):
        lw.strategies.Volume(tol=-1.0)
