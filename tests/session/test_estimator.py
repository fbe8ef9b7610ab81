"""A session as an estimator: predictions of new rows and of rows of the pool, scores, the model, and its overview."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, LabelError, ModelError, NeedError, NumericsError, RowError
from labelwise.pool import Pool
from labelwise.signals.spec import Probs
from labelwise.train import Fit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
NEW = RNG.normal(size=(37, 4)).astype("float32")
NAMES = ["low", "mid", "top"]


def net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))


def quick(**options: object) -> lw.TorchLearner:
    return lw.TorchLearner(net, epochs=15, lr=1e-2, **options)


LEARNERS = {
    "torch": quick,
    "estimator": lambda: LogisticRegression(),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "neighbours": lambda: KNeighborsClassifier(4),
    "ensemble": lambda: lw.ensemble(quick(), members=2),
    "laplace": lambda: lw.laplace(quick(), draws=4),
}


def session(learner: object, recipe: str = "random", classes: object = 3, told: int = 40, **more: object) -> lw.Session:
    al = lw.Session(X, learner, recipe, classes=classes, seed=2, batch=16, **more)
    al.tell(np.arange(told), Y[:told])
    return al


@pytest.mark.parametrize("name", LEARNERS)
def test_predictions_are_those_of_the_model(name: str) -> None:
    al = session(LEARNERS[name]())
    p_NC = al.predict_proba(NEW)
    assert p_NC.shape == (37, 3)
    np.testing.assert_allclose(p_NC.sum(1), 1, rtol=1e-5)
    expected = al.fit().reader.read(torch.from_numpy(NEW), (Probs(),))[Probs()]
    np.testing.assert_allclose(p_NC, expected, rtol=1e-4, atol=1e-6)
    found = al.predict(NEW)
    assert found.dtype == np.int64
    assert (found == p_NC.argmax(1)).all()
    assert (al.predict(Pool.of(NEW, ids=np.arange(37) + 900)) == found).all()
    assert (al.fit().predict(NEW) == found).all()
    np.testing.assert_allclose(al.fit().predict_proba(Pool.of(NEW)), p_NC, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_of_the_pool_are_named_by_ids(name: str) -> None:
    al = session(LEARNERS[name]())
    everywhere = al.predict()
    assert everywhere.shape == (120,)
    assert (al.predict(X) == everywhere).all()
    assert (al.predict(ids=[7, 3, 7]) == everywhere[[7, 3, 7]]).all()
    assert (al.predict(ids=al.free) == everywhere[al.free]).all()
    assert (al.fit().predict(al.pool, [7, 3]) == everywhere[[7, 3]]).all()
    assert al.predict(ids=[]).shape == (0,)
    assert al.predict_proba(ids=[]).shape == (0, 3)


def test_names_come_back_where_the_session_knows_them() -> None:
    al = session(LogisticRegression(), classes=NAMES)
    numbers = session(LogisticRegression()).predict(NEW)
    assert al.predict(NEW).tolist() == [NAMES[number] for number in numbers]
    assert al.predict(ids=[]).tolist() == []
    named = lw.Session(Pool.of(X, labels=[NAMES[y] for y in Y]), LogisticRegression(), "margin")
    named.tell([0, 1, 2, 3], [NAMES[y] for y in Y[:4]])
    assert set(named.predict()) <= set(NAMES)


def test_texts() -> None:
    words = ["good film", "bad film", "good book", "bad book"] * 5
    al = lw.Session(words, make_pipeline(TfidfVectorizer(), LogisticRegression()), "margin", classes=["no", "yes"])
    al.tell([0, 1, 2, 3], ["yes", "no", "yes", "no"])
    assert al.predict(["a good one", "a bad one"]).tolist() == ["yes", "no"]
    with pytest.raises(ArgumentError, match=r"which are texts; found numbers of shape \(2,\)"):
        al.predict(np.ones((3, 2)))


def test_numbers() -> None:
    target = 3 * X[:, 0] + 5
    for learner in (Ridge(1e-3), lw.TorchLearner(lambda: net(1), loss="mse", epochs=60, lr=1e-2)):
        al = lw.Session(X, learner, "random")
        al.tell(np.arange(60), target[:60])
        assert al.predict(NEW).dtype.kind == "f"
        assert al.predict(NEW).shape == (37,)
        assert al.score(NEW, 3 * NEW[:, 0] + 5) > 0.9
        with pytest.raises(NeedError, match="regression model has no class probabilities"):
            al.predict_proba(NEW)


def test_scores_are_those_of_scikit_learn() -> None:
    al = session(LogisticRegression(), classes=NAMES)
    truth = (NEW[:, 0] > 0).astype(int) + (NEW[:, 1] > 1)
    expected = LogisticRegression(random_state=0).fit(X[:40], Y[:40]).score(NEW, truth)
    assert al.score(NEW, truth) == pytest.approx(expected)
    assert al.score(NEW, [NAMES[number] for number in truth]) == pytest.approx(expected)
    assert al.score(ids=[5, 9], labels=Y[[5, 9]]) in (0, 0.5, 1)
    # A pool of its own order of classes: labels are matched by name.
    other = Pool.of(
        NEW, labels=[NAMES[number] for number in truth], classes=NAMES[::-1], ids=np.arange(37)[::-1].copy()
    )
    assert al.score(other) == pytest.approx(expected)
    with pytest.raises(ArgumentError, match="pass labels="):
        al.score(NEW)
    with pytest.raises(RowError, match="found 37 rows and 2 labels"):
        al.score(NEW, [0, 1])
    with pytest.raises(RowError, match="found 0 rows"):
        al.score(ids=[], labels=[])
    with pytest.raises(LabelError, match="none of the classes"):
        al.score(NEW[:1], ["other"])


def test_before_the_first_label_and_without_a_learner() -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=3)
    for call in (lambda: al.predict(NEW), lambda: al.predict_proba(NEW), lambda: al.score(NEW, np.zeros(37, int))):
        with pytest.raises(LabelError, match=r"label the rows of ask\(k\), then tell"):
            call()
    with pytest.raises(NeedError, match="no model is trained yet"):
        _ = al.model
    none = lw.Session(X, recipe="random", classes=3)
    none.tell([0, 1], [0, 1])
    for call in (lambda: none.predict(NEW), lambda: none.model):
        with pytest.raises(NeedError, match="the session has no learner"):
            call()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([3, 5], "whole numbers"),
        (range(2), "whole numbers"),
        (np.array([3, 5]), r"predict\(ids=picks.ids\)"),
        (NEW[:, :3], r"shape \(4,\); found numbers of shape \(3,\)"),
        (NEW[0], r"found numbers of shape \(\)"),
        (["a text"], "found texts"),
    ],
)
def test_rows_of_another_kind(rows: object, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        session(LogisticRegression()).predict(rows)


def test_ids_that_are_none() -> None:
    al = session(LogisticRegression())
    with pytest.raises(RowError, match="empty"):
        al.predict(NEW[:0])
    with pytest.raises(ArgumentError, match="not both"):
        al.predict(NEW, ids=[1])
    with pytest.raises(RowError, match=r"not in the pool of 120 rows: 500"):
        al.predict(ids=[1, 500])
    with pytest.raises(RowError, match="whole numbers"):
        al.predict(ids=[0.5])


def test_integers_in_the_pool_and_real_numbers_after() -> None:
    al = lw.Session((10 * X).astype(int), LogisticRegression(), "margin", classes=3)
    al.tell(np.arange(40), Y[:40])
    assert al.predict(10 * NEW).shape == (37,)


def test_one_class_and_one_row() -> None:
    for learner in (LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression()), quick()):
        al = lw.Session(X, learner, "margin", classes=NAMES)
        al.tell([0, 1], ["mid", "mid"])
        assert al.predict(NEW[:1]).tolist() == ["mid"]
        assert al.predict_proba(NEW[:1]).shape == (1, 3)
    constant = lw.Session(X, LogisticRegression(), "margin", classes=3)
    constant.tell([0], [1])
    assert (constant.fit().model.predict(NEW) == 1).all()


def test_more_outputs_than_names() -> None:
    def fit(model, inputs, labels, weights):
        with torch.no_grad():
            model[-1].bias[4] = 1e3

    al = lw.Session(X, lw.TorchLearner(lambda: net(5), fit=fit), "random", classes=NAMES)
    al.tell(np.arange(20), Y[:20])
    with pytest.raises(ModelError, match="class number 4, but the session has 3 classes"):
        al.predict(NEW)


def test_rows_are_read_in_blocks() -> None:
    class Watched:
        kind = "watched"
        seen: list[int] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 1000

        def inputs(self, positions: np.ndarray) -> torch.Tensor:
            self.seen.append(len(positions))
            return torch.zeros(len(positions), 4)

        def name(self, position: int) -> None:
            return None

        def sample(self, positions: np.ndarray) -> bytes:
            return b""

    al = session(LogisticRegression())
    assert al.predict(Pool(Watched())).shape == (1000,)
    assert max(Watched.seen) == al.batch == 16


def test_predictions_do_not_change_the_picks() -> None:
    one, other = session(quick(), "badge"), session(quick(), "badge")
    one.predict(NEW)
    one.score(NEW, np.zeros(37, int))
    assert one.ask(6) == other.ask(6)


def test_the_model_is_what_was_trained() -> None:
    al = session(quick())
    al.fit()
    assert isinstance(al.model, nn.Module)
    assert al.model is al.fit().reader.model
    pipe = Pipeline([("scale", StandardScaler()), ("clf", LogisticRegression())])
    al = session(pipe)
    al.predict(NEW)
    assert isinstance(al.model, Pipeline)
    assert al.model["clf"].coef_.shape == (3, 4)
    assert (al.model.predict(NEW) == al.predict(NEW)).all()
    before = al.model
    al.tell([50], [2])
    assert al.model is before  # looking does not train
    assert al.fit().model is al.model is not before
    al = lw.Session(X, make_pipeline(StandardScaler(), Ridge()), "random")
    al.tell(np.arange(30), X[:30, 0])
    np.testing.assert_allclose(al.predict(NEW), al.fit().model.predict(NEW), rtol=1e-5, atol=1e-6)
    members = session(lw.ensemble(quick(), members=2)).fit().model
    assert len(members) == 2
    assert all(isinstance(member, nn.Module) for member in members)


def test_a_fit_of_a_learner_of_ones_own() -> None:
    class Reader:
        def gives(self, signal):
            return signal == Probs()

        def read(self, inputs, signals):
            return {Probs(): torch.full((len(inputs), 3), 1 / 3)}

    class Mine:
        def fit(self, pool, ids, labels, *, weights=None, classes, key, previous=None):
            return Fit(Reader(), ids)

        def restore(self, state, ids):
            raise AssertionError("this session is never restored")

    al = session(Mine())
    assert (al.predict(NEW) == 0).all()  # of equally probable classes the first
    with pytest.raises(NeedError, match=r"the fit of Mine has no model; pass Fit\(..., model=...\)"):
        _ = al.model


def test_repr_and_table_say_what_it_is(tmp_path) -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=["<b>", "&"], seed=7, folder=tmp_path / "<i>x")
    assert repr(al) == (
        f"Session(120 rows, 0 labelled, round 0, recipe 'margin', seed 7, folder {str(tmp_path / '<i>x')!r})"
    )
    al.tell([0, 1, 2], [0, 1, 1])
    assert "3 labelled" in repr(al)
    html = al._repr_html_()
    assert "<td>3</td>" in html
    assert "&lt;b&gt;, &amp;" in html
    assert "&lt;i&gt;x" in html
    assert "<b>" not in html.replace("<tbody>", "")
    assert "<th>classes</th><td>not known</td>" in lw.Session(X, recipe="random")._repr_html_()
    assert "<th>classes</th>" not in lw.Session(X, Ridge(), "random")._repr_html_()
    assert repr(lw.Session(X, recipe="random")).endswith("no folder)")


def test_history_as_columns(tmp_path) -> None:
    al = lw.Session(X, LogisticRegression(), "random", classes=3, folder=tmp_path, seed=1)
    assert set(map(len, al.history_table().values())) == {0}
    for _ in range(3):
        picks = al.ask(12)
        al.tell(picks.ids[:5], Y[picks.ids[:5]])
        al.tell(picks.ids[5:], Y[picks.ids[5:]])
    table = al.history_table()
    assert table["round"] == [0, 1, 2]
    assert table["labels"] == [12, 24, 36]
    assert table["ids"][2] == picks.ids.tolist()
    assert table["answers"][2] == Y[picks.ids].tolist()
    assert table["recipe"] == ["random"] * 3
    assert table["estimate"][0] is None  # no model chose the first batch
    assert table["estimate"][2] == al.batch_estimate
    again = lw.Session.load(tmp_path, X, LogisticRegression()).history_table()
    assert {**table, "estimate": [None] * 3} == again
    assert {len(column) for column in table.values()} == {3}  # what a frame is made of


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_history_as_a_frame(library) -> None:
    al = lw.Session(lw.Pool.of(X, ids=[("row", n) for n in range(120)]), LogisticRegression(), "random")
    for _ in range(2):
        picks = al.ask(4)
        al.tell(picks.ids, [NAMES[Y[row]] for _, row in picks.ids])
    frame = al.history_table(library)
    assert type(frame).__module__.startswith(library)
    if library == "pandas":
        assert frame.index.tolist() == al.history_table()["round"]
        assert frame.loc[1, "ids"] == picks.ids.tolist()
    assert list(frame["labels"].to_pylist() if library == "pyarrow" else frame["labels"]) == [4, 8]
    with pytest.raises(ArgumentError, match="not 'arrow'"):
        al.history_table("arrow")


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
@pytest.mark.parametrize("ids", [[1, "a", (2, 3)], [2**64 - 1, 5, 6]])
def test_history_as_a_frame_with_ids_of_several_kinds(library, ids) -> None:
    al = lw.Session(lw.Pool.of(X[:3], ids=ids), LogisticRegression(), "random")
    al.tell(ids, [0, 1, 0])
    found = al.history_table(library)["ids"]
    assert (
        found.to_pylist() == [list(map(str, ids))] if library == "pyarrow" else found.to_list() == [list(map(str, ids))]
    )


def test_classes_that_nobody_has_answered_yet_count_as_wrong() -> None:
    named = np.array(NAMES)[Y]
    for labels in (Y, named):
        al = lw.Session(X, LogisticRegression(), "margin")
        few = np.flatnonzero(Y < 2)[:30]
        al.tell(few, labels[few])
        assert al.score(X, labels) == pytest.approx((al.predict() == labels).mean())
        assert al.classes == (None if labels is Y else ("low", "mid"))  # a score declares no class
    declared = lw.Session(X, LogisticRegression(), "margin", classes=["low", "mid"])
    declared.tell(few, named[few])
    with pytest.raises(LabelError, match="none of the classes"):  # there a name may be misspelt
        declared.score(X, named)


def test_a_fit_says_what_it_is() -> None:
    al = lw.Session(X, LogisticRegression(), "margin", classes=3)
    al.tell(range(9), Y[:9])
    assert repr(al.fit()) == "Fit(LogisticRegression, 9 labelled rows)"
    members = lw.Session(X, lw.ensemble(quick(), 2), "margin", classes=3)
    members.tell(range(9), Y[:9])
    assert repr(members.fit()) == "Fit(2 x Sequential, 9 labelled rows)"


def test_rows_that_are_not_finite_have_no_prediction() -> None:
    """The largest of NaN probabilities would be class 0; a scikit-learn estimator raises errors of its own."""
    x = np.eye(6, dtype=np.float32)
    x[4, 1] = np.nan
    pool = lw.Pool.of(x, ids=list("abcdef"))
    torch_model = lw.TorchLearner(lambda: torch.nn.Linear(6, 2), epochs=2)
    number_model = lw.TorchLearner(lambda: torch.nn.Linear(6, 1), loss="mse", epochs=2)
    for learner, error, text in (
        (torch_model, NumericsError, "row id 'e' holds nan"),
        (number_model, NumericsError, "row id 'e' holds nan"),
        (LogisticRegression(), ModelError, "LogisticRegression, or a step before it.*NaN.*imputer"),
        (Ridge(), ModelError, "Ridge, or a step before it.*NaN.*imputer"),
    ):
        al = lw.Session(pool, learner, "random")
        al.tell(["a", "b", "c"], [0, 1, 0])
        assert len(al.predict(ids=["a", "f"])) == 2
        with pytest.raises(error, match=f"(?s){text}"):
            al.predict()
        with pytest.raises(error, match=f"(?s){text}"):
            al.score(ids=["a", "e"], labels=[0, 1])
