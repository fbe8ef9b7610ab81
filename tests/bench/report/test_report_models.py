"""The section of the report that compares models by random picks."""

import csv

import pytest

from labelwise.bench.report.report import gather, report
from labelwise.stats.record import Record, append


def records(data, model, shift, strategies=("random",), seeds=4):
    for name in strategies:
        for seed in range(seeds):
            for number in range(3):
                value = 0.5 + 0.1 * number + shift + 0.001 * ((seed * 7 + number * 3) % 5)
                run = f"{data}/{model}/{name}/{seed}"
                yield Record(run, name, seed, number, 20 + 10 * number, {"accuracy": value})


def rules(**more):
    return [
        one
        for data in ("iris", "wine")
        for model, shift in (("early", 0.0), ("all", 0.02))
        for one in records(data, model, shift, **more)
    ]


@pytest.mark.slow
def test_a_suite_of_random_picks_compares_its_models_and_has_no_other_section(tmp_path):
    for record in rules():
        append(tmp_path / "run" / "records" / "all.jsonl", record)
    found = report([tmp_path / "run"], tmp_path / "out")
    assert found.lines == [
        "Of 2 models that ran on each of 2 data sets, all has the highest mean area of test accuracy by random picks "
        "(62.2 %)."
    ]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| model | iris (4 seeds) | wine (4 seeds) | mean | difference from the best | most behind |" in text
    assert "| early | 60.2 | 60.2 | 60.2 | −2.00 (−2.00 to −2.00) | 2.00 (iris) |" in text.replace("(wine)", "(iris)")
    assert "Each experiment" not in text
    assert "ranks" not in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Models compared by random picks" in page
    assert page.count("<img") == 2
    with (tmp_path / "out" / "models.csv").open() as file:
        rows = list(csv.DictReader(file))
    (gap,) = (r for r in rows if (r["measure"], r["model"], r["dataset"]) == ("area", "early", "mean"))
    assert float(gap["difference"]) == pytest.approx(-0.02)
    assert float(gap["value"]) == pytest.approx(0.602, abs=1e-3)


def test_models_with_strategies_have_both_the_comparison_and_their_sections():
    found = gather(rules(strategies=("random", "margin")))
    assert len(found.models) == 1
    assert len(found.with_strategies) == 4
    assert [table.best.model for table in found.models[0].tables] == ["all", "all"]


def test_one_model_on_each_data_set_is_no_comparison():
    found = gather([*records("iris", "early", 0.0), *records("wine", "all", 0.0)])
    assert found.models == []
    assert len(found.with_strategies) == 2
    assert found.lines == ["No other strategy shares a seed with random, so there is nothing to compare."]


def test_experiments_that_miss_the_same_runs_share_a_line():
    goals = {f"iris/{model}": {("random", seed): 40 for seed in range(5)} for model in ("early", "all")}
    found = gather([*records("iris", "early", 0.0), *records("iris", "all", 0.1)], goals)
    assert found.lines[1] == "iris/all, iris/early: 4 of 5 runs finished; missing: random (seed 4)."
