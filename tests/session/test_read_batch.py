"""How many rows a session's model reads at once."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import labelwise as lw


class Counting(LogisticRegression):
    """Notes the rows of each call."""

    calls: ClassVar[list[int]] = []

    def predict_proba(self, X):
        self.calls.append(len(X))
        return super().predict_proba(X)


@pytest.fixture
def rows():
    x = np.random.default_rng(0).normal(size=(6_000, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)


def test_an_estimator_reads_thousands_of_rows_at_once(rows):
    x, y = rows
    session = lw.Session(x, Counting(), "margin", classes=2)
    session.tell(range(20), y[:20])
    Counting.calls.clear()
    session.ask(5)
    assert session.batch == 4_096
    assert Counting.calls[-2:] == [4_096, 6_000 - 20 - 4_096]  # the fit asks about the labelled rows before


def test_of_wide_rows_it_reads_fewer():
    assert lw.Session(np.zeros((10, 2_000), "float32"), LogisticRegression(), "margin", classes=2).batch == 524
    assert lw.Session(np.zeros((10, 50_000), "float32"), LogisticRegression(), "margin", classes=2).batch == 256


def test_networks_texts_and_sessions_without_a_model_read_256(rows):
    x, _ = rows
    assert lw.Session(x, nn.Linear(4, 2), "margin", classes=2).batch == 256
    assert lw.Session(x, recipe="random", classes=2).batch == 256
    assert lw.Session(["a text", "another"], LogisticRegression(), "margin", classes=2).batch == 256


def test_a_number_that_is_given_counts(rows):
    x, _ = rows
    assert lw.Session(x, LogisticRegression(), "margin", classes=2, batch=7).batch == 7


@pytest.mark.parametrize("batch", [256, None])
def test_a_stored_session_keeps_its_number(rows, tmp_path, batch):
    x, y = rows
    first = lw.Session(x, LogisticRegression(), "margin", classes=2, folder=tmp_path / "s", batch=batch)
    first.tell(range(20), y[:20])
    again = lw.Session(x, LogisticRegression(), "margin", classes=2, folder=tmp_path / "s", resume=True)
    assert again.batch == first.batch == (batch or 4_096)
    assert np.array_equal(again.ask(5).ids, first.ask(5).ids)
    loaded = lw.Session.load(tmp_path / "s", x, LogisticRegression())
    assert loaded.batch == first.batch


def test_picks_do_not_depend_on_it(rows):
    x, y = rows
    picks = []
    for batch in (None, 64, 1_000):
        session = lw.Session(x, LogisticRegression(), "badge", classes=2, batch=batch)
        session.tell(range(40), y[:40])
        picks.append(session.ask(20).ids.tolist())
    assert picks[0] == picks[1] == picks[2]


def test_weighted_learners_read_as_their_estimator_does(rows):
    x, _ = rows
    session = lw.Session(torch.from_numpy(x), LogisticRegression(), "badge | weigh sabal", classes=2)
    assert session.batch == 4_096
