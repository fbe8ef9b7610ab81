import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import labelwise as lw
from labelwise.rng import Key
from labelwise.shards import Best, shards_of
from labelwise.signals.rows import Factored, sq_dist
from labelwise.signals.spec import Embedding
from labelwise.strategies.distance import nearest
from labelwise.strategies.distance.kernels import torch as torch_kernels
from labelwise.strategies.distance.nearest import NearestDistances, Tuning
from labelwise.strategies.distance.reference import farthest_first, sq_distances
from labelwise.verify.problems import by_lot

E = Embedding()
EXACT = ("grid", "square", "line", "equal")  # whole numbers: distances are exact in float32 too, ties are real ties


def _fast(x: np.ndarray, ids: np.ndarray, start: np.ndarray, k: int, lists: tuple[int, int] = (64, 2048)) -> Best:
    """farthest_first after the rows `start` (ids) were picked."""
    pool = shards_of(torch.as_tensor(ids), {E: torch.as_tensor(x)})
    with NearestDistances(pool, E, Tuning(*lists, host_list_bytes=0)) as distances:
        distances.add(pool.take(torch.as_tensor(start)))
        return distances.farthest_first(k)


def _adversarial(name: str, rng: np.random.Generator) -> np.ndarray:
    n, d = 60, 3
    x = rng.normal(size=(n, d))
    if name == "clusters":
        x = rng.integers(0, 4, (n, 1)) * 50.0 + 0.01 * x
    elif name == "grid":
        x = np.round(2 * x)
    elif name == "square":
        x = np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), -1).reshape(-1, 2)
    elif name == "copies":
        x = x[rng.integers(0, 15, n)]
    elif name == "outlier":
        x[17] = 1e3
    elif name == "equal":
        x = np.full((n, d), 0.1)
    elif name == "line":
        x = np.arange(n, dtype=float)[:, None]
    elif name == "origin":
        x = np.concatenate([np.zeros((n // 2, d)), x[: n // 2]])
    return x[rng.permutation(len(x))]


@pytest.mark.parametrize("lists", [(1, 1), (2, 5), (64, 2048)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "name", ["normal", "clusters", "grid", "square", "copies", "outlier", "equal", "line", "origin"]
)
def test_picks_are_those_of_the_literal_algorithm(name: str, dtype: type, lists: tuple[int, int]):
    rng = np.random.default_rng(abs(hash_of(name)))
    x = _adversarial(name, rng).astype(dtype)
    ids = by_lot(rng.permutation(1000)[: len(x)])
    fast = _fast(x, ids, ids[:1], len(x) - 1, lists)
    if dtype is np.float64 or name in EXACT:
        slow = farthest_first(x, ids, np.empty((0, x.shape[1])), len(x) - 1, taken=ids[:1])
        assert fast.ids.tolist() == [i for i, _ in slow]
    # Rounding may choose between rows that are nearly tied: every pick is the farthest up to the rounding of |x|^2.
    rounding = 64 * np.finfo(dtype).eps * float((x.astype(np.float64) ** 2).sum(1).max())
    dist, place = sq_distances(x, x), {int(i): row for row, i in enumerate(ids)}
    near, free = dist[0].copy(), set(range(1, len(x)))
    for i, value in zip(fast.ids.tolist(), fast.values.tolist()):
        row = place[i]
        assert abs(value - near[row]) <= rounding
        assert near[row] >= max(near[j] for j in free) - rounding
        near = np.minimum(near, dist[row])
        free.remove(row)


def hash_of(name: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(name)) % 10_000


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_small_integer_problems_full_of_ties(data: st.DataObject):
    n, d = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 3))
    x = np.array(data.draw(st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=n, max_size=n)))
    ids = by_lot(np.array(data.draw(st.permutations(range(2 * n))))[:n])
    k = data.draw(st.integers(1, n - 1))
    slow = farthest_first(x, ids, np.empty((0, d)), k, taken=ids[:1])
    assert _fast(x.astype(np.float64), ids, ids[:1], k).ids.tolist() == [i for i, _ in slow]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_strategy_starts_from_the_labelled_rows(seed: int, dtype: type):
    rng = np.random.default_rng(seed)
    x, labelled = rng.normal(size=(150, 6)).astype(dtype), rng.normal(size=(7, 6)).astype(dtype)
    got = lw.select("kcenter", 100, embedding=x, labelled={"embedding": labelled, "y": np.zeros(7)})
    slow = farthest_first(x, range(150), labelled, 100)
    assert got.ids.tolist() == [i for i, _ in slow]
    assert np.allclose(got.scores, [v for _, v in slow], rtol=1e-4)


def test_more_labelled_rows_than_one_product_takes():
    class Few(lw.strategies.KCenter):
        tuning = Tuning(centres=4)

    rng = np.random.default_rng(0)
    x, labelled = rng.normal(size=(40, 3)), rng.normal(size=(19, 3))
    got = lw.select(Few(), 10, embedding=x, labelled={"embedding": labelled})
    assert got.ids.tolist() == [i for i, _ in farthest_first(x, range(40), labelled, 10)]


def test_with_nothing_labelled_the_first_pick_is_drawn_and_the_rest_follow():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 4))
    firsts = set()
    for seed in range(1, 12):
        got = lw.select("kcenter", 8, embedding=x, seed=seed).ids.tolist()
        firsts.add(got[0])
        assert got[1:] == [i for i, _ in farthest_first(x, range(50), x[:0], 7, taken=got[:1])]
    assert len(firsts) > 5


def test_lists_are_used_and_change_nothing(monkeypatch: pytest.MonkeyPatch):
    """Long lists give the same picks in fewer sweeps: otherwise they are of no use."""
    sweeps = []
    plain = nearest._add_centres

    def counted(*args):
        sweeps.append(1)
        return plain(*args)

    monkeypatch.setattr(nearest, "_add_centres", counted)
    x = np.random.default_rng(1).normal(size=(2000, 10))
    fast = _fast(x, np.arange(2000), np.array([5]), 300)
    many = len(sweeps)
    sweeps.clear()
    slow = _fast(x, np.arange(2000), np.array([5]), 300, (1, 1))
    assert fast.ids.tolist() == slow.ids.tolist()
    assert len(sweeps) == 300
    assert many < 100
    sweeps.clear()
    lw.select("kcenter", 20, embedding=x)
    assert len(sweeps) <= 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_a_table_computed_line_by_line_is_the_whole_table(dtype, kind):
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(300, d)).astype(dtype)) for d in (70, 5))
    column = x if kind == "dense" else Factored(y, x)
    whole = sq_dist(column, column).numpy()
    table, computed = torch_kernels.LazyTable(column, numbers=100 * 300), 0
    for place in rng.integers(0, 300, 400).tolist():
        computed += place not in table._lines
        likely = rng.permutation(300)[: rng.integers(0, 40)]
        line = table.line(place, lambda likely=likely: likely)
        assert np.allclose(line, whole[place], rtol=0, atol=8 * np.finfo(dtype).eps * whole.max())
        assert line[place] == 0
        assert len(table._lines) * 300 <= 100 * 300
    assert 20 < computed < 400  # some were computed with others, some again


def test_only_lines_near_the_picks_are_computed(monkeypatch: pytest.MonkeyPatch):
    tables = []

    class Counted(torch_kernels.LazyTable):
        def __init__(self, *args):
            super().__init__(*args)
            tables.append(self)

    monkeypatch.setattr(torch_kernels, "LazyTable", Counted)
    rng = np.random.default_rng(1)
    x, p = rng.normal(size=(4000, 10)), rng.dirichlet(np.ones(4), 4000)
    for name in ("kcenter", "badge"):
        assert len(lw.select(name, 60, probs=p, embedding=x)) == 60
        assert tables
        assert sum(len(table._lines) for table in tables) < sum(len(table._norm_M) for table in tables) / 2
        tables.clear()


def test_cover_radius_is_within_a_factor_two_of_the_best():
    """What the algorithm promises, on problems small enough to try every set of centres."""
    import itertools

    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(9, 2))
        dist = np.sqrt(sq_distances(x, x))
        got = lw.select("kcenter", 3, embedding=x, seed=seed).ids
        best = min(dist[:, list(c)].min(1).max() for c in itertools.combinations(range(9), 3))
        assert dist[:, got].min(1).max() <= 2 * best + 1e-12


@pytest.mark.parametrize("offset", [100.0, 1000.0])
def test_rows_far_from_the_origin_are_not_taken_for_copies(offset: float):
    """Distances do not depend on the origin: features such as a year or a temperature in kelvin are not near 0."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(40, 4)) + offset).astype(np.float32)
    slow = farthest_first(x, range(40), x[:1], 20)
    got = lw.select("kcenter", 20, embedding=x, labelled={"embedding": x[:1]})
    assert got.ids.tolist()[:10] == [i for i, _ in slow][:10]
    assert (got.scores > 0).all()


def test_plain_state_is_gone_afterwards():
    pool = shards_of(torch.arange(20), {E: torch.randn(20, 3, generator=torch.Generator().manual_seed(0))}, 3)
    lw.strategies.KCenter().select(pool, shards_of(torch.arange(0), {E: torch.empty(0, 3)}), 5, Key(0))
    assert all(set(keys) <= {"by_id"} for keys in pool.map(lambda shard: list(shard.state)))
