"""`resume=True`: a session is started where there is none, and continued where it is, by the same lines."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, StoreError

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def cell(
    folder: Path, pool: object = X, learner: object = None, recipe: object = "margin", **more: object
) -> lw.Session:
    """A cell of a notebook."""
    given = {"classes": 2, "seed": 3, **more}
    return lw.Session(pool, learner or LogisticRegression(), recipe, folder=folder, resume=True, **given)


def test_a_cell_can_be_run_twice(tmp_path: Path) -> None:
    al = cell(tmp_path / "s")
    plain = lw.Session(X, LogisticRegression(), "margin", classes=2, seed=3)
    for _ in range(2):
        al = cell(tmp_path / "s")
        picks = al.ask(5)
        assert picks == plain.ask(5)
        al = cell(tmp_path / "s")  # between asking and telling
        for one in (al, plain):
            one.tell(picks.ids, Y[picks.ids])
    again = cell(tmp_path / "s")
    assert again.labelled.tolist() == al.labelled.tolist()
    assert again.ask(5) == plain.ask(5) == lw.Session.load(tmp_path / "s", X, LogisticRegression()).ask(5)


def test_the_fit_of_a_warm_start_is_continued(tmp_path: Path) -> None:
    learner = lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=5, restart=False)
    al = cell(tmp_path, learner=learner)
    al.tell(np.arange(20), Y[:20])
    expected = al.predict_proba(X)
    again = cell(tmp_path, learner=learner)
    assert isinstance(again.model, nn.Linear)
    assert (again.predict_proba(X) == expected).all()


class Mine(lw.Scored):
    cold = True

    def score(self, rows, key):
        return rows.ids.double()


def test_a_strategy_of_ones_own(tmp_path: Path) -> None:
    cell(tmp_path, recipe=Mine()).tell([59], [0])
    assert cell(tmp_path, recipe=Mine()).ask(2).ids.tolist() == [58, 57]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"recipe": "entropy"}, "with recipe 'margin', found 'entropy'; pass the same recipe"),
        ({"recipe": "typiclust+margin"}, "with recipe 'margin', found 'typiclust.margin'"),
        ({"seed": 4}, "with seed 3, found 4; continue with the same seed"),
        ({"classes": 3}, "with classes 2, found 3"),
        ({"batch": 16}, "with batch 4096, found 16"),
        ({"half": True}, "with half False, found True"),
        ({"weights": False}, "with weights None, found False"),
        ({"pool": X + 1}, "with the content of the pool .*; pass the same pool"),
        ({"pool": X[:50]}, "with the number of rows 60, found 50"),
        ({"learner": Ridge(), "recipe": "random"}, "with task 'classify', found 'regress'"),
    ],
)
def test_another_session_is_refused_and_nothing_is_changed(tmp_path: Path, other: dict, text: str) -> None:
    cell(tmp_path).tell([1], [0])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreError, match=text):
        cell(tmp_path, **other)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parameters_of_the_strategy_and_the_task_are_compared(tmp_path: Path) -> None:
    cell(tmp_path / "a", recipe=lw.strategies.ProbCover(delta=0.7))
    with pytest.raises(StoreError, match=r"0\.7.* found .*0\.8"):
        cell(tmp_path / "a", recipe=lw.strategies.ProbCover(delta=0.8))
    cell(tmp_path / "b", recipe="random")
    with pytest.raises(StoreError, match="with task 'classify', found 'regress'"):
        cell(tmp_path / "b", recipe="random", learner=Ridge())
    cell(tmp_path / "c", recipe="random", learner=Ridge())
    with pytest.raises(StoreError, match="with task 'regress', found 'classify'"):
        cell(tmp_path / "c", recipe="random")


def test_without_resume_a_used_folder_is_refused_and_resume_needs_a_folder(tmp_path: Path) -> None:
    cell(tmp_path)
    with pytest.raises(StoreError, match=r"already holds a session; continue with Session\(..., resume=True\)"):
        lw.Session(X, LogisticRegression(), "margin", classes=2, seed=3, folder=tmp_path)
    with pytest.raises(ArgumentError, match="pass folder= too"):
        lw.Session(X, LogisticRegression(), "margin", resume=True)


def test_what_is_left_of_an_interrupted_start_is_started_and_of_a_lost_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").touch()
    cell(tmp_path).tell([1], [0])
    (tmp_path / "session.json").unlink()
    with pytest.raises(StoreError, match=r"there is no session\.json"):
        cell(tmp_path)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="a session cannot be stored there"):
        cell(tmp_path / "file")
