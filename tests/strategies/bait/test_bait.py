"""BAIT: the same rows as inverses of explicit matrices, forward and backward, for classes and for numbers."""

import itertools

import mpmath
import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError, NumericsError
from labelwise.rng import Key
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Probs
from labelwise.strategies.bait import fisher
from labelwise.strategies.bait import reference as slow
from labelwise.strategies.bait.design import Design
from labelwise.strategies.bait.kernels import torch as kernels
from labelwise.verify.problems import by_lot
from tuned import tuned


def problem(n: int, c: int, d: int, seed: int, concentration: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(c, concentration), n), rng.normal(size=(n, d))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("c", "d"), [(2, 3), (3, 2), (4, 3)])
@pytest.mark.parametrize("consistent", [False, True])
def test_the_same_rows_as_brute_force(seed: int, c: int, d: int, consistent: bool):
    p, h = problem(14, c, d, seed, concentration=0.4)
    q, g = problem(seed, c, d, seed + 100)
    labelled = {"probs": q, "embedding": g} if seed else None
    lam = (1.0, 0.01)[seed % 2]
    strategy = lw.strategies.Bait(lambda_=lam, consistent=consistent)
    added, left = slow.bait(p, h, 4, (q, g) if seed else None, lam, consistent)
    got = lw.select(strategy, 4, probs=p, embedding=h, labelled=labelled)
    assert sorted(got.ids) == sorted(left)
    assert list(got.ids) == [row for row in added if row in left]  # in the order in which they were added
    whole = lw.select(lw.strategies.Bait(lambda_=lam, consistent=consistent, oversample=1), 8, probs=p, embedding=h)
    assert list(whole.ids) == slow.bait(p, h, 8, None, lam, consistent, oversample=1)[0]


@pytest.mark.parametrize("seed", range(5))
def test_regression_is_the_same_as_brute_force(seed: int):
    _, h = problem(20, 2, 4, seed)
    labelled = problem(5, 2, 4, seed + 50)[1]
    _, left = slow.bait(None, h, 5, (None, labelled))
    got = lw.select(lw.strategies.Bait(regress=True), 5, embedding=h, labelled={"embedding": labelled})
    assert sorted(got.ids) == sorted(left)


def test_factor_is_the_information_also_where_classes_are_impossible():
    p, h = problem(6, 4, 3, 0)
    p[0], p[1], p[2] = [1, 0, 0, 0], [0, 0, 0, 1], [0, 0.5, 0, 0.5]
    p[3] = [1e-300, 1 - 1e-12, 0, 1e-12]
    rows = Rows(torch.arange(6), {Probs(): torch.tensor(p), Embedding(): torch.tensor(h)})
    reader = fisher.RowReader(4, 3, False)
    v = reader.read(rows).explicit().numpy()
    assert v.shape == (6, 3, 12)
    for i in range(6):
        assert np.allclose(v[i].T @ v[i], slow.fisher_of(p[i] / p[i].sum(), h[i]), atol=1e-14)
    y = np.random.default_rng(1).normal(size=(12, 5))
    square = y @ y.T
    assert np.allclose(reader.read(rows).quadratic(torch.tensor(square)).numpy(), v @ square @ v.transpose(0, 2, 1))


def test_bounds_hold_and_are_met():
    gen = torch.Generator().manual_seed(0)
    a, b = (torch.randn(200, 4, 4, generator=gen, dtype=torch.float64) for _ in range(2))
    scale = 10.0 ** torch.randint(-3, 4, (200, 1, 1), generator=gen)
    p, q = scale * a @ a.transpose(1, 2), b @ b.transpose(1, 2)
    exact = fisher.trace_change(p, q, -1)
    low, high = fisher.gain_bounds(p, q)
    assert bool((low <= exact * (1 + 1e-9)).all())
    assert bool((exact <= high * (1 + 1e-9)).all())
    line = torch.rand(50, 1, 1, generator=gen, dtype=torch.float64)
    low, high = fisher.gain_bounds(line, line + 1)  # of rank 1 both are exact
    assert torch.allclose(low, high)
    assert torch.allclose(low, fisher.trace_change(line, line + 1, -1))


def test_updated_p_and_q_are_those_of_the_definition():
    p, h = problem(30, 3, 4, 3)
    rows = Rows(torch.arange(30), {Probs(): torch.tensor(p), Embedding(): torch.tensor(h)})
    reader = fisher.RowReader(3, 4, False)
    factors = reader.read(rows)
    v = factors.explicit()
    nothing = torch.zeros(12, 12, dtype=torch.float64)
    design = Design(nothing, 1.0, torch.einsum("nrg,nrh->gh", v, v) / 30, 0.5)
    P, Q = design.compute_pq(factors, design.inverse_GG, design.sandwich())
    for row, sign in ((3, -1), (8, -1), (20, -1), (8, 1), (3, 1)):
        before, expected = design.trace(), fisher.trace_change(P, Q, sign)[row]
        design.move(factors.part(slice(row, row + 1)), sign).apply(factors, P, Q)
        assert abs(design.trace() - before) == pytest.approx(float(expected), rel=1e-9)
    again = Design(0.5 * v[20].T @ v[20], 1.0, design.target_GG, 0.5)
    for ours, new in zip((P, Q), again.compute_pq(factors, again.inverse_GG, again.sandwich())):
        assert torch.allclose(ours, new, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_pruned_rows_return_to_the_cache_in_time(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Most rows are not cached for most of the picks, and the picks are those of brute force."""
    strategy = tuned(
        lw.strategies.Bait(consistent=bool(seed % 2)),
        extend_share=1 + 3 * (seed % 4 == 0),  # 1: the cache is always extended
        refresh_period=(500, 3)[seed // 6],
        prune_period=1 + seed % 3,
        lookahead=1 + seed % 2,
    )
    cached = _cached_rows(monkeypatch, "compute_cache"), _cached_rows(monkeypatch, "extend_cache")
    p, h = problem(60, 3, 3, seed, concentration=0.3)
    p, h = p[np.arange(60) % 55], h[np.arange(60) % 55]  # some rows are there twice
    added, left = slow.bait(p, h, 12, None, 1.0, bool(seed % 2))
    ids = by_lot(np.arange(60))
    got = lw.select(strategy, 12, probs=p, embedding=h, ids=ids)
    assert list(got.ids) == [ids[row] for row in added if row in left]
    assert len(cached[1]) > 0
    assert min(cached[0] + cached[1]) < 30


def test_rows_do_not_return_at_every_pick_where_gains_hardly_fall(monkeypatch: pytest.MonkeyPatch):
    """Many rows alike: the best gain is nearly the same for long, and moves up and down a little."""
    calls = _cached_rows(monkeypatch, "compute_cache"), _cached_rows(monkeypatch, "extend_cache")
    rng = np.random.default_rng(0)
    h = rng.normal(size=(600, 30))
    h *= (1 + 0.05 * rng.random((600, 1))) / np.linalg.norm(h, axis=1, keepdims=True)
    strategy = lw.strategies.Bait(regress=True, oversample=1, lambda_=30.0, consistent=True)
    got = lw.select(tuned(strategy, prune_period=10, lookahead=20), 200, embedding=h)
    assert len(set(got.ids)) == 200
    assert len(calls[0]) + len(calls[1]) <= 2


def _cached_rows(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The number of cached rows after each call of this kernel."""
    function, cached = getattr(kernels, name), []

    def counting(*args: object) -> float:
        bound = function(*args)
        cached.append(len(args[-1].state["cached"]))
        return bound

    monkeypatch.setattr(kernels, name, counting)
    return cached


@pytest.mark.parametrize("seed", range(4))
def test_no_row_ever_gains_more_than_its_bound(seed: int):
    p, h = problem(80, 4, 3, seed, concentration=0.3)
    rows = Rows(torch.arange(80), {Probs(): torch.tensor(p), Embedding(): torch.tensor(h)})
    factors = fisher.RowReader(4, 3, False).read(rows)
    v = factors.explicit()
    design = Design(0.1 * v[0].T @ v[0], 0.5, torch.einsum("nrg,nrh->gh", v, v) / 80, 0.7)
    largest = design.eigenvalue_bound()
    exact = float(torch.linalg.eigvals(design.inverse_GG @ design.target_GG).real.max())
    assert exact <= largest <= 1.1 * exact
    P, Q = design.compute_pq(factors, design.inverse_GG, design.sandwich())
    first, second = fisher.future_gain_bounds(P, Q, largest)
    met = 0.0
    for row in np.random.default_rng(seed).integers(80, size=40):
        gain = fisher.trace_change(P, Q, -1)
        assert bool((gain <= design.eigenvalue_bound() * first * (1 + 1e-9)).all())
        assert bool((gain <= second * (1 + 1e-9)).all())
        met = max(met, float((gain / second).max()))
        design.move(factors.part(slice(row, row + 1)), -1).apply(factors, P, Q)
    assert met > 0.3  # the bound is not idle


def test_nothing_to_learn_and_nothing_to_read():
    """Certain rows, and rows of no length: every gain is nothing, and rows are taken by lot."""
    sure = np.tile([[1.0, 0.0, 0.0]], (120, 1))
    h = problem(120, 3, 3, 0)[1]
    first = sorted(by_lot(np.arange(120))[:60])
    assert sorted(lw.select("bait", 60, probs=sure, embedding=h).ids) == first
    assert sorted(lw.select("bait", 60, probs=problem(120, 3, 3, 0)[0], embedding=0 * h).ids) == first


def test_a_design_keeps_no_factor_of_the_rows_it_has_seen():
    """20,000 picks of 16 classes and 128 columns would be 5 GB of factors; only the row itself is stored."""
    factors = fisher.RowReader(4, 50, False).read(
        Rows(torch.arange(1), {Probs(): torch.rand(1, 4).double(), Embedding(): torch.randn(1, 50).double()})
    )
    design = Design(torch.zeros(200, 200).double(), 1.0, torch.eye(200).double(), 1.0)
    for _ in range(5):
        design.move(factors, -1)
    numbers = sum(tensor.numel() for _, row in design._pending for tensor in row)
    assert numbers == 5 * (4 + 50)


def _with_sixty_digits(p: np.ndarray, h: np.ndarray, k: int) -> list[int]:
    """Algorithm 1 by inverses of explicit matrices; lambda_ is 1, nothing is labelled."""
    with mpmath.workdps(60):
        information = []
        for p_C, h_D in zip(p, h):
            share = [mpmath.mpf(float(one)) for one in p_C]
            share = [one / sum(share) for one in share]
            over = mpmath.diag(share) - mpmath.matrix(share) * mpmath.matrix(share).T
            along = mpmath.matrix([mpmath.mpf(float(one)) for one in h_D])
            information.append(_kronecker(over, along * along.T))
        f = sum(information[1:], information[0]) / len(p)
        m, picked = mpmath.eye(f.rows), []

        def trace(m: mpmath.matrix) -> mpmath.mpf:
            product = m**-1 * f
            return sum(product[i, i] for i in range(f.rows))

        for _ in range(2 * k):
            free = [row for row in range(len(p)) if row not in picked]
            picked.append(min(free, key=lambda row: trace(m + information[row])))
            m = m + information[picked[-1]]
        left = list(picked)
        for _ in range(k):
            gone = min(left, key=lambda row: trace(m - information[row]))
            left.remove(gone)
            m = m - information[gone]
        return [row for row in picked if row in left]


def _kronecker(a: mpmath.matrix, b: mpmath.matrix) -> mpmath.matrix:
    out = mpmath.matrix(a.rows * b.rows)
    for i, j, x, y in itertools.product(range(a.rows), range(a.rows), range(b.rows), range(b.rows)):
        out[i * b.rows + x, j * b.rows + y] = a[i, j] * b[x, y]
    return out


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e5, 1e6, 1e7])
def test_picks_are_those_with_sixty_digits_or_are_refused(size: float):
    """Lengths of 1e5 and lambda_ = 1: what is left of a gain is rounding."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        p, h = rng.dirichlet(np.full(3, 0.7), 9), rng.normal(size=(9, 2)) * size
        if size > 1e4:
            with pytest.raises(NumericsError, match="larger lambda_ or scale embeddings"):
                lw.select("bait", 2, probs=p, embedding=h)
        else:
            assert lw.select("bait", 2, probs=p, embedding=h).ids.tolist() == _with_sixty_digits(p, h, 2)


def test_lengths_that_float64_cannot_hold_together_are_refused_in_words():
    p, h = np.random.default_rng(0).dirichlet(np.full(3, 0.1), 24), np.random.default_rng(1).normal(size=(24, 2))
    h[::2] *= 1e9
    with pytest.raises(NumericsError, match="larger lambda_ or scale embeddings"):
        lw.select(lw.strategies.Bait(lambda_=1e-6), 7, probs=p, embedding=h)


def test_a_design_that_lost_digits_is_refreshed(monkeypatch: pytest.MonkeyPatch):
    """Few directions, long rows, little lambda: what is left after the first picks is a small difference."""
    p, h = problem(40, 2, 2, 5)
    strategy = lw.strategies.Bait(lambda_=1e-4, oversample=1)
    calls = []
    refresh = Design.refresh
    monkeypatch.setattr(Design, "refresh", lambda self: (calls.append(1), refresh(self))[1])
    got = lw.select(strategy, 10, probs=p, embedding=20 * h)
    assert len(calls) > 0  # M begins as a multiple of the unit matrix, which needs no inverse
    assert list(got.ids) == slow.bait(p, 20 * h, 10, None, 1e-4, oversample=1)[0]


def test_notes_say_that_embeddings_are_projected_and_classes_merged():
    p, h = problem(60, 40, 30, 0)
    got = lw.select(lw.strategies.Bait(widest=400), 5, probs=p, embedding=h)
    assert got.notes["projection"] == "embeddings projected at random from 30 to 12 columns"
    assert "31 most probable of 40" in got.notes["classes"]
    few = lw.select(lw.strategies.Bait(classes=5), 5, probs=p, embedding=h)
    assert few.notes["classes"] == "the 4 most probable of 40 classes stay apart, the rest is one"
    plain = lw.select("bait", 5, probs=p[:, :4] / p[:, :4].sum(1, keepdims=True), embedding=h)
    assert set(plain.notes) == {"trace_before", "trace_after", "taken", "backend"}
    assert plain.notes["backend"] == "torch"
    assert plain.notes["trace_after"] < plain.notes["trace_before"]


def test_arguments():
    for bad in ({"lambda_": 0}, {"oversample": 0.5}, {"widest": 0}, {"classes": 1}):
        with pytest.raises(ArgumentError, match="Bait"):
            lw.strategies.Bait(**bad)
    with pytest.raises(NeedError, match="Bait needs labelled probs"):
        lw.select("bait", 1, probs=[[0.5, 0.5]], embedding=[[1.0]], labelled={"embedding": [[1.0]]})
    assert lw.strategies.Bait(lambda_=0.5).for_regression() == lw.strategies.Bait(lambda_=0.5, regress=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_is_selected_from_a_sample_for_the_error_over_all_rows(seed: int):
    p, h = problem(60, 3, 3, seed)
    got = lw.select(lw.strategies.Bait(candidates=20), 4, probs=p, embedding=h, seed=seed)
    assert got.notes["candidates"] == "chosen from 20 of the 60 rows, drawn at random"
    again = lw.select(lw.strategies.Bait(candidates=20), 4, probs=p[::-1], embedding=h[::-1], ids=np.arange(60)[::-1])
    every = [lw.select(lw.strategies.Bait(candidates=c), 4, probs=p, embedding=h, seed=seed) for c in (0, 60, None)]
    assert all("candidates" not in one.notes for one in every)
    assert len({tuple(one.ids) for one in every}) == 1
    assert every[0].notes["trace_before"] == pytest.approx(got.notes["trace_before"])  # over all rows
    assert every[0].notes["trace_after"] < got.notes["trace_after"] < got.notes["trace_before"]
    if seed == 0:
        assert set(again.ids) == set(got.ids)


def test_a_sample_has_at_least_twice_the_rows_that_are_added():
    p, h = problem(60, 3, 3, 0)
    got = lw.select(lw.strategies.Bait(candidates=1), 10, probs=p, embedding=h)
    assert got.notes["candidates"].startswith("chosen from 40 ")
    assert len(set(got.ids)) == 10
    with pytest.raises(ArgumentError, match="candidates"):
        lw.strategies.Bait(candidates=-1)


def test_a_sample_is_selected_from_as_a_pool_of_its_own():
    """Where the other rows say nothing of the weights, the picks are those of a pool that has no others."""
    strategy = tuned(lw.strategies.Bait(), large_pool=50, candidates=32)
    p, h = problem(60, 3, 3, 1)
    part = Key(5).fold("candidates").uniform(torch.arange(60)).argsort(descending=True)[:32].sort().values.numpy()
    p[np.setdiff1d(np.arange(60), part)] = [1, 0, 0]  # certain
    got = lw.select(strategy, 8, probs=p, embedding=h, seed=5)
    assert got.notes["candidates"].startswith("chosen from 32 ")
    alone = lw.select(strategy, 8, probs=p[part], embedding=h[part], ids=part, seed=5)
    assert "candidates" not in alone.notes
    assert list(got.ids) == list(alone.ids)
