"""The store: what a session folder that is damaged, lost in part or not to be written to says."""

import json
from pathlib import Path

import numpy as np
import pytest

import labelwise as lw
from labelwise.errors import StoreError
from labelwise.io.checked import write_checked

X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)


def start(folder):
    return lw.Session(X, recipe="random", classes=2, folder=folder)


def edit(folder, change):
    path = folder / "session.json"
    stored = json.loads(path.read_text())
    change(stored)
    write_checked(path, stored)


def test_a_new_session_has_an_empty_ledger_and_loads(tmp_path):
    start(tmp_path / "deep" / "run")
    assert (tmp_path / "deep" / "run" / "answers.jsonl").read_bytes() == b""
    assert lw.Session.load(tmp_path / "deep" / "run", X).labelled.tolist() == []


def test_a_missing_ledger_is_not_an_empty_one(tmp_path):
    start(tmp_path).tell([1], [0])
    (tmp_path / "answers.jsonl").unlink()
    with pytest.raises(StoreError, match=r"answers\.jsonl is missing; restore it"):
        lw.Session.load(tmp_path, X)
    assert not (tmp_path / "answers.jsonl").exists()


def test_a_last_line_that_was_cut_off_is_told_of(tmp_path):
    session = start(tmp_path)
    session.tell([1], [0])
    session.tell([2], [1])
    path = tmp_path / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StoreError, match=r"answers\.jsonl was cut off: it has 1 entries, 2 were written; .*doctor"):
        lw.Session.load(tmp_path, X)


def test_making_that_was_broken_off_can_be_repeated(tmp_path):
    (tmp_path / "answers.jsonl").touch()
    start(tmp_path).tell([1], [0])
    (tmp_path / "session.json").unlink()
    with pytest.raises(StoreError, match="already holds a session"):
        start(tmp_path)


@pytest.mark.parametrize("name", ["recipe", "seed", "classes", "batch", "rows", "pool"])
def test_a_missing_field_is_named(tmp_path, name):
    start(tmp_path)
    edit(tmp_path, lambda stored: stored.pop(name))
    with pytest.raises(StoreError, match=rf"session\.json: the field '{name}.*' is missing"):
        lw.Session.load(tmp_path, X)


@pytest.mark.parametrize("name", ["name", "strategy", "start"])
def test_a_missing_field_of_the_recipe_is_named(tmp_path, name):
    start(tmp_path)
    edit(tmp_path, lambda stored: stored["recipe"].pop(name))
    with pytest.raises(StoreError, match=rf"the field 'recipe\.{name}' is missing"):
        lw.Session.load(tmp_path, X)


def test_a_folder_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    for folder in (path, path / "below"):
        with pytest.raises(StoreError, match=f"{folder}: a session cannot be stored there"):
            start(folder)
        with pytest.raises(StoreError, match="holds no session"):
            lw.Session.load(folder, X)
    assert path.read_text() == "mine"


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(self, *args, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=f"{tmp_path / 'run'}: .*Permission denied"):
        start(tmp_path / "run")


def test_another_recipe_is_not_blamed_on_the_pool(tmp_path):
    start(tmp_path)
    with pytest.raises(StoreError, match="made with recipe") as caught:
        lw.Session.load(tmp_path, X, recipe=lw.strategies.ProbCover(delta=0.8))
    assert "pass the same pool" not in str(caught.value)
    with pytest.raises(StoreError, match="pass the same pool"):
        lw.Session.load(tmp_path, X + 1)
