"""Lists that stay in one shard, picked from on the host; and the Triton kernels, where Triton or CUDA are there."""

import importlib.util
import os

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.rng import Key, uniforms
from labelwise.selection.backends import triton_refusal
from labelwise.shards import Shards, shards_of
from labelwise.signals.rows import sq_dist
from labelwise.signals.spec import Embedding, HeadGrad, Probs
from labelwise.strategies.distance.kernels import torch as torch_kernels
from labelwise.strategies.distance.kernels.torch import ArrivalChance
from labelwise.strategies.distance.nearest import NearestDistances, TorchBackend, TritonBackend, Tuning
from labelwise.strategies.distance.reference import farthest_first
from labelwise.verify.problems import by_lot
from second_device import AWAY, second_device
from tuned import changed

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
    ids = torch.from_numpy(by_lot(rng.permutation(1000)[: len(x)]))
    columns = {E: torch.from_numpy(x)}
    if probs:
        columns[Probs()] = torch.from_numpy(rng.normal(size=(len(x), 3)).round()).softmax(1)
    return shards_of(ids, columns)


class OneShard(TritonBackend):
    """The lists of the Triton backend, picked from by the torch kernels, for one shard anywhere."""

    name = "one-shard"

    def supports(self, pool: Shards) -> str | None:
        return None

    def kernels(self):
        return torch_kernels


@pytest.mark.parametrize("lists", [(1, 1), (4, 16), (64, 2048)])
@pytest.mark.parametrize("kind", KINDS)
def test_farthest_first_is_that_of_the_literal_algorithm(kind: str, lists: tuple[int, int]):
    for seed in range(2):
        x = _rows(kind, seed, n=50)
        pool = _pool(x, seed)
        (ids,) = pool.map(lambda shard: shard.ids)
        with NearestDistances(pool, E, Tuning(*lists), (OneShard(),)) as distances:
            distances.add(pool.take(ids[:1]))
            got = distances.farthest_first(len(x) - 1)  # to the last row
        slow = farthest_first(x, ids.numpy(), x[:0], len(x) - 1, taken=ids[:1].numpy())
        assert got.ids.tolist() == [i for i, _ in slow]
        np.testing.assert_allclose(got.values.numpy(), [value for _, value in slow], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lists", [(2, 5), (8, 32)])
@pytest.mark.parametrize("signal", [E, G], ids=["rows", "factors"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_key_draws_the_same_rows(kind: str, signal: Embedding | HeadGrad, lists: tuple[int, int]):
    for seed in range(2):
        x, found = _rows(kind, seed, n=50), []
        for backend in (TorchBackend(), OneShard()):
            pool = _pool(x, seed, probs=True)
            (ids,) = pool.map(lambda shard: shard.ids)
            with NearestDistances(pool, signal, Tuning(*lists), (backend,)) as distances:
                distances.add(pool.take(ids[3:4]))
                found.append(distances.draw(len(x) - 1, Key(seed)))
        assert found[0].ids.tolist() == found[1].ids.tolist()
        assert len(set(found[1].ids.tolist())) == len(x) - 1
        np.testing.assert_allclose(found[0].values.numpy(), found[1].values.numpy(), rtol=1e-9, atol=1e-9)


def test_chance_of_several_keys_is_that_of_each():
    keys, ids = [Key(0), Key(7).fold("keep", 1), Key((1 << 64) - 1)], torch.tensor([0, 1, 5, 2**62, 12345])
    got = uniforms(keys, ids)
    assert got.tolist() == [key.uniform(ids).tolist() for key in keys]


@pytest.mark.parametrize("name", ["kcenter", "badge"])
def test_strategies_note_the_backend_and_pick_the_same_by_each(name: str):
    rng = np.random.default_rng(0)
    inputs = {"embedding": rng.normal(size=(300, 5)), "probs": rng.dirichlet(np.ones(4), 300)}
    inputs = {key: inputs[key] for key in (("embedding",) if name == "kcenter" else inputs)}
    expected = lw.select(name, 90, seed=3, **inputs)
    assert expected.notes["backend"] == "torch"
    strategy = changed(lw.strategies.get(name), backends=(OneShard(), TorchBackend()))
    got = lw.select(strategy, 90, seed=3, **inputs)
    assert (got.ids.tolist(), got.notes["backend"]) == (expected.ids.tolist(), "one-shard")


@pytest.mark.parametrize("name", ["kcenter", "badge"])
def test_nothing_of_the_list_is_left_on_the_cpu(name: str):
    """On a stand-in for a device whose tensors may not meet those of the CPU."""
    rng = np.random.default_rng(1)
    inputs = {"embedding": rng.normal(size=(80, 5)), "probs": rng.dirichlet(np.ones(4), 80)}
    here = {key: torch.from_numpy(one) for key, one in inputs.items()}
    expected = lw.select(name, 40, seed=3, **here).ids.tolist()
    with second_device():
        there = {key: one.to(AWAY) for key, one in here.items()}
        strategy = changed(lw.strategies.get(name), backends=(OneShard(),))
        assert lw.select(strategy, 40, seed=3, **there).ids.tolist() == expected


def test_triton_is_refused_for_rows_on_a_cpu_and_on_a_device_that_is_not_cuda():
    pool = _pool(_rows("normal", 0), 0)
    assert TritonBackend().supports(pool) == "rows are on cpu"
    with second_device():
        away = shards_of(torch.arange(3).to(AWAY), {E: torch.ones(3, 2).to(AWAY)})
        assert "Triton kernels are for CUDA" in str(TritonBackend().supports(away))


# --- the kernels -----------------------------------------------------------------------------------------------------

interpreted = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
cuda = torch.cuda.is_available() and triton_refusal() is None


@pytest.mark.skipif(not (interpreted or cuda), reason="needs CUDA, or Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_pick_as_torch_does(kind: str, dtype: torch.dtype):
    from labelwise.strategies.distance.kernels import triton

    device = "cuda" if cuda else "cpu"
    for seed in range(2):
        x = torch.from_numpy(_rows(kind, seed, n=40)).to(dtype)
        dist_MM = sq_dist(x, x)
        near_M = dist_MM[3].clone()
        near_M[3] = -torch.inf
        for bound in (-torch.inf, float(near_M.median())):
            args = (dist_MM, near_M, torch.tensor(5), torch.tensor(bound, dtype=dtype))
            slow = torch_kernels.pick_farthest(*args, 1e-6, 39)
            got = triton.pick_farthest(*(one.to(device) for one in args), 1e-6, 39)
            assert [one.tolist() for one in got] == [one.tolist() for one in slow]
        near_M = near_M.double()
        ids, key = torch.arange(40), Key(seed)
        time_M = (key.exponential(ids) / near_M).masked_fill(near_M <= 0, torch.inf)
        end = time_M[time_M < torch.inf].max() if bool((near_M > 0).any()) else torch.tensor(-torch.inf).double()
        for turns, k in ((4, 40), (1, 40), (4, 7)):
            slow = torch_kernels.draw_by_arrival(dist_MM, time_M, near_M, ArrivalChance(key, ids), end, k)
            there = [one.to(device) for one in (dist_MM, time_M, near_M)]
            chance = ArrivalChance(key, ids.to(device))
            got = triton.draw_by_arrival(*there, chance, end.to(device), k, turns)
            assert [one.tolist() for one in got] == [one.tolist() for one in slow]


@pytest.mark.skipif(not interpreted, reason="needs Triton with TRITON_INTERPRET=1")
def test_a_row_that_arrives_often_has_its_list_drawn_again(monkeypatch: pytest.MonkeyPatch):
    from labelwise.strategies.distance.kernels import triton

    drawn = []
    of_turns = ArrivalChance.of_turns
    monkeypatch.setattr(ArrivalChance, "of_turns", lambda self, turns: drawn.append(turns) or of_turns(self, turns))
    x = torch.from_numpy(_rows("clusters", 0, n=200))
    dist_MM, ids, key = sq_dist(x, x), torch.arange(200), Key(1)
    near_M = dist_MM[0].clone()
    time_M = (key.exponential(ids) / near_M).masked_fill(near_M <= 0, torch.inf)
    args = (dist_MM, time_M, near_M, ArrivalChance(key, ids), time_M[time_M < torch.inf].max(), 100)
    got = triton.draw_by_arrival(*args, turns=1)
    assert drawn[:2] == [1, 4]
    assert [one.tolist() for one in got] == [one.tolist() for one in torch_kernels.draw_by_arrival(*args)]


@pytest.mark.skipif(not interpreted, reason="needs Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", ["kcenter", "badge"])
def test_lists_in_one_shard_with_the_kernels_give_the_same_picks(name: str):
    class Interpreted(TritonBackend):
        def supports(self, pool: Shards) -> str | None:
            return None

    rng = np.random.default_rng(2)
    inputs = {"embedding": rng.normal(size=(120, 5)), "probs": rng.dirichlet(np.ones(4), 120)}
    expected = lw.select(name, 70, **inputs)
    got = lw.select(changed(lw.strategies.get(name), backends=(Interpreted(),)), 70, **inputs)
    assert (got.ids.tolist(), got.notes["backend"]) == (expected.ids.tolist(), "triton")
    np.testing.assert_allclose(got.scores, expected.scores, rtol=1e-9)


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
