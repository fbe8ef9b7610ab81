"""The recommendation: the file is what the records give, the rule, and what is at hand."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import labelwise as lw
from labelwise import recipes
from labelwise.bench.models.registry import ModelSpec
from labelwise.bench.report import recommendations
from labelwise.bench.report.load_runs import training_rules
from labelwise.bench.report.recommendations import (
    Outcome,
    RunCurves,
    findings_from,
    outcomes,
    tried_from,
)
from labelwise.bench.suite.suite import Suite, read_suite
from labelwise.errors import ArgumentError
from labelwise.recommend import Recommendation, Situation, Tried, eligible, findings_of, read_findings, recommend
from labelwise.recommend import situation as module
from labelwise.recommend.findings import why_not
from labelwise.recommend.situation import Choice, confirmation
from labelwise.signals.spec import Probs
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record
from labelwise.train import TorchLearner, is_of_trees, learner_of

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
P = RNG.dirichlet(np.ones(3), size=60)


def tried(strategy: str, saved: float = 0.3, **other: int) -> dict:
    return {"strategy": strategy, "saved": saved, "low": 0.0, "high": 0.5, "sets": 2, "better": 1, "below": 0,
            "lower": 0, "open": 0, **other}  # fmt: skip


def evidence(**by_situation: list[dict]) -> dict:
    """Findings with these strategies by situation; "_" stands for "-"."""
    found = {}
    for name, rows in by_situation.items():
        name = name.replace("_", "-")
        entry = {
            "records": ["r"],
            "sets": ["r/a/m", "r/b/m"],
            "seeds": 10,
            "training": {},
            "tried": rows,
            "choice": "?",
        }
        found[name] = findings_of(name, entry)
    return found


@pytest.fixture
def records(monkeypatch):
    """Replace the evidence of the package."""
    return lambda **rows: monkeypatch.setattr(module, "read_findings", lambda: evidence(**rows))


@pytest.mark.slow
def test_the_file_is_what_the_kept_records_give() -> None:
    stored = json.loads(files("labelwise.recommend").joinpath("findings.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(findings_from(ROOT / "docs" / "results"))) == stored, (
        "run python scripts/make_recommendations.py"
    )


@pytest.mark.parametrize("name", list(read_findings()))
def test_each_choice_follows_the_rule(name: str) -> None:
    found = read_findings()[name]
    best = eligible(found.tried, len(found.sets))
    assert found.choice == (best[0].strategy if best else "random")
    assert found.seeds >= 6
    assert all(one.low <= one.saved <= one.high and one.sets <= len(found.sets) for one in found.tried)
    for one in found.tried:
        assert one.strategy in lw.strategies.ALL
        assert one.below <= one.lower


def test_the_rule_passes_over_what_is_below_random_or_incomplete() -> None:
    rows = [tried("a", 0.9, below=1), tried("b", 0.8, sets=1), tried("c", 0.7, open=1), tried("d", 0.2), tried("e", 0)]
    assert [one.strategy for one in eligible(tuple(Tried(**row) for row in rows), 2)] == ["d"]
    reasons = [why_not(Tried(**row), 2) for row in rows]
    assert reasons == ["below random on 1", "ran on 1 of 2", "too few seeds on 1", "",
                       "saves nothing"]  # fmt: skip


def curve_of(strategy: str, values: list[list[float]]) -> list[Record]:
    return [
        Record(f"d/m/{strategy}/{seed}", strategy, seed, round, 10 + 10 * round, {"accuracy": value})
        for seed, line in enumerate(values)
        for round, value in enumerate(line)
    ]


def test_numbers_come_from_the_records() -> None:
    noise = [0.001 * seed for seed in range(10)]
    records = curve_of("random", [[0.5 + e, 0.6, 0.7, 0.8 - e] for e in noise])
    records += curve_of("margin", [[0.5 + e, 0.8, 0.85, 0.9] for e in noise])
    records += curve_of("entropy", [[0.5 + e, 0.55, 0.6, 0.7] for e in noise])
    records += curve_of("typiclust", [[0.6 + e, 0.65, 0.7, 0.8] for e in noise])
    records += curve_of("mine", [[0.9, 0.9, 0.9, 0.9] for _ in noise])
    experiment = learning_curves(records)
    found = {one.strategy: one for one in tried_from([outcomes(experiment)] * 3)}
    assert set(found) == {"margin", "entropy", "typiclust"}, "registered strategies alone"
    assert (found["margin"].better, found["margin"].below, found["margin"].sets) == (3, 0, 3)
    assert found["margin"].saved == pytest.approx(0.5, abs=0.03), "20 labels instead of 40"
    assert (found["entropy"].below, found["entropy"].lower) == (3, 3)
    assert found["entropy"].saved < 0
    first = {one.strategy: one for one in outcomes(experiment, first=True)}
    assert first["margin"].share == 0
    assert first["margin"].found.outcome == "same"
    assert first["typiclust"].share == pytest.approx(1 - 10 / 20, abs=0.03), "10 chosen labels are worth 20 random ones"
    assert first["typiclust"].found.outcome == "better"


def test_a_whole_recipe_is_confirmed_by_its_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = [0.001 * (seed % 3) for seed in range(12)]
    random = curve_of("random", [[0.5, 0.6, 0.7, 0.8 + e] for e in noise])
    ahead = [[0.6, 0.8 + e, 0.85, 0.9] for e in noise]
    behind = [[0.4, 0.5, 0.6 + e, 0.7] for e in noise]
    level = [[0.5, 0.6 + (0.01 if seed % 2 else -0.01), 0.7, 0.8] for seed in range(12)]

    def runs(*whole: list[list[float]], name: str = "typiclust+margin") -> RunCurves:
        sets = {f"{place}/m": learning_curves(random + curve_of(name, each)) for place, each in enumerate(whole)}
        return RunCurves("recommended", sets, ())

    where, recipe = recommendations.WHERE["network"], "typiclust+margin"
    names = [f"core/{place}/m" for place in range(4)]
    found = recommendations.confirmed(recipe, where, names, lambda folder: runs(ahead, behind, level, ahead))
    assert found is not None
    assert (found["records"], found["seeds"]) == ("docs/results/recommended", 12)
    numbers = Tried(**found["tried"])
    assert (numbers.strategy, numbers.sets, numbers.better, numbers.below) == (recipe, 4, 2, 1)
    assert numbers.high == pytest.approx(0.5, abs=0.03)
    single = recommendations.over_data_sets(recipe, [runs(ahead).experiments["0/m"]])[0].found
    many = recommendations.over_data_sets(recipe, [runs(ahead).experiments["0/m"]] * 4)[0].found
    assert many.p == pytest.approx(4 * single.p), "Holm's correction over the data sets"
    four = runs(ahead, ahead, ahead, ahead)
    assert recommendations.confirmed(recipe, where, names, lambda folder: four) is not None
    assert recommendations.confirmed("badge", where, names, lambda folder: four) is None, "another recipe was run"
    assert recommendations.confirmed(recipe, where, [*names, "core/5/m"], lambda folder: four) is None, "one is missing"
    assert recommendations.confirmed(recipe, where, names, lambda folder: None) is None
    assert recommendations.confirmed("random", where, names, lambda folder: four) is None
    assert recommendations.confirmed(recipe, recommendations.WHERE["trees"], names, lambda folder: four) is None
    entry = {"records": [], "sets": [], "seeds": 10, "training": {}, "tried": [], "choice": "margin"}
    read = findings_of("network", {**entry, "confirmed": json.loads(json.dumps(found))})
    assert read.confirmed is not None
    assert read.confirmed.tried == numbers
    assert confirmation(read.confirmed).startswith("as a whole, with 12 seeds that did not choose it, typiclust+margin")


def test_training_rules_that_differ_between_folders_are_both_named() -> None:
    def suites(**how: Any) -> tuple[Suite, ...]:
        models = (ModelSpec("mlp", "mlp", how), ModelSpec("forest", "forest", {}))
        return (SimpleNamespace(models=models),)  # type: ignore[return-value]

    def rules(*of: tuple[str, tuple[Suite, ...]]) -> dict[str, str]:
        return training_rules(of, ["core/a/mlp", "texts/b/mlp+warm"])

    last = "epochs 80, schedule cosine, keep last"
    assert rules(("core", suites(epochs=80))) == {"mlp": last}
    assert rules(("core", suites(epochs=80)), ("texts", suites(epochs=80))) == {"mlp": last}
    early = suites(epochs=20, schedule=None, keep="loss")
    both = {"mlp": f"core: {last}; texts: epochs 20, schedule none, keep loss"}
    assert rules(("core", suites(epochs=80)), ("texts", early)) == both


def test_a_start_that_is_worse_than_random_saves_a_negative_share() -> None:
    records = curve_of("random", [[0.6, 0.7]] * 6) + curve_of("typiclust", [[0.5, 0.7]] * 6)
    only: Outcome = outcomes(learning_curves(records), first=True)[0]
    assert only.share == pytest.approx(1 - 15 / 10)
    assert only.found.single == "worse"


def test_a_strategy_that_cannot_run_is_passed_over_with_the_reason(records) -> None:
    records(network=[tried("bald", 0.8), tried("ally", 0.7), tried("gone", 0.6), tried("badge")])
    found = recommend(replace(Situation(), own_objective=False))
    assert found.then.strategy == "badge"
    assert found.then.passed_over == (
        ("bald", "it needs LogProbs, which is not given here"),
        ("ally", "it trains by an objective of its own, which this model does not take"),
        ("gone", "it is not installed"),
    )


def test_where_none_is_recommended_the_reason_names_what_saved_most(records) -> None:
    records(
        network=[tried("badge", 0.5, below=1), tried("bald", 0.4), tried("margin", 0.3, open=2), tried("entropy", -1)]
    )
    found = recommend(Situation()).then
    assert found.strategy == "random"
    assert found.why == (
        "random, since on 2 data sets no strategy that can run here passed the rule; most labels saved: badge (50 %; "
        "below random on 1), bald (40 %; it needs LogProbs, which is not given here), margin (30 %; too few seeds on "
        "2)."
    )


def test_cold_starts_with_numbers_have_their_own_records_or_say_that_there_are_none(records) -> None:
    records(regression=[tried("bss")], cold_start=[tried("typiclust")])
    assert "no records of cold starts with numbers" in recommend(Situation(task="regress")).start.why
    assert "numbers" not in recommend(Situation()).start.why
    records(regression=[tried("bss")], cold_start=[tried("typiclust")], cold_start_regression=[tried("probcover")])
    assert recommend(Situation(task="regress")).recipe == "probcover+bss"
    assert recommend(Situation()).start.strategy == "typiclust"


def test_a_situation_with_random_alone_has_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    only = RunCurves("core", {"d/m": learning_curves(curve_of("random", [[0.5, 0.6]] * 6))}, ())
    monkeypatch.setattr(recommendations, "read_run_curves", lambda results, folder: only)
    assert findings_from(Path("unused"))["situations"] == {}


def test_signals_decide(records) -> None:
    records(network=[tried("dynamical", 0.9), tried("badge", 0.5), tried("margin", 0.4)])
    assert recommend(Situation()).then.strategy == "dynamical"
    assert recommend(Situation("trees")).then.strategy == "badge", "no gradients, and no records of trees"
    assert "no records of trees" in recommend(Situation("trees")).then.why
    assert recommend(Situation(signals=frozenset({Probs}))).then.strategy == "margin"
    assert recommend(Situation(signals=frozenset())).then.strategy == "random"


def test_a_batch_that_takes_long_or_much_memory_is_not_recommended(records) -> None:
    records(network=[tried("bait", 0.9), tried("margin")])
    assert recommend(Situation(classes=10, rows=500, width=16, k=10)).then.strategy == "bait"
    large = recommend(Situation(classes=40, rows=500_000))
    assert large.then.strategy == "margin"
    assert "of a core for 100 of 500,000 rows" in large.then.passed_over[0][1]
    limited = recommend(Situation(classes=10, rows=20_000, width=16, k=10, max_memory=20 << 20))
    assert "and the limit is 21MB" in limited.then.passed_over[0][1]


def test_each_situation_has_its_own_records(records) -> None:
    records(network=[tried("badge")], trees=[tried("margin")], many_classes=[tried("typiclust")],
         regression=[tried("bait")], embeddings=[tried("typiclust")], cold_start=[tried("probcover")])  # fmt: skip
    assert recommend(Situation(classes=10)).recipe == "probcover+badge"
    assert recommend(Situation(classes=50)).recipe == "probcover+typiclust"
    assert recommend(Situation("trees", classes=99)).recipe == "probcover+margin"
    assert recommend(Situation("none")).recipe == "probcover+typiclust"
    assert recommend(Situation(task="regress")).recipe == "probcover+bait"
    assert "First batch: probcover saved 30 % of the labels at the median of 2 data sets" in recommend(Situation()).why


def test_experiments_are_not_called_data_sets(records) -> None:
    records(trees=[tried("margin")])
    assert "at the median of 2 data sets" in recommend(Situation("trees")).then.why
    found = read_findings_of("core/digits/mlp", "texts/digits/mlp")
    assert found.unit == "experiment"
    assert read_findings_of("core/digits/mlp", "core/adult/mlp").unit == "data set"


def read_findings_of(*sets: str):
    return findings_of("trees", {"records": [], "sets": sets, "seeds": 10, "training": {}, "tried": [], "choice": "?"})


@pytest.mark.parametrize(
    ("start", "then", "recipe"),
    [("random", "badge", "badge"), ("random", "typiclust", "random+typiclust"), ("typiclust", "typiclust", "typiclust"),
     ("typiclust", "random", "typiclust+random"), ("random", "random", "random")],
)  # fmt: skip
def test_the_name_of_the_recipe_starts_as_recommended(start: str, then: str, recipe: str) -> None:
    found = Recommendation(Situation(), Choice(start, "cold-start", None, ""), Choice(then, "network", None, ""))
    assert found.recipe == recipe
    made = recipes.get(recipe)
    assert lw.strategies.name_of(made.start) == start
    assert lw.strategies.name_of(made.strategy) == then


@pytest.mark.parametrize(
    ("model", "trees"),
    [(RandomForestClassifier(), True), (HistGradientBoostingClassifier(), True), (KNeighborsClassifier(), True),
     (make_pipeline(StandardScaler(), RandomForestClassifier()), True), (LogisticRegression(), False),
     (make_pipeline(StandardScaler(), LogisticRegression()), False), (nn.Linear(4, 3), False),
     (CalibratedClassifierCV(RandomForestClassifier()), True), (CalibratedClassifierCV(LogisticRegression()), False)],
)  # fmt: skip
def test_trees_are_told_from_smooth_models(model, trees: bool) -> None:
    assert is_of_trees(learner_of(model)) == trees


def test_arrays_decide_for_select(records) -> None:
    records(
        network=[tried("typiclust", 0.9), tried("badge")],
        embeddings=[tried("kcenter")],
        cold_start=[tried("probcover")],
    )
    notes = lambda **arrays: lw.select("recommended", 3, **arrays).notes["recommended"].split()[0]  # noqa: E731
    assert notes(probs=P, embedding=X) == "badge", "typiclust also reads the labelled rows"
    assert notes(probs=P, embedding=X, labelled={"embedding": X[:4]}) == "typiclust"
    assert notes(embedding=X) == "probcover"
    assert notes(embedding=X, labelled={"embedding": X[:4]}) == "kcenter"
    assert notes(ids=np.arange(9)).startswith("random")
    same = lw.select("badge", 3, probs=P, embedding=X, seed=1).ids
    assert (lw.select("recommended", 3, probs=P, embedding=X, seed=1).ids == same).all()
    with pytest.raises(ArgumentError, match="labelled must be a dict"):
        lw.select("recommended", 3, embedding=X, labelled=[1])


def test_a_session_says_which_recipe_and_why_and_keeps_it(records, tmp_path: Path) -> None:
    records(network=[tried("margin")], cold_start=[tried("typiclust")])
    al = lw.Session(X, LogisticRegression(), "recommended", classes=2, folder=tmp_path / "s")
    assert al.recipe.name == "typiclust+margin"
    picks = al.ask(6)
    assert picks.notes["recommended"].startswith("typiclust+margin. First batch: typiclust saved 30 % of the labels")
    al.tell(picks.ids, (X[picks.ids, 0] > 0).astype(int))
    records(network=[tried("entropy")])  # another version recommends another recipe
    for again in (
        lw.Session.load(tmp_path / "s", X, LogisticRegression()),
        lw.Session(X, LogisticRegression(), "recommended", classes=2, folder=tmp_path / "s", resume=True),
        lw.Session(X, LogisticRegression(), "typiclust+margin", classes=2, folder=tmp_path / "s", resume=True),
    ):
        assert again.recipe.name == "typiclust+margin"
        assert (again.ask(5).ids == al.ask(5).ids).all()
    assert (
        lw.Session.load(tmp_path / "s", X, LogisticRegression()).ask(5).notes["recommended"].startswith("typiclust+m")
    )
    assert lw.Session(X, LogisticRegression(), "recommended", classes=2).recipe.name == "entropy"


def test_rounds_write_the_recipe_that_ran_into_the_records(records) -> None:
    records(network=[tried("margin")])
    records = list(lw.rounds(X, (X[:, 0] > 0).astype(int), LogisticRegression(), "recommended", k=5, n=1))
    assert {record.strategy for record in records} == {"margin"}
    assert records[0].notes["selection"]["recommended"].startswith("margin. First batch: random")


def test_the_recommended_recipe_on_equal_terms(records) -> None:
    records(network=[tried("dynamical", 0.9)], regression=[tried("bss")])
    net, y = TorchLearner(lambda: nn.Linear(4, 2), epochs=1), X[:, 0] > 0
    for training, starts in (("restart", [False, False]), ("warm", [False, True])):
        records = list(lw.rounds(X, y.astype(int), net, "recommended", k=10, n=1, training=training))
        assert [record.notes["training"]["warm_start"] for record in records] == starts
        assert records[0].strategy.startswith("dynamical")
    numbers = TorchLearner(lambda: nn.Linear(4, 1), epochs=1, loss="mse")
    assert len(list(lw.rounds(X, X[:, 0], numbers, "recommended", k=10, n=1, training="warm"))) == 2


def test_where_nothing_is_at_hand_the_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"depends on the model and the data: pass it to lw.Session"):
        recipes.get("recommended")


@pytest.mark.parametrize("name", ["trees", "cold", "cold-regression", "regression", "images", "recommended"])
def test_the_suites_of_the_situations_can_be_read(name: str) -> None:
    suite = read_suite(ROOT / "src/labelwise/bench/suites" / f"{name}.yaml")
    jobs, skipped = suite.jobs()
    assert len({(job.data.label, job.model.name) for job in jobs}) >= 4
    assert not [one for one in skipped if one.strategy != "random" and name not in ("regression", "images")]
