"""The state of a session is public: `restore` continues from `state`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from labelwise.errors import LabelError, RowError, StoreError
from labelwise.session import SessionState

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def _session(recipe: str = "margin", **more) -> lw.Session:
    return lw.Session(X, LogisticRegression(), recipe, classes=2, seed=3, **more)


def test_restore_continues_as_the_session_it_comes_from() -> None:
    al = _session()
    for _ in range(2):
        picks = al.ask(5)
        al.tell(picks.ids, Y[picks.ids])
    al.fit()
    state = al.state()
    other = _session()
    other.restore(state)
    assert other.fit() is al.fit()  # trained once
    assert other.round == al.round
    assert other.ask(5).ids.tolist() == al.ask(5).ids.tolist()
    al.tell(al.free[:3], [0, 0, 0])
    assert len(state.ledger.labelled) == len(other.labelled) == 10  # a snapshot


def test_restore_takes_a_part_of_a_state_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    al = _session()
    al.tell([1, 2], [0, 1])
    fit = al.fit()
    al.restore(replace(al.state(), fit=None))
    assert al.fit() is not fit
    stored = _session(folder=tmp_path / "stored")
    stored.restore(al.state())
    assert lw.Session.load(tmp_path / "stored", X, LogisticRegression()).labelled.tolist() == [1, 2]
    with pytest.raises(StoreError, match="a session without answers was expected"):
        stored.restore(al.state())
    few = lw.Session(X[:2], recipe="random", classes=2)
    with pytest.raises(RowError, match="row id 2 is not in the pool of 2 rows"):
        few.restore(al.state())
    with pytest.raises(LabelError, match=r"outside the classes 0\.\.0"):
        lw.Session(X, recipe="random", classes=1).restore(al.state())
    al.restore(SessionState(lw.Ledger()))
    assert not len(al.labelled)


def test_the_limit_on_memory_is_public_and_can_be_changed() -> None:
    al = _session(max_memory="1GB")
    assert al.max_memory == 10**9
    al.max_memory = None
    al.check_memory(5, 3)
    al.max_memory = 10
    with pytest.raises(lw.errors.MemoryLimitError):
        al.check_memory(5)
