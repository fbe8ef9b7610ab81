"""Density: the estimated probability of being picked, and the weights by it."""

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.selection.strategy import Size
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Embedding, Features, Probs
from labelwise.weigh import Density
from labelwise.weigh.floor import FLOOR, effective_share
from labelwise.weigh.reference import inclusion
from second_device import AWAY, second_device

NONE = Shards([])


def test_the_estimate_is_the_share_of_halves_in_which_a_row_is_picked():
    p = np.array([0.5, 0.55, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95])
    pool = shards_of(torch.arange(8), {Probs(): torch.tensor(np.column_stack([p, 1 - p]))})
    exact = inclusion(8, 4, lambda subset, k: sorted(subset, key=lambda row: p[row])[:k])
    draws = 2000
    found = Density(lw.strategies.Margin(), draws).select(pool, NONE, 4, Key(0))
    assert sorted(found.ids.tolist()) == [0, 1, 2, 3]
    estimate = 1 / found.weights
    expected = exact[found.ids]
    # Shares of about 1000 draws each; weights are scaled to a mean of 1.
    np.testing.assert_allclose(estimate / estimate[0], expected / expected[0], atol=4 * np.sqrt(0.25 / (draws / 2)))
    assert expected.max() > 1.2 * expected.min()


def test_rows_that_many_others_could_stand_in_for_weigh_more():
    rng = np.random.default_rng(0)
    dense, far = 0.05 * rng.normal(size=(80, 2)), 20 * np.eye(2).repeat(2, 0) * [[1], [-1], [1], [-1]]
    pool = shards_of(torch.arange(84), {Embedding(): torch.tensor(np.vstack([dense, far]))})
    found = Density(lw.strategies.KCenter(), 64).select(pool, NONE, 5, Key(1))
    weight = dict(zip(found.ids.tolist(), found.weights))
    outside = [weight[row] for row in range(80, 84)]
    (inside,) = [weight[row] for row in weight if row < 80]
    assert inside > 2 * max(outside)
    assert found.notes["weigh"]["effective_share"] >= FLOOR


@pytest.mark.parametrize("name", ["badge", "entropy", "typiclust", "sabal-greedy"])
def test_picks_are_those_of_the_strategy_in_any_blocks(name):
    rng = np.random.default_rng(2)
    arrays = {
        Probs(): torch.from_numpy(rng.dirichlet([1] * 3, 60)),
        Embedding(): torch.from_numpy(rng.normal(size=(60, 4))),
    }
    arrays |= {Features(): arrays[Embedding()]}
    strategy = lw.strategies.get(name)
    columns = {one: arrays[one] for one in arrays if one in {s for n in strategy.needs.pool for s in n.stored()}}
    if name == "sabal-greedy":
        columns |= {one: arrays[Probs()] for n in strategy.needs.pool for one in n.stored() if one not in columns}
    made = [shards_of(torch.arange(60), columns, count).with_ties(Key(3)) for count in (1, 3)]
    expected = strategy.select(made[0], NONE, 6, Key(4))
    one, other = (Density(strategy, 8).select(pool, NONE, 6, Key(4)) for pool in made)
    assert one.ids.tolist() == expected.ids.tolist()
    assert one == other
    assert effective_share(one.weights) >= FLOOR - 1e-9
    assert one.weights.mean() == pytest.approx(1)


def test_a_second_device_has_the_same_weights():
    p = torch.from_numpy(np.random.default_rng(5).dirichlet([1] * 3, 50))
    expected = Density(lw.strategies.Entropy(), 8).select(shards_of(torch.arange(50), {Probs(): p}), NONE, 5, Key(0))
    with second_device():
        pool = shards_of(torch.arange(50).to(AWAY), {Probs(): p.to(AWAY)})
        found = Density(lw.strategies.Entropy(), 8).select(pool, NONE, 5, Key(0))
    assert found == expected


def test_the_whole_pool_has_equal_weights():
    pool = shards_of(torch.arange(6), {Embedding(): torch.eye(6)})
    assert Density(lw.strategies.KCenter()).select(pool, NONE, 6, Key(0)).weights.tolist() == [1.0] * 6


def test_memory_counts_the_half_that_is_copied():
    size = Size(1000, 10, {Embedding(): (64,)})
    inner = lw.strategies.KCenter()
    assert Density(inner).memory(size) >= inner.memory(size) + 500 * 64 * 4


def test_draws_are_checked():
    with pytest.raises(ArgumentError, match=r"draws=.*not 0"):
        Density(lw.strategies.Margin(), 0)
