"""The page of training rules and the numbers of the decision, made from records."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import make_training_rules
import pytest

from labelwise.bench.suites import find_suite
from labelwise.stats.record import Record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, for results in a folder of the test."""
    monkeypatch.setattr(make_training_rules, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(make_training_rules, "DECISION", tmp_path / "decision.md")
    (tmp_path / "decision.md").write_text(
        f"before\n{make_training_rules.BEGIN}\nold\n{make_training_rules.END}\nafter\n"
    )
    monkeypatch.setattr(sys, "argv", ["make_training_rules.py"])
    return make_training_rules


SUITE = """
datasets: [digits, {name: digits, hard: noise}]
models: [%s]
strategies: [random]
seeds: 6
start: 10
k: 10
rounds: 2
"""


def write_runs(
    folder: Path, models: dict[str, float], seconds: dict[str, float] | None = None, seeds: dict[str, int] | None = None
) -> None:
    """Records of random picks on two data sets; the accuracy of a model is its number and a little noise."""
    folder.mkdir(parents=True)
    listed = ", ".join(f"{{name: {name}, kind: mlp, epochs: 80}}" for name in models)
    (folder / "config.yaml").write_text(SUITE % listed)
    lines = ""
    for data in ("digits", "digits+noise"):
        for name, level in models.items():
            for seed in range((seeds or {}).get(name, 6)):
                for round in range(3):
                    score = level + 0.002 * ((seed * 7 + len(name)) % 3) + 0.01 * round
                    lines += Record(
                        f"x/{data}/{name}/random/{seed}", "random", seed, round, 10 + 10 * round, {"accuracy": score},
                        train_seconds=(seconds or {}).get(name, 1.0),
                        environment={"device": "GPU" if name == "default" else "CPU", "seed": str(seed)},
                    ).to_json() + "\n"  # fmt: skip
    (folder / "records.jsonl.gz").write_bytes(gzip.compress(lines.replace("x/", "").encode(), mtime=0))


def test_the_page_and_the_decision_say_which_rule_is_best(script: Any) -> None:
    levels = {"loss": 0.6, "cosine": 0.8, "epochs": 0.8, "default": 0.7}
    write_runs(script.RESULTS / "training", levels, {"epochs": 6.0})
    script.main()
    page = (script.RESULTS / "training-rules/README.md").read_text()
    assert "## A perceptron on features" in page
    assert "Small convolutional networks" not in page, "there are no records of them"
    assert "| epochs | all | 80 | last | 0.005 | 0.001, falls to 0 | 6.0 | – |" in page
    assert "| default | all | 80 | last | 0.005 | 0.001, falls to 0 | – | – |" in page, "measured on another machine"
    assert "| loss |" in page
    decision = script.DECISION.read_text()
    assert decision.startswith("before\n")
    assert decision.endswith("after\n")
    assert "old" not in decision
    best = (
        "On 2 data sets (6 seeds), `cosine`, the rule of the benchmark, has the highest area of test accuracy (81.2 %)."
    )
    assert best in decision
    assert "The difference of `default`, `TorchLearner` without an argument, is −10" in decision
    assert "| rule | mean | difference from the best | most behind |" in decision
    assert "| cosine | 81.2 | best |" in decision
    assert "The target" not in decision, "two of the rules it is compared with were not run"


def test_another_outcome_is_said_too(script: Any) -> None:
    write_runs(script.RESULTS / "training", {"loss": 0.9, "cosine": 0.8, "default": 0.7})
    write_runs(script.RESULTS / "training-images", {"lenet-loss": 0.7, "lenet-cosine": 0.8, "lenet-default": 0.8})
    script.main()
    decision = script.DECISION.read_text()
    assert "## A perceptron on features\n\nOn 2 data sets (6 seeds), `loss` has the highest area" in decision
    assert "`cosine`, the rule of the benchmark, is −10" in decision
    images = decision.partition("## Small convolutional networks on pixels")[2]
    assert "the rule of the benchmark" not in images
    assert "`default`, `TorchLearner` without an argument" in images
    assert "lenet" not in (script.RESULTS / "training-rules/README.md").read_text().replace("lenet5", "")


def test_it_says_how_far_the_target_is(script: Any) -> None:
    write_runs(script.RESULTS / "training", {"loss": 0.7, "last": 0.71, "decay": 0.6, "cosine": 0.8, "default": 0.7})
    script.main()
    decision = script.DECISION.read_text()
    assert "at most 0.3 points behind the best of `loss`, `last`, `decay` on each of core's sets of classes" in decision
    assert "`cosine` is there on 1 of 1 set;" in decision
    assert "`default` is there on 0 of 1 set (further behind: digits 1.00)" in decision


@pytest.mark.parametrize(("seeds", "found"), [({}, 1), ({"default": 2, "cosine": 3}, 2)])
def test_records_of_a_run_that_goes_on_still(script: Any, seeds: dict[str, int], found: int) -> None:
    """One seed, or models that are ahead of others: every interval is a number, and the page names the seeds."""
    write_runs(
        script.RESULTS / "training", {"loss": 0.9, "cosine": 0.8, "default": 0.7}, None, {"loss": found, "cosine": 1,
        "default": 1, **seeds},
    )  # fmt: skip
    script.main()
    page, decision = (script.RESULTS / script.PAGE).read_text(), script.DECISION.read_text()
    assert "nan" not in page + decision
    assert f"On 2 data sets ({found} seed{'s' if found > 1 else ''}), `loss` has the highest area" in decision
    assert "`cosine`, the rule of the benchmark, is −10" in decision


def test_a_rule_that_has_not_run_everywhere_is_compared_where_it_has(script: Any) -> None:
    folder = script.RESULTS / "training"
    write_runs(folder, {"loss": 0.7, "cosine": 0.8, "default": 0.7})
    path = folder / "records.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    path.write_bytes(gzip.compress("".join(line for line in lines if "digits+noise/cosine" not in line).encode()))
    script.main()
    decision = script.DECISION.read_text()
    assert "Of the rules that ran on all of 2 data sets (6 seeds), `" in decision
    assert "points on 1 data set." in decision
    assert "| cosine | – |" in decision


def test_networks_that_share_rules_are_compared_by_rule(script: Any) -> None:
    assert [script.rule_of(name) for name in ("lenet-loss", "cnn-loss", "loss")] == ["loss"] * 3
    models = {name for suite in ("training", "training-images") for name in names_of(find_suite(suite))}
    assert {script.COSINE, script.DEFAULT} <= {script.rule_of(name) for name in models}


def names_of(path: Path) -> list[str]:
    from labelwise.bench.suite.suite import read_suite

    return [model.name for model in read_suite(path).models]


def test_the_check_sees_other_records_and_no_records(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="records of the suites training and training-images were expected"):
        script.main()
    write_runs(script.RESULTS / "training", {"cosine": 0.8, "default": 0.7})
    script.main()
    monkeypatch.setattr(sys, "argv", ["make_training_rules.py", "--check"])
    script.main()
    page = script.RESULTS / "training-rules/README.md"
    page.write_text(page.read_text().replace("80", "81"))
    with pytest.raises(SystemExit, match="out of date"):
        script.main()
    script.DECISION.write_text("no marks")
    with pytest.raises(SystemExit, match="are missing"):
        script.main()


def test_the_kept_page_is_what_the_kept_records_give() -> None:
    results = ROOT / "docs/results"
    page, decision = results / make_training_rules.PAGE, make_training_rules.DECISION.read_text()
    if not any((results / folder / "records.jsonl.gz").is_file() for folder in make_training_rules.FOLDERS):
        assert not page.exists()
        assert f"{make_training_rules.BEGIN}\n{make_training_rules.END}" in decision
        return
    text, numbers = make_training_rules.pages(results)
    assert page.read_text() == text
    assert f"{make_training_rules.BEGIN}\n{numbers}{make_training_rules.END}" in decision
