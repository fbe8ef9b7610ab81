"""SklearnLearner: classes in order, also those not seen; embeddings of pipelines; chance from the key."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from labelwise.errors import ArgumentError, LabelError, ModelError, NeedError, StoreError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.model.estimator import estimator_inputs
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, HeadGrad, LabelProbs, Probs
from labelwise.train import SklearnLearner, Weighted, evaluate

C = 4


def rows(n: int = 60, noise: float = 0.4) -> tuple[Pool, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % C
    centre = torch.eye(C)[labels] * 2
    return Pool.of(centre + noise * torch.randn(n, C, generator=generator), ids=torch.arange(n) * 2), labels


def fitted(learner, pool, labels, ids=None, key=0, **more):
    return learner.fit(pool, pool.ids if ids is None else ids, labels, classes=C, key=Key(key), **more)


def column(fit, pool, signal):
    return torch.cat([part.tensor(signal) for part in read(fit.reader, pool, pool.ids, (signal,), 16)])


def test_probabilities_are_those_of_the_classifier():
    pool, labels = rows()
    fit = fitted(SklearnLearner(LogisticRegression()), pool, labels)
    x = pool.inputs(pool.ids).numpy()
    expected = LogisticRegression().fit(x, labels.numpy()).predict_proba(x)
    np.testing.assert_allclose(column(fit, pool, Probs()).numpy(), expected, atol=1e-6)
    assert evaluate(fit.reader, pool, pool.ids, labels)["accuracy"] > 0.95
    assert fit.state is None
    with pytest.raises(StoreError, match="fit it on the labels again"):
        SklearnLearner(LogisticRegression()).restore({}, fit.ids)


@pytest.mark.parametrize(
    "made", [LogisticRegression(), RandomForestClassifier(5), GaussianNB(), KNeighborsClassifier(3)]
)
def test_classes_that_were_never_seen_have_probability_zero_in_their_place(made):
    pool, labels = rows()
    some = (labels == 1) | (labels == 3)
    fit = fitted(SklearnLearner(made), pool, labels[some], pool.ids[some])
    p = column(fit, pool, Probs())
    assert p.shape == (60, C)
    assert bool((p[:, [0, 2]] == 0).all())
    torch.testing.assert_close(p.sum(1), torch.ones(60))
    assert set(p[some].argmax(1).tolist()) == {1, 3}


@pytest.mark.parametrize("made", [LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression())])
def test_one_single_class_is_answered_by_a_constant(made):
    pool, labels = rows()
    one = labels == 2
    fit = fitted(SklearnLearner(made), pool, labels[one], pool.ids[one])
    expected = torch.full((60, C), 1 / 19)
    expected[:, 2] = 16 / 19  # 15 rows of it
    torch.testing.assert_close(column(fit, pool, Probs()), expected)
    torch.testing.assert_close(column(fit, pool, LabelProbs()), expected)
    assert column(fit, pool, Embedding()).shape == (60, C)
    assert "only class 2" in fit.notes["constant"]


def test_embedding_of_a_pipeline_is_the_input_of_its_last_step():
    pool, labels = rows()
    x = pool.inputs(pool.ids).numpy()
    piped = fitted(SklearnLearner(make_pipeline(StandardScaler(), LogisticRegression())), pool, labels)
    np.testing.assert_allclose(column(piped, pool, Embedding()), StandardScaler().fit_transform(x), atol=1e-5)
    plain = fitted(SklearnLearner(LogisticRegression()), pool, labels)
    assert torch.equal(column(plain, pool, Embedding()), pool.inputs(pool.ids))
    images = Pool.of(torch.randn(8, 1, 3, 3, generator=torch.Generator().manual_seed(0)))
    flat = SklearnLearner(LogisticRegression()).fit(images, images.ids, torch.tensor([0, 1] * 4), classes=2, key=Key(0))
    assert column(flat, images, Embedding()).shape == (8, 9)


def test_the_steps_of_a_pipeline_run_once_for_all_signals():
    calls = []

    class Counted(StandardScaler):
        def transform(self, X, copy=None):
            calls.append(len(X))
            return StandardScaler.transform(self, X, copy)

    pool, labels = rows()
    fit = fitted(SklearnLearner(make_pipeline(Counted(), LogisticRegression())), pool, labels)
    calls.clear()
    list(read(fit.reader, pool, pool.ids, (Probs(), HeadGrad(), Embedding()), batch=30))
    assert calls == [30, 30]


TEXTS = ["good film", "bad film", "good plot", "bad plot", "good good", "bad bad", "a good one", "a bad one"]


def test_texts_without_a_step_that_makes_numbers_of_them():
    pool = Pool.of(TEXTS)
    with pytest.raises(ModelError, match=r"8 labelled texts.*make_pipeline\(TfidfVectorizer\(\), LogisticRegression"):
        SklearnLearner(LogisticRegression()).fit(pool, pool.ids, torch.tensor([1, 0] * 4), classes=2, key=Key(0))


def test_texts_with_tfidf():
    pool = Pool.of(TEXTS)
    labels = torch.tensor([1, 0] * 4)
    learner = SklearnLearner(make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)))
    fit = learner.fit(pool, pool.ids, labels, classes=2, key=Key(0))
    assert evaluate(fit.reader, pool, pool.ids, labels)["accuracy"] == 1.0
    h = column(fit, pool, Embedding())
    assert h.dtype == torch.float32
    np.testing.assert_allclose(h, TfidfVectorizer().fit_transform(TEXTS).toarray(), atol=1e-6)
    assert 0 < fit.reader.temperature < 20
    one = learner.fit(pool, pool.ids[:1], labels[:1], classes=2, key=Key(0))
    assert len(column(one, pool, Embedding())) == len(column(one, pool, Probs())) == 8
    hashed = SklearnLearner(make_pipeline(HashingVectorizer(n_features=1 << 16), LogisticRegression()))
    fit = hashed.fit(pool, pool.ids, labels, classes=2, key=Key(0))
    with pytest.raises(NeedError, match=r"65536 sparse columns.*TruncatedSVD"):
        column(fit, pool, Embedding())


def test_label_probs_are_fitted_on_rows_not_fitted_on_and_only_when_asked():
    pool, labels = rows(200, noise=1.2)
    fits = []

    class Counted(GaussianNB):
        def fit(self, X, y, sample_weight=None):
            fits.append(len(X))
            return GaussianNB.fit(self, X, y, sample_weight)

    fit = fitted(SklearnLearner(Counted()), pool, labels)
    column(fit, pool, Probs())
    assert fits == [200]
    q = column(fit, pool, LabelProbs())
    assert fits[1:] == [160] * 5
    column(fit, pool, LabelProbs())
    assert len(fits) == 6
    assert fit.reader.temperature != 1.0
    torch.testing.assert_close(q.sum(1), torch.ones(200))
    p = column(fit, pool, Probs()).double()
    torch.testing.assert_close(q.double(), (p.log() / fit.reader.temperature).softmax(1), rtol=1e-4, atol=1e-6)


def test_an_overconfident_classifier_is_made_less_sure():
    pool, labels = rows(200, noise=2.5)
    fit = fitted(SklearnLearner(KNeighborsClassifier(1)), pool, labels)  # always sure
    assert fit.reader.temperature > 3


def test_chance_comes_from_the_key():
    pool, labels = rows(noise=2.0)
    for made in (RandomForestClassifier(3, random_state=7), make_pipeline(StandardScaler(), RandomForestClassifier(3))):
        learner = SklearnLearner(made)
        first, again, other = (column(fitted(learner, pool, labels, key=k), pool, Probs()) for k in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert learner.estimator.steps[-1][1].random_state is None  # the one given is not changed
    assert not hasattr(learner.estimator.steps[0][1], "mean_")


@pytest.mark.parametrize(
    "made", [LogisticRegression(), make_pipeline(StandardScaler(with_std=False), LogisticRegression())]
)
def test_weights_are_used_only_when_asked(made):
    pool, labels = rows(40)
    wrong = labels.clone()
    wrong[:4] = wrong[:4].flip(0)
    weights = torch.ones(40)
    weights[:4] = 0
    plain = column(fitted(SklearnLearner(made), pool, wrong), pool, Probs())
    aside = column(fitted(SklearnLearner(made), pool, wrong, weights=weights), pool, Probs())
    used = column(fitted(SklearnLearner(made, use_weights=True), pool, wrong, weights=weights), pool, Probs())
    assert torch.equal(plain, aside)
    assert float((used - plain).abs().max()) > 0.01
    with pytest.raises(ArgumentError, match="KNeighborsClassifier does not"):
        fitted(SklearnLearner(KNeighborsClassifier(), use_weights=True), pool, labels, weights=weights)


def test_float64_rows_stay_float64():
    pool, labels = rows()
    wide = Pool.of(pool.inputs(pool.ids).double())
    fit = SklearnLearner(LogisticRegression()).fit(wide, wide.ids, labels, classes=C, key=Key(0))
    assert column(fit, wide, Probs()).dtype == column(fit, wide, Embedding()).dtype == torch.float64


def test_what_cannot_be_fitted_is_named():
    pool, labels = rows()
    with pytest.raises(ArgumentError, match=r"not its class: write LogisticRegression\(\)"):
        SklearnLearner(LogisticRegression)
    with pytest.raises(ArgumentError, match=r"RidgeClassifier lacks.*CalibratedClassifierCV"):
        SklearnLearner(RidgeClassifier())
    with pytest.raises(LabelError, match="row id 2 has 9"):
        fitted(SklearnLearner(GaussianNB()), pool, torch.where(torch.arange(60) == 1, 9, labels))

    class Odd:
        def fit(self, X, y): ...

        def predict_proba(self, X): ...

    with pytest.raises(ArgumentError, match="Odd cannot be cloned"):
        fitted(SklearnLearner(Odd()), pool, labels)
    with pytest.raises(ModelError, match="rows of numbers or texts; the pool gives dict"):
        estimator_inputs({"a": torch.zeros(2)})


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_parameter_is_chosen_by_cross_validation(pipeline: bool) -> None:
    """Many features of noise: strong regularisation is better, and is found from the labelled rows alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 60))
    truth = torch.tensor((x[:, 0] + 0.5 * rng.normal(size=80) > 0).astype(int))
    pool, name = Pool.of(x), "logisticregression__C" if pipeline else "C"
    model = LogisticRegression(max_iter=500)
    learner = SklearnLearner(make_pipeline(StandardScaler(), model) if pipeline else model, cross_validate=name)
    fit = learner.fit(pool, pool.ids, truth, classes=2, key=Key(0))
    found = fit.notes["cross_validation"]
    assert found["rows"] == 80
    assert found[name] < 1
    assert found[name] == fit.reader.classifier.C
    assert model.C == 1.0  # the estimator is not changed
    few = learner.fit(pool, pool.ids[:2], torch.tensor([0, 1]), classes=2, key=Key(0))
    assert "too few" in few.notes["cross_validation"]
    assert learner.with_objective(Weighted()).cross_validate == name
    by_name_alone = SklearnLearner(learner.estimator, cross_validate="C")
    assert by_name_alone.fit(pool, pool.ids, truth, classes=2, key=Key(0)).notes == fit.notes


class Counted(LogisticRegression):
    """Counts how often copies of it are fitted."""

    fits = 0

    def fit(self, *arguments, **more):
        Counted.fits += 1
        return super().fit(*arguments, **more)


def test_the_folds_that_choose_a_parameter_also_give_the_temperature() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 20))
    pool, truth = Pool.of(x), torch.tensor((x[:, 0] + rng.normal(size=40) > 0).astype(int))
    fit = SklearnLearner(Counted(), cross_validate="C").fit(pool, pool.ids, truth, classes=2, key=Key(0))
    Counted.fits = 0
    temperature = fit.reader.temperature
    assert Counted.fits == 0
    plain = SklearnLearner(Counted(C=fit.reader.classifier.C))
    assert plain.fit(pool, pool.ids, truth, classes=2, key=Key(0)).reader.temperature == temperature
    assert temperature != 1
    assert Counted.fits == 6


def test_the_name_of_a_parameter_that_two_steps_have_is_ambiguous() -> None:
    two = make_pipeline(StandardScaler(), SelectFromModel(LogisticRegression()), LogisticRegression())
    with pytest.raises(ArgumentError, match="it has logisticregression__C, selectfrommodel__estimator__C"):
        SklearnLearner(two, cross_validate="C")


def test_a_parameter_of_a_regressor_is_chosen_and_an_unknown_one_is_refused() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 30))
    pool, truth = Pool.of(x), torch.tensor(rng.normal(size=40))  # nothing to learn
    fit = SklearnLearner(Ridge(), cross_validate="alpha").fit(pool, pool.ids, truth, classes=0, key=Key(0))
    assert fit.notes["cross_validation"]["alpha"] == 1000.0
    with pytest.raises(
        ArgumentError, match="cross_validate is the name of a parameter of Ridge, not 'C'; it has alpha"
    ):
        SklearnLearner(Ridge(), cross_validate="C")


class Column(RegressorMixin, BaseEstimator):
    """A torch module with one column of outputs, wrapped without a word on shapes and types, as in skorch."""

    def fit(self, X, y):
        self.module_ = nn.Linear(X.shape[1], 1)
        steps = torch.optim.Adam(self.module_.parameters(), 0.1)
        for _ in range(200):
            steps.zero_grad()
            nn.functional.mse_loss(self.module_(torch.as_tensor(X)), torch.as_tensor(y)).backward()
            steps.step()
        return self

    def predict(self, X):
        return self.module_(torch.as_tensor(X)).detach().numpy()


def test_numbers_are_a_column_where_a_torch_loss_would_broadcast_them() -> None:
    """A row of numbers against a column of outputs trains on all pairs: the mean is learnt, and torch only warns."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    pool, y = Pool.of(x), (x @ torch.tensor([1.0, -2.0, 0.5])).double()
    fit = SklearnLearner(Column()).fit(pool, pool.ids, y, classes=0, key=Key(0))
    assert evaluate(fit.reader, pool, pool.ids, y, 64)["r2"] > 0.99
    wide = Pool.of(x.double())
    with pytest.raises(ModelError, match=r"rows of float64: make the pool of X.astype\('float32'\)"):
        SklearnLearner(Column()).fit(wide, wide.ids, y, classes=0, key=Key(0))


class Net(LogisticRegression):
    """Sets rows aside as the nets of skorch do, by a splitter that is no estimator."""

    def __init__(self, train_split=None):
        super().__init__()
        self.train_split = train_split

    def fit(self, X, y):
        folds = self.train_split.cv
        if self.train_split.stratified and min(np.bincount(y)) < folds:
            raise ValueError(f"n_splits={folds} cannot be greater than the number of members in each class")
        return super().fit(X, y)


def test_a_net_that_sets_rows_aside_sets_aside_what_there_is():
    split = SimpleNamespace(cv=5, stratified=True)
    pool, labels = rows()
    for counts, folds, repeated in (((1, 4), 2, True), ((3, 9), 3, False), ((8, 8), 5, False)):
        few = torch.cat([torch.where(labels == label)[0][:count] for label, count in enumerate(counts)])
        fit = fitted(SklearnLearner(Net(split)), pool, labels[few], pool.ids[few])
        assert fit.model.train_split.cv == folds
        assert fit.notes.get("lowered") == (None if folds == 5 else {"train_split": folds})
        assert ("repeated" in fit.notes) == repeated
    assert split.cv == 5


@pytest.mark.parametrize(
    ("estimator", "few", "lowered"),
    [
        (make_pipeline(PCA(3), GaussianNB()), 2, {"pca__n_components": 2}),
        (make_pipeline(PCA(3, svd_solver="arpack"), GaussianNB()), 3, {"pca__n_components": 2}),
        (make_pipeline(PCA(3), GaussianNB()), 3, None),
        (make_pipeline(PCA(0.9), GaussianNB()), 2, None),
        (GridSearchCV(make_pipeline(PCA(3), GaussianNB()), {}, cv=2), 4, {"estimator__pca__n_components": 2}),
    ],
)
def test_principal_components_are_no_more_than_there_are_rows(estimator, few, lowered):
    pool, _ = rows()
    labels = torch.arange(few) % 2
    fit = fitted(SklearnLearner(estimator), pool, labels, pool.ids[:few])
    assert fit.notes.get("lowered") == lowered
    assert np.isfinite(fit.predict_proba(pool)).all()
    assert "n_components=3" in repr(estimator) or lowered is None  # the user's own is as it was


def test_a_classifier_that_learns_nothing_from_few_rows_says_so():
    pool, labels = rows()
    boosting = SklearnLearner(HistGradientBoostingClassifier())  # needs 20 rows in each leaf
    few = fitted(boosting, pool, labels[:12], pool.ids[:12])
    assert "HistGradientBoostingClassifier gives all 12 labelled rows the same probabilities" in few.notes["warning"]
    assert "warning" not in fitted(boosting, pool, labels, pool.ids).notes
    for learner in (boosting, SklearnLearner(GaussianNB())):
        one = fitted(learner, pool, torch.zeros(3), pool.ids[:3])  # of one class, which the notes say already
        assert "constant" in one.notes
        assert "warning" not in one.notes
    assert "warning" not in fitted(SklearnLearner(GaussianNB()), pool, labels[:12], pool.ids[:12]).notes
