"""BSS: the barriers, the law of its draws, the exact budget and the weights."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError, NumericsError, RowError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Basis
from labelwise.strategies.leverage import bss
from labelwise.strategies.leverage.barrier import Barrier, Tuning
from labelwise.strategies.leverage.reference import KINDS, Procedure, features
from labelwise.strategies.leverage.reference import bss as reference
from labelwise.strategies.leverage.reference import whitened as by_svd
from labelwise.strategies.leverage.weighted_batch import Draws
from labelwise.strategies.leverage.weighted_sampling import PoissonSampler, expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, whitened
from labelwise.verify.chi_square import chi_square_p
from tuned import tuned

ALARM = 1e-6


def _direct(v: np.ndarray, gamma: float, seed: int) -> Procedure:
    """A run of the reference to its natural end, everything that is certain checked at every step."""
    rng = np.random.default_rng(seed)
    run = Procedure(v, gamma)
    while run.step(lambda law: int(rng.choice(len(law), p=law / law.sum()))):
        assert run.inside()
        assert run.worst <= gamma**2 / (1 - gamma**2) * (1 + 1e-9)
    return run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [0.1165, 0.25, 0.45])
def test_the_procedure_as_the_paper_has_it_keeps_what_is_certain(kind: str, gamma: float):
    v = by_svd(features(kind, 60, 3, np.random.default_rng(1)))
    run = _direct(v, gamma, 0)
    low, high = (1 - 2 * gamma) / (1 - gamma**2), (1 + 2 * gamma) / (1 - gamma**2)
    design = run.design()
    assert 0.9 < sum(run.beta) <= 1
    assert low - 0.02 < design[0]
    assert design[-1] < high + 0.02
    assert abs(len(run.beta) - 1.57 * 3 * (1 - gamma**2) / gamma**2) < 0.25 * len(run.beta) + 3
    if gamma <= bss.ALWAYS_GOOD:
        assert 0.75 <= design[0] <= design[-1] <= 1.25


def _natural(v: np.ndarray, gamma: float, seed: int, per: int) -> Barrier:
    """Ours to its natural end, by the direct law, `per` draws for each E."""
    rng = np.random.default_rng(seed)
    barrier, rows = Barrier(v.shape[1], gamma), torch.from_numpy(v)
    while barrier.natural is None:
        energy = barrier.energy()
        form = energy.forms(rows)
        for _ in range(per):
            if barrier.is_ended(energy):
                return barrier
            pick = int(rng.choice(len(v), p=(form / form.sum()).numpy()))
            barrier.add(energy, rows[pick : pick + 1], form[pick : pick + 1])
            barrier.eigenvalues()  # raises outside of the barriers
    return barrier


@pytest.mark.parametrize("kind", KINDS)
def test_barriers_hold_and_the_output_is_good_on_random_problems(kind: str):
    rng = np.random.default_rng(KINDS.index(kind))
    for seed in range(12):
        d, gamma = int(rng.integers(1, 6)), float(rng.uniform(0.08, 0.6))
        v = by_svd(features(kind, int(rng.integers(3 * d, 80)), d, rng))
        barrier = _natural(v, gamma, seed, Barrier(1, gamma).draws_per_energy)
        assert barrier.total <= barrier.mid * (1 + 1e-12)
        lam = barrier.eigenvalues() / barrier.mid
        assert float(lam[0]) >= (1 - 2 * gamma) / (1 - gamma**2) - 0.12 * gamma
        assert float(lam[-1]) <= (1 + 2 * gamma) / (1 - gamma**2)
        if gamma <= bss.ALWAYS_GOOD:
            assert 0.75 <= float(lam[0]) <= float(lam[-1]) <= 1.25


def test_ours_takes_the_steps_of_the_reference():
    v = by_svd(features("heavy", 50, 4, np.random.default_rng(3)))
    run, rng = Procedure(v, 0.3), np.random.default_rng(4)
    barrier, rows = Barrier(4, 0.3), torch.from_numpy(v)
    for _ in range(400):
        energy = barrier.energy()
        assert np.allclose(energy.forms(rows).numpy(), run.forms(run.energy()), rtol=1e-9)
        assert math.isclose(energy.phi, float(np.trace(run.energy())), rel_tol=1e-9)
        assert math.isclose(energy.top, float(np.linalg.eigvalsh(run.energy())[-1]), rel_tol=1e-9)
        ended = not run.step(lambda law: int(rng.choice(50, p=law / law.sum())))
        assert barrier.is_ended(energy) == ended
        if ended:
            break
        pick = run.draws[-1][0]
        barrier.add(energy, rows[pick : pick + 1], energy.forms(rows[pick : pick + 1]))
        assert np.allclose(barrier.matrix.numpy(), run.b)
        assert (barrier.upper, barrier.lower) == pytest.approx((run.u, run.l))
        assert barrier.total / barrier.mid == pytest.approx(sum(run.beta))
    assert ended
    assert barrier.mid == pytest.approx(run.mid)


def test_a_bound_of_the_largest_eigenvalue_is_one_and_is_near():
    """Above rank 48 E follows the last decomposition, which is computed rarely: the same numbers."""
    v = by_svd(features("heavy", 400, 60, np.random.default_rng(0)))
    barrier, rows, rng = Barrier(60, 0.3), torch.from_numpy(v), np.random.default_rng(1)
    ratios, eye = [], torch.eye(60, dtype=torch.float64)
    for _ in range(400):
        energy = barrier.energy()
        lam = barrier.eigenvalues()
        e_DD = torch.linalg.inv(barrier.upper * eye - barrier.matrix)
        e_DD += torch.linalg.inv(barrier.matrix - barrier.lower * eye)
        assert torch.allclose(energy.forms(rows), ((rows @ e_DD) * rows).sum(1), rtol=1e-9)
        e = 1 / (barrier.upper - lam) + 1 / (lam - barrier.lower)
        assert energy.phi == pytest.approx(float(e.sum()), rel=1e-9)
        ratios.append(energy.top / float(e.max()))
        form = energy.forms(rows)
        pick = int(rng.choice(400, p=(form / form.sum()).numpy()))
        barrier.add(energy, rows[pick : pick + 1], form[pick : pick + 1])
    assert min(ratios) >= 1 - 1e-12
    assert np.mean(ratios) < 1.1
    assert max(ratios) < 1.3
    assert barrier.evaluations == 400
    assert 400 / 21 < barrier.decompositions < 50  # W holds at most 20 rows


def test_a_matrix_beyond_a_barrier_is_an_error():
    barrier = Barrier(3, 0.2)
    barrier.matrix = torch.eye(3, dtype=torch.float64) * (barrier.upper + 1)
    for compute in (barrier.energy, barrier.eigenvalues):
        with pytest.raises(NumericsError, match="between the barriers"):
            compute()


def test_barriers_of_a_start_have_the_potential_of_an_empty_one():
    start = torch.diag(torch.tensor([3.0, 50.0, 7.0], dtype=torch.float64))
    warm, cold = Barrier(3, 0.2, start), Barrier(3, 0.2)
    assert warm.energy().phi == pytest.approx(cold.energy().phi)
    assert warm.energy().phi == pytest.approx(0.2)
    assert warm.lower < 3
    assert warm.upper > 50
    empty = Barrier(3, 0.2, torch.zeros(3, 3, dtype=torch.float64))
    assert (empty.upper, empty.lower) == pytest.approx((cold.upper, cold.lower))


# --- the law of the draws --------------------------------------------------------------------------------------------


def _pool(v: np.ndarray, ids: np.ndarray | None = None, count: int = 1) -> Shards:
    ids = np.arange(len(v)) if ids is None else ids
    return shards_of(torch.as_tensor(ids), {Basis(): torch.as_tensor(v)}, count)


@pytest.mark.slow
def test_rejection_from_leverage_is_the_direct_law():
    """The first draw accepted, when B is far from a multiple of I, over many seeds."""
    v = by_svd(features("heavy", 12, 3, np.random.default_rng(0)))
    pool = _pool(v)
    matrix = torch.diag(torch.tensor([0.1, 4.0, 11.7], dtype=torch.float64))
    barrier = Barrier(3, 0.3)
    barrier.matrix, barrier.upper, barrier.lower = matrix, 12.0, -3.0
    energy = barrier.energy()
    law = energy.forms(torch.from_numpy(v)).numpy() / 12 / energy.phi
    assert law.sum() == pytest.approx(1)
    leverage = (v**2).sum(1) / 36
    assert abs(law - leverage).max() > 0.02  # otherwise the test could not tell one from the other
    counts = np.zeros(12)
    with whitened(pool, Basis(), 3, None, Key(0)) as basis:
        turn = torch.from_numpy(v).T @ basis.transform(pool.take(torch.arange(12))) / 12  # whitening may turn v
        barrier.matrix = turn.T @ matrix @ turn
        for seed in range(800):
            new = Barrier(3, 0.3)
            new.matrix, new.upper, new.lower = barrier.matrix.clone(), 12.0, -3.0
            draws = Draws(1)
            window = PoissonSampler(pool, LEVERAGE, Key(seed)).window(16.0)
            bss._draw_from_window(pool, basis, new, window, draws)
            if draws.weight:
                counts[next(iter(draws.weight))] += 1
    assert counts.sum() > 795
    assert chi_square_p(counts, law) > ALARM
    assert chi_square_p(counts, leverage) < 1e-6


@pytest.mark.slow
def test_the_law_is_the_same_between_decompositions():
    """The next draw accepted after three that were added without another decomposition of B, over many seeds."""
    pool = _pool(features("heavy", 12, 3, np.random.default_rng(0)))
    counts = np.zeros(12)
    with whitened(pool, Basis(), 3, None, Key(0)) as basis:
        v = basis.transform(pool.take(torch.arange(12)))
        bent = Barrier(3, 0.3, tuning=Tuning(exact_rank=0, rows_per_rank=5.0))
        bent.matrix = torch.diag(torch.tensor([0.1, 4.0, 11.7], dtype=torch.float64))
        bent.upper, bent.lower = 12.0, -3.0
        for row in (2, 5, 7):
            energy = bent.energy()
            bent.add(energy, v[row : row + 1], energy.forms(v[row : row + 1]))
        eye = torch.eye(3, dtype=torch.float64)
        e_DD = torch.linalg.inv(bent.upper * eye - bent.matrix) + torch.linalg.inv(bent.matrix - bent.lower * eye)
        assert len(copy.deepcopy(bent).energy().above_RD) == 3  # the next E is computed with W
        for seed in range(600):
            barrier, draws = copy.deepcopy(bent), Draws(1)
            bss._draw_from_window(pool, basis, barrier, PoissonSampler(pool, LEVERAGE, Key(seed)).window(40.0), draws)
            if draws.weight:
                counts[next(iter(draws.weight))] += 1
        law = (((v @ e_DD) * v).sum(1) / e_DD.trace() / 12).numpy()
    assert law.sum() == pytest.approx(1)
    assert counts.sum() > 590
    assert chi_square_p(counts, law) > ALARM
    assert chi_square_p(counts, (v**2).sum(1).numpy() / 36) < ALARM


@pytest.mark.parametrize("kind", KINDS)
def test_a_selection_does_not_depend_on_when_the_barrier_is_decomposed(kind: str, monkeypatch: pytest.MonkeyPatch):
    """But for the bound of the largest eigenvalue, made the same here, decompositions change nothing."""
    psi = features(kind, 300, 8, np.random.default_rng(1))
    found = []
    energy = Barrier.energy
    monkeypatch.setattr(Barrier, "energy", lambda self: replace(energy(self), top=_exact_top(self)))
    for rows_per_rank in (0.0, 1.0, 4.0):
        strategy = tuned(lw.strategies.Bss(rank=8, retries=0), exact_rank=0, rows_per_rank=rows_per_rank)
        found.append(lw.select(strategy, 60, basis=psi))
    for other in found[1:]:
        assert other.ids.tolist() == found[0].ids.tolist()
        assert np.allclose(other.weights, found[0].weights, rtol=1e-8)
        assert other.notes["looks"] == found[0].notes["looks"] > 1.5 * other.notes["decompositions"]
    assert found[0].notes["decompositions"] == found[0].notes["looks"]


def _exact_top(barrier: Barrier) -> float:
    lam = torch.linalg.eigvalsh(barrier.matrix)
    return float((1 / (barrier.upper - lam) + 1 / (lam - barrier.lower)).max())


def test_arrivals_are_draws_by_weight():
    weight = np.array([0.0, 1.0, 2.0, 5.0, 0.5, 11.5])
    pool = _pool(np.ones((6, 1)))
    pool.map(lambda shard: shard.state.update(w=torch.from_numpy(weight)))
    sampler = PoissonSampler(pool, "w", Key(3))
    pairs, sizes = np.zeros((6, 6)), []
    for _ in range(120):
        ids = sampler.window(40.0).ids.numpy()
        sizes.append(len(ids))
        np.add.at(pairs, (ids[:-1:2], ids[1::2][: len(ids[:-1:2])]), 1)
    law = weight / weight.sum()
    assert chi_square_p(pairs.ravel(), np.outer(law, law).ravel()) > ALARM
    assert abs(np.mean(sizes) - 40) < 4 * math.sqrt(40 / 120)
    assert abs(np.var(sizes) - 40) < 22  # Poisson


def test_expected_draws_until_a_number_of_rows_are_drawn():
    weight = np.random.default_rng(0).pareto(1.2, 200) + 0.01
    pool = _pool(np.ones((200, 1)))
    pool.map(lambda shard: shard.state.update(w=torch.from_numpy(weight)))
    expected = expected_draws(pool, "w", 60, 1e9)
    rng, law, found = np.random.default_rng(1), weight / weight.sum(), []
    for _ in range(200):
        draws = rng.choice(200, 2000, p=law)
        first = np.sort(np.unique(draws, return_index=True)[1])
        found.append(first[60])  # draws before the one that adds row 61
    assert expected == pytest.approx(np.mean(found), rel=0.06)
    assert expected_draws(pool, "w", 200, 500.0) == 500.0


# --- the selection ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", [1, 4])
def test_the_selection_is_that_of_the_slow_reference(kind: str, per: int):
    for seed in range(3):
        rng = np.random.default_rng(10 * seed + per)
        d, n = 3, 70
        psi = features(kind, n, d, rng)
        ids = rng.permutation(1000)[:n] - 300
        gamma = 0.45 if per == 1 else 0.12
        k = int(rng.integers(15, 50))
        pool = _pool(psi, ids)
        got = lw.strategies.Bss(gamma=gamma, rank=d, retries=0).select(pool, Shards([]), k, Key(seed))
        with whitened(pool, Basis(), d, None, Key(seed)) as basis:
            expected = expected_draws(pool, LEVERAGE, k, Draws.most(k))
            v = basis.transform(pool.take(torch.as_tensor(ids))).numpy()
        assert np.allclose(v @ v.T, by_svd(psi) @ by_svd(psi).T, atol=1e-6)
        slow = reference(v, ids.tolist(), k, gamma, expected, Key(seed).fold("try", 0))
        assert got.ids.tolist() == list(slow)
        assert np.allclose(got.weights / k, list(slow.values()), rtol=1e-7)


@pytest.mark.parametrize(("n", "k"), [(400, 60), (400, 150), (120, 100), (80, 79)])
def test_k_rows_and_merged_weights(n: int, k: int):
    x = features("heavy", n, 4, np.random.default_rng(n))
    got = lw.select(lw.strategies.Bss(rank=5), k, embedding=x)
    notes = got.notes
    assert len(set(got.ids.tolist())) == k
    assert notes["draws"] >= k == notes["distinct"]
    assert notes["filled"] == 0
    v = np.hstack([np.ones((n, 1)), by_svd(x - x.mean(0))])
    design = (v[got.ids] * (got.weights / k)[:, None]).T @ v[got.ids]
    lam = np.linalg.eigvalsh(design)
    assert [lam[0], lam[-1]] == pytest.approx(notes["eigenvalues"])
    low, high = notes["barriers"]
    assert low < lam[0] <= lam[-1] < high
    # the constant is in the span, so the weights count the pool within the barriers too
    assert low < got.weights.mean() < high
    assert notes["effective_sample_size"] == pytest.approx(got.weights.sum() ** 2 / (got.weights**2).sum())
    assert notes["condition_number"] == pytest.approx((v**2).sum(1).max())
    json.dumps(dict(notes), allow_nan=False)


def test_every_row_of_the_pool_is_a_census():
    got = lw.select("bss", 30, embedding=features("heavy", 30, 2, np.random.default_rng(0)))
    assert sorted(got.ids.tolist()) == list(range(30))
    assert (got.weights == 1).all()
    assert got.notes["good"]


def test_rows_that_are_never_drawn_fill_the_batch():
    psi = np.zeros((40, 2))
    psi[:5] = np.random.default_rng(0).normal(size=(5, 2))
    got = lw.select(lw.strategies.Bss(rank=2), 12, basis=psi)
    assert len(set(got.ids.tolist())) == 12
    assert got.notes["filled"] == 7
    assert set(got.ids[:5].tolist()) == set(range(5))
    assert np.allclose(got.weights[5:], 12 / 40)


def test_gamma_at_most_01165_always_gives_a_good_output():
    for seed in range(4):
        psi = features(KINDS[seed], 150, 2, np.random.default_rng(seed))
        got = lw.select(lw.strategies.Bss(gamma=0.1165, rank=2), 149, basis=psi, seed=seed)
        if got.notes["natural_end"] is not None and got.notes["filled"] == 0:
            assert got.notes["good"], got.notes
    design = lw.select(lw.strategies.Bss(epsilon=0.12, rank=2), 120, basis=psi)
    assert design.notes["gamma"] == pytest.approx(math.sqrt(0.12) / 3)


def test_near_misses_are_redrawn_and_far_ones_are_not():
    x = features("gaussian", 4000, 5, np.random.default_rng(0))
    tries = []
    for seed in range(8):
        got = lw.select(lw.strategies.Bss(rank=6), 240, embedding=x, seed=seed)
        assert 0.12 < got.notes["gamma"] < 0.2
        tries.append((got.notes["tries"], got.notes["good"]))
    assert any(number > 1 for number, _ in tries)
    assert lw.select(lw.strategies.Bss(rank=6, retries=0), 240, embedding=x).notes["tries"] == 1
    assert lw.select("bss", 60, embedding=x).notes["tries"] == 1


def test_a_batch_goes_where_the_labelled_rows_lack_something():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    labelled = rng.normal(size=(300, 3)) * [1.0, 1.0, 0.02]  # next to nothing along the third direction
    strategy = lw.strategies.Bss(rank=4)
    warm = lw.select(strategy, 100, embedding=x, labelled={"embedding": labelled})
    cold = lw.select(lw.strategies.Bss(rank=4, warm=False), 100, embedding=x, labelled={"embedding": labelled})
    assert (warm.notes["warm_rows"], cold.notes["warm_rows"]) == (300, 0)
    assert np.mean(x[warm.ids, 2] ** 2) > 1.3 * np.mean(x[cold.ids, 2] ** 2)
    assert abs(warm.weights.sum() / 100 - 1) < 0.5
    with pytest.raises(RowError, match="as in the pool"):
        lw.select(strategy, 100, basis=x, labelled={"embedding": labelled})
    al = lw.Session(x, LogisticRegression(), "bss", classes=2)
    for rows in (60, 60):
        picks = al.ask(rows)
        al.tell(picks.ids, (x[picks.ids, 0] > 0).astype(int))
    assert picks.notes["warm_rows"] == 60
    assert al.batch_estimate is not None
    # without labelled rows it is the one that starts at 0
    alone = lw.strategies.Bss(rank=4, warm=False)
    assert lw.select(strategy, 100, embedding=x).ids.tolist() == lw.select(alone, 100, embedding=x).ids.tolist()


def test_an_array_takes_the_place_of_the_map():
    x = features("gaussian", 200, 3, np.random.default_rng(0))
    a = lw.select("bss", 60, basis=x)
    b = lw.select(lw.strategies.Bss(basis="polynomial"), 60, basis=x)
    c = lw.select("bss", 60, embedding=x)
    assert a == b
    assert a.notes["rank_available"] == 3
    assert c.notes["rank_available"] == 4  # and a constant
    with pytest.raises(NeedError, match=r"basis=.*embedding="):
        lw.select("bss", 3, probs=np.full((9, 2), 0.5))
    with pytest.raises(NumericsError, match="zero on every row"):
        lw.select("bss", 3, basis=np.zeros((9, 2)))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"gamma": 1.0}, "below 1"),
        ({"gamma": 0.0}, "above 0"),
        ({"epsilon": -1.0}, "above 0"),
        ({"gamma": 0.1, "epsilon": 0.1}, "one of the two"),
        ({"rank": 0}, "at least 1"),
        ({"tol": 2.0}, "below 1"),
        ({"retries": -1}, "from 0 on"),
        ({"basis": "fourier"}, "last_layer"),
        ({"basis": 3}, "a Basis"),
    ],
)
def test_bad_parameters_are_named(bad: dict, text: str):
    with pytest.raises(ArgumentError, match=text):
        lw.strategies.Bss(**bad)


def test_first_batch_only_without_a_model():
    assert not lw.strategies.Bss().cold
    assert lw.strategies.Bss(basis="random_features").cold
    recipe = lw.recipes.get(lw.strategies.Bss(basis=Basis(map="tangent", width=8)))
    assert recipe.start is recipe.strategy
    settings = json.loads(json.dumps(recipe.settings()))
    again = lw.strategies.Bss(**{k: v for k, v in settings["strategy"].items() if k != "class"})
    assert again == recipe.strategy


def test_a_weighted_fit_beats_uniform_rows_on_heavy_tails():
    """k = 5 d, least squares on multivariate t(2.5) rows with noise: the benchmark has 50 seeds, 12 show it."""
    d, n, k = 12, 3000, 60
    ours, uniform = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(2.5, size=(n, 1)) / 2.5)  # whole rows are long or short
        y = x @ rng.normal(size=d) + rng.normal(size=n)
        best = np.linalg.lstsq(x, y, rcond=None)[0]
        floor = np.mean((x @ best - y) ** 2)
        for found, strategy in ((ours, lw.strategies.Bss(rank=d)), (uniform, "random")):
            s = lw.select(strategy, k, basis=x, seed=seed)
            root = np.sqrt(s.weights)[:, None]
            beta = np.linalg.lstsq(x[s.ids] * root, y[s.ids] * root[:, 0], rcond=None)[0]
            found.append(np.mean((x @ beta - y) ** 2) / floor - 1)
    assert np.median(ours) < 0.7 * np.median(uniform)
    assert sum(a < b for a, b in zip(ours, uniform)) >= 9


@pytest.mark.parametrize("power", [-665, -500, 500, 665])  # from 1e-200 to 1e200
@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
@pytest.mark.parametrize("basis", ["last_layer", "polynomial", "array"])
def test_the_scale_of_the_features_does_not_matter(name: str, basis: str, power: int):
    x = np.random.default_rng(0).normal(size=(200, 3))
    strategy = lw.strategies.get(name) if basis == "array" else replace(lw.strategies.get(name), basis=basis)
    array = "basis" if basis == "array" else "embedding"
    wanted = lw.select(strategy, 60, **{array: x})
    found = lw.select(strategy, 60, **{array: x * 2.0**power})
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.weights == pytest.approx(wanted.weights, rel=1e-6)
    assert found.notes["rank"] == wanted.notes["rank"] > 2
    assert found.notes["rho_holdout"] == pytest.approx(wanted.notes["rho_holdout"])
