"""Warnings of training are counted by strategy, and said wherever records or fits are shown."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.bench.report.report import gather
from labelwise.errors import TrainingWarning
from labelwise.report.page import page_html
from labelwise.stats.record import Record
from labelwise.stats.training_warnings import sentences, training_warnings, warning_of

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BAD = "the kept weights have hardly begun to learn"


def records(bad, model="m", strategies=("random", "margin")):
    for name in strategies:
        for seed in range(2):
            for number in range(3):
                notes = {"training": {"warning": BAD} if (name, seed, number) in bad else {}}
                value = 0.5 + 0.1 * number + 0.01 * seed
                run, metrics = f"d/{model}/{name}/{seed}", {"accuracy": value}
                yield Record(run, name, seed, number, 10 + 5 * number, metrics, notes=notes)


def test_rounds_and_runs_are_counted_by_strategy():
    found = training_warnings(records({("margin", 0, 1), ("margin", 0, 2), ("margin", 1, 1)}))
    assert set(found) == {"margin"}
    assert found["margin"].text == "3 of 6 rounds, in 2 of 2 runs, at 15 to 20 labels"
    assert sentences(records(set())) == []
    (said,) = sentences(records({("random", 1, 0)}))
    assert "random (1 of 6 rounds, in 1 of 2 runs, at 10 labels)" in said
    assert said.endswith(f"For example: {BAD}.")


def test_an_ensemble_has_the_warning_of_its_members():
    assert warning_of({"each": [{}, {"warning": BAD}]}) == BAD
    assert warning_of({"each": [{}]}) == warning_of({}) == ""


def test_reports_and_the_page_of_a_simulation_say_it():
    bad = list(records({("margin", 0, 1)}))
    found = gather(bad)
    assert "Training had hardly learnt in 1 round of d/m: see the sentences below their tables." in found.lines
    page = page_html(bad, title="t", command="c")
    assert "Training had hardly learnt in some rounds" in page
    assert "margin (1 of 6 rounds, in 1 of 2 runs, at 15 labels)" in page
    assert "hardly" not in page_html(list(records(set())), title="t", command="c")


def test_compared_models_say_it():
    some = [*records({("random", 0, 0)}, "a", ("random",)), *records(set(), "b", ("random",))]
    (comparison,) = gather(some).models
    said = "Training of a had hardly learnt on d (1 of 6 rounds, in 1 of 2 runs, at 10 labels)."
    assert comparison.warned == (said,)


def test_a_session_warns_once_and_the_notes_always():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = lw.Session(X, lw.TorchLearner(lambda: nn.Linear(3, 2), epochs=1, lr=1e-6), "random", classes=2)
        for rows in (range(20), range(20, 40)):
            session.tell(rows, Y[rows])
            assert "warning" in session.fit().notes
    found = [one for one in caught if one.category is TrainingWarning]
    assert len(found) == 1
    assert "the fit on 20 labels: the kept weights have hardly begun to learn" in str(found[0].message)
    assert found[0].filename == __file__


def test_the_warning_names_the_line_of_the_user():
    learner = lw.TorchLearner(lambda: nn.Linear(3, 2), epochs=1, lr=1e-6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = lw.Session(X, learner, "margin", classes=2)
        session.tell(range(20), Y[:20])
        session.ask(5)
        list(lw.rounds(X, Y.numpy(), learner, "random", k=10, n=1))
    found = [one for one in caught if one.category is TrainingWarning]
    assert [one.filename for one in found] == [__file__] * 2


def test_a_good_fit_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = lw.Session(X, lw.TorchLearner(lambda: nn.Linear(3, 2), epochs=50, lr=0.1), "random", classes=2)
        session.tell(range(40), Y[:40])
        assert "warning" not in session.fit().notes
    assert np.isfinite(session.fit().notes["loss"])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_records_of_rounds_have_the_warning(share):
    learner = lw.TorchLearner(lambda: nn.Linear(3, 2), epochs=1 if share < 1 else 60, lr=1e-6 if share < 1 else 0.1)
    found = list(lw.rounds(X, Y.numpy(), learner, "random", k=10, n=1))
    assert bool(training_warnings(found)) is (share < 1)
