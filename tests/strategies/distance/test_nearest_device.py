"""The lists of an accelerator, on CPU tensors by torch; and their kernels, where Triton or CUDA are there."""

import importlib.util
import os

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.rng import Key, uniforms
from labelwise.selection import triton_available
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Embedding, HeadGrad, Probs
from labelwise.strategies.distance import nearest, nearest_cuda
from labelwise.strategies.distance.reference import farthest_first
from second_device import AWAY, second_device

E, G = Embedding(), HeadGrad(label="argmax")
KINDS = ("normal", "clusters", "grid", "copies", "outlier", "equal", "line", "origin")


def _rows(kind: str, seed: int, n: int = 70, d: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    if kind == "clusters":
        x = rng.integers(0, 4, (n, 1)) * 50.0 + 0.01 * x
    elif kind == "grid":
        x = np.round(2 * x)
    elif kind == "copies":
        x = x[rng.integers(0, n // 4, n)]
    elif kind == "outlier":
        x[17] = 1e3
    elif kind == "equal":
        x = np.full((n, d), 0.25)
    elif kind == "line":
        x = np.arange(n, dtype=float)[:, None]
    elif kind == "origin":
        x[: n // 2] = 0.0
    return x


def _pool(x: np.ndarray, seed: int, probs: bool = False) -> Shards:
    rng = np.random.default_rng(seed)
    ids = torch.from_numpy(rng.permutation(1000)[: len(x)])
    columns = {E: torch.from_numpy(x)}
    if probs:
        columns[Probs()] = torch.from_numpy(rng.normal(size=(len(x), 3)).round()).softmax(1)
    return shards_of(ids, columns)


@pytest.mark.parametrize("lists", [(1, 1), (4, 16), (64, 2048)])
@pytest.mark.parametrize("kind", KINDS)
def test_farthest_first_is_that_of_the_literal_algorithm(
    kind: str, lists: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nearest, "FIRST_LIST", lists[0])
    monkeypatch.setattr(nearest, "LONGEST_LIST", lists[1])
    for seed in range(2):
        x = _rows(kind, seed, n=50)
        pool = _pool(x, seed)
        (ids,) = pool.map(lambda shard: shard.ids)
        with nearest.measured(pool, E):
            nearest.take_in(pool, E, pool.take(ids[:1]))
            got = nearest_cuda.farthest_first(pool, E, len(x) - 1)  # to the last row
        slow = farthest_first(x, ids.numpy(), x[:0], len(x) - 1, taken=ids[:1].numpy())
        assert got.ids.tolist() == [i for i, _ in slow]
        np.testing.assert_allclose(got.values.numpy(), [value for _, value in slow], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lists", [(2, 5), (8, 32)])
@pytest.mark.parametrize("signal", [E, G], ids=["rows", "factors"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_key_draws_the_same_rows(
    kind: str, signal: Embedding | HeadGrad, lists: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nearest, "FIRST_LIST", lists[0])
    monkeypatch.setattr(nearest, "LONGEST_LIST", lists[1])
    for seed in range(2):
        x, found = _rows(kind, seed, n=50), []
        for draw in (nearest.by_chance, nearest_cuda.by_chance):
            pool = _pool(x, seed, probs=True)
            (ids,) = pool.map(lambda shard: shard.ids)
            with nearest.measured(pool, signal):
                nearest.take_in(pool, signal, pool.take(ids[3:4]))
                found.append(draw(pool, signal, len(x) - 1, Key(seed)))
        assert found[0].ids.tolist() == found[1].ids.tolist()
        assert len(set(found[1].ids.tolist())) == len(x) - 1
        np.testing.assert_allclose(found[0].values.numpy(), found[1].values.numpy(), rtol=1e-9, atol=1e-9)


def test_a_row_that_rings_often_has_its_list_walked_anew(monkeypatch: pytest.MonkeyPatch):
    tried = []
    walk = nearest_cuda.rings_in_torch

    def seen(*args: object) -> nearest_cuda.Walked:
        found = walk(*args)
        tried.append((len(args[3]), int(found.made)))
        return found

    monkeypatch.setattr(nearest_cuda, "rings_in_torch", seen)
    monkeypatch.setattr(nearest_cuda, "TURNS", 1)
    x, found = _rows("clusters", 0, n=200), []
    for draw in (nearest.by_chance, nearest_cuda.by_chance):
        pool = _pool(x, 0)
        with nearest.measured(pool, E):
            nearest.take_in(pool, E, pool.take(pool.map(lambda shard: shard.ids)[0][:1]))
            found.append(draw(pool, E, 100, Key(1)).ids.tolist())
    assert found[0] == found[1]
    assert any(turns == 1 and made < 0 for turns, made in tried)
    assert any(turns == 4 and made > 0 for turns, made in tried)


def test_chance_of_several_keys_is_that_of_each():
    keys, ids = [Key(0), Key(7).fold("keep", 1), Key((1 << 64) - 1)], torch.tensor([0, 1, 5, 2**62, 12345])
    got = uniforms(keys, ids)
    assert got.tolist() == [key.uniform(ids).tolist() for key in keys]


@pytest.mark.parametrize("name", ["kcenter", "badge"])
def test_strategies_take_the_path_of_the_accelerator_where_it_suits(name: str, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    inputs = {"embedding": rng.normal(size=(300, 5)), "probs": rng.dirichlet(np.ones(4), 300)}
    inputs = {key: inputs[key] for key in (("embedding",) if name == "kcenter" else inputs)}
    expected = lw.select(name, 90, seed=3, **inputs)
    used = []
    taken = nearest_cuda._settled
    monkeypatch.setattr(nearest_cuda, "_settled", lambda *args: used.append(1) or taken(*args))
    assert lw.select(name, 90, seed=3, **inputs).ids.tolist() == expected.ids.tolist()
    assert not used
    monkeypatch.setattr(nearest_cuda, "suits", lambda pool: True)
    assert lw.select(name, 90, seed=3, **inputs).ids.tolist() == expected.ids.tolist()
    assert used


@pytest.mark.parametrize("name", ["kcenter", "badge", "sabal-greedy"])
def test_nothing_of_the_path_is_left_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch):
    """On a stand-in for a device whose tensors may not meet those of the CPU; greedy with many classes too."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(80, 4))
    inputs = {"embedding": rng.normal(size=(80, 5)), "probs": logits, "label_probs": logits / 2}
    here = {
        key: torch.from_numpy(one) if key == "embedding" else torch.from_numpy(one).softmax(1)
        for key, one in inputs.items()
    }
    expected = lw.select(name, 40, seed=3, **here).ids.tolist()
    monkeypatch.setattr(nearest_cuda, "suits", lambda pool: True)
    with second_device():
        there = {key: one.to(AWAY) for key, one in here.items()}
        assert lw.select(name, 40, seed=3, **there).ids.tolist() == expected


def test_without_triton_nothing_is_asked_of_the_kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nearest_cuda, "available", lambda: False)
    assert not nearest_cuda.suits(_pool(_rows("normal", 0), 0))
    monkeypatch.setattr(nearest_cuda, "available", lambda: True)
    assert not nearest_cuda.suits(_pool(_rows("normal", 0), 0))  # rows on a CPU
    monkeypatch.setattr(nearest_cuda, "_where", lambda shard: "cuda")
    assert nearest_cuda.suits(_pool(_rows("normal", 0), 0))


# --- the kernels -----------------------------------------------------------------------------------------------------

interpreted = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
cuda = torch.cuda.is_available() and triton_available.available()


@pytest.mark.skipif(not (interpreted or cuda), reason="needs CUDA, or Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_walk_as_torch_does(kind: str, dtype: torch.dtype):
    device = "cuda" if cuda else "cpu"
    for seed in range(2):
        x = torch.from_numpy(_rows(kind, seed, n=40)).to(dtype)
        dist_MM = nearest.sq_dist(x, x)
        near_M = dist_MM[3].clone()
        near_M[3] = -torch.inf
        begin, slack = torch.tensor(5), torch.tensor(1e-6, dtype=dtype)
        for guard in (-torch.inf, float(near_M.median())):
            args = (dist_MM, near_M, begin, torch.tensor(guard, dtype=dtype), slack)
            slow = nearest_cuda.farthest_in_torch(*args, 39)
            got = nearest_cuda._farthest_by_kernel(*(one.to(device) for one in args), 39)
            assert all(torch.equal(one.cpu(), other) for one, other in zip(got, slow))
        near_M = near_M.double()
        ids, rings = torch.arange(40), Key(seed)
        time_M = (rings.exponential(ids) / near_M).masked_fill(near_M <= 0, torch.inf)
        luck = uniforms([rings.fold(turn) for turn in range(8)], ids).view(2, 4, 40)
        last = time_M[time_M < torch.inf].max() if bool((near_M > 0).any()) else torch.tensor(-torch.inf).double()
        for turns, k in ((4, 40), (1, 40), (4, 7)):
            args = (dist_MM, time_M, near_M, luck[0, :turns].clone(), -luck[1, :turns].log(), last)
            slow = nearest_cuda.rings_in_torch(*args, k)
            got = nearest_cuda._rings_by_kernel(*(one.to(device) for one in args), k)
            assert int(got.made) == int(slow.made)
            upto = max(0, int(slow.made))
            assert got.places[:upto].tolist() == slow.places[:upto].tolist()
            assert got.values[:upto].tolist() == slow.values[:upto].tolist()


@pytest.mark.skipif(not cuda, reason="needs CUDA and Triton")
@pytest.mark.parametrize("name", ["kcenter", "badge"])
@pytest.mark.parametrize("copies", [1, 3])
def test_cuda_makes_the_picks_of_the_cpu(name: str, copies: int):
    rng = np.random.default_rng(0)
    inputs = {"embedding": rng.normal(size=(2000, 32)), "probs": rng.dirichlet(np.ones(5), 2000)}
    here = {
        key: torch.from_numpy(np.tile(inputs[key], (copies, 1))) for key in inputs if name == "badge" or key[0] == "e"
    }
    expected = lw.select(name, 1500, **here)
    got = lw.select(name, 1500, **{key: value.cuda() for key, value in here.items()})
    assert got.ids.tolist() == expected.ids.tolist()
