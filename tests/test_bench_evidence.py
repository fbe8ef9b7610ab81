"""The report over experiments: made from records alone, the same bytes again, honest words."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

from labelwise.bench.evidence import gather, records_of, report, together
from labelwise.bench.kept_curves import Kept
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


def test_a_strategy_that_trains_by_rules_of_its_own_is_named(tmp_path):
    same = [replace(one, metrics={"accuracy": 0.5}) if one.round == 0 else one for one in records("one")]
    for record in same:
        own = record.round == 0 and record.strategy == "coin"
        append(tmp_path / "run" / "one.jsonl", replace(record, metrics={"accuracy": 0.41}) if own else record)
    report([tmp_path / "run" / "one.jsonl"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert (
        "coin trains by rules of its own: on the same first 20 labels its model has accuracy 41.0 %, random's 50.0 %"
        in text
    )
    assert text.count("rules of its own") == 1


def test_with_too_few_seeds_for_any_test_nothing_is_said_of_a_strategy(tmp_path):
    for record in records("one", seeds=5):
        append(tmp_path / "run" / "records" / "one.jsonl", record)
    report([tmp_path / "run"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    for name in ("margin", "coin", "worse"):
        assert f"- {name} cannot be compared with random yet\n" in text
    assert "rest on 5 seeds, too few for any test" in text
    assert "measurabl" not in text.split("##")[0]


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


def test_files_that_are_damaged_or_of_something_else_are_named_with_what_to_do(run, tmp_path):
    report([run], tmp_path / "out")
    packed, path = tmp_path / "out" / "records.jsonl.gz", run / "records" / "one.jsonl"
    content, whole = packed.read_bytes(), path.read_text()
    lines = whole.splitlines(keepends=True)
    for broken, said in (
        ("{broken}\n", "Expected a record as one line of JSON"),
        ('{"run": "x"}\n', "A record needs the field 'strategy'"),
        (lines[1].replace('"round":1', '"round":"one"'), "The field round of a record: expected a whole number"),
    ):
        path.write_text("".join([lines[0], broken, *lines[2:]]))
        with pytest.raises(StoreError, match=rf"one.jsonl, line 2: {said}.*Remove that file, .*one.jsonl: its rounds"):
            report([run], tmp_path / "again")
    path.write_text(whole)
    inside = gzip.decompress(content)
    for broken, said in (
        (content[:-20], "cannot be read: Compressed file ended"),
        (b"no gzip at all", "cannot be read: Not a gzipped file"),
        (content[:40] + b"xxxxxxxx" + content[48:], "cannot be read: Error .* while decompressing"),
        (gzip.compress(inside.replace(b'"round":2', b'"round":-2', 1)), r"line 3: The field round of a record"),
    ):
        packed.write_bytes(broken)
        with pytest.raises(StoreError, match=rf"records.jsonl.gz.* {said}.*Remove that file, .*makes it again from"):
            records_of(tmp_path / "out")
    (tmp_path / "notes.txt").write_text("# something else\n")
    with pytest.raises(StoreError, match=r"notes.txt, line 1: Expected a record.*Name the folder of a run"):
        records_of(tmp_path / "notes.txt")
    with pytest.raises(ArgumentError, match="'x/mlp/random/0' has no metric 'rmse'; it has recall"):
        gather([Record("x/mlp/random/0", "random", 0, 0, 20, {"recall": 0.5})])


def test_kept_curves_that_are_damaged_are_named_with_what_to_do(tmp_path):
    kept = Kept(tmp_path, "all that decides")
    curve = [Record("data/network/ally/3", "ally", 3, number, 10, {"accuracy": 0.5}) for number in range(3)]
    kept.write("ally", 3, "more", curve)
    assert kept.read("ally", 3, "more") == curve
    (path,) = tmp_path.iterdir()
    lines = path.read_text().splitlines(keepends=True)
    for content, said in (
        ("".join([lines[0], "{}\n", lines[2]]), "line 2: A record needs the field 'run'"),
        ("".join([lines[0], lines[2]]), "line 2: expected round 1 of data/network/ally/3, found round 2"),
        (
            lines[0].replace("ally/3", "badge/3"),
            "line 1: expected round 0 of ally/3, found round 0 of data/network/badge",
        ),
    ):
        path.write_text(content)
        with pytest.raises(StoreError, match=rf"{path.name}, {said}.*Remove that file, .*: its curve is run again"):
            kept.read("ally", 3, "more")


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
