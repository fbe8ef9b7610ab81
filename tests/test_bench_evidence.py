"""The report over experiments: made from records alone, the same bytes again, honest words."""

import numpy as np
import pytest

from labelwise.bench.evidence import gather, records_of, report, together
from labelwise.errors import ArgumentError, StoreError
from labelwise.report.record import Record, append

SHIFT = {"random": 0.0, "margin": 0.06, "coin": 0.0, "worse": -0.06}


def records(data, metric="accuracy", seeds=8, rounds=4):
    rng = np.random.default_rng(len(data))
    for seed in range(seeds):
        base = rng.normal(0, 0.01)
        for name, shift in SHIFT.items():
            for number in range(rounds):
                value = 0.5 + 0.1 * number + base + (shift if number else 0) + 0.004 * rng.normal()
                if name == "coin" and number:
                    value = 0.5 + 0.1 * number + base + (0.004 if seed % 2 else -0.004)
                value = value if metric == "accuracy" else 2 - value
                run = f"{data}/mlp/{name}/{seed}"
                yield Record(run, name, seed, number, 20 + 10 * number, {metric: value}, picked=[1] * (number < 3))


@pytest.fixture
def run(tmp_path):
    for data in ("one", "three"):
        for record in records(data):
            append(tmp_path / "run" / "records" / f"{data}.jsonl", record)
    for record in records("numbers", "rmse"):
        append(tmp_path / "run" / "records" / "numbers.jsonl", record)
    return tmp_path / "run"


def test_the_report_says_who_wins_and_who_makes_no_difference(run, tmp_path):
    experiments = report([run], tmp_path / "out", command="labelwise bench report run")
    assert [one.name for one in experiments] == ["numbers/mlp", "one/mlp", "three/mlp"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "margin beats random measurably on 3 of 3 experiments" in text
    assert "worse beats random on none of 3, loses to it on 3" in text
    assert "coin makes no measurable difference to random on any of 3 experiments" in text
    assert text.index("- margin") < text.index("- coin") < text.index("- worse")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    for name in ("ranks-accuracy.png", "ranks-rmse.png", "one-mlp/curves.png", "one-mlp/table.csv", "standings.csv"):
        assert (tmp_path / "out" / name).stat().st_size > 100, name


def test_a_report_made_again_from_its_own_records_is_the_same(run, tmp_path):
    report([run], tmp_path / "a")
    report([tmp_path / "a"], tmp_path / "b")
    for name in ("report.md", "standings.csv", "records.jsonl.gz", "report.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_rounds_found_twice_unfinished_runs_and_nothing(run, tmp_path):
    found = records_of(run)
    with pytest.raises(ArgumentError, match="found twice"):
        gather(found + found[:1])
    cut = [r for r in found if not (r.run == "one/mlp/margin/3" and r.round == 3)]
    (one,) = (e for e in gather(cut) if e.name == "one/mlp")
    assert one.curves["margin"].seeds == (0, 1, 2, 4, 5, 6, 7)
    with pytest.raises(StoreError, match="nothing there"):
        records_of(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="no finished round"):
        report([tmp_path / "empty"], tmp_path / "out")


def test_ranks_of_each_metric_are_apart_and_an_oracle_is_not_ranked(run):
    found = records_of(run)
    found += [
        Record(r.run.replace("margin", "oracle"), "oracle", r.seed, r.round, r.labels, {"accuracy": 0.99})
        for r in found
        if r.strategy == "margin" and "accuracy" in r.metrics
    ]
    by_metric = {one.metric: one for one in together(gather(found))}
    assert set(by_metric) == {"accuracy", "rmse"}
    assert by_metric["accuracy"].ranks.experiments == 2
    assert by_metric["accuracy"].ranks.names[0] == "margin"
    assert "oracle" not in by_metric["accuracy"].ranks.names
    assert by_metric["rmse"].scores[("margin", "random")].wins == 1
