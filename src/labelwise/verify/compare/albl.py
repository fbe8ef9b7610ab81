"""ALBL: the bandit as the paper states it."""

from __future__ import annotations

import numpy as np

from labelwise.rng import Key
from labelwise.strategies import get
from labelwise.strategies.albl.reference import albl as slow_albl
from labelwise.verify.case import Case, checks
from labelwise.verify.problems import Problem, expect, expect_close, expect_ids, picks_of


@checks("albl")
def albl(case: Case) -> None:
    """Probabilities of the arms over scripted rounds; the drawn arm chooses the batch."""
    rng = case.rng("albl")
    arrays = {"probs": rng.dirichlet(np.ones(3), 40), "embedding": rng.normal(size=(40, 4))}
    arms, history, rewards = [1, 1, 0, 1], list[dict[str, object]](), list[float]()
    ids, right = [100, 101, 102], [True, False, True]  # a first batch that no arm asked for
    chance = dict.fromkeys(ids, 1.0)
    for number, arm in enumerate([*arms, 0]):
        strategy = case.with_parameters({"history": tuple(history)})
        labelled = _labelled_rows(ids, right)
        got = case.select(2, arrays, labelled=labelled, seed=number, strategy=strategy)
        expected = slow_albl(rewards, arms[: len(rewards)])[-1]
        expect_close(list(got.notes["probabilities"].values()), expected, f"arms in round {number + 1}", 1e-12)
        names = list(got.notes["probabilities"])
        expect(got.notes["arm"] in names, f"the arm drawn is one of {names}, found {got.notes['arm']}")
        problem = Problem(arrays, np.arange(40), 2, Key(number).fold("batch").seed, labelled, case.device)
        expect_ids(got.ids, picks_of(get(got.notes["arm"]), problem).ids, "the arm drawn chooses the batch")
        new = [200 + 2 * number, 201 + 2 * number]
        # As if that arm had been drawn: only its probability is checked.
        history.append({**got.notes, "arm": names[arm], "probability": expected[arm], "ids": new})
        ids, right = ids + new, [*right, True, number % 2 == 0]
        chance |= dict.fromkeys(new, expected[arm])
        rewards.append(float(np.mean([hit / chance[row] for row, hit in zip(ids, right)])))


def _labelled_rows(ids: list[int], right: list[bool]) -> dict[str, np.ndarray]:
    """Labelled rows that the model predicts correctly, or not."""
    y = np.array(ids) % 3
    probs = 0.7 * np.eye(3)[np.where(right, y, (y + 1) % 3)] + 0.1
    return {"ids": np.array(ids), "probs": probs, "y": y, "embedding": np.ones((len(ids), 4))}
