"""ALLY's walk over clusters, BAIT by inverses of explicit matrices, ALBL's bandit by the written rule."""

from __future__ import annotations

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Embedding
from labelwise.strategies import get
from labelwise.strategies.albl.reference import albl as slow_albl
from labelwise.strategies.ally import reference as slow
from labelwise.strategies.bait.reference import bait as slow_bait
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.distance.centering import about_the_middle
from labelwise.verify.case import Case
from labelwise.verify.problems import Problem, chosen, close, same_ids, true


def ally(case: Case) -> None:
    """Falling duals, so many from each cluster, for the clusters of k-means; and duals alone."""
    for turn in range(5):
        rng = case.rng("ally", turn)
        n = 70
        h, dual, ids = rng.normal(size=(n, 4)), rng.integers(0, 9, n) / 4.0, rng.permutation(500)[:n]
        k = int(rng.integers(2, 20))
        clusters = int(rng.integers(2, k + 1))
        arrays = {"embedding": h, "duals": dual}
        got = case.select(k, arrays, ids, seed=turn, strategy=case.having({"clusters": clusters}))
        pool = shards_of(torch.from_numpy(ids), {Embedding(): torch.from_numpy(h)})
        with about_the_middle(pool, Embedding()):
            cluster.kmeans(pool, Embedding(), clusters, Key(turn).fold("clusters"))
        number = pool.map(lambda shard: shard.state["cluster"].numpy())[0]
        expected = slow.topk_in_clusters(dual, number, ids, k, k // clusters)
        same_ids(got.ids, expected, "the walk by falling dual")
        place = {int(i): row for row, i in enumerate(ids)}
        close(got.scores, dual[[place[i] for i in expected]], "duals", 0.0)
        plain = case.select(k, arrays, ids, strategy=case.having({"diversity": "none"}))
        same_ids(plain.ids, slow.topk_in_clusters(dual, np.zeros(n), ids, k, k), "the highest duals")


def bait(case: Case) -> None:
    """Every trace from an inverse, forward and backward, with and without labelled rows, classes and numbers."""
    for turn in range(4):
        rng = case.rng("bait", turn)
        classes, width = ((2, 3), (3, 2))[turn % 2]
        p, h = rng.dirichlet(np.full(classes, 0.4), 14), rng.normal(size=(14, width))
        q, g = rng.dirichlet(np.ones(classes), turn), rng.normal(size=(turn, width))
        lam, consistent = (1.0, 0.01)[turn % 2], turn >= 2
        taken, left = slow_bait(p, h, 4, (q, g) if turn else None, lam, consistent)
        strategy = case.having({"lambda_": lam, "consistent": consistent})
        behind = {"probs": q, "embedding": g} if turn else None
        got = case.select(4, {"probs": p, "embedding": h}, labelled=behind, strategy=strategy)
        same_ids(got.ids, [row for row in taken if row in left], f"lambda = {lam}, consistent = {consistent}")
    rng = case.rng("bait", "numbers")
    h, g = rng.normal(size=(20, 3)), rng.normal(size=(4, 3))
    taken, left = slow_bait(None, h, 4, (None, g))
    got = case.select(4, {"embedding": h}, labelled={"embedding": g}, strategy=case.having({"regress": True}))
    same_ids(got.ids, [row for row in taken if row in left], "for a model of numbers")


def albl(case: Case) -> None:
    """Probabilities of the arms over scripted rounds, and the arm drawn chooses the batch."""
    rng = case.rng("albl")
    arrays = {"probs": rng.dirichlet(np.ones(3), 40), "embedding": rng.normal(size=(40, 4))}
    arms, history, rewards = [1, 1, 0, 1], list[dict[str, object]](), list[float]()
    ids, right = [100, 101, 102], [True, False, True]  # a first batch that no arm asked for
    chance = dict.fromkeys(ids, 1.0)
    for number, arm in enumerate([*arms, 0]):
        strategy = case.having({"history": tuple(history)})
        behind = _behind(ids, right)
        got = case.select(2, arrays, labelled=behind, seed=number, strategy=strategy)
        expected = slow_albl(rewards, arms[: len(rewards)])[-1]
        close(list(got.notes["probabilities"].values()), expected, f"arms in round {number + 1}", 1e-12)
        names = list(got.notes["probabilities"])
        true(got.notes["arm"] in names, f"the arm drawn is one of {names}, found {got.notes['arm']}")
        problem = Problem(arrays, np.arange(40), 2, Key(number).fold("batch").seed, behind, case.device)
        same_ids(got.ids, chosen(get(got.notes["arm"]), problem).ids, "the arm drawn chooses the batch")
        new = [200 + 2 * number, 201 + 2 * number]
        # As if that arm had been drawn: the rule is what is looked at.
        history.append({**got.notes, "arm": names[arm], "probability": expected[arm], "ids": new})
        ids, right = ids + new, [*right, True, number % 2 == 0]
        chance |= dict.fromkeys(new, expected[arm])
        rewards.append(float(np.mean([hit / chance[row] for row, hit in zip(ids, right)])))


def _behind(ids: list[int], right: list[bool]) -> dict[str, np.ndarray]:
    """Labelled rows that the model has right, or not."""
    y = np.array(ids) % 3
    probs = 0.7 * np.eye(3)[np.where(right, y, (y + 1) % 3)] + 0.1
    return {"ids": np.array(ids), "probs": probs, "y": y, "embedding": np.ones((len(ids), 4))}
