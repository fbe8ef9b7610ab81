"""Recipes of parts: how they are written, which ones fit, and that sessions, rounds and folders take them."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError
from labelwise.recipes import PARTS, get
from labelwise.train.objectives.primal_dual import WeightedPrimalDual

WHOLE = "badge | weigh sabal | train primal-dual | certify basis"
rng = np.random.default_rng(0)
X = rng.normal(size=(150, 5)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype(int)


def net():
    return lw.TorchLearner(lambda: nn.Linear(5, 2), epochs=3)


def told(recipe, learner, folder=None, **options):
    """A session that has had two batches."""
    al = lw.Session(X, learner, recipe, classes=2, seed=0, folder=folder, **options)
    for _ in range(2):
        picks = al.ask(12)
        al.tell(picks.ids, Y[picks.ids])
    return al


def test_a_recipe_of_parts_is_its_string():
    recipe = lw.Recipe(choose="badge", weigh="sabal", train="primal-dual", certify="basis")
    assert repr(recipe) == recipe.name == WHOLE
    assert recipe.settings() == get(WHOLE).settings() == get(repr(recipe)).settings()
    assert recipe.settings() == get("badge|certify basis  | train primal-dual|weigh  sabal").settings()
    assert lw.Recipe(choose=get("badge"), weigh="sabal").settings() == get("badge | weigh sabal").settings()
    assert repr(get("typiclust+badge | weigh none")) == "typiclust+badge | weigh none"
    assert lw.Recipe("mine", choose="badge", weigh="sabal").name == "mine"
    assert repr(get("badge | weigh sabal").with_parts("weigh density | train sampler")) == (
        "badge | weigh density | train sampler"
    )


def test_old_names_stay_what_they_are():
    for name, kind in lw.strategies.ALL.items():
        recipe = get(name)
        assert repr(recipe) == name
        assert not set(PARTS) & set(recipe.settings())
        assert recipe.weights is kind.trains_weighted
        assert recipe.chooser(cold=False) is recipe.strategy
    old = lw.Recipe("mine", lw.strategies.Margin(), lw.strategies.Random(), lw.PrimalDual())
    assert old.settings()["objective"]["class"] == "PrimalDual"


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("badge | weigh law", "badge draws by no known law.*weigh density.*bss"),
        (
            "sabal-greedy | weigh law",
            "sabal-greedy draws by no known law.*Strategies with a law: random, bss, leverage, vol",
        ),
        ("acs-fw | weigh law", "acs-fw draws by no known law"),
        ("bss | weigh density", "bss draws by a known law.*weigh law"),
        ("albl | weigh density", "albl learns from its earlier batches"),
        ("badge | train weighted", "nothing weighs the rows"),
        ("badge | weigh none | train sampler", "nothing weighs the rows"),
        ("badge | weigh sabal | train mean", "train mean ignores weights, and rows have those of sabal"),
        ("bss | train mean", "rows have those of bss.*or weigh none"),
        ("ally | train mean", "ally reads the duals"),
        ("badge | weigh heavy", "weigh is one of none, sabal, law, density; found 'heavy'"),
        ("badge | weight sabal", "each part once was expected.*found 'weight sabal'"),
        ("badge | weigh", "found 'weigh'"),
        ("badge | weigh sabal | weigh none", "found 'weigh none'"),
        ("badge |", "found ''"),
        (None, "a recipe is a name.*found None"),
        (lw.strategies.Margin, r"found the class Margin; write Margin\(\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_a_reason(recipe, why):
    with pytest.raises(ArgumentError, match=why):
        get(recipe)


@pytest.mark.parametrize(
    "recipe", ["typiclust+kcenter", "kcenter | weigh density", "typiclust+kcenter | certify basis"]
)
def test_one_batch_of_arrays_takes_a_strategy_and_no_recipe(recipe):
    with pytest.raises(ArgumentError, match=r"one strategy was expected, .* is a recipe\. Pass 'kcenter' here"):
        lw.select(recipe, 5, embedding=X)


def test_a_recipe_needs_a_strategy_and_only_one_way_to_name_it():
    with pytest.raises(ArgumentError, match="choose= was expected"):
        lw.Recipe(weigh="sabal")
    with pytest.raises(ArgumentError, match="leave the others out"):
        lw.Recipe(choose="badge", strategy=lw.strategies.Margin())


def test_a_session_refuses_what_a_recipe_says_twice_or_cannot_have():
    with pytest.raises(ArgumentError, match=r"weights=True: recipe 'badge \| weigh sabal'"):
        lw.Session(X, net(), "badge | weigh sabal", weights=True)
    with pytest.raises(NeedError, match="has no learner"):
        lw.Session(X, recipe="kcenter | weigh sabal")
    with pytest.raises(ArgumentError, match="SklearnLearner cannot use weights"):
        lw.Session(X, KNeighborsClassifier(), "margin | weigh sabal")
    with pytest.raises(ArgumentError, match="draws no minibatches"):
        lw.Session(X, LogisticRegression(), "margin | weigh sabal | train sampler")
    with pytest.raises(ArgumentError, match="needs the loss of every row"):
        lw.Session(X, LogisticRegression(), "margin | train primal-dual")


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        WHOLE,
        "margin | weigh density | train sampler",
        "bss | weigh law | certify basis",
        "ally | weigh sabal",
        "dynamical | weigh sabal",
        "random+badge | weigh density | train primal-dual",
    ],
)
def test_a_session_in_a_folder_continues_with_the_same_picks(recipe, tmp_path):
    al = told(recipe, net(), tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "session.json").read_text())["recipe"]
    assert {part: stored.get(part) for part in PARTS} == {part: getattr(get(recipe), part) for part in PARTS}
    loaded = lw.Session.load(tmp_path / "run", X, net())
    assert loaded.recipe.settings() == al.recipe.settings()
    expected = al.ask(10)
    found = loaded.ask(10)
    assert found == expected
    assert torch.equal(loaded.fit().model.weight, al.fit().model.weight)


@pytest.mark.parametrize(
    ("train", "why"), [("sampler", "has to draw the minibatches"), ("primal-dual", "has to see the loss of every row")]
)
def test_a_learner_with_a_function_of_its_own_says_what_a_training_needs(train, why):
    learner = lw.TorchLearner(lambda: nn.Linear(5, 2), fit=lambda model, inputs, labels, weights: None)
    with pytest.raises(ArgumentError, match=rf"{why} .*leave fit= out"):
        lw.Session(X, learner, f"margin | weigh sabal | train {train}")


def test_a_stored_session_names_the_recipe_that_differs(tmp_path):
    lw.Session(X, net(), "badge | weigh sabal", classes=2, folder=tmp_path)
    with pytest.raises(lw.errors.StoreError, match=r"'badge \| weigh sabal', found 'badge'"):
        lw.Session(X, net(), "badge", classes=2, folder=tmp_path, resume=True)


def test_the_weights_of_bss_stay_under_another_training():
    trained = lw.Session(X, net(), "bss | train primal-dual", classes=2).learner.options.objective
    assert type(trained) is WeightedPrimalDual
    assert type(lw.Session(X, net(), "bss | weigh none | train primal-dual", classes=2).learner.options.objective) is (
        lw.PrimalDual
    )
    assert type(lw.Session(X, net(), "bss | weigh none", classes=2).learner.options.objective) is lw.Mean


def test_the_sampler_is_that_of_the_learner():
    learner = lw.Session(X, net(), "margin | weigh sabal | train sampler").learner.learner
    assert (learner.options.sampler, type(learner.options.objective)) == ("weights", lw.Mean)


def test_rounds_record_the_weights_and_the_certificate():
    test = (X[:40], Y[:40])
    records = list(lw.rounds(X[40:], Y[40:], net(), WHOLE, k=12, n=1, test=test, classes=2))
    notes = records[0].notes
    assert records[0].strategy == WHOLE
    assert notes["training"]["weigh"]["by"] == "sabal"
    assert notes["training"]["weigh"]["effective_share"] >= notes["training"]["weigh"]["floor"] == 0.5
    assert notes["training"]["certificate"]["labels"] == 12
    assert 0 < notes["training"]["certificate"]["seen"] <= 1
    assert np.isfinite(notes["selection"]["approximation_ratio"])
    assert "approximation_ratio" not in records[1].notes["selection"]  # nothing was chosen


def test_density_weighs_the_picks_and_leaves_them_as_they_are():
    plain, weighed = told("margin", net()), told("margin | weigh density", net())
    assert isinstance(weighed.recipe.chooser(cold=True), lw.strategies.Random)  # a law of its own
    assert plain.ledger.entries[0].ids == weighed.ledger.entries[0].ids
    assert plain.ask(10).weights.tolist() == [1.0] * 10
    assert weighed.ask(10).weights.std() > 0


def test_density_takes_the_place_of_weights_that_a_selection_alone_has():
    """SABAL weighs rows to choose them: by no law of a draw, and not for training."""
    notes = told("sabal-greedy | weigh density", net()).ask(10).notes
    assert notes["weigh"]["by"] == "density"


def test_without_a_learner_the_batch_has_the_certificate_of_the_labels_before_it():
    al = lw.Session(X, recipe="probcover | certify basis", classes=2, seed=0)
    assert "certificate" not in al.ask(4).notes
    al.tell(range(3), Y[:3])
    found = al.ask(4).notes["certificate"]
    assert found == al.certificate().notes()
    assert found["labels"] == 3


def test_regression_takes_parts():
    targets = X @ np.arange(5.0)
    al = lw.Session(X, nn.Linear(5, 1), "kcenter | weigh sabal | certify basis", task="regress", seed=0)
    al.tell(range(30), targets[:30])
    assert al.fit().notes["weigh"]["by"] == "sabal"
    assert "approximation_ratio" not in al.ask(5).notes
