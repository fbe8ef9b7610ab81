"""`labelwise simulate` on tables of one's own: numbers, classes, missing values, groups, a stop and a going on."""

from __future__ import annotations

import csv
import gzip
import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from labelwise.bench.data.own_table import read_own
from labelwise.bench.suite.checkpoint import lock_folder
from labelwise.bench.suite.curve import Curve
from labelwise.cli import app
from labelwise.cli.simulate import learner_for
from labelwise.errors import (
    ArgumentError,
    BudgetError,
    ExtraError,
    LabelwiseError,
    MemoryLimitError,
    NeedError,
    SourceError,
    StoreError,
)
from labelwise.io.encode_table import fit_table
from labelwise.rng import Key
from labelwise.stats.record import read_records, write

RNG = np.random.default_rng(0)
N = 120
SIZE = RNG.normal(size=N)
TOWN = RNG.choice(["north", "south", "east"], N)
AGE = [str(round(value, 2)) if at % 10 else "" for at, value in enumerate(RNG.normal(50, 10, N))]
PRICE = 100 + 20 * SIZE + 10 * (TOWN == "south") + RNG.normal(size=N)
FILES = {"report.html", "curves.png", "table.csv", "table.md", "records.jsonl", "plan.json", "runs", ".lock"}


def written(path: Path, columns: dict[str, list]) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if ".tsv" in path.name else ",")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    columns = {
        "row": list(range(N)),
        "name": [f"house number {at}" for at in range(N)],
        "size": SIZE.tolist(),
        "age": AGE,
        "town": TOWN.tolist(),
        "owner": [at // 6 for at in range(N)],
        "price": ["" if at == 5 else value for at, value in enumerate(PRICE)],
    }
    return written(tmp_path / "houses.csv", columns)


def run(*words: object) -> tuple[int, str]:
    """The exit status and what was printed; an error of ours is raised."""
    done = CliRunner().invoke(app, ["simulate", *map(str, words)], env={"COLUMNS": "200"})
    if isinstance(done.exception, LabelwiseError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def small(table: Path, out: Path, *more: object) -> tuple[int, str]:
    words = ("--strategies", "kcenter", "--rounds", 1, "-k", 10, "--seeds", 2, "--out", out)
    return run(table, "--target", "price", *words, *more)


@pytest.mark.slow
def test_numbers_from_end_to_end(houses: Path, tmp_path: Path):
    out = tmp_path / "out"
    code, said = small(houses, out)
    assert code == 0
    assert {path.name for path in out.iterdir()} == FILES | {"table-r2.csv", "table-r2.md"}
    records = read_records(out / "records.jsonl")
    assert [(r.strategy, r.seed, r.labels) for r in records] == [
        (name, seed, labels) for seed in (0, 1) for name in ("random", "kcenter") for labels in (10, 20)
    ]
    assert all(set(record.metrics) == {"rmse", "r2"} for record in records)
    assert records[0].metrics == records[2].metrics  # the same first labels and weights
    assert records[0].metrics != records[4].metrics  # another seed, another split
    for text in (
        "3 numeric columns and 1 categorical column",  # size, age, owner; town
        "column 'row' is left out: it only counts the rows",
        "1 rows without a value in 'price' are left out",
        "column 'name' is left out: its 120 different texts look like names",
        "column 'age': 12 of 119 values are missing",
        "Test RMSE by number of labels",
        "Test R² at the last count: random",
        "kcenter: cannot be compared yet: 2 seeds, 5 or more are needed",
    ):
        assert text in said
    page = (out / "report.html").read_text()
    assert "houses.csv: learning price" in page
    assert "multi-layer perceptron 31-64-64-1" in page  # size, age, owner by 9 each, age: missing, three towns
    assert "test R² " not in (out / "table.md").read_text()
    assert "r2 at 20" in (out / "table-r2.md").read_text()
    assert 5 not in {row for record in records for row in record.picked}


@pytest.mark.slow
def test_classes_of_a_parquet_file_with_draws_for_those_who_ask(tmp_path: Path):
    table = pa.table(
        {
            "size": pa.array([None if at == 3 else value for at, value in enumerate(SIZE)]),
            "new": pa.array((SIZE > 1).tolist()),
            "town": pa.array([None if at == 4 else town for at, town in enumerate(TOWN)]),
            "kind": pa.array(["big" if value > 0 else "small" for value in SIZE]),
        }
    )
    pq.write_table(table, tmp_path / "kinds.parquet")
    code, said = run(tmp_path / "kinds.parquet", "--target", "kind", "--strategies", "margin,bald", "--rounds", 1,
                     "-k", 20, "--start", 12, "--seeds", 1, "--out", tmp_path / "out")  # fmt: skip
    assert code == 0
    assert "kind (2 classes) from 1 numeric column and 2 categorical columns; 96 rows" in said
    records = read_records(tmp_path / "out" / "records.jsonl")
    assert [(r.strategy, r.labels) for r in records] == [(s, n) for s in ("random", "margin", "bald") for n in (12, 32)]
    assert records[1].metrics["accuracy"] > 0.7


def picks_in(folder: Path) -> list:
    return [(r.run, r.round, r.metrics, r.picked) for r in read_records(folder / "records.jsonl")]


@pytest.mark.slow
def test_stopped_it_goes_on_to_the_same_end_and_runs_nothing_twice(
    houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small(houses, tmp_path / "whole")
    true, walked = Curve.run_round, []

    def stopping(self: Curve, number: int):
        name = (self.session.recipe.name, self.session.seed, number)
        if name == stop:
            raise KeyboardInterrupt
        walked.append(name)
        return true(self, number)

    monkeypatch.setattr(Curve, "run_round", stopping)
    out, stop = tmp_path / "out", ("kcenter", 0, 1)
    code, said = small(houses, out)
    assert code == 130
    assert "Stopped before the first seed was done" in said
    assert "The same command continues" in said
    assert not (out / "records.jsonl").exists()
    stop = ("kcenter", 1, 1)
    code, said = small(houses, out)
    assert code == 130
    assert "Seeds that every recipe finished: 1" in said
    assert {r.seed for r in read_records(out / "records.jsonl")} == {0}
    stop = None
    code, said = small(houses, out)
    assert code == 0
    assert "Continuing the runs in the folder" in said
    assert picks_in(out) == picks_in(tmp_path / "whole")
    assert walked == [(name, seed, number) for seed in (0, 1) for name in ("random", "kcenter") for number in (0, 1)]
    walked.clear()
    assert small(houses, out)[0] == 0
    assert walked == []
    assert small(houses, out, "--strategies", "kcenter,typiclust", "--seeds", 1)[0] == 0  # one more may be asked for
    assert walked == [("typiclust", 0, 0), ("typiclust", 0, 1)]
    with pytest.raises(StoreError, match=r"(?s)holds a run of another configuration.*k: 10 in the run, 11 now.*--out"):
        small(houses, out, "-k", 11, "--start", 10)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["albl", "bss", "dynamical", "typiclust+badge"])
def test_a_run_that_was_stopped_in_its_middle_goes_on_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
):
    """Also where picks have weights, rounds are looked back at, training goes on, or the first batch is chosen."""
    kind = ["big" if value > 0 else "small" for value in SIZE]
    table = written(tmp_path / "k.csv", {"size": SIZE.tolist(), "town": TOWN.tolist(), "kind": kind})
    words = ("--target", "kind", "--strategies", strategy, "--rounds", 3, "-k", 8, "--seeds", 1, "--out")
    assert run(table, *words, tmp_path / "whole")[0] == 0
    true, stop = Curve.run_round, 2

    def stopping(self: Curve, number: int):
        if (self.session.recipe.name, number) == (strategy, stop):
            raise KeyboardInterrupt
        return true(self, number)

    monkeypatch.setattr(Curve, "run_round", stopping)
    assert run(table, *words, tmp_path / "out")[0] == 130
    stop = None
    assert run(table, *words, tmp_path / "out")[0] == 0
    assert picks_in(tmp_path / "out") == picks_in(tmp_path / "whole")
    assert not list((tmp_path / "out").glob("models/*"))


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_is_read_and_what_it_broke_off_begins_again(houses: Path, tmp_path: Path):
    """Records of before had neither the first batch nor weights: a run that is whole is taken, another is not."""
    out = tmp_path / "out"
    small(houses, out)
    before = picks_in(out)
    for path in (out / "runs").iterdir():
        old = [replace(r, notes={k: r.notes[k] for k in ("selection", "training")}) for r in read_records(path)]
        write(path, old[:1] if path.stem == "kcenter-1" else old)
    whole = {path: path.read_bytes() for path in (out / "runs").iterdir() if path.stem != "kcenter-1"}
    assert small(houses, out)[0] == 0
    assert picks_in(out) == before
    assert {path: path.read_bytes() for path in whole} == whole
    assert read_records(out / "runs" / "kcenter-1.jsonl")[0].notes["start"]


@pytest.mark.slow
def test_files_that_are_damaged_or_of_another_run_are_named_with_what_to_do(houses: Path, tmp_path: Path):
    out = tmp_path / "out"
    small(houses, out)
    before, path = picks_in(out), out / "runs" / "kcenter-0.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    other = (out / "runs" / "kcenter-1.jsonl").read_text()
    for content, said in (
        (first + "{oops}\n" + second, r"kcenter-0.jsonl, line 2: Expected a record as one line of JSON"),
        (first + first, r"line 2: expected round 1 of houses/mlp/kcenter/0, found round 0 of houses/mlp/kcenter/0"),
        (other, r"line 1: expected round 0 of kcenter/0, found round 0 of houses/mlp/kcenter/1"),
        ("a,b\n1,2\n", r"line 1: Expected a record as one line of JSON; found 'a,b'"),
    ):
        path.write_text(content)
        with pytest.raises(
            StoreError,
            match=rf"{said}.*Remove that file, .*kcenter-0.jsonl: the same command then runs its rounds again",
        ):
            small(houses, out)
    path.unlink()
    assert small(houses, out)[0] == 0
    assert picks_in(out) == before
    (out / "plan.json").write_text("{")
    with pytest.raises(StoreError, match=r"plan.json cannot be read: expected the settings.*remove that file.*--out"):
        small(houses, out)
    (out / "plan.json").unlink()
    assert small(houses, out)[0] == 0
    assert picks_in(out) == before
    with lock_folder(out), pytest.raises(StoreError, match="in use by another runner; nothing was changed"):
        small(houses, out)


@pytest.mark.slow
def test_a_limit_on_memory_leaves_the_picks_as_they_are_and_too_small_a_one_is_refused(houses: Path, tmp_path: Path):
    out, words = tmp_path / "out", ("--strategies", "kcenter,typiclust+bait")
    small(houses, tmp_path / "whole", *words)
    with pytest.raises(MemoryLimitError, match=r"max_memory is 1MB, too small for 3 of 3 runs: .* Allow") as refused:
        small(houses, out, *words, "--max-memory", "1MB")
    assert not out.exists()
    least = -(-refused.value.smallest // 10**6)
    assert f"Allow {least}MB or more" in str(refused.value)
    with pytest.raises(MemoryLimitError):
        small(houses, out, *words, "--max-memory", f"{least - 1}MB")
    assert small(houses, out, *words, "--max-memory", f"{least}MB")[0] == 0
    assert picks_in(out) == picks_in(tmp_path / "whole")
    with pytest.raises(ArgumentError, match="max_memory is a size such as 4GB"):
        small(houses, out, "--max-memory", "much")


def test_groups_stay_together_and_are_no_feature(houses: Path):
    table = read_own(houses, "price", group="owner")
    assert "owner" not in table.numeric
    for seed in range(3):
        data = table.data(seed, 0.2)
        owners = [{int(row) // 6 for row in part.ids} for part in (data.pool, data.test)]
        assert not owners[0] & owners[1]
        assert len(owners[1]) == 4
    assert table.data(0, 0.2).test.ids.tolist() != table.data(1, 0.2).test.ids.tolist()
    assert len(data.pool) + len(data.test) == N - 1


def test_the_encoding_is_learnt_from_the_rows_to_choose_from_and_what_is_missing_is_an_input(tmp_path: Path):
    columns = {"x": ["1", "NA", "3", "5", "9"], "job": ["a", "?", "b", "a", "a"], "y": [at + 0.5 for at in range(5)]}
    table = read_own(written(tmp_path / "t.tsv.gz", columns), "y")
    assert table.task == "regress"
    data = table.data(0, 0.25)
    (test,) = data.test.ids.tolist()
    pool = [row for row in range(5) if row != test]
    x = np.array([1, np.nan, 3, 5, 9])
    raw = fit_table(table.table, np.array(pool)).encode(table.table)
    low, high = np.nanquantile(x[pool], [0.001, 0.999])
    filled = np.where(np.isnan(x), np.nanmedian(x[pool]), x)
    assert np.allclose(raw[:, 0], (np.clip(filled, low, high) - low) / (high - low))
    inputs = data.pool.inputs(data.pool.ids).numpy()
    assert np.abs(inputs.mean(0)).max() < 1e-6
    assert np.square(inputs).sum(1).mean() == pytest.approx(1, abs=1e-5)  # as in a project
    assert data.pool.labels.tolist() == [0.5 + row for row in pool]


def test_the_task_is_what_the_target_looks_like_or_as_said(tmp_path: Path):
    table = written(tmp_path / "t.csv", {"x": list(range(0, 120, 2)), "few": [0, 1, 2] * 20, "many": list(range(60))})
    assert read_own(table, "few").task == "classify"
    assert read_own(table, "few").classes == ("0", "1", "2")
    assert read_own(table, "few", task="regress").answers.tolist() == [0.0, 1.0, 2.0] * 20
    many = read_own(table, "many", features=["x"])
    assert many.task == "regress"
    assert any("correlation 1.00 with 'many': is it known beforehand?" in note for note in many.notes)
    with pytest.raises(ArgumentError, match="found 60 in 60 rows"):
        read_own(table, "many", task="classify")
    assert any("'many' is left out: it only counts the rows" in note for note in read_own(table, "few").notes)


@pytest.mark.slow
def test_a_model_that_learns_nothing_is_said_to(tmp_path: Path):
    noise = np.random.default_rng(1)
    table = written(tmp_path / "n.csv", {"x": noise.normal(size=80).tolist(), "price": noise.normal(size=80).tolist()})
    assert "No model here predicts better than the mean" in small(table, tmp_path / "out", "--seeds", 1)[1]


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["--target", "prize"], ArgumentError, r"no column 'prize'; did you mean 'price'\?.*row, name, size"),
        (["--target", "price", "--features", "size,color"], ArgumentError, "no column 'color'"),
        (["--target", "price", "--features", "size,price"], ArgumentError, "without the target 'price'"),
        (["--target", "price", "--task", "ranking"], ArgumentError, "--task is auto, regression, classification"),
        (["--target", "price", "--test", "1.5"], ArgumentError, "--test is a share"),
        (["--target", "price", "--rounds", "30"], BudgetError, "at most --rounds 3, or a smaller -k"),
        (["--target", "price", "--strategies", "margin"], NeedError, "class probabilities.*strategies for regression"),
        (["--target", "price", "--strategies", "marginal"], ArgumentError, "there is no strategy 'marginal'"),
        (["--target", "town", "--task", "regression"], ArgumentError, "regression needs numbers.*found '"),
        (["--target", "name"], ArgumentError, "each more than once"),
        (["--target", "price", "--group", "age"], ArgumentError, "rows have no value in the group column 'age'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(houses: Path, words: list[str], error: type, text: str):
    with pytest.raises(error, match=text):
        run(houses, *words, "--out", houses.parent / "out")
    assert not (houses.parent / "out").exists()


def test_columns_that_are_not_separated_by_commas_are_pointed_out(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a;b;y\n1;2;3\n")
    with pytest.raises(
        ArgumentError, match=r"no column 'y'.* separated by ';'; commas were expected. Save it with commas"
    ):
        read_own(tmp_path / "t.csv", "y")
    (tmp_path / "t.csv").write_text("a;b;y\n1,5;2,5;3\n")  # decimal commas
    with pytest.raises(
        SourceError, match=r"line 2: expected 1 fields, found 3\..* separated by ';'; commas were expected"
    ):
        read_own(tmp_path / "t.csv", "y")


def test_numbers_with_a_text_among_them_are_not_taken_for_classes_in_silence(tmp_path: Path):
    numbers = [*(at / 4 for at in range(59)), "inf"]
    repeated = [*([0.5, 1.5] * 29), 0.5, "inf"]  # as classes these would pass: each but one is there many times
    ratings = [*([1, 2, 3] * 19), 1, "unknown", "unknown"]
    empty = [*(at / 4 for at in range(59)), "NaN"]
    table = written(
        tmp_path / "t.csv",
        {"x": list(range(0, 120, 2)), "price": numbers, "twice": repeated, "rating": ratings, "gap": empty},
    )
    for target in ("price", "twice"):
        with pytest.raises(ArgumentError, match=f"'{target}' holds numbers, and in 1 of 60 rows texts such as 'inf'"):
            read_own(table, target)
    assert read_own(table, "twice", task="classify").classes == ("0.5", "1.5", "inf")
    few = read_own(table, "rating")
    assert few.task == "classify"
    assert any("in 2 of 60 rows texts such as 'unknown': taken for classes" in note for note in few.notes)
    gap = read_own(table, "gap")
    assert gap.task == "regress"
    assert "1 rows without a value in 'gap' are left out" in gap.notes
    assert "twice" in gap.numeric  # its one text was in the row that is left out


def test_without_matplotlib_it_is_said_before_anything_runs(
    houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExtraError, match="matplotlib"):
        small(houses, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_read(tmp_path: Path):
    for name, content, text in (
        ("nowhere.csv", None, "there is no such file"),
        ("a.xlsx", "x", "a table ends in .csv"),
        ("b.csv", "x,y\n1,2\n3\n", "line 3: expected 2 fields, found 1"),
        ("c.csv", "x,y\n1,\n2,\n", "column 'y' holds no value"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(SourceError, match=text):
            read_own(tmp_path / name, "y")


@pytest.mark.slow
def test_texts_images_and_embeddings_from_end_to_end(tmp_path: Path):
    rng = np.random.default_rng(2)
    words = {"good": ["fine", "lovely", "great", "happy"], "bad": ["awful", "broken", "sad", "poor"]}
    kinds = [("good", "bad")[at % 2] for at in range(80)]
    texts = [" ".join(rng.choice(words[kind], 4)) + f" {at}" for at, kind in enumerate(kinds)]
    table = written(tmp_path / "reviews.csv", {"body": texts, "stars": kinds})
    for at, kind in enumerate(kinds):
        folder = tmp_path / "photos" / kind
        folder.mkdir(parents=True, exist_ok=True)
        shade = 60 if kind == "bad" else 190
        Image.fromarray((shade + rng.integers(-30, 30, (16, 16, 3))).astype(np.uint8)).save(folder / f"{at}.png")
    x = rng.normal(size=(80, 3)) + np.array([[2.0], [-2.0]])[[at % 2 for at in range(80)]]
    np.savez(tmp_path / "vectors.npz", embedding=x, stars=np.array(kinds))
    short = ("--rounds", 1, "-k", 8, "--seeds", 1, "--strategies", "margin")
    for place, (words_of, said_of) in enumerate(
        [
            ((table, "--text", "body", "--target", "stars", "--encoder", "words"), "2 classes) from texts, "),
            ((tmp_path / "photos", "--encoder", "pixels"), "2 classes) from images, 456 features each by pixels"),
            ((tmp_path / "vectors.npz", "--target", "stars"), "2 classes) from vectors, 3 features each of the file"),
        ]
    ):
        out = tmp_path / f"out{place}"
        code, said = run(*words_of, *short, "--out", out)
        assert code == 0
        assert said_of in said
        last = read_records(out / "records.jsonl")[-1]
        assert last.run.split("/")[1] == "project"
        assert last.metrics["accuracy"] > 0.9
        assert "the linear layer of a labelling project" in (out / "report.html").read_text()
    features = (tmp_path / "out0" / "features" / "features.npy").stat().st_mtime_ns
    code, said = run(table, "--text", "body", "--target", "stars", "--encoder", "words", *short[:4], "--seeds", 2,
                     "--strategies", "margin", "--out", tmp_path / "out0")  # fmt: skip
    assert "Continuing the runs in the folder" in said
    assert (tmp_path / "out0" / "features" / "features.npy").stat().st_mtime_ns == features  # computed once


@pytest.mark.parametrize(
    ("model", "name"),
    [("project", "Linear"), ("logistic", "LogisticRegression"), ("boosting", "HistGradientBoostingClassifier"),
     ("mlp", "Sequential")],
)  # fmt: skip
def test_each_model_learns_the_classes(tmp_path: Path, model: str, name: str):
    table = written(tmp_path / "t.csv", {"size": SIZE.tolist(), "kind": ["big" if v > 0 else "small" for v in SIZE]})
    data = read_own(table, "kind").data(0, 0.2)
    fit = learner_for(data, "random", model).fit(
        data.pool, data.pool.ids[:60], data.pool.labels[:60], classes=2, key=Key(0)
    )
    assert type(getattr(fit.reader, "model", None) or fit.reader.classifier).__name__ == name
    right = fit.predict(data.test.inputs(data.test.ids)) == data.test.labels.numpy()
    assert np.mean(right) > 0.9


def test_a_model_that_does_not_fit_the_target_is_refused(houses: Path):
    for words, text in (
        (("--model", "logistic"), "predicts classes, and the target holds numbers"),
        (("--model", "forest"), "--model is project, logistic, boosting, mlp"),
        (("--encoder", "words"), "encoders are for texts"),
    ):
        with pytest.raises(ArgumentError, match=text):
            small(houses, houses.parent / "out", *words)


def test_the_network_for_numbers_gets_better_with_labels(tmp_path: Path):
    """As many rows as features and much noise: trained to the end it learnt the noise, and its error rose."""
    rng = np.random.default_rng(5)
    columns = {f"x{at}": rng.normal(size=700).tolist() for at in range(8)}
    signal = 3 * np.array(columns["x0"]) + np.array(columns["x1"])
    table = written(tmp_path / "t.csv", {**columns, "y": (signal + rng.normal(0, 6, 700)).tolist()})
    means = []
    for labels in (20, 60, 100, 200):
        errors = []
        for seed in range(3):
            data = read_own(table, "y").data(seed, 0.5)
            rows = data.pool.ids[torch.randperm(len(data.pool), generator=torch.Generator().manual_seed(seed))[:labels]]
            fit = learner_for(data, "random", "mlp").fit(
                data.pool, rows, data.pool.subset(rows).labels, classes=None, key=Key(seed)
            )
            off = np.asarray(fit.predict(data.test.inputs(data.test.ids))) - data.test.labels.numpy()
            errors.append(float(np.sqrt((off**2).mean())))
        means.append(np.mean(errors))
    assert max(np.diff(means)) < 0.15, means
    assert means[-1] < means[0] - 0.2
