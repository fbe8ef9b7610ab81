"""ALLY: a full batch of high duals from different clusters, by every measure of diversity and both ways in."""

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError, NumericsError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Duals, Embedding
from labelwise.strategies import Ally
from labelwise.strategies.ally.cluster_topk import topk_in_clusters
from labelwise.strategies.ally.dual_head import DualHead
from labelwise.strategies.ally.reference import topk_in_clusters as slow_topk_in_clusters
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.verify.problems import Problem, by_lot, shards_for

RNG = np.random.default_rng(0)


def problem(n: int = 200, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings, and a dual that is a smooth function of them."""
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, d))
    return h, np.maximum(0, h[:, 0] + 0.5 * h[:, 1])


def labelled_arrays(n: int = 120, d: int = 6, seed: int = 1) -> dict[str, np.ndarray]:
    h, dual = problem(n, d, seed)
    return {"embedding": h, "duals": dual}


# --- top-k in clusters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_topk_in_clusters_is_that_of_a_sorted_pool(seed: int):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 60))
    ids = by_lot(rng.permutation(1000)[:n])
    scores = rng.integers(0, 6, n) / 4.0  # with ties
    clusters = rng.integers(0, rng.integers(1, 12), n)
    k, quota = int(rng.integers(1, n + 1)), int(rng.integers(1, 4))
    expected = slow_topk_in_clusters(scores, clusters, ids, k, quota)
    for count in (1, 3):
        pool = shards_of(torch.tensor(ids), {Duals(): torch.tensor(scores)}, count)
        at = dict(zip(ids.tolist(), clusters.tolist()))
        for shard in pool.map(lambda shard: shard):
            shard.state["cluster"] = torch.tensor([at[i] for i in shard.ids.tolist()])
        best, filled = topk_in_clusters(pool, lambda shard: shard.columns[Duals()], k, quota)
        assert best.ids.tolist() == expected
        inside = sum(min(quota, int((clusters == c).sum())) for c in set(clusters.tolist()))
        assert filled == max(0, k - inside)


def test_one_row_from_each_cluster_and_it_is_the_highest():
    h, dual = problem(300)
    got = lw.select("ally", 20, embedding=h, duals=dual, seed=3)
    pool = shards_of(torch.arange(300), {Embedding(): torch.tensor(h)})
    found = cluster.kmeans(pool, Embedding(), 20, Key(3).fold("clusters"))
    number = pool.map(lambda shard: shard.state["cluster"])[0].numpy()
    assert len(found) == 20
    assert sorted(number[got.ids]) == list(range(20))
    for row in got.ids:
        assert dual[row] == dual[number == number[row]].max()
    assert got.scores.tolist() == dual[got.ids].tolist()
    assert list(got.scores) == sorted(got.scores, reverse=True)


@pytest.mark.parametrize("clusters", [1, 3, 7, 10, 40])
def test_the_batch_is_full_whatever_the_clusters(clusters: int):
    h, dual = problem(60)
    got = lw.select(Ally(clusters=clusters), 10, embedding=h, duals=dual)
    assert len(set(got.ids.tolist())) == 10
    if clusters == 1:
        assert sorted(got.scores) == sorted(dual)[-10:]
    if clusters == 3:
        assert got.notes["filled"] == 1  # three from each cluster, and one more
    if clusters >= 10:
        assert "filled" not in got.notes


def test_a_full_batch_with_empty_clusters():
    """Three different rows, many copies: seven of ten clusters have nothing in them."""
    h = np.repeat(np.eye(3), 20, 0)
    dual = np.arange(60.0)
    got = lw.select("ally", 10, embedding=h, duals=dual)
    assert got.notes["clusters"] == 3
    assert got.notes["filled"] == 7
    assert got.ids.tolist() == [59, 39, 19, 58, 57, 56, 55, 54, 53, 52]


def test_one_copy_for_each_cluster_on_a_duplicated_pool():
    h, dual = problem(12, seed=4)
    copies, names = np.tile(h, (5, 1)), np.tile(np.arange(12), 5)
    ids = by_lot(np.arange(60))
    got = lw.select("ally", 12, embedding=copies, duals=np.tile(dual, 5), ids=ids)
    row = ids.argsort()[got.ids]
    assert sorted(names[row]) == list(range(12))
    assert sorted(row) == list(range(12))  # of equal copies the smallest lot


def test_clusters_keep_copies_apart_where_duals_alone_do_not():
    h, dual = problem(40, seed=5)
    copies, duals = np.tile(h, (5, 1)), np.tile(dual, 5)
    different = {
        name: len({i % 40 for i in lw.select(Ally(diversity=name), 10, embedding=copies, duals=duals).ids.tolist()})
        for name in ("kmeans", "none")
    }
    assert different == {"kmeans": 10, "none": 2}


# --- other measures of diversity -------------------------------------------------------------------------------------


def test_none_takes_the_highest():
    h, dual = problem(100)
    assert sorted(lw.select(Ally(diversity="none"), 7, embedding=h, duals=dual).ids) == sorted(np.argsort(dual)[-7:])


def test_perturb_draws_in_proportion_to_the_dual():
    dual = np.array([1.0, 2.0, 3.0, 4.0, 0.0])
    first = [
        int(lw.select(Ally(diversity="perturb"), 2, embedding=np.eye(5), duals=dual, seed=seed).ids[0])
        for seed in range(400)
    ]
    share = np.bincount(first, minlength=5) / 400
    assert np.abs(share - dual / 10).max() < 0.08
    whole = lw.select(Ally(diversity="perturb"), 5, embedding=np.eye(5), duals=dual)
    assert whole.ids[-1] == 4  # a dual of 0 comes after all others


def test_kmeans_plus_plus_is_on_dual_times_embedding():
    h = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.01], [-1.0, 0.0]])
    dual = np.array([3.0, 2.9, 0.0, 0.0])
    got = lw.select(Ally(diversity="kmeans++"), 3, embedding=h, duals=dual)
    assert got.ids[0] == 0  # the longest
    for seed in range(20):
        ids = lw.select(Ally(diversity="kmeans++"), 2, embedding=h, duals=dual, seed=seed).ids
        assert ids[0] == 0
    n = 40
    pulled = np.random.default_rng(2).normal(size=(n, 3))
    ones = lw.select(Ally(diversity="kmeans++"), 8, embedding=pulled, duals=np.ones(n), seed=1)
    twice = lw.select(Ally(diversity="kmeans++"), 8, embedding=pulled / 2, duals=np.full(n, 2.0), seed=1)
    assert ones.ids.tolist() == twice.ids.tolist()


def test_cap_leaves_outliers_to_the_end():
    h, dual = problem(80)
    dual[5] = 100.0
    assert 5 in lw.select(Ally(diversity="none"), 3, embedding=h, duals=dual).ids
    got = lw.select(Ally(diversity="none", cap=50), 3, embedding=h, duals=dual)
    assert 5 not in got.ids
    assert got.notes["above_cap"] == 1
    assert 5 in lw.select(Ally(diversity="none", cap=50), 80, embedding=h, duals=dual).ids


# --- the head --------------------------------------------------------------------------------------------------------


def test_head_learns_and_scores_every_row_including_the_last_partial_block():
    h, dual = problem(203, seed=7)
    given = Problem({"embedding": h}, np.arange(203), 203, labelled=labelled_arrays(400))
    ally, pool, labelled = shards_for(Ally(diversity="none"), given)
    got = ally.select(pool.in_blocks(1), labelled, 203, Key(0))  # 64 rows a block: 203 rows leave 11
    assert (got.scores > 0).all()
    assert len(set(got.scores.tolist())) > 195
    predicted = np.empty(203)
    predicted[got.ids] = got.scores
    assert np.corrcoef(predicted, dual)[0, 1] > 0.9
    assert got.notes["head_rows"] == 400
    assert got.notes["head_held_out_error"] < 0.2  # 1 is the variance


def test_the_picks_of_a_learnt_head_do_not_depend_on_blocks_shards_and_order():
    h, _ = problem(150, seed=8)
    labelled = labelled_arrays(60)
    labelled = shards_of(
        -1 - torch.arange(60),
        {Embedding(): torch.tensor(labelled["embedding"]), Duals(): torch.tensor(labelled["duals"])},
        2,
    )
    expected = None
    for size, count in ((8 << 20, 1), (1, 1), (1, 4)):
        order = np.random.default_rng(count).permutation(150)
        pool = shards_of(torch.tensor(order), {Embedding(): torch.tensor(h[order])}, count).in_blocks(size)
        got = Ally().select(pool, labelled, 12, Key(5))
        expected = expected or got
        assert got == expected
        assert all(set(shard) == {Embedding()} for shard in pool.map(lambda shard: list(shard.columns)))


def test_the_same_key_gives_the_same_head_and_torchs_own_chance_is_left_alone():
    labelled = labelled_arrays(60)
    x, y = torch.tensor(labelled["embedding"]), torch.tensor(labelled["duals"])
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    heads = [DualHead().fit(x, y, torch.arange(60), Key(seed)) for seed in (0, 0, 1)]
    assert torch.equal(before, torch.random.get_rng_state())
    values = [head(x) for head in heads]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    assert torch.equal(DualHead().fit(x[order], y[order], order, Key(0))(x), values[0])
    assert float(values[0].min()) >= 0


def test_a_head_is_indifferent_to_units():
    labelled = labelled_arrays(60)
    x, y = torch.tensor(labelled["embedding"]), torch.tensor(labelled["duals"])
    one = DualHead().fit(x, y, torch.arange(60), Key(0))
    other = DualHead().fit(1024 * x + 64, 2**-10 * y, torch.arange(60), Key(0))
    assert torch.allclose(one(x), 2**10 * other(1024 * x + 64), rtol=1e-5)


@pytest.mark.parametrize("duals", [np.zeros(30), np.full(30, 0.7)])
def test_equal_duals_leave_clusters_and_chance(duals: np.ndarray):
    h, _ = problem(100)
    labelled = {"embedding": h[:30] + 1, "duals": duals}
    got = lw.select("ally", 10, embedding=h, labelled=labelled, seed=0)
    assert "are equal" in got.notes["head"]
    assert got.scores == pytest.approx(duals[:10])
    assert got.ids.tolist() != lw.select("ally", 10, embedding=h, labelled=labelled, seed=1).ids.tolist()


@pytest.mark.parametrize("count", [1, 2, 7, 8, 49, 50])
def test_a_few_labelled_rows(count: int):
    h, _ = problem(50)
    labelled = {"embedding": h[:count] + 1, "duals": np.linspace(0, 1, count)}
    got = lw.select("ally", 6, embedding=h, labelled=labelled)
    assert len(set(got.ids.tolist())) == 6
    if count == 1:
        assert "are equal" in got.notes["head"]
    elif count < 8:
        assert "fewer than 8" in got.notes["head"]
    else:
        assert ("head_held_out_error" in got.notes) == (count >= 50)


# --- the ways in -----------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named():
    h, dual = problem(10)
    with pytest.raises(NeedError, match=r"Ally needs duals.*labelled=dict\(embedding=..., duals=...\)"):
        lw.select("ally", 2, embedding=h)
    with pytest.raises(NeedError, match="Ally needs labelled duals"):
        lw.select("ally", 2, embedding=h, labelled={"embedding": h})
    with pytest.raises(NeedError, match="Ally needs embedding"):
        lw.select("ally", 2, duals=dual)
    dual[3] = np.nan
    with pytest.raises(NumericsError, match=r"duals .* row id 3"):
        lw.select(Ally(diversity="none"), 2, embedding=h, duals=dual)


@pytest.mark.parametrize(
    "bad", [{"clusters": 0}, {"clusters": 1.5}, {"cap": 0}, {"diversity": "all"}, {"head": 3}], ids=str
)
def test_arguments(bad: dict):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        Ally(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"hidden": ()}, {"hidden": (4,)}, {"dropout": (1.0, 0, 0)}, {"lr": 0}, {"epochs": 0}, {"holdout": 1.0}],
    ids=str,
)
def test_arguments_of_the_head(bad: dict):
    with pytest.raises(ArgumentError, match="DualHead"):
        DualHead(**bad)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))


def test_a_session_learns_the_head_from_published_duals_and_goes_on_in_a_new_process(tmp_path):
    x = RNG.normal(size=(150, 5)).astype("float32")
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 1)
    strategy = Ally(clusters=4, cap=5.0, head=DualHead(hidden=(8,), dropout=(0.1,)))
    recipe = lw.Recipe("mine", strategy, lw.strategies.Random(), lw.PrimalDual(epsilon=0.3))
    learner = lw.TorchLearner(net, epochs=15)
    al = lw.Session(x, learner, recipe, classes=3, folder=tmp_path / "s", seed=2)
    for _ in range(3):
        picks = al.ask(12)
        al.tell(picks.ids, y[picks.ids])
    picks = al.ask(12)
    assert picks.notes["head_rows"] == 36
    assert "head_error" in picks.notes
    again = lw.Session.load(tmp_path / "s", x, lw.TorchLearner(net, epochs=15))
    assert (again.recipe.strategy, again.recipe.objective) == (strategy, recipe.objective)
    assert again.learner.options.objective == lw.PrimalDual(epsilon=0.3)
    assert again.ask(12) == picks


def test_published_duals_are_those_of_the_labelled_rows():
    x = RNG.normal(size=(60, 5)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    seen = {}

    class Look(Ally):
        def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> lw.Selection:
            rows = labelled.take(torch.tensor(sorted(al.labelled)))
            seen.update(zip(rows.ids.tolist(), rows.tensor(Duals()).tolist()))
            return Ally.select(self, pool, labelled, k, key)

    recipe = lw.Recipe("look", Look(), lw.strategies.Random(), lw.PrimalDual(stop=None))
    al = lw.Session(x, lw.TorchLearner(net, epochs=6), recipe, classes=3, batch=7)
    picks = al.ask(20)
    al.tell(picks.ids, y[picks.ids])
    al.ask(5)
    fit = al.fit()
    assert seen == dict(zip(fit.ids.tolist(), fit.published[Duals()].tolist()))
    assert any(seen.values())
