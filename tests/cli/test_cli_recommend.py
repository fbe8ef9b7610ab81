"""`labelwise recommend`, and the recommended recipe as the default of other commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.cli.comparison import at_the_end, parse_names, recommended_for
from labelwise.cli.demo import RECIPES
from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.pool import Pool
from labelwise.project import Project
from labelwise.project.loop.snapshot import with_recipe
from labelwise.project.settings import Settings
from labelwise.recommend import Findings, Situation, Tried, recommend
from labelwise.stats.record import Record
from labelwise.stats.summary import summarise

RNG = np.random.default_rng(0)


def run(*words: object) -> str:
    found = CliRunner().invoke(app, ["recommend", *map(str, words)], env={"COLUMNS": "200"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.stdout


def table(path: Path, labels: list[str]) -> Path:
    lines = [f"{x:.3f},{label}" for x, label in zip(RNG.normal(size=len(labels)), labels)]
    path.write_text("\n".join(["size,kind", *lines]) + "\n")
    return path


def test_it_says_what_why_and_what_else() -> None:
    text = run("--classes", 10)
    expected = recommend(Situation(classes=10))
    assert text.startswith(f"{expected.recipe}  is recommended for probabilities and embeddings")
    assert "10 classes, nothing labelled yet" in text
    assert expected.then.strategy in text
    assert "labels saved against random: median and range over" in text
    assert "docs/results/core" in text
    assert f'or by name: "{expected.recipe}"' in text


def test_json_has_all_numbers() -> None:
    found = json.loads(run("--json", "--model", "trees", "--classes", 5, "--labels", 7))
    assert found["situation"] | {"name": "trees", "classes": 5, "labels": 7, "task": "classify"} == found["situation"]
    assert {"strategy", "saved", "low", "high", "better", "below", "lower", "sets", "open"} <= set(
        found["then"]["findings"]["tried"][0]
    )
    assert found["recipe"].endswith(found["then"]["strategy"])


def test_a_table_says_task_classes_and_labels(tmp_path: Path) -> None:
    kinds = ["cat", "dog", "bird"] * 6
    part = json.loads(run(table(tmp_path / "a.csv", [*kinds, *[""] * 30]), "--label", "kind", "--json"))["situation"]
    assert (part["task"], part["classes"], part["labels"], part["rows"]) == ("classify", 3, 18, 30)
    none = json.loads(run(table(tmp_path / "b.csv", [""] * 9), "--label", "kind", "--json"))["situation"]
    assert (none["labels"], none["rows"]) == (0, 9)
    numbers = [f"{one:.4f}" for one in RNG.normal(size=40)]
    text = run(table(tmp_path / "c.csv", numbers), "--label", "kind")
    assert "is recommended for numbers to predict" in text
    assert "Next batch" in text, "rows are labelled: there is no first batch to choose"


def test_a_folder_of_images_says_how_many(tmp_path: Path) -> None:
    (tmp_path / "one.png").touch()
    assert "1 row to choose from" in run(tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--model", "svm"), "--model is one of network, linear, trees, none, not 'svm'"),
        (("--label", "kind"), "--label names a column of a table"),
        (("{table}",), "name the column with the labels: --label COLUMN"),
        (("{table}", "--label", "knd"), "knd"),
        (("{none}",), "nothing was found there"),
        (("{empty}",), "found no image"),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    (tmp_path / "empty").mkdir()
    places = {"table": table(tmp_path / "t.csv", ["a", "b"]), "none": tmp_path / "none", "empty": tmp_path / "empty"}
    with pytest.raises(LabelwiseError) as found:
        run(*(word.format(**places) for word in words))
    assert expected in str(found.value)


def test_a_project_keeps_the_name_of_the_recommended_recipe(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", [""] * 30)
    settings = Settings("t", "table", "../t.csv", columns=("size",), classes=("a", "b"), recipe="recommended", k=4)
    project = Project.create(tmp_path / "p", settings)
    expected = recommend(Situation(classes=2, rows=30, width=project.feature_info.width, k=4, own_objective=False))
    assert project.settings.recipe == expected.recipe
    project.close()
    opened = Project.open(tmp_path / "p")
    assert opened.settings.recipe == expected.recipe
    opened.close()
    found = json.loads(run(tmp_path / "p", "--json"))["situation"]
    assert (found["classes"], found["rows"], found["labels"]) == (2, 30, 0)
    assert source.is_file()


def test_a_recipe_that_is_named_stays() -> None:
    settings = Settings("t", "table", "t.csv", recipe="badge")
    assert with_recipe(settings, Pool.of(np.eye(4, dtype="float32"))) is settings


def test_recommended_is_a_name_like_others_in_comparisons() -> None:
    assert parse_names("recommended, margin", lambda: "typiclust+badge") == ("random", "typiclust+badge", "margin")
    assert parse_names("margin", lambda: pytest.fail("not asked for")) == ("random", "margin")
    assert RECIPES == "recommended"


def test_random_is_not_compared_with_itself(monkeypatch) -> None:
    from labelwise.bench.data.load import load
    from labelwise.recommend import situation

    monkeypatch.setattr(situation, "read_findings", dict)
    with pytest.raises(ArgumentError, match="random itself is recommended here"):
        recommended_for(load("digits", limit=50), None, 10)


def test_where_random_is_recommended_the_strategy_that_saved_most_is_compared(monkeypatch) -> None:
    from labelwise.bench.data.load import load
    from labelwise.cli import demo
    from labelwise.recommend import situation

    below = [Tried(name, saved, 0.0, 0.5, 2, 1, below=1, lower=1) for name, saved in (("bald", 0.9), ("badge", 0.4))]
    found = Findings("network", (), ("a/b/m", "a/c/m"), 10, {}, tuple(below), "random")
    monkeypatch.setattr(situation, "read_findings", lambda: {"network": found})
    assert recommend(Situation()).recipe == "random"
    data = load("digits", limit=60)
    assert recommended_for(data, demo._learner(), 10) == "badge", "bald needs draws of the weights"
    assert parse_names("recommended", lambda: recommended_for(data, demo._learner(), 10)) == ("random", "badge")


def test_the_end_and_the_area_are_named_for_every_recipe() -> None:
    records = [
        Record(f"d/m/{name}/{seed}", name, seed, round, 10 + 10 * round, {"accuracy": value})
        for name, line in (("random", (0.5, 0.6, 0.9)), ("margin", (0.5, 0.8, 0.8)))
        for seed in range(2)
        for round, value in enumerate(line)
    ]
    assert at_the_end(summarise(records)) == (
        "At 30 labels: random 90.0 %, margin 80.0 %. Mean over the curve (area): random 65.0 %, margin 72.5 %."
    )
