import numpy as np
import pytest
import torch

from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Features
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.distance.reference import joint_law, sq_distances
from labelwise.verify.chi_square import chi_square_p

F = Features()


def _pool(x: np.ndarray, count: int = 1, ids: np.ndarray | None = None) -> Shards:
    return shards_of(torch.as_tensor(np.arange(len(x)) if ids is None else ids), {F: torch.as_tensor(x)}, count)


def _numbers(pool: Shards) -> np.ndarray:
    return torch.cat(pool.map(lambda shard: shard.state["cluster"])).numpy()


def _lloyd(x: np.ndarray, centres: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Lloyd's iterations, literally."""
    for _ in range(iterations):
        number = sq_distances(x, centres).argmin(1)
        moved = np.array([x[number == j].mean(0) if (number == j).any() else c for j, c in enumerate(centres)])
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres, sq_distances(x, centres).argmin(1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_lloyd_from_the_same_seeds(iterations: int, count: int):
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(70, 3))
        pool = _pool(x, count)
        seeds = cluster._seeds(pool, F, 6, Key(seed)).numpy()
        assert len(np.unique(seeds, axis=0)) == 6
        assert all((x == row).all(1).any() for row in seeds)
        centres = cluster.kmeans(pool, F, 6, Key(seed), iterations).numpy()
        slow, number = _lloyd(x, seeds, iterations)
        assert np.allclose(centres, slow, atol=1e-12)
        assert np.array_equal(_numbers(pool), number)


def test_every_row_has_the_number_of_its_nearest_centre_in_float32():
    x = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    pool = _pool(x, 2)
    centres = cluster.kmeans(pool, F, 8, Key(0))
    assert centres.dtype == torch.float64
    dist = sq_distances(x, centres.numpy())
    assert np.allclose(dist[np.arange(300), _numbers(pool)], dist.min(1), atol=1e-5)


def test_a_cluster_without_rows_stays_where_it_was(monkeypatch: pytest.MonkeyPatch):
    far = torch.tensor([[0.0, 0.0], [900.0, 900.0], [3.0, 0.0]]).double()
    monkeypatch.setattr(cluster, "_seeds", lambda pool, signal, clusters, key: far)
    x = np.random.default_rng(0).normal(size=(40, 2))
    pool = _pool(x, 2)
    centres = cluster.kmeans(pool, F, 3, Key(0))
    assert centres[1].tolist() == [900, 900]
    assert set(_numbers(pool).tolist()) == {0, 2}


@pytest.mark.slow
def test_seeds_follow_kmeans_plus_plus():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [1.2, 0.1], [0.0, 1.5], [-1.0, -1.0]])
    dist = sq_distances(x, x)
    law: dict[tuple[int, ...], float] = {}
    for first in range(5):
        for rest, chance in joint_law(dist, first, 2).items():
            law[(first, *rest)] = chance / 5
    pool = _pool(x)
    seen = dict.fromkeys(law, 0)
    for seed in range(1000):
        seeds = cluster._seeds(pool, F, 3, Key(seed)).numpy()
        seen[tuple(int((x == row).all(1).argmax()) for row in seeds)] += 1
    assert chi_square_p(list(seen.values()), list(law.values())) > 1e-7


def test_the_same_clusters_for_any_block_shard_and_order():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    whole = _pool(x)
    cluster.kmeans(whole, F, 7, Key(1))
    expected = _numbers(whole)
    for count, size in ((1, 1), (2, 8 << 20), (5, 4000)):
        pool = _pool(x, count).in_blocks(size)
        cluster.kmeans(pool, F, 7, Key(1))
        assert np.array_equal(_numbers(pool), expected)
    order = rng.permutation(400)
    pool = _pool(x[order], 3, order)
    cluster.kmeans(pool, F, 7, Key(1))
    assert np.array_equal(_numbers(pool), expected[order])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_more_clusters_than_distinct_rows(dtype: type):
    x = np.repeat(np.random.default_rng(0).normal(size=(3, 4)), 10, 0).astype(dtype)
    pool = _pool(x)
    centres = cluster.kmeans(pool, F, 8, Key(0))
    assert len(centres) == 3
    assert len(set(_numbers(pool).reshape(3, 10)[:, 0])) == 3
    assert (_numbers(pool).reshape(3, 10) == _numbers(pool).reshape(3, 10)[:, :1]).all()
    assert len(cluster.kmeans(_pool(x[:1]), F, 5, Key(0))) == 1
    assert len(cluster.kmeans(_pool(x), F, 1, Key(0))) == 1


def test_a_second_run_does_not_see_the_first():
    """Clusters in the state from an earlier run do not stop a later one early."""
    x = np.random.default_rng(3).normal(size=(60, 3))
    fresh, used = _pool(x), _pool(x)
    cluster.kmeans(used, F, 4, Key(5), iterations=1)
    used_centres = cluster.kmeans(used, F, 4, Key(5))
    assert torch.equal(used_centres, cluster.kmeans(fresh, F, 4, Key(5)))
    # Numbers equal to what the first step gives would look like "nothing moved".
    again = _pool(x)
    seeds = cluster._seeds(again, F, 4, Key(5))
    again.map(lambda shard: cluster._assign(F, seeds, shard))
    assert torch.equal(cluster.kmeans(again, F, 4, Key(5)), used_centres)
