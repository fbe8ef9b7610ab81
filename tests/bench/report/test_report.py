"""The report over experiments: made from records alone, the same bytes again, honest words."""

import csv
import gzip
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

from labelwise.bench.report import sentences
from labelwise.bench.report.load_runs import Source, joined, own_starts, records_of
from labelwise.bench.report.pages import reach_table, standings_table
from labelwise.bench.report.report import gather, levels_of, report
from labelwise.bench.suite.suite import read_suite
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.text import markdown_table
from labelwise.report.figures import banded_strategies
from labelwise.report.tables import saved_text
from labelwise.reproduce.curves import CurveStore
from labelwise.stats.record import Record, append
from labelwise.stats.savings import labels_saved

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
                picked = [list(SHIFT).index(name)] * (number < 3)
                yield Record(run, name, seed, number, 20 + 10 * number, {metric: value}, picked=picked)


@pytest.fixture
def run(tmp_path):
    for data in ("one", "three"):
        for record in records(data):
            append(tmp_path / "run" / "records" / f"{data}.jsonl", record)
    for record in records("numbers", "rmse"):
        append(tmp_path / "run" / "records" / "numbers.jsonl", record)
    return tmp_path / "run"


@pytest.mark.slow
def test_the_report_says_who_wins_and_who_makes_no_difference(run, tmp_path):
    found = report([run], tmp_path / "out", command="labelwise bench report run")
    assert [one.name for one in found.experiments] == ["numbers/mlp", "one/mlp", "three/mlp"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "- margin beats random on 3 of 3 experiments.\n" in text
    assert "- worse beats random on none of 3 experiments, loses to it on 3.\n" in text
    assert "coin does not differ measurably from random on any of 3 experiments.\n" in text
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
        "coin trains differently: with the same first 20 labels its model has accuracy 41.0 % and random's 50.0 %"
        in text
    )
    assert text.count("trains differently") == 1
    own = gather(records_of(tmp_path / "run" / "one.jsonl"), own_start={"one/mlp"}).experiments[0]
    assert "trains differently" not in sentences.tests_text(own)
    assert "Each strategy chose its own first batch" in sentences.tests_text(own)


def test_the_configuration_says_where_strategies_choose_their_first_batch(tmp_path):
    text = yaml.safe_dump({"datasets": ["digits"], "models": ["mlp"], "strategies": ["typiclust"], "seeds": 1,
                           "start": 5, "k": 5, "rounds": 1})  # fmt: skip
    (tmp_path / "own.yaml").write_text(text + "first_batch: own\n")
    (tmp_path / "same.yaml").write_text(text)
    own, same = (Source(tmp_path, [], (read_suite(tmp_path / f"{name}.yaml"),)) for name in ("own", "same"))
    assert own_starts([own, same]) == {"digits/mlp"}
    assert own_starts([same]) == set()


def test_with_too_few_seeds_for_any_test_nothing_is_said_of_a_strategy(tmp_path):
    for record in records("one", seeds=4):
        append(tmp_path / "run" / "records" / "one.jsonl", record)
    report([tmp_path / "run"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "- margin, coin, worse cannot be compared with random yet: 4 seeds, 5 or more are needed.\n" in text
    assert "No strategy can be compared with random yet: 4 seeds, 5 or more are needed." in text
    assert "measurabl" not in text
    assert "0/1/0" not in text


@pytest.mark.slow
def test_a_report_made_again_from_its_own_records_is_the_same(run, tmp_path):
    report([run], tmp_path / "a")
    report([tmp_path / "a"], tmp_path / "b")
    for name in ("report.md", "standings.csv", "records.jsonl.gz", "report.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_rounds_found_twice_and_nothing(run, tmp_path):
    found = records_of(run)
    with pytest.raises(ArgumentError, match="round 0 of 'numbers/mlp/random/0' appears twice; remove one"):
        joined([Source(run, found + found[:1])])
    cut = [r for r in found if not (r.run == "one/mlp/margin/3" and r.round == 3)]
    (one,) = (e for e in gather(cut).experiments if e.name == "one/mlp")
    assert one.curves["margin"].seeds == (0, 1, 2, 4, 5, 6, 7)
    with pytest.raises(StoreError, match="nothing there"):
        records_of(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="expected finished runs, found nothing"):
        report([tmp_path / "empty"], tmp_path / "out")


def early(line):
    """A line of a record as early versions wrote it, without its checksum."""
    return re.sub(r',"crc":"\w+"\}', "}", line)


@pytest.mark.slow
def test_files_that_are_damaged_or_of_something_else_are_named_with_what_to_do(run, tmp_path):
    report([run], tmp_path / "out")
    packed, path = tmp_path / "out" / "records.jsonl.gz", run / "records" / "one.jsonl"
    content, whole = packed.read_bytes(), path.read_text()
    lines = whole.splitlines(keepends=True)
    for broken, said in (
        ("{broken}\n", "Expected a record as one line of JSON"),
        ('{"run": "x"}\n', "A record needs the field 'strategy'"),
        (lines[1].replace('"round":1', '"round":"one"'), "A record was changed after it was written"),
        (early(lines[1]).replace('"round":1', '"round":"one"'), "The field round of a record: expected a whole number"),
    ):
        path.write_text("".join([lines[0], broken, *lines[2:]]))
        with pytest.raises(
            StoreError,
            match=rf"one.jsonl, line 2: {said}.*Remove that file, .*one.jsonl: the next `labelwise bench run` then",
        ):
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
    store = CurveStore(tmp_path, "all that decides")
    curve = [Record("data/network/ally/3", "ally", 3, number, 10, {"accuracy": 0.5}) for number in range(3)]
    store.write("ally", 3, "more", curve)
    assert store.read("ally", 3, "more") == curve
    (path,) = tmp_path.iterdir()
    lines = path.read_text().splitlines(keepends=True)
    for content, said in (
        ("".join([lines[0], "{}\n", lines[2]]), "line 2: A record needs the field 'run'"),
        ("".join([lines[0], lines[2]]), "line 2: expected round 1 of data/network/ally/3, found round 2"),
        (
            early(lines[0]).replace("ally/3", "badge/3"),
            "line 1: expected round 0 of ally/3, found round 0 of data/network/badge",
        ),
    ):
        path.write_text(content)
        with pytest.raises(
            StoreError, match=rf"{path.name}, {said}.*Remove that file, .*: the same command then runs its curve again"
        ):
            store.read("ally", 3, "more")


def test_ranks_of_each_metric_are_apart_and_an_oracle_is_not_ranked(run):
    found = records_of(run)
    found += [
        Record(r.run.replace("margin", "oracle"), "oracle", r.seed, r.round, r.labels, {"accuracy": 0.99})
        for r in found
        if r.strategy == "margin" and "accuracy" in r.metrics
    ]
    by_metric = {one.metric: one for one in gather(found).groups}
    assert set(by_metric) == {"accuracy", "rmse"}
    assert by_metric["accuracy"].ranks.experiments == 2
    assert by_metric["accuracy"].ranks.names[0] == "margin"
    assert "oracle" not in by_metric["accuracy"].ranks.names
    assert by_metric["rmse"].scores[("margin", "random")].wins == 1


def test_the_oracle_is_outside_the_correction_and_not_judged(run):
    found = records_of(run)
    more = [
        Record(r.run.replace("margin", "oracle"), "oracle", r.seed, r.round, r.labels, {"accuracy": 0.99})
        for r in found
        if r.run.startswith("one/mlp/margin")
    ]
    (plain,) = (one for one in gather(found).experiments if one.name == "one/mlp")
    (beside,) = (one for one in gather(found + more).experiments if one.name == "one/mlp")
    assert beside.verdicts == plain.verdicts
    assert beside.table.rows[-1].verdict == "not a contender: it uses the test rows"


# --- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unfinished_run_says_so_at_the_top_and_compares_finished_runs_only(run, tmp_path):
    """Worse was stopped early everywhere, where its curve is short and high, and margin on some seeds."""
    for path in (run / "records").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        store = [x for x in lines if not ('"strategy":"worse"' in x and '"round":3' in x)]
        path.write_text("".join(x for x in store if not ('/margin/7"' in x and '"round":3' in x)))
    found = report([run], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.split("\n")[2] == (
        "- This benchmark is unfinished: 69 of 96 runs are there, and only those are compared."
    )
    assert "one/mlp, three/mlp: 23 of 32 runs finished; missing: worse (none), margin (seed 7).\n" in text
    assert all("worse" not in one.curves for one in found.experiments)
    assert all(set(group.ranks.names) == {"random", "coin"} for group in found.groups)
    assert "Without a rank: margin (seeds missing on one/mlp, three/mlp)." in text
    assert "Strategies with fewer than the 8 seeds: margin (7)." in text


@pytest.mark.slow
def test_a_configuration_says_what_should_be_there(tmp_path):
    config = {"datasets": [{"name": "digits"}, {"name": "digits", "hard": "noise"}], "models": ["mlp"]}
    config |= {"strategies": ["margin"], "seeds": 8, "start": 20, "k": 10, "rounds": 3}
    for record in records("digits", rounds=4):
        if record.strategy in ("random", "margin") and (record.strategy, record.seed) != ("margin", 7):
            append(tmp_path / "run" / "records" / "x.jsonl", record)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    lines = report([tmp_path / "run"], tmp_path / "out").lines
    assert lines[0].startswith("This benchmark is unfinished: 15 of 32 runs are there")
    assert lines[1] == "digits+noise/mlp: 0 of 16 runs finished; missing: every strategy (none)."
    assert lines[2] == "digits/mlp: 15 of 16 runs finished; missing: margin (seed 7)."
    assert report([tmp_path / "out"], tmp_path / "again").lines == lines  # the configuration is kept with the records
    assert (
        f"labelwise bench run {tmp_path / 'out' / 'config.yaml'} --out" in (tmp_path / "out" / "report.md").read_text()
    )
    trained = "Training of mlp: schedule cosine, keep last, else TorchLearner's defaults"
    assert f"- {trained}\n" in (tmp_path / "out" / "report.md").read_text()
    (tmp_path / "run" / "config.yaml").write_text("models: []\n")
    assert any("so missing runs are not known" in line for line in report([tmp_path / "run"], tmp_path / "o").lines)


@pytest.mark.slow
def test_a_report_in_the_folder_of_its_run_reads_the_live_records(run, tmp_path):
    report([run], run)
    for record in records("later"):
        append(run / "records" / "later.jsonl", record)
    assert "later/mlp" in [one.name for one in report([run], run).experiments]
    with pytest.raises(ArgumentError, match="is the folder of a run; name another folder"):
        report([tmp_path / "other"], run)


# --- several folders -------------------------------------------------------------------------------------------------


def folder_of(path, **changes):
    config = {"datasets": ["digits"], "models": [{"name": "mlp", "epochs": 5}], "strategies": ["margin"]}
    config |= {"seeds": 8, "start": 20, "k": 10, "rounds": 3, **changes}
    seeds = config["seeds"] if isinstance(config["seeds"], list) else range(8)
    for record in records("digits", seeds=16):
        if record.strategy in ("random", "margin") and record.seed in seeds:
            append(path / "records" / "x.jsonl", record)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_folders_with_other_seeds_are_one_benchmark(tmp_path):
    both = [folder_of(tmp_path / "a"), folder_of(tmp_path / "b", seeds=list(range(8, 16)), device="cpu")]
    (one,) = report(both, tmp_path / "out").experiments
    assert one.curves["margin"].seeds == tuple(range(16))
    assert sorted(path.name for path in (tmp_path / "out").glob("*.yaml")) == ["config-1.yaml", "config-2.yaml"]
    report(both[:1], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*.yaml")] == ["config.yaml"]


def test_folders_of_different_configurations_are_refused_with_the_difference(tmp_path):
    a = folder_of(tmp_path / "a")
    b = folder_of(tmp_path / "b", seeds=list(range(8, 16)), models=[{"name": "mlp", "epochs": 50}])
    with pytest.raises(
        ArgumentError, match=r"digits/mlp is not the same in .*a and .*b: model.parameters.epochs: 5 in .*a, 50"
    ):
        report([a, b], tmp_path / "out")
    c = folder_of(tmp_path / "c", seeds=list(range(8, 16)), datasets=[{"name": "digits", "limit": 300}])
    with pytest.raises(ArgumentError, match=r"data.limit: None in .*a, 300 in .*c.*Report them separately"):
        report([a, c], tmp_path / "out")
    counts = [replace(r, labels=2 * r.labels) for r in records("digits", seeds=16) if r.seed > 7]
    with pytest.raises(ArgumentError, match=r"digits/mlp: runs of one experiment have the same label counts; found"):
        gather([*records_of(a), *counts])


def test_the_same_seeds_in_two_folders_are_refused_by_name(tmp_path):
    a, b = folder_of(tmp_path / "a"), folder_of(tmp_path / "b")
    with pytest.raises(
        ArgumentError, match=r"digits/mlp/random/0 is in .*a and in .*b: .*other seeds or another label"
    ):
        report([a, b], tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"a was named twice; name each folder once"):
        report([a, tmp_path / "b" / ".." / "a"], tmp_path / "out")


# --- words and tables ------------------------------------------------------------------------------------------------


def test_the_median_of_two_experiments_is_their_middle(run):
    (group,) = (one for one in gather(records_of(run)).groups if one.metric == "accuracy")
    titles, rows = standings_table(group)
    shares = [row.saved.share for one in group.experiments for row in one.table.rows if row.strategy == "margin"]
    (margin,) = (row for row in rows if row[0] == "margin")
    assert len(shares) == 2
    assert shares[0] != shares[1]
    assert margin[titles.index("speed-up")] == f"{1 / (1 - sum(shares) / 2):.2f}"


@pytest.mark.slow
def test_wins_are_counted_after_the_correction_and_single_tests_beside_them(tmp_path):
    """Seven strategies and nine seeds: one that loses on two of them passes a single test and not the correction."""
    for seed in range(9):
        for place, name in enumerate(("random", "sure", "near", *"abcde")):
            up = {"sure": 0.05, "near": 0.05 if seed > 1 else -0.02}.get(name, 0.01 * (-1) ** (seed + place))
            for number in range(3):
                value = 0.5 + 0.1 * number + (up if name != "random" and number else 0)
                record = Record(f"d/m/{name}/{seed}", name, seed, number, 10 + 10 * number, {"accuracy": value})
                append(tmp_path / "d.jsonl", record)
    lines = report([tmp_path / "d.jsonl"], tmp_path / "out").lines
    assert "after Holm's correction" in lines[0]
    assert "sure beats random on the only experiment." in lines
    assert (
        "near does not differ measurably from random on the only experiment (single tests: 1 better, 0 worse)." in lines
    )


@pytest.mark.slow
def test_numbers_that_no_model_learnt_are_said_and_not_counted(run, tmp_path):
    path = run / "records" / "numbers.jsonl"
    for r2, counted in ((0.2, True), (-0.1, False)):
        changed = [replace(one, metrics={**one.metrics, "r2": r2}) for one in records("numbers", "rmse")]
        path.write_text("".join(one.to_json() + "\n" for one in changed))
        found = report([run], tmp_path / "out")
        assert f"margin beats random on {3 if counted else 2} of {3 if counted else 2} experiments." in found.lines
        text = (tmp_path / "out" / "report.md").read_text()
        assert ("numbers/mlp is not counted. No model here predicts better than the mean" in text) is not counted
        assert text.count("(best R² there: -0.10, ") == (0 if counted else 2)
        assert (
            "predicts better than the mean" in (tmp_path / "out" / "numbers-mlp" / "page.html").read_text()
        ) is not counted


@pytest.mark.slow
def test_tables_hold_whatever_a_strategy_is_called_and_are_best_first(tmp_path):
    for record in records("one"):
        name = {"coin": "a|b", "margin": "zz"}.get(record.strategy, record.strategy)
        append(tmp_path / "one.jsonl", replace(record, strategy=name, run=f"one/mlp/{name}/{record.seed}"))
    (one,) = report([tmp_path / "one.jsonl"], tmp_path / "out").experiments
    assert [row.strategy for row in one.table.rows] == ["random", "zz", "a|b", "worse"]
    for line in (tmp_path / "out" / "report.md").read_text().splitlines():
        if line.startswith("|") and "a" in line:
            assert "a|b" not in line.replace("a\\|b", "")
    bars = {
        line.replace("\\|", "").count("|")
        for line in markdown_table(*standings_table(gather(one.records).groups[0])).split("\n")
    }
    assert len(bars) == 1


@pytest.mark.slow
def test_without_random_and_with_one_seed(tmp_path):
    for record in records("one", seeds=1):
        append(tmp_path / "all.jsonl", record)
        if record.strategy != "random":
            append(tmp_path / "none.jsonl", record)
    assert report([tmp_path / "none.jsonl"], tmp_path / "a").lines == [
        "Random was not run, so there is nothing to compare the strategies with."
    ]
    report([tmp_path / "all.jsonl"], tmp_path / "b")
    assert "± –" not in (tmp_path / "b" / "report.md").read_text() + (tmp_path / "b" / "report.html").read_text()


@pytest.mark.slow
def test_labels_to_reach_a_level_that_was_asked_for(run, tmp_path):
    found = report([run], tmp_path / "out", levels=levels_of(["0.7", "0.3", "0.99", "rmse=1.3"]))
    (one,) = (each for each in found.experiments if each.name == "one/mlp")
    titles, rows = reach_table(one, 0.7)
    by_name = {row[0]: dict(zip(titles, row)) for row in rows}
    assert float(by_name["margin"]["labels"]) < float(by_name["random"]["labels"])
    saved = labels_saved(one.curves["margin"], one.curves["random"], level=0.7)
    assert by_name["margin"]["labels saved"] == saved_text(saved)
    assert {row[1] for row in reach_table(one, 0.3)[1]} == {"20"}  # with the first labels
    assert {row[1] for row in reach_table(one, 0.99)[1]} == {"more than 50"}
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.count("Labels to reach test accuracy 70.0 %:") == 2
    assert text.count("Labels to reach test RMSE 1.300:") == 1
    assert "Labels to reach test accuracy 70.0" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(ArgumentError, match="none of these runs is measured by mae"):
        report([run], tmp_path / "out", levels=levels_of(["mae=3"]))
    for bad, said in (
        ("90", "a share of accuracy between 0 and 1"),
        ("high", "a level such as 0.9"),
        ("0.9x", "found"),
        ("zzz=3", "one of the metrics accuracy.*, found 'zzz'"),
    ):
        with pytest.raises(ArgumentError, match=said):
            levels_of([bad])


@pytest.mark.slow
def test_every_strategy_has_a_band_somewhere(tmp_path):
    names = ["random", *(f"s{i}" for i in range(9))]
    for record in records("one"):
        if record.strategy == "random":
            for name in names:
                append(tmp_path / "one.jsonl", replace(record, strategy=name, run=f"one/mlp/{name}/{record.seed}"))
    (one,) = report([tmp_path / "one.jsonl"], tmp_path / "out").experiments
    assert len(banded_strategies(one.curves, "random")) == 4
    assert (tmp_path / "out" / "one-mlp" / "bands.png").read_bytes().startswith(b"\x89PNG")
    assert "one-mlp/bands.png" in (tmp_path / "out" / "report.md").read_text()
    assert "shaded (of random, s0, s1, s2)" in (tmp_path / "out" / "one-mlp" / "page.html").read_text()


# --- what a reader has to know of the rows ---------------------------------------------------------------------------


@pytest.mark.slow
def test_strategies_that_picked_the_same_rows_everywhere_are_named(tmp_path):
    """Coin picks what margin does, in another order; in one batch of one experiment they differ."""
    for data in ("one", "three"):
        for record in records(data):
            same = record.strategy in ("coin", "margin") and record.picked
            order = [3, 9] if record.strategy == "coin" else [9, 3]
            if same and (data, record.strategy, record.seed, record.round) == ("three", "coin", 5, 2):
                order = [3, 8]
            append(tmp_path / "x.jsonl", replace(record, picked=order) if same else record)
    lines = report([tmp_path / "x.jsonl"], tmp_path / "out").lines
    assert [line for line in lines if "the same rows" in line] == [
        "coin and margin picked the same rows in every round of every seed (24 batches) on one/mlp: differences "
        "between them there do not come from the selection."
    ]
    for name in ("report.md", "report.html"):
        assert "coin and margin picked the same rows" in (tmp_path / "out" / name).read_text()


@pytest.mark.slow
def test_rows_of_another_machine_are_named(tmp_path):
    for record in records("one"):
        machine = "slow" if record.strategy == "worse" or (record.strategy, record.seed) == ("coin", 7) else "fast"
        append(tmp_path / "x.jsonl", replace(record, environment={"python": "3", "device": machine, "seed": "1"}))
    report([tmp_path / "x.jsonl"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "- python: 3\n" in text
    assert (
        "- Environment 1: random, margin, coin (7 of 8 runs, from one/mlp/coin/0 to one/mlp/coin/6): device fast"
        in text
    )
    assert "- Environment 2: coin (1 of 8 runs, from one/mlp/coin/7 to one/mlp/coin/7), worse: device slow\n" in text
    assert "coin, worse were measured in another environment than the other rows" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Environment 2" in page
    for record in records("one"):
        append(tmp_path / "y.jsonl", replace(record, environment={"device": "fast", "seed": str(record.seed)}))
    report([tmp_path / "y.jsonl"], tmp_path / "alone")
    text = (tmp_path / "alone" / "report.md").read_text()
    assert "- device: fast\n" in text
    assert "nvironment" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("notes", "above", "said"),
    [
        ({"candidates": 5}, -0.01, "of an earlier version and takes the best of 5 random batches on the test rows"),
        ({"candidates": 5}, -0.01, "More is possible than it shows: margin above it by mean area."),
        (
            {"tried": 40, "search": "this and that"},
            0.01,
            "of 40 batches on the test rows, trained with their true labels (this and that)",
        ),
        ({"tried": 40, "search": "this and that"}, 0.01, "No strategy is above it by mean area."),
    ],
)
def test_the_report_says_what_the_oracle_of_its_records_is(tmp_path, notes, above, said):
    for record in records("one"):
        append(tmp_path / "x.jsonl", record)
        if record.strategy == "margin":
            as_oracle = replace(
                record,
                run=record.run.replace("margin", "oracle"),
                strategy="oracle",
                metrics={"accuracy": record.metrics["accuracy"] + above},
                notes={"selection": notes},
            )
            append(tmp_path / "x.jsonl", as_oracle)
    report([tmp_path / "x.jsonl"], tmp_path / "out")
    for name in ("report.md", "report.html"):
        assert said in (tmp_path / "out" / name).read_text()


def remembered(path, fresh):
    """Records of which margin's selections held 10, 20, 30 MB and so on."""
    for record in records("one"):
        above = 10.0 * (1 + record.round + 3 * record.seed) if record.strategy == "margin" else 0.0
        memory = {"peak_mb": 500.0, "above_mb": above, **({"fresh": True} if fresh else {})}
        append(path, replace(record, notes={"memory": memory}))


@pytest.mark.slow
def test_memory_and_the_plain_mean_are_in_every_form_of_the_report(tmp_path):
    remembered(tmp_path / "x.jsonl", fresh=True)
    report([tmp_path / "x.jsonl"], tmp_path / "out")
    text, page = ((tmp_path / "out" / name).read_text() for name in ("report.md", "report.html"))
    titles = next(line for line in text.splitlines() if line.startswith("| strategy | accuracy"))
    assert "| area, plain mean | seconds per selection | MB per selection |" in titles
    margin = next(line for line in text.splitlines() if line.startswith("| margin | 6"))
    assert "| 125, 240 |" in margin  # the last round of a seed chooses nothing
    assert "125, 240" in page
    assert "125, 240" in (tmp_path / "out" / "one-mlp" / "page.html").read_text()
    assert "Memory is the peak of a selection above its start" in text
    assert "With ≥" not in text
    for name in ("standings.csv", "one-mlp/table.csv"):
        with open(tmp_path / "out" / name, newline="") as stream:
            (line,) = (row for row in csv.DictReader(stream) if row["strategy"] == "margin")
        assert [line[f"select_mb_{what}"] for what in ("median", "most", "bound")] == ["125", "240", "exact"]


def test_memory_of_earlier_records_is_shown_as_a_lower_bound(tmp_path):
    remembered(tmp_path / "x.jsonl", fresh=False)
    report([tmp_path / "x.jsonl"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| ≥ 125, ≥ 240 |" in text
    assert "≥ marks records of earlier versions" in text
    assert "at least" in (tmp_path / "out" / "standings.csv").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "there"), [(3, False), (4, True)])
def test_intervals_are_promised_where_the_table_has_them(tmp_path, seeds, there):
    for record in records("one", seeds=seeds):
        append(tmp_path / "x.jsonl", record)
    report([tmp_path / "x.jsonl"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert ("with 95 % bootstrap intervals over seeds" in text) is there
    assert ("without intervals, for which 4 seeds or more are needed" in text) is not there
    assert ("The range in brackets is" in (tmp_path / "out" / "one-mlp" / "page.html").read_text()) is there
