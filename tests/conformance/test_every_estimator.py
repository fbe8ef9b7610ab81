"""Whatever estimator people hold: ask, tell, ask again, predict, save and resume, from the first few labels on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LassoCV, LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV, SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, ModelError, NeedError

N = 45
CLASS = np.arange(N) % 3
NAMES = np.array(["ant", "bee", "cat"])
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "UserWarning")]
WORDS = [["red", "rose"], ["blue", "sky"], ["green", "leaf"]]


def _numbers() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.hstack([2 * np.eye(3)[CLASS], np.zeros((N, 2))]).astype("float32") + rng.normal(size=(N, 5)).astype("f4")


def _texts() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice([*WORDS[c], "a", "the"], 5)) + f" w{i % 7}" for i, c in enumerate(CLASS)]


X, TEXTS = _numbers(), _texts()
Y = X[:, 0] * 2 - X[:, 1]
LR = LogisticRegression()


def of_package(path: str, **parameters: Any) -> Callable[[], Any]:
    """An estimator of a package that may not be installed."""

    def make() -> Any:
        module, _, name = path.rpartition(".")
        return getattr(pytest.importorskip(module), name)(**parameters)

    return make


NET = {"module__in_features": 5, "max_epochs": 2, "verbose": 0}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "stacking": lambda: StackingClassifier([("lr", LR), ("nb", GaussianNB())]),
    "nested stacking": lambda: StackingClassifier([("c", CalibratedClassifierCV(LinearSVC())), ("t", LR)], cv=3),
    "voting": lambda: VotingClassifier([("lr", LR), ("nb", GaussianNB())], voting="soft"),
    "calibrated": lambda: CalibratedClassifierCV(LinearSVC()),
    "calibrated once": lambda: CalibratedClassifierCV(LinearSVC(), ensemble=False),
    "isotonic": lambda: CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=3),
    "grid": lambda: GridSearchCV(make_pipeline(StandardScaler(), LR), {"logisticregression__C": [0.1, 1]}),
    "random search": lambda: RandomizedSearchCV(LR, {"C": [0.1, 1, 10]}, n_iter=2, cv=StratifiedKFold(4, shuffle=True)),
    "logistic cv": lambda: make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=2)),
    "columns": lambda: make_pipeline(
        ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", "passthrough", [2])]), LR
    ),
    "union": lambda: make_pipeline(make_union(PCA(2), FunctionTransformer(np.abs)), LR),
    "one against the rest": lambda: OneVsRestClassifier(LR),
    "forest": lambda: RandomForestClassifier(5),
    "extra trees": lambda: ExtraTreesClassifier(5),
    "bagging": lambda: BaggingClassifier(LR, 4, max_features=0.5),
    "histogram boosting": lambda: HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=1),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=2),
    "adaboost": lambda: AdaBoostClassifier(n_estimators=2),
    "neighbours": lambda: KNeighborsClassifier(5),
    "searched neighbours": lambda: GridSearchCV(KNeighborsClassifier(4), {"weights": ["uniform", "distance"]}, cv=2),
    "tree": lambda: DecisionTreeClassifier(),
    "sgd": lambda: SGDClassifier(loss="log_loss", max_iter=20, tol=None),
    "lightgbm": of_package("lightgbm.LGBMClassifier", n_estimators=2, min_child_samples=1, verbose=-1),
    "xgboost": of_package("xgboost.XGBClassifier", n_estimators=2),
    "searched xgboost": lambda: GridSearchCV(CLASSIFIERS["xgboost"](), {"max_depth": [1, 2]}, cv=2),
    "skorch": of_package(
        "skorch.NeuralNetClassifier", module=nn.Linear, module__out_features=3, criterion=nn.CrossEntropyLoss, **NET
    ),
}
OF_TEXTS: dict[str, Callable[[], Any]] = {
    "tfidf": lambda: make_pipeline(TfidfVectorizer(), LR),
    "counts": lambda: make_pipeline(CountVectorizer(), MultinomialNB()),
    "hashes": lambda: make_pipeline(HashingVectorizer(n_features=64), SGDClassifier(loss="log_loss")),
    "latent": lambda: make_pipeline(TfidfVectorizer(), TruncatedSVD(2), LR),
    "calibrated": lambda: make_pipeline(TfidfVectorizer(), CalibratedClassifierCV(LinearSVC())),
    "searched": lambda: GridSearchCV(make_pipeline(TfidfVectorizer(), LR), {"logisticregression__C": [0.1, 1]}),
    "stacking": lambda: make_pipeline(TfidfVectorizer(), StackingClassifier([("a", LR), ("b", MultinomialNB())])),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "stacking": lambda: StackingRegressor([("r", Ridge()), ("t", RandomForestRegressor(3))]),
    "voting": lambda: VotingRegressor([("r", Ridge()), ("s", SVR())]),
    "grid": lambda: GridSearchCV(Ridge(), {"alpha": [0.1, 1]}, cv=2),
    "ridge cv": lambda: make_pipeline(StandardScaler(), RidgeCV()),
    "lasso cv": lambda: LassoCV(alphas=[0.01, 0.1]),
    "neighbours": lambda: KNeighborsRegressor(4),
    "lightgbm": of_package("lightgbm.LGBMRegressor", n_estimators=2, min_child_samples=1, verbose=-1),
    "xgboost": of_package("xgboost.XGBRegressor", n_estimators=2),
    "skorch": of_package("skorch.NeuralNetRegressor", module=nn.Linear, module__out_features=1, **NET),
}


def journey(folder: Path, pool: Any, make: Callable[[], Any], recipe: str, answers: np.ndarray, **more: Any) -> None:
    """Two rounds, a resumed session with the same picks, and predictions."""

    def session() -> lw.Session:
        return lw.Session(pool, make(), recipe, seed=0, folder=folder / "s", resume=True, **more)

    first = session()
    picks = first.ask(4)
    first.tell(picks.ids, answers[picks.ids])
    picks = first.ask(3)
    al = session()
    assert al.ask(3) == picks
    al.tell(picks.ids, answers[picks.ids])
    expected = al.predict(pool)
    assert len(expected) == N
    assert np.isfinite(al.score(pool, answers))
    if more:  # classes
        assert set(expected) <= set(answers)
        p = al.predict_proba(pool)
        assert p.shape == (N, 3)
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert hasattr(al.model, "predict")
    assert type(al.learner).__name__ == "SklearnLearner"
    assert repr(al.learner)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_of_numbers(name: str, tmp_path: Path) -> None:
    journey(tmp_path, X, CLASSIFIERS[name], "margin", NAMES[CLASS], classes=NAMES)


@pytest.mark.parametrize("name", OF_TEXTS)
def test_a_classifier_of_texts(name: str, tmp_path: Path) -> None:
    journey(tmp_path, TEXTS, OF_TEXTS[name], "badge", NAMES[CLASS], classes=NAMES)


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_regressor(name: str, tmp_path: Path) -> None:
    journey(tmp_path, X, REGRESSORS[name], "kcenter", Y)


@pytest.mark.parametrize("recipe", lw.strategies.names())
@pytest.mark.parametrize("name", ["isotonic", "forest"])
def test_every_strategy_works_with_an_estimator_or_says_what_to_do(name: str, recipe: str) -> None:
    try:
        al = lw.Session(X, CLASSIFIERS[name](), recipe, classes=3, seed=0)
        al.tell(np.arange(8), CLASS[:8])
        assert len(set(al.ask(3).ids)) == 3
    except (ArgumentError, NeedError) as error:
        assert any(hint in str(error) for hint in ("Pass a ", "wrap the ", "Use a torch model")), error  # noqa: PT017


def test_the_first_answers_of_each_class(tmp_path: Path) -> None:
    """A class with one row; a class that appears between two others; all labels the same."""
    for ids in ([0, 1], [0, 2, 3], [0, 3, 6], [0, 1, 2], list(range(9))):
        for name in ("isotonic", "searched neighbours"):
            al = lw.Session(X, CLASSIFIERS[name](), "margin", classes=3, seed=0)
            al.tell(ids, CLASS[ids])
            p = al.predict_proba(X)
            unseen = sorted({0, 1, 2} - set(CLASS[ids]))
            assert p.shape == (N, 3)
            assert len(set(CLASS[ids])) == 1 or (p[:, unseen] == 0).all()


def test_what_is_changed_for_few_rows_is_noted_and_nothing_else_is_changed() -> None:
    al = lw.Session(X, CLASSIFIERS["nested stacking"](), "margin", classes=3, seed=0)
    al.tell([0, 1, 2, 3], CLASS[:4])
    assert al.fit().notes["lowered"] == {"c__cv": 2}
    assert al.fit().notes["repeated"].startswith("4 rows, up to 4 times")
    given = CLASSIFIERS["nested stacking"]()
    enough = lw.Session(X, given, "margin", classes=3, seed=0)
    enough.tell(np.arange(N), CLASS)
    assert not {"lowered", "repeated"} & set(enough.fit().notes)
    assert enough.model.get_params()["c__cv"] is None
    assert (given.cv, given.get_params()["c__cv"]) == (3, None)
    np.testing.assert_allclose(
        enough.predict_proba(X),
        StackingClassifier([("c", CalibratedClassifierCV(LinearSVC(random_state=0))), ("t", LR)], cv=3)
        .fit(X, CLASS)
        .predict_proba(X),
        atol=1e-3,
    )


def test_what_cannot_be_fitted_says_what_to_do() -> None:
    al = lw.Session(X, MLPClassifier((3,), early_stopping=True, max_iter=3), "margin", classes=3)
    al.tell([0, 1], [0, 1])
    with pytest.raises(ModelError, match=r"MLPClassifier could not be fitted on 2 labelled rows of 2 classes: .*early"):
        al.ask(2)
    for made, said in ((VotingClassifier([("lr", LR)]), "voting='soft'"), (LinearSVC(), "CalibratedClassifierCV")):
        with pytest.raises(ArgumentError, match=said):
            lw.Session(X, made, "margin", classes=3)


def test_one_against_the_rest_has_no_draws() -> None:
    """Its members know one class each; taken for draws they gave answers without meaning."""
    al = lw.Session(X, OneVsRestClassifier(LR), "bald", classes=3)
    al.tell(np.arange(8), CLASS[:8])
    with pytest.raises(NeedError, match="draws"):
        al.ask(2)
