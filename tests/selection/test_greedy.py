from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import labelwise as lw
from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.rows import Rows, sq_dist, sq_norm
from labelwise.signals.spec import Embedding, HeadGrad, Needs, Probs
from labelwise.strategies.distance.nearest import NearestDistances
from labelwise.strategies.distance.reference import (
    badge_gradients,
    farthest_first,
    kmeans_plus_plus,
    next_pick_law,
    sq_distances,
)
from labelwise.strategies.uncertainty.reference import top_k
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.problems import by_lot

G, E = HeadGrad(label="argmax"), Embedding()
NONE = Shards([])


class PlainKCenter(lw.Greedy):
    """Farthest first from the origin, one sweep for each pick."""

    needs = Needs(pool=(E,))

    def init(self, rows: Rows, carry: Any) -> Tensor:
        return sq_norm(rows[E])

    def gain(self, rows: Rows, near_N: Tensor, carry: Any) -> Tensor:
        return near_N

    def update(self, rows: Rows, near_N: Tensor, carry: Any, pick: Rows) -> Tensor:
        return torch.minimum(near_N, sq_dist(rows[E], pick[E])[:, 0])


class PlainBadge(lw.Greedy):
    """The example of the design: k-means++ on last-layer gradients, the first pick drawn by squared length."""

    needs = Needs(pool=(G,))
    sampled = True

    def init(self, rows: Rows, carry: Any) -> Tensor:
        return sq_norm(rows[G])

    def gain(self, rows: Rows, near_N: Tensor, carry: Any) -> Tensor:
        return near_N.log()

    def update(self, rows: Rows, near_N: Tensor, carry: Any, pick: Rows) -> Tensor:
        return torch.minimum(near_N, sq_dist(rows[G], pick[G])[:, 0])


class Weights(lw.Greedy):
    """Gains read from the embedding's columns, one column for each step: for what the loop itself does."""

    needs = Needs(pool=(E,))

    def start(self, pool: Shards, labelled: Shards, k: int) -> int:
        return 0

    def init(self, rows: Rows, carry: int) -> Tensor:
        return torch.zeros(len(rows))

    def gain(self, rows: Rows, state: Tensor, carry: int) -> Tensor:
        return self.of(rows.tensor(E)[:, carry])

    def of(self, column: Tensor) -> Tensor:
        return column

    def update(self, rows: Rows, state: Tensor, carry: int, pick: Rows) -> Tensor:
        return state

    def advance(self, carry: int, pick: Rows) -> int:
        return carry + 1


class SampledWeights(Weights):
    sampled: ClassVar[bool] = True


class Log(SampledWeights):
    def of(self, column: Tensor) -> Tensor:
        return column.log()


def _keys(pool: Shards) -> set[str]:
    return {key for keys in pool.map(lambda shard: list(shard.state)) for key in keys}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_plain_kcenter_gives_the_picks_of_the_reference_and_of_the_fast_form(seed: int, dtype: type, count: int):
    x = np.random.default_rng(seed).normal(size=(90, 4)).astype(dtype)
    ids = np.random.default_rng(seed).permutation(90)
    pool = shards_of(torch.as_tensor(ids), {E: torch.as_tensor(x)}, count).in_blocks(1)
    plain = PlainKCenter().select(pool, NONE, 30, Key(0)).ids.tolist()
    origin = np.zeros((1, 4), dtype)
    assert plain == [i for i, _ in farthest_first(x, ids, origin, 30)]
    assert plain == lw.select("kcenter", 30, embedding=x, ids=ids, labelled={"embedding": origin}).ids.tolist()
    assert _keys(pool) <= {"by_id"}


@pytest.mark.parametrize("seed", range(4))
def test_ties_of_a_greedy_choice_are_broken_by_lot(seed: int):
    x, ids = np.array([[1.0], [-1.0], [1.0], [0.0]]), by_lot(np.arange(5, 9), seed)
    assert lw.select(PlainKCenter(), 4, embedding=x, ids=ids, seed=seed).ids.tolist() == ids.tolist()


@pytest.mark.parametrize(("dtype", "noise"), [(np.float64, 1e-13), (np.float32, 2.5e-7)])
@pytest.mark.parametrize("count", [1, 3])
def test_gains_that_differ_by_rounding_are_tied(dtype: type, noise: float, count: int):
    gain = np.array([[1 + noise], [1.0], [1 - noise], [0.5]], dtype)
    assert gain[0] > gain[1] > gain[2]
    ids = by_lot(np.array([1, 4, 5, 9]))[[2, 1, 0, 3]]
    pool = shards_of(torch.as_tensor(ids), {E: torch.as_tensor(gain)}, count)
    assert Weights().select(pool, NONE, 1, Key(0)).ids.tolist() == [ids[2]]
    clear = shards_of(torch.tensor([9, 5]), {E: torch.tensor([[1 + 1e-4], [1.0]])}, 1)
    assert Weights().select(clear, NONE, 1, Key(0)).ids.tolist() == [9]


@pytest.mark.parametrize("seed", range(5))
def test_plain_badge_gives_the_picks_of_the_one_by_one_reference(seed: int):
    rng = np.random.default_rng(seed)
    probs, embedding, ids = rng.dirichlet(np.ones(3), 40), rng.normal(size=(40, 4)), rng.permutation(200)[:40]
    got = lw.select(PlainBadge(), 12, probs=probs, embedding=embedding, ids=ids, seed=seed)
    g = badge_gradients(probs, embedding)
    noise = [Key(seed).fold(step).gumbel(torch.as_tensor(ids)).numpy() for step in range(12)]
    first = int(np.argmax(np.log((g**2).sum(1)) + noise[0]))
    # The state starts at |g|^2, which is the distance to a centre at zero.
    dist = sq_distances(np.vstack([g, np.zeros(12)]), np.vstack([g, np.zeros(12)]))
    slow = kmeans_plus_plus(dist, 40, 12, [np.append(n, 0.0) for n in noise])
    assert slow[0] == first
    assert got.ids.tolist() == ids[slow].tolist()
    near = [dist[i, [40, *slow[:step]]].min() for step, i in enumerate(slow)]
    assert np.allclose(got.scores, near)


@pytest.mark.slow
def test_plain_badge_has_the_law_of_the_fast_form():
    """Second picks of both against the exact law given the same first row."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 2))
    law = next_pick_law(sq_distances(np.vstack([x, [[0, 0]]]), np.vstack([x, [[0, 0]]])), [5])[:5]
    pool = shards_of(torch.arange(5), {E: torch.as_tensor(x), Probs(): torch.full((5, 2), 0.5).double()})

    class Plain(PlainKCenter):
        sampled = True

        def gain(self, rows: Rows, near_N: Tensor, carry: Any) -> Tensor:
            return near_N.log()

    firsts = [int(Plain().select(pool, NONE, 1, Key(seed)).ids[0]) for seed in range(800)]
    assert chi_square_p(np.bincount(firsts, minlength=5), law) > 1e-7
    with NearestDistances(pool, E) as distances:
        distances.add(Rows(torch.tensor([-1]), {E: torch.zeros(1, 2).double()}), are_picks=False)
        fast = [int(distances.draw(1, Key(seed)).ids[0]) for seed in range(800)]
    assert chi_square_p(np.bincount(fast, minlength=5), law) > 1e-7


def test_update_and_advance_see_each_pick_once():
    seen = []

    class Watch(Weights):
        def advance(self, carry: int, pick: Rows) -> int:
            seen.append((carry, pick.ids.tolist(), pick.tensor(E).tolist()))
            return carry + 1

    x = np.array([[1.0, 5.0, 0.0], [2.0, 4.0, 0.0], [3.0, 0.0, 9.0]])
    got = lw.select(Watch(), 3, embedding=x, ids=[10, 11, 12])
    assert got.ids.tolist() == [12, 10, 11]
    assert got.scores.tolist() == [3, 5, 0]
    assert seen == [(0, [12], [x[2].tolist()]), (1, [10], [x[0].tolist()]), (2, [11], [x[1].tolist()])]


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_a_gain_that_is_not_finite_names_the_row(bad: str):
    class Bad(Weights):
        def of(self, column: Tensor) -> Tensor:
            return torch.where(column == 7, float(bad), column)

    with pytest.raises(NumericsError, match=r"Bad.*row id 42") as error:
        lw.select(Bad(), 1, embedding=[[1.0], [7.0], [2.0]], ids=[41, 42, 43])
    assert bad in str(error.value)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_sampled_gain_of_nan_or_plus_infinity_names_the_row(bad: str):
    class Bad(SampledWeights):
        def of(self, column: Tensor) -> Tensor:
            return torch.where(column == 7, float(bad), column)

    with pytest.raises(NumericsError, match=r"Bad.*row id 42"):
        lw.select(Bad(), 1, embedding=[[1.0], [7.0], [2.0]], ids=[41, 42, 43])


@pytest.mark.parametrize("base", [Weights, SampledWeights])
def test_the_gain_of_a_row_already_taken_does_not_matter(base: type[Weights]):
    """log of what is left of a row once it is taken is -inf, 1 / 0 is inf: the loop owns taken rows, not the gain."""

    class Left(base):  # type: ignore[misc, valid-type]
        def init(self, rows: Rows, carry: int) -> Tensor:
            return rows.tensor(E)[:, 0].clone()

        def gain(self, rows: Rows, state: Tensor, carry: int) -> Tensor:
            return torch.where(state == 0, torch.nan, state)

        def update(self, rows: Rows, state: Tensor, carry: int, pick: Rows) -> Tensor:
            return torch.where(rows.ids == pick.ids, 0.0, state)

    got = lw.select(Left(), 3, embedding=[[1.0], [2.0], [3.0]])
    assert sorted(got.ids) == [0, 1, 2]


@pytest.mark.slow
def test_weights_of_zero_fall_back_to_a_uniform_draw():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    pool = shards_of(torch.arange(4), {E: torch.as_tensor(x)}, 2)
    seconds = []
    for seed in range(600):
        got = Log().select(pool, NONE, 2, Key(seed))
        assert got.ids[0] == 1  # the only row with a weight
        assert got.scores.tolist() == [1, 0]
        seconds.append(int(got.ids[1]))
    assert chi_square_p(np.bincount(seconds, minlength=4), np.array([1, 0, 1, 1]) / 3) > 1e-7


@pytest.mark.parametrize("level", [0.0, -2000.0, 2000.0])
def test_the_law_of_a_sampled_gain_does_not_depend_on_its_level(level: float):
    """Weights exp(gain) count by their ratios: gains whose exp leaves float64 are good gains."""
    gain = np.log([1.0, 2.0, 5.0]) + level
    pool = shards_of(torch.arange(3), {E: torch.as_tensor(gain[:, None])})
    picks = [int(SampledWeights().select(pool, NONE, 1, Key(seed)).ids[0]) for seed in range(500)]
    assert chi_square_p(np.bincount(picks, minlength=3), np.array([1, 2, 5]) / 8) > 1e-7


def test_state_is_removed_also_after_an_error():
    class Bad(Weights):
        def of(self, column: Tensor) -> Tensor:
            return column / 0

    pool = shards_of(torch.arange(3), {E: torch.ones(3, 1)})
    with pytest.raises(NumericsError):
        Bad().select(pool, NONE, 1, Key(0))
    assert _keys(pool) <= {"by_id"}
    Weights().select(pool, NONE, 1, Key(0))
    assert _keys(pool) <= {"by_id"}


def test_a_state_of_several_numbers_a_row():
    class Pairs(Weights):
        def init(self, rows: Rows, carry: int) -> Tensor:
            return rows.tensor(E).clone()

        def gain(self, rows: Rows, state: Tensor, carry: int) -> Tensor:
            assert state.shape == (len(rows), 2)
            return state.sum(1)

        def update(self, rows: Rows, state: Tensor, carry: int, pick: Rows) -> Tensor:
            return state - pick.tensor(E) * (rows.tensor(E) > 2)

    assert lw.select(Pairs(), 2, embedding=[[3.0, 3.0], [3.0, 2.9], [1.0, 2.0]]).ids.tolist() == [0, 2]


# --- Scored ---------------------------------------------------------------------------------------------------------


class First(lw.Scored):
    needs = Needs(pool=(E,))

    def score(self, rows: Rows, key: Key) -> Tensor:
        return rows.tensor(E)[:, 0]


def test_scored_takes_the_highest_with_ties_by_lot():
    x = np.random.default_rng(0).integers(0, 5, (200, 1)).astype(float)
    ids = by_lot(np.arange(200))
    for k in (1, 50, 200):
        assert lw.select(First(), k, embedding=x, ids=ids).ids.tolist() == top_k(ids, x[:, 0], k)


def test_scored_names_a_row_whose_score_is_not_finite():
    class Bad(First):
        def score(self, rows: Rows, key: Key) -> Tensor:
            return 1 / rows.tensor(E)[:, 0]

    with pytest.raises(NumericsError, match=r"Bad.*row id 9.*inf"):
        lw.select(Bad(), 1, embedding=[[1.0], [0.0]], ids=[8, 9])


def test_asking_for_a_signal_that_was_not_declared_lists_the_declared_ones():
    class Wrong(First):
        def score(self, rows: Rows, key: Key) -> Tensor:
            return rows.tensor(Probs())[:, 0]

    with pytest.raises(lw.errors.NeedError, match=r"Probs\(\).*Embedding\(\)"):
        lw.select(Wrong(), 1, embedding=[[1.0]], probs=[[1.0]])
