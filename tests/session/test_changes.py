"""A living session: new rows, new classes and answers that are taken back, also after it was stored and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, LabelError, ModelError, RowError, StoreError
from makers_of_frames import LIBRARIES, frame_of

rng = np.random.default_rng(0)
CLASS = np.arange(60) % 3
X = (2 * np.eye(4)[CLASS] + rng.normal(size=(60, 4))).astype("float32")
NAMES = np.array(["ant", "bee", "cat"])
OLD, NEW = X[:40], X[40:]
HALVES = (slice(40), slice(40, 60))


def net() -> nn.Module:
    return nn.Linear(4, 3)


def warm() -> lw.TorchLearner:
    return lw.TorchLearner(net, epochs=3, restart=False)


@pytest.fixture(params=["in memory", "stored"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., lw.Session]:
    """A function that starts a session, and where it is stored resumes it when it is called again."""
    sessions: list[lw.Session] = []

    def make(pool: Any = OLD, learner: Any = None, recipe: str = "margin", **more: Any) -> lw.Session:
        if request.param == "stored":
            more |= {"folder": tmp_path / "s", "resume": True}
        elif sessions:
            return sessions[0]
        sessions.append(lw.Session(pool, learner or LogisticRegression(), recipe, seed=4, **more))
        return sessions[-1]

    return make


def test_rows_added_are_chosen_like_rows_that_were_there(again: Callable[..., lw.Session]) -> None:
    al = again(classes=3)
    al.tell(range(9), CLASS[:9])
    al.ask(3)
    assert al.add_rows(NEW).tolist() == list(range(40, 60))
    whole = lw.Session(X, LogisticRegression(), "margin", classes=3, seed=4)
    whole.tell(range(9), CLASS[:9])
    picks = al.ask(8)
    assert picks == whole.ask(8)
    assert again(X, classes=3).ask(8) == picks
    assert max(al.free) == 59
    al = again(X, classes=3)
    al.tell([59, 41], CLASS[[59, 41]])
    assert again(X, classes=3).predict(ids=[59]).shape == (1,)


def test_a_cell_that_adds_rows_can_be_run_twice(tmp_path: Path) -> None:
    def cell() -> lw.Session:
        return lw.Session(OLD, LogisticRegression(), "margin", classes=3, seed=4, folder=tmp_path, resume=True)

    al = cell()
    al.add_rows(NEW[:5])
    al.add_rows(NEW[5:])
    al.tell(range(35, 50), CLASS[35:50])
    picks = al.ask(5)
    al = cell()
    for refused in (lambda: al.ask(5), lambda: al.tell([0], [0]), lambda: al.predict(X), lambda: al.retract([44])):
        with pytest.raises(StoreError, match=r"20 rows were added to the session in .*; call add_rows with them again"):
            refused()
    with pytest.raises(StoreError, match="other rows than these were added"):
        al.add_rows(NEW[1:6])
    al.add_rows(NEW[:5])
    with pytest.raises(StoreError, match="15 rows were added"):
        al.ask(5)
    al.add_rows(NEW[5:])
    assert al.ask(5) == picks
    assert lw.Session.load(tmp_path, X, LogisticRegression()).ask(5) == picks
    with pytest.raises(StoreError, match="made with the number of rows 60, found 30"):
        lw.Session.load(tmp_path, X[:30], LogisticRegression())


def test_rows_of_other_kinds() -> None:
    texts = lw.Session(["red rose", "blue sky"], recipe="random", classes=2)
    assert texts.add_rows(["green leaf"]).tolist() == [2]
    assert texts.pool.inputs([2, 0]) == ["green leaf", "red rose"]
    assert texts.pool.name(2) == "green leaf"
    assert texts.pool.fingerprint() == lw.Pool.of(["red rose", "blue sky", "green leaf"]).fingerprint()
    named = lw.Session(lw.Pool.of(OLD, ids=[f"r{i}" for i in range(40)]), recipe="random", classes=2)
    assert named.add_rows(NEW[:2], ids=["a", "b"]).tolist() == ["a", "b"]
    with pytest.raises(RowError, match="pass ids=, a name for each new row"):
        named.add_rows(NEW[:2])
    with pytest.raises(RowError, match="id 'a' is in the pool already"):
        named.add_rows(NEW[:1], ids=["a"])
    labelled = lw.Session(lw.Pool.of(OLD, labels=NAMES[CLASS[:40]].tolist(), features=OLD), recipe="random")
    with pytest.raises(ArgumentError, match=r"labels: .* new rows have none; pass labels="):
        labelled.add_rows(NEW)
    with pytest.raises(ArgumentError, match=r"features: .* pass features="):
        labelled.add_rows(NEW, labels=NAMES[CLASS[40:]])
    labelled.add_rows(torch.from_numpy(NEW).double(), labels=NAMES[CLASS[40:]], features=NEW)
    assert labelled.pool.labels.tolist() == CLASS.tolist()
    assert labelled.pool.inputs([59]).dtype == torch.float32
    assert torch.equal(labelled.pool.raw([59]), torch.from_numpy(X[59:]))


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        (
            np.ones((2, 7), "float32"),
            ArgumentError,
            r"float32 of shape \(4,\)\); found array \(float32 of shape \(7,\)",
        ),
        (["text"], ArgumentError, "which has array .*; found texts"),
        (np.ones((2, 4), "complex64"), ArgumentError, "which are float32; found complex64"),
        (np.ones((0, 4), "float32"), RowError, "the pool is empty"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(rows: Any, error: type[Exception], said: str) -> None:
    al = lw.Session(OLD, recipe="random", classes=3)
    with pytest.raises(error, match=said):
        al.add_rows(rows)
    assert len(al.pool) == 40


@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_of_a_frame(library: str, tmp_path: Path) -> None:
    table = {"size": X[:, 0].tolist(), "kind": NAMES[CLASS].tolist(), "x": X[:, 1].tolist()}
    parts = [frame_of(library, {name: values[rows] for name, values in table.items()}) for rows in HALVES]

    def cell(learner: Any = None) -> lw.Session:
        given = {"classes": 3, "folder": tmp_path, "resume": True}
        return lw.Session(parts[0], learner or LogisticRegression(), "margin", **given)

    al = cell()
    al.tell(range(9), CLASS[:9])
    assert al.add_rows(parts[1], ids=range(40, 60)).tolist() == list(range(40, 60))
    before, after = lw.Pool.of(parts[0]).like(parts[1]).inputs(range(20)), al.pool.inputs(range(40, 60))
    assert torch.equal(before, after)  # encoded as the first rows
    picks = al.ask(5)
    al = cell()
    al.add_rows(parts[1], ids=range(40, 60))
    assert (al.ask(5).ids == picks.ids).all()
    whole = lw.Pool.of(parts[0]).extended(parts[1], ids=range(40, 60))
    assert (lw.Session.load(tmp_path, whole, LogisticRegression()).ask(5).ids == picks.ids).all()
    with pytest.raises(StoreError, match="the content of the pool"):  # its encoder would be another
        lw.Session.load(tmp_path, frame_of(library, table), LogisticRegression())
    with pytest.raises(ArgumentError, match="lacks 'kind'"):
        al.add_rows(frame_of(library, {"size": [1.0], "x": [1.0]}), ids=[77])


def test_a_class_that_is_declared_later(again: Callable[..., lw.Session]) -> None:
    al = again(classes=["ant", "bee"])
    al.tell([0, 1], ["ant", "bee"])
    with pytest.raises(LabelError, match=r"'cat' .* is none of the classes ant, bee; .*add_classes"):
        al.tell([2], ["cat"])
    al.add_classes(["cat"])
    al.add_classes(["cat", "ant"])  # a cell that runs twice
    assert al.predict_proba(OLD).shape == (40, 3)
    al.tell([2], ["cat"])
    picks = al.ask(4)
    for classes in (["ant", "bee"], ["ant", "bee", "cat"]):
        al = again(classes=classes)
        assert al.classes == ("ant", "bee", "cat")
        assert al.ask(4) == picks
    assert set(al.predict(OLD)) == {"ant", "bee", "cat"}


def test_the_number_of_classes_grows(again: Callable[..., lw.Session]) -> None:
    al = again(classes=2)
    al.tell([0, 1], [0, 1])
    al.add_classes(total=3)
    al.tell([2], [2])
    assert again(classes=2).predict_proba(OLD).shape == (40, 3)
    with pytest.raises(LabelError, match="3 classes already, total=2 is fewer"):
        al.add_classes(total=2)
    with pytest.raises(ArgumentError, match="pass total="):
        al.add_classes(["cat"])


def test_names_are_found_in_the_answers(again: Callable[..., lw.Session]) -> None:
    al = again()
    picks = al.ask(2)
    al.tell([1, 0], ["bee", "ant"])
    assert al.classes == ("ant", "bee")
    al.tell([2], ["cat"])
    assert again().classes == ("ant", "bee", "cat")
    declared = lw.Session(OLD, LogisticRegression(), "margin", classes=NAMES, seed=4)
    assert declared.ask(2) == picks
    declared.tell([1, 0], ["bee", "ant"])
    declared.tell([2], ["cat"])
    assert again().ask(3) == declared.ask(3)
    assert again().predict(OLD).tolist() == declared.predict(OLD).tolist()


def test_an_answer_that_is_refused_declares_no_class() -> None:
    al = lw.Session(OLD, LogisticRegression(), "margin")
    for ids, labels in (([0, 99], ["ant", "bee"]), ([0, 0], ["ant", "bee"]), ([0], ["ant", "bee"]), ([0], "ant")):
        with pytest.raises((LabelError, RowError)):
            al.tell(ids, labels)
    assert al.classes is None
    al.tell([0], [1])
    with pytest.raises(LabelError, match="'ant' is a name, but the answers so far are class numbers"):
        al.tell([1], ["ant"])
    numbers = lw.Session(OLD, Ridge(), "kcenter")
    with pytest.raises(LabelError, match="not a finite number"):
        numbers.tell([0], ["ant"])
    with pytest.raises(ArgumentError, match="labels are numbers in this session"):
        numbers.add_classes(["ant"])


@pytest.mark.parametrize("recipe", ["margin", "albl", "typiclust"])
def test_an_answer_taken_back_is_as_if_it_was_never_given(again: Callable[..., lw.Session], recipe: str) -> None:
    al = again(recipe=recipe, classes=3)
    for k in (6, 4):
        picks = al.ask(k)
        al.tell(picks.ids, CLASS[picks.ids])
    al.retract(picks.ids[:2])
    al = again(recipe=recipe, classes=3)
    assert len(al.labelled) == 8
    assert set(picks.ids[:2]) <= set(al.free)
    other = lw.Session(OLD, LogisticRegression(), recipe, classes=3, seed=4)
    rows = al.labelled
    other.tell(rows, CLASS[rows])
    np.testing.assert_array_equal(al.predict_proba(OLD), other.predict_proba(OLD))
    if recipe != "albl":  # which learns from earlier batches
        assert al.ask(5) == other.ask(5)
    expected = al.ask(5)
    assert again(recipe=recipe, classes=3).ask(5) == expected
    al.tell(picks.ids[:2], CLASS[picks.ids[:2]])  # given again
    table = al.history_table()
    assert table["labels"][-1] == 10
    assert [len(ids) for ids in table["ids"]] == [len(answers) for answers in table["answers"]]
    with pytest.raises(RowError, match=r"row \d+ has no answer to take back; nothing was changed"):
        al.retract([int(picks.ids[0]), int(al.free[0])])
    assert len(al.labelled) == 10


def test_a_warm_start_does_not_continue_from_what_was_wrong(tmp_path: Path) -> None:
    def session() -> lw.Session:
        return lw.Session(OLD, warm(), "margin", classes=3, seed=4, folder=tmp_path, resume=True)

    al = session()
    al.tell(range(10), CLASS[:10])
    al.fit()
    assert (tmp_path / "model.bin").exists()
    al.tell([11], [0])
    al.retract([11])
    assert not (tmp_path / "model.bin").exists()
    resumed = session().predict_proba(OLD)
    np.testing.assert_array_equal(al.predict_proba(OLD), resumed)
    assert al.fit().notes["restarted"] == "answers that were taken back: training started from new weights"
    al.tell([12], [CLASS[12]])
    assert "restarted" not in al.fit().notes


def test_a_network_without_an_output_for_a_new_class_says_so() -> None:
    al = lw.Session(OLD, lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=2), "margin", classes=2, seed=4)
    al.tell(range(2), CLASS[:2])
    al.fit()
    al.add_classes(total=3)
    al.tell([2], [2])
    with pytest.raises(ModelError, match="each of 3 classes was expected, the model has 2"):
        al.ask(3)


def test_the_estimate_of_a_batch_goes_with_its_answers() -> None:
    al = lw.Session(X, RandomForestClassifier(5), "random", classes=3, seed=4)
    al.tell(range(10), CLASS[:10])
    al.fit()
    picks = al.ask(12)
    al.tell(picks.ids, CLASS[picks.ids])
    assert al.batch_estimate is not None
    al.retract(picks.ids[:1])
    assert al.batch_estimate is None
    assert al.history_table()["estimate"] == [None, None]


def test_rounds_find_names_in_the_answers() -> None:
    def oracle(ids: np.ndarray) -> list[str]:
        return NAMES[CLASS[ids]].tolist()

    found = list(lw.rounds(X, oracle, LogisticRegression(), "margin", k=4, n=2))
    known = list(lw.rounds(X, NAMES[CLASS], LogisticRegression(), "margin", k=4, n=2))
    assert [one.picked for one in found] == [one.picked for one in known]
    assert found[-1].metrics == known[-1].metrics


def test_files_of_sessions_without_changes_are_as_before(tmp_path: Path) -> None:
    al = lw.Session(OLD, LogisticRegression(), "margin", classes=3, folder=tmp_path)
    al.tell([0], [1])
    assert "changes" not in json.loads((tmp_path / "session.json").read_text())
    al.retract([0])
    assert json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[-1])["labels"] == [None]
