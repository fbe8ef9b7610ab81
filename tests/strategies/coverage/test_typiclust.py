import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Features
from labelwise.strategies import TypiClust
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.coverage.reference import typicality, typiclust
from labelwise.strategies.distance.reference import sq_distances
from tuned import tuned

F = Features()
NONE = Shards([])


def _given(monkeypatch: pytest.MonkeyPatch, numbers: dict[int, int]) -> None:
    """k-means replaced by given cluster numbers, so that picks can be compared with the reference."""

    def kmeans(pool, signal, clusters, key):
        pool.map(lambda s: s.state.update(cluster=torch.tensor([numbers[i] for i in s.ids.tolist()])))
        return torch.zeros(max(numbers.values()) + 1, 1)

    monkeypatch.setattr(cluster, "kmeans", kmeans)


@pytest.mark.parametrize("seed", range(12))
def test_picks_are_those_of_the_reference_for_given_clusters(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(seed)
    n, count = 60, int(rng.integers(1, 12))
    x = rng.normal(size=(n, 3))
    if seed % 3 == 0:
        x = np.round(x)  # ties and copies
    ids = rng.permutation(300)[:n]
    number = np.minimum(rng.integers(0, count, n), rng.integers(0, count, n))  # clusters of unequal sizes
    labelled_number = rng.integers(0, count, 7) if seed % 2 else np.empty(0, int)
    numbers = {**dict(zip(ids.tolist(), number.tolist())), **{-1 - i: int(c) for i, c in enumerate(labelled_number)}}
    _given(monkeypatch, numbers)
    k, neighbours = int(rng.integers(1, n)), int(rng.integers(1, 21))
    labelled = shards_of(
        torch.arange(-1, -1 - len(labelled_number), -1), {F: torch.zeros(len(labelled_number), 3).double()}
    )
    got = TypiClust(neighbours=neighbours).select(
        shards_of(torch.as_tensor(ids), {F: torch.as_tensor(x)}, 2), labelled, k, Key(seed)
    )
    slow = typiclust(x, ids, number, labelled_number.tolist(), k, neighbours)
    if seed % 3:
        assert got.ids.tolist() == slow
    place = {int(i): row for row, i in enumerate(ids)}
    assert [number[place[i]] for i in got.ids.tolist()] == [number[place[i]] for i in slow]
    # Typicalities tied on paper may differ in the last bit, so rows with equal values may change places.
    score = {i: typicality(x[number == number[place[i]]], neighbours) for i in slow}
    value = {i: score[i][np.flatnonzero(ids[number == number[place[i]]] == i)[0]] for i in slow}
    assert np.allclose(np.minimum(got.scores, 1e30), np.minimum([value[i] for i in slow], 1e30), rtol=1e-9)


def test_scores_are_typicalities(monkeypatch: pytest.MonkeyPatch):
    x = np.random.default_rng(0).normal(size=(30, 4))
    _given(monkeypatch, dict.fromkeys(range(30), 0))
    got = TypiClust(neighbours=5).select(shards_of(torch.arange(30), {F: torch.as_tensor(x)}), NONE, 30, Key(0))
    assert np.allclose(got.scores, typicality(x, 5)[got.ids])
    assert (np.diff(got.scores) <= 0).all()


def test_one_pick_from_the_middle_of_each_blob():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [30, 0], [0, 30], [30, 30]])
    x = np.concatenate([c + rng.normal(size=(25 + 5 * i, 2)) for i, c in enumerate(centres)])
    blob = np.repeat(np.arange(4), [25, 30, 35, 40])
    for seed in range(5):
        got = lw.select("typiclust", 4, embedding=x, seed=seed)
        assert sorted(blob[got.ids]) == [0, 1, 2, 3]
        assert blob[got.ids].tolist() == [3, 2, 1, 0]  # the largest first
        assert got.notes["clusters"] == 4
        for i in got.ids:
            members = x[blob == blob[i]]
            assert sq_distances(x[[i]], members.mean(0)[None]).item() < 1.5


def test_blobs_with_a_label_come_last():
    rng = np.random.default_rng(1)
    x = np.concatenate([np.array([c, 0.0]) + rng.normal(size=(20, 2)) for c in (0, 50, 100)])
    blob = np.repeat(np.arange(3), 20)
    got = lw.select("typiclust", 2, embedding=x, labelled={"embedding": np.array([[50.0, 0.0]])})
    assert sorted(blob[got.ids]) == [0, 2]


def test_small_clusters_come_last(monkeypatch: pytest.MonkeyPatch):
    x = np.random.default_rng(2).normal(size=(14, 2))
    number = [0] * 4 + [1] * 5 + [2] * 5
    _given(monkeypatch, dict(enumerate(number)))
    got = TypiClust().select(shards_of(torch.arange(14), {F: torch.as_tensor(x)}), NONE, 14, Key(0))
    assert {number[i] for i in got.ids[:2]} == {1, 2}
    assert [number[i] for i in got.ids[-4:]] == [0] * 4


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_clusters_of_one_row(n: int):
    """k = N: every row is its own cluster and has no neighbour."""
    x = np.random.default_rng(3).normal(size=(n, 4))
    got = lw.select("typiclust", n, embedding=x)
    assert sorted(got.ids) == list(range(n))


def test_witnesses_represent_a_large_cluster(monkeypatch: pytest.MonkeyPatch):
    strategy = tuned(TypiClust(), witnesses=50)
    x = np.random.default_rng(4).normal(size=(300, 2))
    _given(monkeypatch, dict.fromkeys(range(300), 0))
    pool = shards_of(torch.arange(300), {F: torch.as_tensor(x)})
    got = strategy.select(pool, NONE, 1, Key(0))
    value = typicality(x, 20)
    assert value[got.ids[0]] >= np.quantile(value, 0.5)
    assert got.ids.tolist() == strategy.select(pool, NONE, 1, Key(0)).ids.tolist()


def test_more_picks_than_clusters():
    x = np.random.default_rng(5).normal(size=(40, 3))
    got = lw.select(TypiClust(max_clusters=3), 20, embedding=x)
    assert len(set(got.ids)) == 20
    assert got.notes["clusters"] == 3


@pytest.mark.parametrize("name", ["neighbours", "max_clusters"])
@pytest.mark.parametrize("value", [0, -1, 2.5, float("nan"), "3"])
def test_bad_parameters(name: str, value: object):
    with pytest.raises(ArgumentError, match=name):
        TypiClust(**{name: value})  # type: ignore[arg-type]


def test_ids_below_zero_are_ids_like_others():
    """Labelled rows have no ids of their own here; those made for them must not meet those of the pool."""
    x = np.random.default_rng(6).normal(size=(30, 3))
    labelled = {"embedding": x[:4] + 0.5}
    plain = lw.select("typiclust", 5, embedding=x, labelled=labelled)
    assert len(plain) == 5
    got = lw.select("typiclust", 5, embedding=x, ids=-1 - np.arange(30), labelled=labelled)
    assert len(set(got.ids)) == 5
    assert set(got.ids) <= set(range(-30, 0))


def test_state_is_gone_afterwards():
    pool = shards_of(torch.arange(20), {F: torch.randn(20, 3, generator=torch.Generator().manual_seed(0))}, 3)
    TypiClust().select(pool, NONE, 5, Key(0))
    assert all(set(keys) <= {"by_id"} for keys in pool.map(lambda shard: list(shard.state)))
