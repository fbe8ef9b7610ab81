from collections import Counter

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Embedding, Probs
from labelwise.strategies.distance.kernels import torch as torch_kernels
from labelwise.strategies.distance.nearest import NearestDistances, Tuning
from labelwise.strategies.distance.reference import (
    badge_gradients,
    joint_law,
    kmeans_plus_plus,
    next_pick_law,
    sq_distances,
)
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.problems import by_lot

ALARM = 1e-7  # the chance of a false alarm of one chi-square test; seeds are fixed
NONE = Shards([])
E = Embedding()

LISTS = [((2, 2), 1000), ((3, 4), 1500), ((64, 2048), 2500)]


def _badge(lists: tuple[int, int]) -> lw.strategies.Badge:
    """Badge whose first and longest candidate lists have the given lengths."""

    class Short(lw.strategies.Badge):
        tuning = Tuning(*lists)

    return Short()


def _problem(n: int, c: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(c), n), rng.normal(size=(n, d))


def _pool(probs: np.ndarray, embedding: np.ndarray, ids: np.ndarray | None = None) -> Shards:
    ids = np.arange(len(probs)) if ids is None else ids
    return shards_of(torch.as_tensor(ids), {Probs(): torch.as_tensor(probs), E: torch.as_tensor(embedding)})


def _clustered() -> np.ndarray:
    """Six rows of which some are near each other: a pick lowers the rates of others, so arrivals are rejected."""
    return np.array([[0.0, 0.0], [1.0, 0.0], [1.2, 0.1], [0.0, 1.5], [0.3, 1.5], [-1.0, -1.0]])


def _draws(
    x: np.ndarray, start: int, k: int, seeds: range, lists: tuple[int, int] = (64, 2048)
) -> list[tuple[int, ...]]:
    """k-means++ picks after `start` for each seed; the state before the draw is made once."""
    pool = shards_of(torch.arange(len(x)), {E: torch.as_tensor(x)})
    picks = []
    with NearestDistances(pool, E, Tuning(*lists)) as distances:
        distances.add(pool.take(torch.tensor([start])))
        (near,) = pool.map(lambda shard: shard.state["near"].clone())
        for seed in seeds:
            pool.map(lambda shard: shard.state["near"].copy_(near) is None)
            picks.append(tuple(distances.draw(k, Key(seed)).ids.tolist()))
    return picks


@pytest.mark.slow
@pytest.mark.parametrize(("lists", "seeds"), LISTS)
def test_joint_law_of_three_picks_by_enumeration(lists: tuple[int, int], seeds: int):
    x = _clustered()
    law = joint_law(sq_distances(x, x), 0, 3)
    assert abs(sum(law.values()) - 1) < 1e-12
    picks = _draws(x, 0, 3, range(seeds), lists)
    triples, pairs = Counter(picks), Counter(pick[:2] for pick in picks)
    later = Counter(pick[1:] for pick in picks)
    assert chi_square_p([triples[s] for s in law], list(law.values())) > ALARM
    for seen, cut in ((pairs, slice(0, 2)), (later, slice(1, 3))):
        marginal: Counter[tuple[int, ...]] = Counter()
        for sequence, chance in law.items():
            marginal[sequence[cut]] += chance  # type: ignore[assignment]
        assert chi_square_p([seen[s] for s in marginal], list(marginal.values())) > ALARM


@pytest.mark.slow
def test_rows_whose_arrival_is_not_kept_arrive_again_by_the_same_law():
    """Two rows that lose four fifths of their rate when the other is picked, one that keeps its own, and a slow one
    that makes the list long: most arrivals of the second row are rejected, and it arrives again before the list ends.
    """
    x = np.zeros((5, 4))
    x[1:3, 0], x[1, 1], x[2, 2] = np.sqrt(0.9), np.sqrt(0.1), np.sqrt(0.1)
    x[3, 0], x[4, 3] = -np.sqrt(0.2), 0.1
    dist = sq_distances(x, x)
    assert np.allclose(dist[0], [0, 1, 1, 0.2, 0.01])
    assert np.isclose(dist[1, 2], 0.2)
    law = joint_law(dist, 0, 2)
    counts = Counter(_draws(x, 0, 2, range(2500)))
    assert chi_square_p([counts[s] for s in law], list(law.values())) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("lists", [(4, 4), (64, 2048)])
def test_each_of_the_next_picks_has_its_law_on_a_longer_pool(lists: tuple[int, int]):
    """Marginal laws of picks 1, 2, 3 after the first, summed exactly over what came before."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(size=(5, 3)) * 0.2 + centre for centre in rng.normal(size=(3, 3)) * 2])
    dist = sq_distances(x, x)
    n = len(x)
    laws = [next_pick_law(dist, [4]), np.zeros(n), np.zeros(n)]
    for i in range(n):
        if i == 4:
            continue
        second = next_pick_law(dist, [4, i])
        laws[1] += laws[0][i] * second
        for j in np.flatnonzero(second):
            laws[2] += laws[0][i] * second[j] * next_pick_law(dist, [4, i, int(j)])
    picks = _draws(x, 4, 4, range(1000), lists)
    for step, law in enumerate(laws):
        counts = np.bincount([pick[step] for pick in picks], minlength=n)
        assert chi_square_p(counts, law) > ALARM
    assert all(len({4, *pick}) == 5 for pick in picks)


def test_several_picks_come_from_one_list(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the tests above would say nothing about lists."""
    x = np.random.default_rng(0).normal(size=(400, 5))
    calls = []
    plain = torch_kernels.draw_by_arrival

    def counted(*args):
        places, values = plain(*args)
        calls.append(len(places))
        return places, values

    monkeypatch.setattr(torch_kernels, "draw_by_arrival", counted)
    (picks,) = _draws(x, 0, 60, range(1))
    assert sum(calls) == 60
    assert max(calls) > 5
    assert len(set(picks)) == 60


@pytest.mark.parametrize("seed", range(8))
def test_lists_of_one_row_are_the_one_by_one_form(seed: int):
    """argmax of log weight + Gumbel, with the noise of list number = step: the same picks, not only the same law."""
    probs, embedding = _problem(40, 4, 3, seed)
    ids = np.random.default_rng(seed).permutation(500)[:40]
    got = lw.select(_badge((1, 1)), 15, probs=probs, embedding=embedding, ids=ids, seed=seed).ids.tolist()
    g = badge_gradients(probs, embedding)
    first = int(np.argmax((g**2).sum(1)))
    noise = [Key(seed).fold("list", step).gumbel(torch.as_tensor(ids)).numpy() for step in range(14)]
    slow = [first, *kmeans_plus_plus(sq_distances(g, g), first, 14, noise)]
    assert got == ids[slow].tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lists", [(3, 5), (64, 2048)])
def test_first_pick_is_the_longest_gradient_and_scores_are_distances(dtype: type, lists: tuple[int, int]):
    for seed in range(5):
        probs, embedding = _problem(80, 3, 4, seed)
        arrays = {"probs": probs.astype(dtype), "embedding": embedding.astype(dtype)}
        got = lw.select(_badge(lists), 40, **arrays, seed=seed)
        g = badge_gradients(probs, embedding)
        dist = sq_distances(g, g)
        assert got.ids[0] == np.argmax((g**2).sum(1))
        assert np.isclose(got.scores[0], (g**2).sum(1).max(), rtol=1e-5)
        expected = [dist[i, got.ids[: step + 1]].min() for step, i in enumerate(got.ids[1:])]
        assert np.allclose(got.scores[1:], expected, rtol=2e-4, atol=1e-6)


def test_ties_of_the_first_pick_are_broken_by_lot():
    probs, embedding = np.full((4, 2), 0.5), np.array([[1.0], [-3.0], [3.0], [3.0]])
    for seed in range(4):
        ids = by_lot(np.arange(5, 9), seed)
        assert lw.select("badge", 1, probs=probs, embedding=embedding, ids=ids, seed=seed).ids.tolist() == [ids[1]]


@pytest.mark.slow
def test_second_pick_of_the_strategy_has_its_law():
    probs, embedding = _problem(6, 3, 2, 1)
    g = badge_gradients(probs, embedding)
    first = int(np.argmax((g**2).sum(1)))
    pool = _pool(probs, embedding)
    badge = lw.strategies.Badge()
    seconds = [int(badge.select(pool, NONE, 2, Key(seed)).ids[1]) for seed in range(700)]
    assert chi_square_p(np.bincount(seconds, minlength=6), next_pick_law(sq_distances(g, g), [first])) > ALARM


@pytest.mark.slow
def test_copies_come_last_and_are_drawn_uniformly():
    """Two places, four rows each: the second pick is at the other place, then all rows left are equally likely."""
    x = np.array([[1.0], [1.0], [1.0], [2.0], [2.0], [2.0]])
    law = joint_law(sq_distances(x, x), 0, 3)
    picks = _draws(x, 0, 3, range(700))
    assert {pick[0] for pick in picks} == {3, 4, 5}
    counts = Counter(picks)
    assert chi_square_p([counts[s] for s in law], list(law.values())) > ALARM


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_place_first_then_copies(dtype: type):
    probs, embedding = _problem(10, 3, 4, 0)
    rows = np.repeat(np.arange(10), 20)
    for seed in range(20):
        got = lw.select(
            "badge", 60, probs=probs[rows].astype(dtype), embedding=embedding[rows].astype(dtype), seed=seed
        )
        assert sorted(rows[got.ids[:10]]) == list(range(10))
        assert (got.scores[10:] == 0).all()
        assert len(set(got.ids)) == 60


def test_certain_rows_have_no_gradient_and_are_picked_last():
    probs, embedding = _problem(30, 3, 4, 2)
    probs[5:15] = [0, 1, 0]
    got = lw.select("badge", 30, probs=probs, embedding=embedding).ids
    # The ten rows without a gradient are copies of each other: one of them may be picked for its place at zero.
    assert len(set(got[:20]) & set(range(5, 15))) <= 1
    assert sorted(got) == list(range(30))


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_overflow_and_underflow_are_an_error_or_the_right_answer(scale: float):
    probs, embedding = _problem(30, 3, 4, 0)
    right = lw.select("badge", 5, probs=probs, embedding=embedding).ids.tolist()
    try:
        got = lw.select("badge", 5, probs=probs.astype(np.float32), embedding=(embedding * scale).astype(np.float32))
    except lw.errors.NumericsError:
        return
    assert got.ids.tolist() == right
