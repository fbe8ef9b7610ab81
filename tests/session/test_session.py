"""Ask and tell: the answers are the state, and a session loaded in a new process goes on with the same picks."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import labelwise as lw
from killed import Killed, count_runs
from labelwise import errors
from labelwise.selection import run
from labelwise.signals.spec import LogProbs, stored

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 5)).astype("float32")
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))


def quick(**options: object) -> lw.TorchLearner:
    return lw.TorchLearner(module, epochs=15, **options)


@pytest.mark.parametrize("recipe", lw.strategies.names())
def test_every_strategy_walks_the_road(recipe: str) -> None:
    drawn = any(isinstance(signal, LogProbs) for signal in stored(lw.strategies.get(recipe).needs.pool))
    al = lw.Session(X, lw.laplace(quick()) if drawn else quick(), recipe, classes=3, seed=1)
    for round in range(3):
        picks = al.ask(7)
        assert len(set(picks.ids)) == 7
        assert not set(picks.ids) & set(al.labelled)
        assert al.round == round
        al.tell(picks.ids, Y[picks.ids])
    assert len(al.labelled) == 21
    assert len(al.free) == 99


def test_asked_twice_it_answers_the_same() -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=3)
    first = al.ask(5)
    assert (al.ask(5).ids == first.ids).all()
    al.tell(first.ids, Y[first.ids])
    assert (al.ask(5).ids == al.ask(5).ids).all()


def test_the_order_and_grouping_of_answers_do_not_matter() -> None:
    together = lw.Session(X, quick(), "badge", classes=3)
    one_by_one = lw.Session(X, quick(), "badge", classes=3)
    ids = together.ask(12).ids
    together.tell(ids, Y[ids])
    for row in ids[::-1]:
        one_by_one.tell([row], [Y[row]])
    assert (together.ask(6).ids == one_by_one.ask(6).ids).all()


def test_recipes_share_the_first_batch_of_a_seed() -> None:
    starts = [lw.Session(X, quick(), recipe, seed=4).ask(8).ids for recipe in ("margin", "badge", "kcenter", "random")]
    assert all((start == starts[0]).all() for start in starts)
    other = lw.Session(X, quick(), "margin", seed=5).ask(8).ids
    assert (other != starts[0]).any()


def test_first_then_recipe_starts_cold() -> None:
    al = lw.Session(X, quick(), "typiclust+margin", classes=3)
    alone = lw.Session(X, recipe="typiclust")
    assert (al.ask(6).ids == alone.ask(6).ids).all()
    al.tell(al.ask(6).ids, Y[al.ask(6).ids])
    assert al.ask(3).notes == {}


@pytest.mark.slow
@pytest.mark.parametrize("restart", [True, False])
def test_loaded_in_a_new_process_it_goes_on_with_the_same_picks(tmp_path, restart: bool) -> None:
    al = lw.Session(X, quick(restart=restart), "badge", classes=["a", "b", "c"], seed=3, folder=tmp_path / "s")
    for _ in range(2):
        picks = al.ask(10)
        al.tell(picks.ids, [["a", "b", "c"][y] for y in Y[picks.ids]])
    np.save(tmp_path / "x.npy", X)
    script = f"""
        import numpy as np, labelwise as lw
        from torch import nn
        module = lambda: nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
        X = np.load({str(tmp_path / "x.npy")!r})
        al = lw.Session.load({str(tmp_path / "s")!r}, X, lw.TorchLearner(module, epochs=15, restart={restart}))
        print(al.round, *al.ask(10).ids)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    expected = al.ask(10)
    assert out.stdout.split() == [str(al.round), *map(str, expected.ids)]


def test_continued_training_differs_from_restarted(tmp_path) -> None:
    fits = []
    for restart in (True, False):
        al = lw.Session(X, quick(restart=restart), "margin", classes=3)
        for _ in range(2):
            ids = al.ask(10).ids
            al.tell(ids, Y[ids])
            fit = al.fit()
        fits.append(next(iter(fit.reader.model.parameters())).detach())
    assert not torch.equal(*fits)


def test_load_refuses_another_pool_and_create_refuses_a_used_folder(tmp_path) -> None:
    al = lw.Session(X, quick(), "margin", classes=3, folder=tmp_path)
    al.tell([1, 2], [0, 1])
    with pytest.raises(errors.StoreError, match="already holds a session"):
        lw.Session(X, quick(), "margin", classes=3, folder=tmp_path)
    with pytest.raises(errors.StoreError, match="content of the pool"):
        lw.Session.load(tmp_path, X + 1, quick())
    with pytest.raises(errors.StoreError, match=r"number of rows|content of the pool"):
        lw.Session.load(tmp_path, X[:50], quick())
    with pytest.raises(errors.StoreError, match="no session"):
        lw.Session.load(tmp_path / "elsewhere", X, quick())
    assert lw.Session.load(tmp_path, X, quick()).labelled.tolist() == [1, 2]


class Mine(lw.Scored):
    cold = True

    def score(self, rows, key):
        return rows.ids.double()


def test_a_strategy_of_the_user_is_passed_again_on_load(tmp_path) -> None:
    al = lw.Session(X, recipe=Mine(), folder=tmp_path)
    assert al.ask(2).ids.tolist() == [119, 118]
    al.tell([119], [0])
    with pytest.raises(errors.StoreError, match="recipe="):
        lw.Session.load(tmp_path, X)
    assert lw.Session.load(tmp_path, X, recipe=Mine()).ask(2).ids.tolist() == [118, 117]


def test_parameters_of_a_strategy_are_stored(tmp_path) -> None:
    lw.Session(X, recipe=lw.strategies.ProbCover(delta=0.7), folder=tmp_path)
    assert lw.Session.load(tmp_path, X).recipe.strategy == lw.strategies.ProbCover(delta=0.7)
    with pytest.raises(errors.StoreError, match="recipe"):
        lw.Session.load(tmp_path, X, recipe=lw.strategies.ProbCover(delta=0.8))


def test_a_correction_counts_and_is_trained_on() -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=3)
    al.tell([0, 1, 2, 3], [0, 1, 1, 0])
    before = al.fit()
    al.tell([3], [2])
    assert al.ledger.labels.tolist() == [0, 1, 1, 2]
    assert al.fit() is not before


def test_one_class_so_far_and_classes_without_a_label() -> None:
    for learner in (LogisticRegression(), quick()):
        al = lw.Session(X, learner, "entropy", classes=3)
        al.tell([0, 1, 2], [1, 1, 1])
        assert len(al.ask(5)) == 5
        al.tell([3], [0])
        assert len(al.ask(5)) == 5


@pytest.mark.parametrize(
    ("ids", "labels", "error", "text"),
    [
        ([500], [0], errors.RowError, "500"),
        ([1, 1], [0, 0], errors.RowError, "id 1 is told twice"),
        ([1, 2], [0], errors.LabelError, "3 ids and 2 labels"),
        ([1], [3], errors.LabelError, "0..2"),
        ([1], [-1], errors.LabelError, "outside"),
        ([1], [0.5], errors.LabelError, "0.5"),
        ([1], ["cat"], errors.LabelError, "cat"),
        ([1.5], [0], errors.RowError, "whole"),
        ([1], [None], errors.LabelError, "None"),
        ([1], [float("nan")], errors.LabelError, "nan"),
    ],
)
def test_wrong_answers_are_refused_whole(tmp_path, ids, labels, error, text) -> None:
    al = lw.Session(X, quick(), "margin", classes=3, folder=tmp_path)
    al.tell([7], [1])
    with pytest.raises(error, match=text):
        al.tell([8, *ids], [1, *labels])
    assert al.labelled.tolist() == [7]
    assert lw.Session.load(tmp_path, X, quick()).labelled.tolist() == [7]


def test_budget_and_missing_learner() -> None:
    al = lw.Session(X, None, "margin", classes=3)
    for k in (0, -1, 2.5, True, 121):
        with pytest.raises(errors.BudgetError):
            al.ask(k)
    with pytest.raises(errors.BudgetError, match="only 120 are free"):
        al.ask(121)
    al.tell([0, 1], [0, 1])
    with pytest.raises(errors.NeedError, match="no learner"):
        al.ask(3)
    with pytest.raises(errors.ArgumentError, match="recipe"):
        lw.Session(X, None, "margin+badge")
    with pytest.raises(errors.ArgumentError, match="there are: random"):
        lw.Session(X, None, "bagde")


def test_every_row_labelled_leaves_nothing_to_ask() -> None:
    al = lw.Session(X[:4], LogisticRegression(), "entropy", classes=2)
    al.tell(range(4), [0, 1, 0, 1])
    with pytest.raises(errors.BudgetError, match="every row is labelled"):
        al.ask(1)


def test_signals_may_live_in_mapped_files(tmp_path) -> None:
    picks = []
    for spill in (None, tmp_path / "signals"):
        al = lw.Session(X, quick(), "badge", classes=3, spill=spill)
        al.tell(range(10), Y[:10])
        picks.append(al.ask(20).ids)
    assert (picks[0] == picks[1]).all()
    assert list((tmp_path / "signals").rglob("*.npy"))


class Big(nn.Module):
    """A network whose embeddings are long."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(1e6 * self.first(x) ** 2)


@pytest.mark.parametrize("recipe", ["badge", "kcenter", "bait", "typiclust+typiclust", "sabal-greedy"])
@pytest.mark.parametrize("spill", [False, True])
def test_half_precision_is_kept_computed_with_in_float32_and_remembered(tmp_path, monkeypatch, recipe, spill) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    seen = []

    def watched(strategy, pool, labelled, *rest):
        for shards in (pool, labelled):
            for columns, dtype in shards.map(lambda shard: (dict(shard.columns), shard.dtype)):
                seen.extend((column.dtype, dtype, column.clone()) for column in columns.values() if column.ndim > 1)
        return run.run_selection(strategy, pool, labelled, *rest)

    monkeypatch.setattr("labelwise.session.session.run_selection", watched)
    model = lw.TorchLearner(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), epochs=5)
    where = {"spill": tmp_path / "spill"} if spill else {}
    al = lw.Session(x, model, recipe, classes=2, folder=tmp_path / "s", half=True, **where)
    al.tell(np.arange(40), y[:40])
    picks = al.ask(20)
    assert seen
    assert all(stored is torch.float16 and computed is torch.float32 for stored, computed, _ in seen)
    again = lw.Session.load(tmp_path / "s", x, model)
    assert again.ask(20).ids.tolist() == picks.ids.tolist()
    seen.clear()
    full = lw.Session(x, model, recipe, classes=2)
    full.tell(np.arange(40), y[:40])
    full.ask(20)
    assert all(stored is torch.float32 for stored, _, _ in seen)


def test_numbers_that_half_precision_cannot_hold_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    al = lw.Session(x, lw.TorchLearner(Big, epochs=1), "kcenter", classes=2, half=True)
    al.tell([0, 1], [0, 1])
    with pytest.raises(
        errors.ModelError, match=r"half=True stores numbers up to 65,504, found .* in the row with id \d+"
    ):
        al.ask(5)


def test_rounds_with_half_precision() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    model = lw.TorchLearner(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), epochs=5)
    half, full = (list(lw.rounds(x, y, model, "margin", 10, 2, half=half)) for half in (True, False))
    assert len(half) == len(full) == 3
    assert half[0].picked  # by a model that is the same in both
    assert len(set(half[0].picked) & set(full[0].picked)) >= 8


def test_one_class_so_far_is_chosen_as_at_the_start() -> None:
    """All rows are tied for a model of one class; the smallest ids of a sorted pool would be a poor batch."""
    al = lw.Session(X, LogisticRegression(), "margin", classes=3, seed=1)
    al.tell([100, 110, 119], [1, 1, 1])
    picks = al.ask(6).ids
    assert picks.tolist() != sorted(picks)
    assert max(picks) > 20


@pytest.mark.parametrize("classes", [[1, 2, 3], "abc", 2.5, 0, ["a", "a"], {"a": 1}])
def test_classes_are_a_number_or_names(classes: object) -> None:
    with pytest.raises(errors.LabelError, match="class"):
        lw.Session(X, LogisticRegression(), "margin", classes=classes)


def test_classes_may_be_a_number_of_numpy_and_labels_bools() -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=np.int64(2))
    al.tell([0, 1], np.array([True, False]))
    assert al.ledger.labels.tolist() == [1, 0]


@pytest.mark.parametrize("labels", [{0: 2, 1: 2}, {2, 1}, 0, None, "ab"])
def test_labels_without_an_order_are_refused(labels: object) -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=3)
    with pytest.raises(errors.LabelError):
        al.tell([0, 1], labels)
    assert len(al.labelled) == 0


def test_a_long_ask_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    """Stopped in the middle of a selection, a new process asks the shards only for what was not answered yet."""
    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    y = (x[:, 0] > 0).astype(int) + 2 * (x[:, 1] > 0)
    count = count_runs(monkeypatch)
    recipe = lw.strategies.Sabal(solver="greedy")
    al = lw.Session(x, LogisticRegression(), recipe, classes=4, folder=tmp_path / "s", seed=1)
    first = al.ask(20)
    al.tell(first.ids, y[first.ids])
    plain = lw.Session(x, LogisticRegression(), recipe, classes=4, seed=1)
    plain.tell(plain.ask(20).ids, y[first.ids])
    expected = plain.ask(10).ids
    count[0] = 0
    al.ask(10)
    whole, count[0] = count[0], 0
    count[1] = whole - 3
    with pytest.raises(Killed):
        al.ask(10)
    assert (tmp_path / "s" / "selection" / "progress.json").exists()
    count[:] = 0, 0
    again = lw.Session.load(tmp_path / "s", x, LogisticRegression(), recipe)
    assert again.ask(10).ids.tolist() == expected.tolist()
    assert count[0] < whole / 2
    assert not (tmp_path / "s" / "selection").exists()
    # A journal of answers that have changed since is of no use, and in nobody's way.
    count[:] = 0, whole - 3
    with pytest.raises(Killed):
        again.ask(10)
    count[1] = 0
    again.tell(expected[:5], y[expected[:5]])
    assert len(again.ask(10).ids) == 10


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([100_234, 7], "label 100234 would mean 100235 classes.*tell the labels as texts"),
        ([-1, 1], r"label -1 .* outside the classes 0, 1, 2 \.\.\.; tell names of classes as texts"),
        ([0.5, 1.0], "label 0.5 .*take a regressor, or task='regress'"),
        (np.array([[1], [0]]), r"one label for each row was expected, in one list; entry 0 is \[1\]"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused_in_words(labels, text) -> None:
    al = lw.Session(np.eye(6), recipe="random")
    with pytest.raises(errors.LabelError, match=text):
        al.tell([0, 1], labels)
    assert not len(al.labelled)
