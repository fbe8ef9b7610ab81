"""The whole loop: records, seeds, what recipes share, and plans that cannot be carried out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

import labelwise as lw
from labelwise import errors

RNG = np.random.default_rng(1)
X = RNG.normal(size=(150, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def test_records_of_a_run() -> None:
    records = list(lw.rounds(X, Y, LogisticRegression(), "margin", k=5, n=3, start=8, seed=2))
    assert [r.labels for r in records] == [8, 13, 18, 23]
    assert [r.round for r in records] == [0, 1, 2, 3]
    assert [len(r.picked) for r in records] == [5, 5, 5, 0]
    assert all(0.5 < r.metrics["accuracy"] <= 1 for r in records)
    assert {r.strategy for r in records} == {"margin"}
    assert records[0].environment["torch"] == torch.__version__.split("+")[0] or records[0].environment["torch"]
    assert records[0].environment["seed"] == "2"
    assert len({row for r in records for row in r.picked}) == 15


def test_same_seed_same_run_and_recipes_share_start_test_and_weights() -> None:
    def run(recipe: str, seed: int) -> list[lw.Record]:
        learner = lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=5)
        return list(lw.rounds(X, Y, learner, recipe, k=5, n=2, start=8, seed=seed))

    one, two, other = run("badge", 0), run("badge", 0), run("badge", 1)
    assert [r.picked for r in one] == [r.picked for r in two]
    assert [r.metrics for r in one] == [r.metrics for r in two]
    assert [r.picked for r in one] != [r.picked for r in other]
    # The first model of another recipe is the same model: same start set, same initial weights, same test rows.
    assert run("margin", 0)[0].metrics == one[0].metrics


def test_the_global_state_of_chance_is_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(lw.rounds(X, Y, lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=2), "badge", k=5, n=1, start=8))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_a_function_as_oracle_is_asked_for_each_row_once() -> None:
    asked: list[int] = []

    def oracle(ids: np.ndarray) -> np.ndarray:
        asked.extend(ids.tolist())
        return Y[ids]

    list(lw.rounds(X, oracle, LogisticRegression(), "entropy", k=5, n=2, start=6, test=(X[:20], Y[:20]), classes=2))
    assert len(asked) == len(set(asked)) == 16


def test_test_rows_are_never_chosen() -> None:
    records = list(lw.rounds(X, Y, LogisticRegression(), "random", k=40, n=2, start=40, seed=0, test=0.2))
    with pytest.raises(errors.BudgetError, match="only 120 rows are free"):
        lw.rounds(X, Y, LogisticRegression(), "random", k=41, n=2, start=40, seed=0, test=0.2)
    assert records[-1].labels == 120


def test_texts_and_class_names() -> None:
    texts = [f"{'good' if y else 'bad'} film number {i}" for i, y in enumerate(Y)]
    names = np.array(["no", "yes"])[Y]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    for recipe in ("margin", "badge", "kcenter"):
        records = list(lw.rounds(texts, names, model, recipe, k=5, n=2, start=10))
        assert records[-1].metrics["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"k": 0}, errors.BudgetError, "k must be"),
        ({"n": -1}, errors.BudgetError, "n must be"),
        ({"start": 0}, errors.BudgetError, "start must be"),
        ({"n": 100}, errors.BudgetError, "only 120 rows"),
        ({"test": 1.5}, errors.ArgumentError, "share"),
        ({"test": (X[:5], Y[:4])}, errors.RowError, "5 rows and 4 labels"),
        ({"oracle": Y[:10]}, errors.LabelError, "150 rows"),
        ({"oracle": None}, errors.ArgumentError, "no oracle"),
        ({"learner": object()}, errors.ArgumentError, "object"),
        ({"seed": -1}, errors.ArgumentError, "seed"),
        ({"recipe": "nothing"}, errors.ArgumentError, "nothing"),
        ({"pool": X[:0]}, errors.RowError, "empty"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused_at_once(change, error, text) -> None:
    plan = {"pool": X, "oracle": Y, "learner": LogisticRegression(), "recipe": "margin", "k": 5, "n": 2, **change}
    with pytest.raises(error, match=text):
        lw.rounds(**plan)


def test_no_test_rows_no_metrics() -> None:
    records = list(lw.rounds(X, Y, LogisticRegression(), "margin", k=5, n=1, test=None))
    assert [r.metrics for r in records] == [{}, {}]


def test_class_names_in_an_array_of_objects_and_bools() -> None:
    for labels in (np.array(["no", "yes"], dtype=object)[Y], Y.astype(bool)):
        records = list(lw.rounds(X, labels, LogisticRegression(), "margin", k=5, n=1, start=10))
        assert records[-1].metrics["accuracy"] > 0.5


def test_recipes_on_equal_terms() -> None:
    def warm(recipe, training, learner=None):
        learner = learner or lw.TorchLearner(nn.Linear(4, 2), epochs=1)
        records = list(lw.rounds(X, Y, learner, recipe, k=6, n=1, training=training))
        return records[-1].notes["training"]["warm_start"]

    assert [warm("dynamical", training) for training in (None, "warm", "restart")] == [True, True, False]
    assert [warm("margin", training) for training in (None, "warm", "restart")] == [False, True, False]
    with pytest.raises(errors.ArgumentError, match="the learner has restart=False"):
        warm("margin", "restart", lw.TorchLearner(nn.Linear(4, 2), restart=False))
    with pytest.raises(errors.ArgumentError, match="LogisticRegression does not take"):
        warm("margin", "warm", LogisticRegression())
    with pytest.raises(errors.ArgumentError, match='"restart", "warm" or None'):
        warm("margin", "cold")
