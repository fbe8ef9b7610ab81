import numpy as np
import pytest

import labelwise as lw
from labelwise.strategies.uncertainty import reference as slow
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.problems import by_lot

REFERENCE = {"confidence": slow.confidence, "margin": slow.margin, "entropy": slow.entropy}


def _probs(kind: str, rng: np.random.Generator, n: int = 40) -> np.ndarray:
    if kind == "ties":  # quarters: exact in every precision, and full of ties
        return np.array([np.bincount(rng.integers(0, 3, 4), minlength=3) for _ in range(n)]) / 4
    if kind == "certain":
        return np.eye(5)[rng.integers(0, 5, n)]
    if kind == "two":
        p = rng.random(n)
        return np.stack([p, 1 - p], 1)
    if kind == "sharp":
        z = 40 * rng.normal(size=(n, 6))
        e = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    return rng.dirichlet(np.ones(7) * 0.5, n)


@pytest.mark.parametrize("kind", ["dirichlet", "ties", "certain", "two", "sharp"])
@pytest.mark.parametrize("name", REFERENCE)
def test_picks_and_scores_are_those_of_the_loop(name: str, kind: str):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        probs = _probs(kind, rng)
        ids = by_lot(rng.permutation(500)[:40])
        k = int(rng.integers(1, 41))
        got = lw.select(name, k, probs=probs, ids=ids)
        scores = dict(zip(ids.tolist(), REFERENCE[name](probs)))
        assert np.allclose(got.scores, [scores[i] for i in got.ids.tolist()], rtol=1e-12, atol=1e-300)
        # Entropy and margin are sums of floats: rows that are tied on paper may differ in the last bit.
        order = slow.top_k(ids, [round(scores[int(i)], 12) for i in ids], k)
        if kind in ("dirichlet", "two"):
            assert got.ids.tolist() == order
        assert sorted(round(scores[i], 12) for i in got.ids.tolist()) == sorted(round(scores[i], 12) for i in order)
        if kind in ("ties", "certain") and name != "entropy":  # exact arithmetic: ties are broken by lot
            assert got.ids.tolist() == order


@pytest.mark.parametrize("name", REFERENCE)
def test_permuted_classes_change_nothing_that_matters(name: str):
    probs = _probs("dirichlet", np.random.default_rng(1))
    a, b = lw.select(name, 10, probs=probs), lw.select(name, 10, probs=probs[:, ::-1])
    assert a.ids.tolist() == b.ids.tolist()


@pytest.mark.parametrize("name", REFERENCE)
def test_the_uniform_row_is_first_and_the_certain_row_last(name: str):
    probs = np.array([[0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.4, 0.1]])
    assert lw.select(name, 3, probs=probs).ids.tolist() == [1, 2, 0]


def test_known_scores():
    probs = np.array([[0.5, 0.3, 0.2]])
    assert lw.select("confidence", 1, probs=probs).scores[0] == -0.5
    assert np.isclose(lw.select("margin", 1, probs=probs).scores[0], -0.2)
    assert np.isclose(lw.select("entropy", 1, probs=probs).scores[0], 1.0296530140645737)


def test_float64_is_computed_in_float64():
    """Rows that differ by less than float32 can see."""
    probs = np.array([[0.6, 0.4], [0.6 - 1e-12, 0.4 + 1e-12], [0.6 + 1e-12, 0.4 - 1e-12]])
    for name in REFERENCE:
        assert lw.select(name, 3, probs=probs).ids.tolist() == [1, 0, 2]


@pytest.mark.slow
def test_random_is_uniform_without_replacement():
    from collections import Counter

    seen = Counter(tuple(sorted(lw.select("random", 2, ids=[7, 8, 9, 10], seed=s).ids)) for s in range(1200))
    assert len(seen) == 6
    assert chi_square_p(list(seen.values()), np.full(6, 1 / 6)) > 1e-7
    first = Counter(int(lw.select("random", 1, ids=[7, 8, 9, 10], seed=s).ids[0]) for s in range(1200))
    assert chi_square_p(list(first.values()), np.full(4, 1 / 4)) > 1e-7
