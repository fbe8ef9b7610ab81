"""The batch a session asked for outlives its process: weights, notes and estimate are those of one that stayed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.checked import write_checked

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)).astype("f4")
Y = (X[:, 0] + 0.5 * RNG.normal(size=300) > 0).astype(int)


def entries(session: lw.Session) -> list[tuple]:
    return [(e.round, e.ids, e.labels, e.weights, e.strategy, e.notes) for e in session.ledger]


def begun(folder: Path, learner: object, recipe: object, k: int = 30) -> tuple[lw.Session, object]:
    """A session that was told a first batch and has asked for a second, and that batch."""
    al = lw.Session(X, learner, recipe, classes=2, seed=3, folder=folder)
    first = al.ask(40)
    al.tell(first.ids, Y[first.ids])
    return al, al.ask(k)


@pytest.mark.parametrize("told", [0, 12])
@pytest.mark.parametrize("recipe", ["bss", "leverage", "random", "albl", "volume"])
def test_answers_after_loading_are_those_of_a_session_that_stayed(tmp_path: Path, recipe: str, told: int):
    learner = LogisticRegression()
    al, picks = begun(tmp_path / "one", learner, recipe)
    if told:
        al.tell(picks.ids[:told], Y[picks.ids[:told]])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    again = lw.Session.load(tmp_path / "two", X, learner)
    assert again.round == al.round == 1
    for session in (al, again):
        extra = [row for row in range(300) if row not in session.labelled and row not in picks.ids][:1]
        rows = [*picks.ids[told:].tolist(), *extra]  # and a row that was not asked for
        session.tell(rows, Y[rows])
    assert entries(again) == entries(al)
    if recipe in ("bss", "leverage", "volume"):
        assert len(set(al.ledger.entries[-1].weights)) > 2
    if recipe == "albl":
        assert al.ledger.entries[-1].notes["arm"] in ("confidence", "kcenter")
        assert al.ledger.entries[-1].notes["unasked"] == rows[-1:]
    assert again.batch_estimate == al.batch_estimate
    assert (al.batch_estimate is not None) == (recipe in ("bss", "leverage", "volume"))  # "random" asks no model
    assert again.ask(10) == al.ask(10)
    assert dict(again.ask(10).notes) == dict(al.ask(10).notes)


@pytest.mark.parametrize("restart", [True, False])
def test_a_torch_model_is_estimated_after_loading(tmp_path: Path, restart: bool):
    def learner() -> lw.TorchLearner:
        return lw.TorchLearner(lambda: nn.Linear(3, 2), restart=restart, epochs=3)

    al, picks = begun(tmp_path / "one", learner(), "random")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    again = lw.Session.load(tmp_path / "two", X, learner())
    for session in (al, again):
        session.tell(picks.ids, Y[picks.ids])
    # "random" asks no model: there is none to estimate, unless it was trained before
    assert again.batch_estimate is al.batch_estimate is None
    al.fit()
    picks = al.ask(20)
    shutil.rmtree(tmp_path / "two")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    again = lw.Session.load(tmp_path / "two", X, learner())
    for session in (al, again):
        session.tell(picks.ids[:8], Y[picks.ids[:8]])
        session.tell(picks.ids[8:], Y[picks.ids[8:]])
    assert al.batch_estimate is not None
    assert again.batch_estimate == al.batch_estimate


def test_a_folder_of_an_earlier_version_has_no_batch_and_loads(tmp_path: Path):
    _, picks = begun(tmp_path, LogisticRegression(), "bss")
    (tmp_path / "asked.json").unlink()
    again = lw.Session.load(tmp_path, X, LogisticRegression())
    assert again.ask(30) == picks  # asked again, it has the weights
    (tmp_path / "asked.json").unlink()
    again = lw.Session.load(tmp_path, X, LogisticRegression())
    again.tell(picks.ids, Y[picks.ids])
    assert again.ledger.entries[-1].weights == [1.0] * 30
    assert again.batch_estimate is None


def test_a_batch_asked_for_after_answers_that_are_lost_is_left_out(tmp_path: Path):
    _, picks = begun(tmp_path, LogisticRegression(), "leverage")
    (tmp_path / "answers.jsonl").write_bytes(b"")
    (tmp_path / "answers.jsonl.head").unlink()
    with pytest.warns(UserWarning, match=r"asked\.json is left out: its batch was asked for after other answers"):
        again = lw.Session.load(tmp_path, X, LogisticRegression())
    assert again.round == 0
    again.tell(picks.ids, Y[picks.ids])
    assert again.ledger.entries[-1].weights == [1.0] * 30


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda found: found.update(version=9), "version 9"),
        (lambda found: found.pop("weights"), "'weights' is missing"),
        (None, "cannot be read"),
    ],
)
def test_a_damaged_batch_is_refused_with_what_to_do(tmp_path: Path, change: object, text: str):
    begun(tmp_path, LogisticRegression(), "leverage")
    path = tmp_path / "asked.json"
    found = json.loads(path.read_text())
    if callable(change):
        change(found)
        write_checked(path, found)
    else:
        path.write_text('{"ids": [1')
    with pytest.raises(StoreError, match=text):
        lw.Session.load(tmp_path, X, LogisticRegression())
    with pytest.raises(StoreError, match="emove it"):
        lw.Session.load(tmp_path, X, LogisticRegression())


def test_notes_of_any_kind_can_be_kept(tmp_path: Path):
    class Odd(lw.strategies.Random):
        def select(self, pool, labelled, k, key):
            picks = lw.strategies.Random().select(pool, labelled, k, key)
            notes = {"array": np.arange(3), "number": np.float32(2), "inf": np.inf, "what": object, "both": (1, [2.5])}
            return lw.Selection(picks.ids, picks.weights, picks.scores, notes)

    al = lw.Session(X, None, Odd(), classes=2, folder=tmp_path)
    al.ask(4)
    notes = json.loads((tmp_path / "asked.json").read_text())["notes"]
    assert (notes["array"], notes["number"], notes["inf"], notes["both"]) == ([0, 1, 2], 2.0, "inf", [1, [2.5]])


# --- weights on or off -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [True, False, None])
def test_one_argument_says_whether_training_uses_the_weights(tmp_path: Path, weights: bool | None):
    found = []
    for learner, how in (
        (lw.SklearnLearner(LogisticRegression(), use_weights=bool(weights)), None),
        (LogisticRegression(), weights),
    ):
        folder = tmp_path / str(how is learner)
        shutil.rmtree(folder, ignore_errors=True)
        al = lw.Session(X, learner, "leverage", classes=2, weights=how, folder=folder)
        for k in (40, 60):
            picks = al.ask(k)
            al.tell(picks.ids, Y[picks.ids])
        found.append(al.fit().reader.classifier.coef_)
    assert np.array_equal(*found)
    again = lw.Session.load(folder, X, LogisticRegression())
    assert again.weights is weights
    assert np.array_equal(again.fit().reader.classifier.coef_, found[0])
    other = lw.Session(X, LogisticRegression(), "leverage", classes=2, weights=not weights)
    other.ledger = al.ledger
    assert not np.array_equal(other.fit().reader.classifier.coef_, found[0])


def test_the_argument_is_the_objective_of_a_torch_model():
    for weights, kind in ((True, lw.Weighted), (False, lw.Mean)):
        al = lw.Session(X, nn.Linear(3, 2), "leverage", classes=2, weights=weights)
        assert type(al.learner.options.objective) is kind
    with pytest.raises(ArgumentError, match="PrimalDual"):
        lw.Session(X, nn.Linear(3, 2), "ally", classes=2, weights=True)

    class Own:
        def fit(self, *given, **named): ...

        def restore(self, state, ids): ...

    with pytest.raises(ArgumentError, match="weights=True: Own has no way to use or ignore the weights"):
        lw.Session(X, Own(), "random", classes=2, weights=True)
    learner = lw.TorchLearner(lambda: nn.Linear(3, 2), epochs=2)
    curves = {
        weights: [r.metrics["accuracy"] for r in lw.rounds(X, Y, learner, "leverage", k=40, n=1, weights=weights)]
        for weights in (True, False)
    }
    assert len(curves[True]) == len(curves[False]) == 2
