"""Sessions and rounds on frames: pipelines by column name, models on features, keys and labels of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import labelwise as lw
from labelwise import errors
from makers_of_frames import LIBRARIES, frame_of

N = 80
DRAW = np.random.default_rng(3)
AGE = DRAW.integers(18, 70, N).astype(float)
JOB = DRAW.choice(["cook", "pilot", "nurse"], N)
LABEL = np.where((AGE > 40) ^ (JOB == "cook"), "yes", "no").tolist()
COLUMNS = {"key": [f"p{row}" for row in range(N)], "age": AGE.tolist(), "job": JOB.tolist(), "answer": LABEL}
BY_KEY = dict(zip(COLUMNS["key"], LABEL))


def pipeline() -> Any:
    columns = [("job", OneHotEncoder(handle_unknown="ignore"), ["job"]), ("age", StandardScaler(), ["age"])]
    return make_pipeline(ColumnTransformer(columns), LogisticRegression())


def pool_of(library: str) -> lw.Pool:
    return lw.Pool.frame(frame_of(library, COLUMNS), label="answer", id="key")


def run(library: str, learner: Any, recipe: str) -> tuple[lw.Session, list[list[str]]]:
    al = lw.Session(pool_of(library), learner, recipe, seed=1)
    picks = []
    for _ in range(3):
        found = al.ask(6)
        picks.append(found.ids.tolist())
        al.tell(found.ids, [BY_KEY[key] for key in found.ids])
    return al, picks


def net() -> torch.nn.Module:
    return torch.nn.Linear(12, 2)


@pytest.mark.parametrize(
    ("learner", "recipe"),
    [
        (pipeline(), "margin"),
        (pipeline(), "badge"),  # reads the output of the first step as embedding
        (CalibratedClassifierCV(pipeline(), cv=2), "margin"),
        (LogisticRegression(), "typiclust+badge"),
        pytest.param(lw.TorchLearner(net, epochs=10), "typiclust+margin", marks=pytest.mark.slow),
    ],
    ids=["pipeline", "pipeline's embedding", "pipeline inside", "estimator", "torch"],
)
def test_all_libraries_give_the_same_picks_and_predictions(learner: Any, recipe: str) -> None:
    found = [run(library, learner, recipe) for library in LIBRARIES]
    assert found[0][1] == found[1][1] == found[2][1]
    new = {"job": ["cook", "king"], "age": [30.0, 60.0]}
    for (al, _), library in zip(found, LIBRARIES):
        frame = frame_of(library, new)
        assert al.predict(frame).tolist() == found[0][0].predict(frame_of("pandas", new)).tolist()
        assert set(al.predict(frame).tolist()) <= {"yes", "no"}  # the user's labels
        assert al.fit().predict(frame).tolist() == [("no", "yes").index(label) for label in al.predict(frame)]
        assert al.predict_proba(frame).shape == (2, 2)


class Spy(LogisticRegression):
    """Remembers what it was fitted on."""

    seen: list[str] = []  # noqa: RUF012

    def fit(self, X: Any, y: Any) -> Any:
        Spy.seen.append(type(X).__module__.partition(".")[0])
        return super().fit(X if isinstance(X, np.ndarray) else np.zeros((len(y), 2)) + y[:, None], y)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X if isinstance(X, np.ndarray) else np.zeros((X.shape[0], 2)))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Spy, "numpy"),
        (lambda: make_pipeline("passthrough", Spy()), "polars"),
        (lambda: lw.SklearnLearner(Spy(), takes_frame=True), "polars"),
        (lambda: lw.SklearnLearner(make_pipeline("passthrough", Spy()), takes_frame=False), "numpy"),
    ],
    ids=["an estimator gets features", "a pipeline gets the frame", "takes_frame=True", "takes_frame=False"],
)
def test_who_gets_the_frame(make: Any, expected: str) -> None:
    Spy.seen.clear()
    run("polars", make(), "random")[0].fit()
    assert set(Spy.seen) == {expected}


def test_a_pipeline_that_cannot_take_the_columns_says_what_to_do() -> None:
    with pytest.raises(
        errors.ModelError, match=r"Pipeline could not be fitted on .* of the frame .* begin with a ColumnTransformer"
    ):
        run("pandas", make_pipeline(StandardScaler(), LogisticRegression()), "margin")


def test_regression_on_a_frame() -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB})
    job = ColumnTransformer([("job", OneHotEncoder(), ["job"])], remainder="passthrough")
    al = lw.Session(frame, make_pipeline(job, LinearRegression()), "random", seed=0)
    picks = al.ask(30)
    al.tell(picks.ids, pd.Series(AGE * 2, index=frame.index)[picks.ids])
    assert al.score(frame, pd.Series(AGE * 2)) == pytest.approx(1)


@pytest.mark.slow
def test_cross_validation_on_a_frame() -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB})
    job = ColumnTransformer([("job", OneHotEncoder(), ["job"])], remainder="passthrough")
    learner = lw.SklearnLearner(
        make_pipeline(job, LogisticRegression(max_iter=2000)), cross_validate="logisticregression__C"
    )
    records = list(lw.rounds(frame, LABEL, learner, "random", k=20, n=1))
    assert "logisticregression__C" in records[1].notes["training"]["cross_validation"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_picks_come_back_as_a_frame(library: str) -> None:
    frame = frame_of(library, COLUMNS)
    picks = lw.Session(lw.Pool.frame(frame, label="answer", id="key"), RandomForestClassifier(), "random").ask(4)
    back = picks.to_frame()
    assert type(back) is type(frame)
    if library == "pandas":
        assert back.index.tolist() == picks.ids.tolist()
        joined = frame.set_index("key").loc[picks.ids].join(back)
        assert joined["job"].tolist() == [JOB[int(key[1:])] for key in picks.ids]
        assert list(back.columns) == ["weight", "score", "reason"]
    else:
        columns = back.to_dict(as_series=False) if library == "polars" else back.to_pydict()
        assert list(columns) == ["id", "weight", "score", "reason"]
        assert columns["id"] == picks.ids.tolist()
        assert columns["reason"] == ["Drawn at random."] * 4


def test_levels_of_an_index_come_back_as_levels() -> None:
    frame = pd.DataFrame({"age": AGE}, index=pd.MultiIndex.from_product([["a", "b"], range(N // 2)]))
    picks = lw.Session(frame, recipe="random", classes=2).ask(3)
    assert frame.loc[picks.to_frame().index].join(picks.to_frame())["weight"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda labels: pd.Series(labels),
        lambda labels: pd.Series(labels, dtype="category"),
        lambda labels: pl.Series(labels),
        lambda labels: pl.Series(labels, dtype=pl.Categorical),
        pa.array,
        lambda labels: pa.chunked_array([labels]),
        lambda labels: pa.array(labels).dictionary_encode(),
    ],
)
def test_labels_of_any_library(make: Any) -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB})
    al = lw.Session(frame, pipeline(), "random", classes=["no", "yes"])
    al.tell(range(10), make(LABEL[:10]))
    assert al.ledger.labels.tolist() == [("no", "yes").index(label) for label in LABEL[:10]]
    expected = list(lw.rounds(frame, LABEL, pipeline(), "margin", k=8, n=1))
    records = list(lw.rounds(frame, make(LABEL), pipeline(), "margin", k=8, n=1))
    assert [one.picked for one in records] == [one.picked for one in expected]


@pytest.mark.parametrize("make", [pd.Series, pl.Series, pa.array, np.array])
def test_labels_that_are_booleans_are_classes_0_and_1(make: Any) -> None:
    al = lw.Session(pd.DataFrame({"age": AGE, "job": JOB}), pipeline(), "random", classes=2)
    al.tell(range(10), make([label == "yes" for label in LABEL[:10]]))
    assert al.ledger.labels.tolist() == [int(label == "yes") for label in LABEL[:10]]


def test_labels_of_other_rows_are_refused_and_an_index_that_names_no_row_is_not_read() -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB}, index=COLUMNS["key"])
    answers = pd.Series(LABEL, index=COLUMNS["key"])
    al = lw.Session(frame, pipeline(), "random", classes=["no", "yes"])
    picks = al.ask(10)
    others = [key for key in COLUMNS["key"] if key not in set(picks.ids)]
    with pytest.raises(errors.LabelError, match="names other rows of the pool than the ids"):
        al.tell(picks.ids, answers[others[:10]])
    al.tell(picks.ids, answers[picks.ids].rename(index="answer of {}".format))
    assert len(al.labelled) == 10


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_rounds_refuse_a_missing_label_by_its_row(missing: Any) -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB}, index=COLUMNS["key"])
    answers = pd.Series([missing, *LABEL[1:]], index=COLUMNS["key"], dtype=object)
    key = COLUMNS["key"][0]
    with pytest.raises(errors.LabelError, match=f"row id '{key}' has the label .*; a class name was expected"):
        lw.rounds(frame, answers, pipeline(), "random", k=5, n=1)
    with pytest.raises(errors.LabelError, match=f"row id '{key}': a class name was expected"):
        lw.Pool.frame(frame.assign(answer=answers), label="answer")


def test_labels_in_another_order_are_refused_everywhere() -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB}, index=COLUMNS["key"])
    answers = pd.Series(LABEL, index=COLUMNS["key"])
    al = lw.Session(frame, pipeline(), "random", classes=["no", "yes"])
    picks = al.ask(10)
    al.tell(picks.ids, answers[picks.ids])
    for refused in (
        lambda: al.tell(picks.ids, answers[picks.ids[::-1]]),
        lambda: al.score(frame, answers[::-1]),
        lambda: al.score(ids=picks.ids, labels=answers[picks.ids[::-1]]),
        lambda: lw.rounds(frame, answers[::-1], pipeline(), "random", k=5, n=1),
        lambda: lw.rounds(frame, answers, pipeline(), "random", k=5, n=1, test=(frame, answers[::-1])),
    ):
        with pytest.raises(errors.LabelError, match="in another order than the rows"):
            refused()


def test_rounds_learn_the_encoding_from_the_rows_to_choose_from() -> None:
    frame = pd.DataFrame({"age": AGE, "job": JOB})
    widest = pd.concat([frame, pd.DataFrame({"age": [1e9], "job": ["king"]})], ignore_index=True)
    test = (widest.iloc[N:], ["no"])
    one = list(lw.rounds(frame, LABEL, LogisticRegression(), "typiclust+margin", k=5, n=1, test=test))
    other = list(lw.rounds(frame, LABEL, LogisticRegression(), "typiclust+margin", k=5, n=1, test=None))
    assert [record.picked for record in one] == [record.picked for record in other]
    assert set(one[0].metrics) == {"accuracy", "nll"}


def test_a_saved_session_continues_with_the_frame_of_another_library(tmp_path: Path) -> None:
    al = lw.Session(pool_of("pandas"), pipeline(), "margin", folder=tmp_path)
    picks = al.ask(6)
    al.tell(picks.ids, [BY_KEY[key] for key in picks.ids])
    again = lw.Session.load(tmp_path, pool_of("polars"), pipeline())
    assert again.ask(5) == al.ask(5)
    assert again.labelled.tolist() == picks.ids.tolist()


def test_a_column_of_free_texts_counts_as_words() -> None:
    words = [
        f"report {row}: the {'engine was broken' if label == 'yes' else 'garden is green'}"
        for row, label in enumerate(LABEL)
    ]
    frame = pl.DataFrame({"text": words, "age": AGE})
    al = lw.Session(lw.Pool.frame(frame), LogisticRegression(), "typiclust+margin", classes=["no", "yes"])
    picks = al.ask(20)
    al.tell(picks.ids, [LABEL[row] for row in picks.ids])
    assert al.score(frame, LABEL) == 1


def test_errors_name_rows_by_their_keys() -> None:
    frame = pd.DataFrame({"a": [0.0, np.nan, 1.0]}, index=["x", "y", "z"])
    with pytest.raises(errors.NumericsError, match="row id 'y' holds nan"):
        lw.select("typiclust", 2, embedding=frame)


def test_labels_that_are_a_column_of_the_rows_are_refused() -> None:
    """Models would read the answer in the row."""
    frame = pd.DataFrame(COLUMNS).set_index("key")
    text = r"the labels are the column 'answer'.*Pool.frame\(frame, label='answer'\)"
    with pytest.raises(errors.LabelError, match=text):
        list(lw.rounds(frame, frame["answer"], LogisticRegression(), "margin", k=10, n=1))
    al = lw.Session(frame, LogisticRegression(), "random")
    picks = al.ask(10)
    with pytest.raises(errors.LabelError, match=text):
        al.tell(picks.ids, frame["answer"].loc[picks.ids])
    assert not len(al.labelled)
    al.tell(picks.ids, frame["answer"].rename("mine").loc[picks.ids])
    without = lw.Session(lw.Pool.frame(frame, label="answer"), LogisticRegression(), "random")
    without.tell(picks.ids, frame["answer"].loc[picks.ids])


def test_rows_that_are_no_frame_are_refused_in_a_pool_of_one() -> None:
    al = lw.Session(pool_of("pandas"), LogisticRegression(), "random")
    with pytest.raises(errors.ArgumentError, match="a frame with columns age, job; found ndarray"):
        al.predict(np.zeros((2, 2)))
