"""The papers' tables: list and numbers are complete, each runs at smoke scale, goes on, and is judged rightly."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from labelwise.bench.data.catalogue import CATALOGUE
from labelwise.bench.data.features import prepare_data, spec_to_json
from labelwise.bench.models.paper_training import BestOnTest, Until, crop_flip
from labelwise.cli import app
from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.pool import Pool
from labelwise.reproduce import run_tables, tables, verdicts
from labelwise.reproduce import times as paper_times
from labelwise.reproduce.registry import Setting, named, read_changes, reproduce, reproductions
from labelwise.reproduce.run_tables import TABLES, claims_of, paper_rows
from labelwise.reproduce.sabal.tables import PRINTED
from labelwise.reproduce.sabal.timing import EXPLICIT
from labelwise.reproduce.tables import sized, suite_of, valid_rows
from labelwise.reproduce.times import chosen, seconds_of
from labelwise.reproduce.verdicts import Stat
from labelwise.rng import Key
from labelwise.stats.record import from_json
from labelwise.train import TorchLearner

BY_NAME = {table.name: table for table in TABLES}
NOT_RUN = {"sabal/figure1", "sabal/figure2", "sabal/figure3", "sabal/table4", "sabal/table5"}
NOT_RUN |= {"dynamical/figure3", "dynamical/figure6"}
EVERY = {f"sabal/table{i}" for i in range(1, 6)} | {f"sabal/figure{i}" for i in range(1, 5)}
EVERY |= {f"dynamical/table{i}" for i in range(1, 10)} | {f"dynamical/figure{i}" for i in range(1, 7)}
EVERY |= {f"ally/figure{i}" for i in range(1, 8)} | {"ally/figure2-mnist-1000"}
EVERY |= {f"bss/{name}" for name in ("excess", "growth", "rounds", "conditions", "network")}
EVERY |= {f"ally/figure2-{data}-{batch}" for data in ("stl10", "svhn", "cifar10") for batch in (200, 1000)}


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Path:
    """A folder in which one row of a table was run."""
    folder = tmp_path_factory.mktemp("mnist")
    reproduce("sabal/table2", Setting("smoke", only=("mnist",)), folder)
    return folder


# --- the list and the numbers ----------------------------------------------------------------------------------------


def test_every_table_and_figure_is_listed(monkeypatch):
    found = reproductions()
    assert set(found) == EVERY
    assert {name for name, one in found.items() if one.run is None} == NOT_RUN
    assert all(one.why for one in found.values() if one.run is None)
    assert "hyper-parameters" in found["sabal/table4"].why
    for one in found.values():
        has_data = bool(one.data) or one.name.startswith("bss/")  # whose pools are made up
        assert one.run is None or (has_data and one.seconds is not None), one.name
    monkeypatch.setenv("COLUMNS", "200")
    run = CliRunner().invoke(app, ["reproduce", "--list"])
    assert run.exit_code == 0, run.output
    assert all(name in run.output for name in EVERY)
    assert "The paper of bss" in run.output
    run_by_name, _, others = run.output.partition("Not run by themselves")
    assert all(f"{name}: " in others for name in NOT_RUN)
    assert all(name not in run_by_name for name in NOT_RUN)
    monkeypatch.delenv("LABELWISE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = CliRunner().invoke(app, ["reproduce", "--list"]).output
    assert "(not found: tiny-imagenet)" in " ".join(narrow.split())
    rows = narrow.partition("Not run")[0].splitlines()
    assert max(map(len, rows)) <= 80
    assert len(rows) < 4 * (len(EVERY) - len(NOT_RUN))  # no cell is folded into a column of letters


def test_what_is_not_run_says_why(tmp_path):
    with pytest.raises(ArgumentError, match="sabal/table2"):
        named("sabal/table5")
    with pytest.raises(ArgumentError, match="no row"):
        reproduce("dynamical/figure2", Setting("smoke", only=("MNIST",)), tmp_path)


@pytest.mark.parametrize("table", [one for one in TABLES if one.name != "sabal/figure4"], ids=lambda one: one.name)
def test_the_papers_numbers_are_complete(table):
    paper = paper_rows(table.name)
    sheet = table.sheets[0]
    labels = [spec.label for spec in sheet.strategies]
    if table.by == "round":
        assert list(paper) == [str(t) for t in range(sheet.rounds + 1)]
    else:
        assert set(paper) == {one.row for one in table.sheets}
    columns = {one.column for one in table.sheets} if table.by == "last" else set(labels) - set(dict(table.same))
    for found in paper.values():
        assert set(found) == columns
        assert all(0 < stat.mean < 100 for stat in found.values())
        assert all((stat.std is None) == (table.by == "last") for stat in found.values())


def test_the_papers_seconds_are_complete():
    paper = paper_rows("sabal/table3")
    assert set(paper) == {"BADGE", "Greedy", "IHT", "KCenter", "Entropy", "Random"}
    assert all(set(found) == {"SVHN (b=1000)", "CIFAR10 (b=3000)"} for found in paper.values())
    assert paper["Greedy"]["CIFAR10 (b=3000)"].mean == 333.67


# --- each of them, small ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERY - NOT_RUN - {"sabal/table2"}))
def test_smoke(name: str, tmp_path):
    told = []
    result = reproduce(name, Setting("smoke", on_progress=told.append), tmp_path)
    stem = name.replace("/", "-")
    page = (tmp_path / f"{stem}.md").read_text()
    numbers = json.loads((tmp_path / f"{stem}.json").read_text())
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert numbers["scale"] == "smoke"
    assert result.verdict in page
    assert told
    assert result.verdict.startswith("**Smoke scale: this shows that it runs.")
    assert result.differences
    assert all(f"- {line}" in page for line in result.differences)
    if name in BY_NAME:
        table = BY_NAME[name]
        assert numbers["missing"] == []
        assert "compare orders, not numbers" in page
        assert len(result.records) == sum(2 * 2 * len(sheet.strategies) for sheet in table.sheets)
        assert all(difference in page for difference in table.differences)
        saved = gzip.decompress((tmp_path / f"{stem}.jsonl.gz").read_bytes()).decode().splitlines()
        assert [from_json(line) for line in saved] == list(result.records)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "draws"), [("dynamical/table8", "curve_panels"), ("dynamical/table1", "lines")])
def test_a_picture_names_the_data_that_were_run(name, draws, tmp_path, monkeypatch):
    titles = []
    draw = getattr(run_tables, draws)

    def remember(*given):
        titles.extend(given[-1])
        return draw(*given)

    monkeypatch.setattr(run_tables, draws, remember)
    reproduce(name, Setting("smoke", only=("Caltech101+ResNet",), seeds=1), tmp_path)
    assert titles == ["digits for Caltech101+ResNet"]


@pytest.mark.slow
def test_smoke_of_a_row_with_areas(mnist):
    numbers = json.loads((mnist / "sabal-table2.json").read_text())
    assert set(numbers["ours"]) == {"MNIST"}
    assert set(numbers["ours"]["MNIST"]) == set(numbers["papers"]["MNIST"])
    page = (mnist / "sabal-table2.md").read_text()
    assert "| *paper* | *91.24 ± 0.48* |" in page
    assert "Random lies below every informed method on MNIST" in page
    assert "40 of them set aside" in page
    saved = gzip.decompress((mnist / "sabal-table2.jsonl.gz").read_bytes()).decode()
    records = [from_json(line) for line in saved.splitlines()]
    assert {record.notes["training"]["held_out"] for record in records} == {40}
    ours = numbers["ours"]["MNIST"]["Random"]
    points = {s: [r.metrics["accuracy"] for r in records if (r.strategy, r.seed) == ("Random", s)] for s in (0, 1)}
    assert ours["mean"] == pytest.approx(100 * sum(sum(one) / 2 for one in points.values()) / 2)
    assert ours["seeds"] == 2


def test_the_times_of_table_3_are_beside_the_papers(tmp_path):
    result = reproduce("sabal/table3", Setting("smoke", only=("SVHN",)), tmp_path)
    assert set(result.numbers["ours"]) == {*paper_rows("sabal/table3"), EXPLICIT, PRINTED}
    assert all(list(found) == ["SVHN (b=1000)"] for found in result.numbers["ours"].values())
    assert result.numbers["sheets"]["SVHN (b=1000)"]["rows"] == 120
    assert "120 rows to choose from" in result.table
    assert "201.65 ± 3.54 s" in result.table
    with pytest.raises(ArgumentError, match="--page"):
        reproduce("sabal/table3", Setting("smoke", page=True), tmp_path)


@pytest.mark.slow
def test_as_the_papers_programmes(tmp_path):
    dynamical = reproduce("dynamical/table2", Setting("smoke", paper_compat=True, seeds=1), tmp_path)
    looked = {record.notes["training"]["looked"] for record in dynamical.records if record.round == 0}
    assert len(looked) == 1  # the same start for all
    assert dynamical.numbers["ours"]["0"]["Random"]["mean"] == pytest.approx(100 * looked.pop())
    assert all(one.notes["training"]["looked"] >= one.metrics["accuracy"] for one in dynamical.records)
    assert "a leak" in (tmp_path / "dynamical-table2.md").read_text()
    sheet = chosen(BY_NAME["dynamical/table4"], Setting("smoke", paper_compat=True))[0][0]
    assert sheet.model.parameters["identity"] is False
    ally = reproduce("ally/figure2", Setting("smoke", paper_compat=True, seeds=1), tmp_path)
    assert {record.notes["training"]["held_out"] for record in ally.records} == {round(0.15 * 30)}


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_goes_on_and_repeats_nothing(mnist):
    files = sorted((mnist / "work" / "sabal-table2-smoke" / "MNIST" / "records").glob("*.jsonl"))
    assert len(files) == 14
    before = {path: path.read_text() for path in files}
    numbers = json.loads((mnist / "sabal-table2.json").read_text())["ours"]
    torn = files[0]
    torn.write_text(before[torn].splitlines(keepends=True)[0])  # stopped after its first round
    setting = Setting("smoke", only=("MNIST",))
    result = reproduce("sabal/table2", replace(setting, page=True), mnist, "a command that runs nothing")
    assert result.numbers["ours"] == numbers  # complete runs next to the page are not lost
    page = (mnist / "sabal-table2.md").read_text()
    assert "Written by\n\n```\nlabelwise reproduce sabal/table2\n```" in page
    assert "made again from the records by `a command that runs nothing`." in page
    for saved in ("json", "jsonl.gz"):
        (mnist / f"sabal-table2.{saved}").unlink()
    result = reproduce("sabal/table2", replace(setting, page=True), mnist)
    told = "MNIST: 13 of 14 runs are complete: shown are those of seed 1, which all methods have."
    assert result.numbers["missing"] == [told]
    assert told in (mnist / "sabal-table2.md").read_text()
    result = reproduce("sabal/table2", setting, mnist)
    assert result.numbers["missing"] == []
    assert result.numbers["ours"] == numbers
    assert all(path.read_text() == text for path, text in before.items() if path != torn)


@pytest.mark.slow
def test_a_figure_goes_on_curve_by_curve(tmp_path):
    first = reproduce("ally/figure4", Setting("smoke", seeds=1), tmp_path)
    files = sorted((tmp_path / "work" / "ally-figure4-smoke").glob("*.jsonl"))
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(files) == 3
    files[0].unlink()
    again = reproduce("ally/figure4", Setting("smoke", seeds=1), tmp_path)
    assert again.numbers["accuracy"] == first.numbers["accuracy"]
    assert all(path.stat().st_mtime_ns == before[path] for path in files[1:])
    reproduce("ally/figure4", Setting("smoke", seeds=1, paper_compat=True, work=files[0].parent), tmp_path)
    assert len(list(files[0].parent.glob("*.jsonl"))) == 6  # another setting, other curves


def test_the_page_of_a_figure_is_made_again_from_its_records(tmp_path):
    setting = Setting("smoke", seeds=1)
    first = reproduce("ally/figure4", setting, tmp_path, "labelwise reproduce ally/figure4 --scale smoke")
    page, numbers = (tmp_path / "ally-figure4.md").read_text(), (tmp_path / "ally-figure4.json").read_text()
    assert "**Run on digits instead of mnist, 20 first labels, batches of 10.**\n\n" in first.verdict
    assert "Run on digits instead of mnist" in (tmp_path / "README.md").read_text()
    shutil.rmtree(tmp_path / "work")
    (tmp_path / "ally-figure4.md").unlink()
    again = reproduce("ally/figure4", replace(setting, page=True), tmp_path)
    assert again.numbers == first.numbers
    assert (tmp_path / "ally-figure4.md").read_text() == page
    assert (tmp_path / "ally-figure4.json").read_text() == numbers
    assert not (tmp_path / "work").exists()
    with pytest.raises(StoreError, match="have no run digits/network/random/1"):
        reproduce("ally/figure4", Setting("smoke", seeds=2, page=True), tmp_path)
    with pytest.raises(ArgumentError, match="is of scale 'smoke'; expected the same, found 'small'"):
        reproduce("ally/figure4", Setting("small", page=True), tmp_path)
    with pytest.raises(StoreError, match=r"dynamical-figure2.jsonl.gz and .* were expected"):
        reproduce("dynamical/figure2", Setting("smoke", page=True), tmp_path)


@pytest.mark.slow
def test_rows_that_were_run_before_stay_on_the_page(tmp_path, monkeypatch):
    first, second = (Setting("smoke", only=(row,), seeds=1) for row in ("MNIST", "SVHN"))
    one = reproduce("sabal/table2", first, tmp_path, "the first command")
    shutil.rmtree(tmp_path / "work")
    both = reproduce("sabal/table2", second, tmp_path, "the second command")
    assert list(both.numbers["ours"]) == ["MNIST", "SVHN"]
    assert both.numbers["ours"]["MNIST"] == one.numbers["ours"]["MNIST"]
    assert both.records[: len(one.records)] == one.records
    assert len(both.records) == 2 * len(one.records)
    page, picture = (tmp_path / "sabal-table2.md").read_text(), (tmp_path / "sabal-table2.png").read_bytes()
    assert "```\nthe first command\nthe second command\n```" in page
    assert "`the first command`\n`the second command`" in (tmp_path / "README.md").read_text()
    # Again from what is next to the page alone, where the data are not there either.
    shutil.rmtree(tmp_path / "work")
    monkeypatch.setattr(paper_times, "sized", _no_data)
    again = reproduce("sabal/table2", Setting("smoke", page=True), tmp_path, "a third command")
    assert again.numbers["ours"] == both.numbers["ours"]
    line = "The page was made again from the records by `a third command`.\n\n"
    assert (tmp_path / "sabal-table2.md").read_text().replace(line, "") == page
    assert line in (tmp_path / "sabal-table2.md").read_text()
    reproduce("sabal/table2", Setting("smoke", page=True), tmp_path)
    page = page.replace("![", f"{line}![", 1)
    assert (tmp_path / "sabal-table2.md").read_text() == page
    assert (tmp_path / "sabal-table2.png").read_bytes() == picture
    with pytest.raises(SourceError):
        reproduce("sabal/table2", Setting("smoke"), tmp_path)
    assert (tmp_path / "sabal-table2.md").read_text() == page


@pytest.mark.slow
def test_a_page_made_again_counts_what_was_asked_for_then(tmp_path):
    """Not what the scale would ask for now: one seed of all methods is complete where one seed was run."""
    reproduce("dynamical/table2", Setting("smoke", seeds=1), tmp_path, "one seed")
    for work in ("with work", "without"):
        again = reproduce("dynamical/table2", Setting("smoke", page=True), tmp_path)
        assert again.numbers["missing"] == [], work
        page = (tmp_path / "dynamical-table2.md").read_text()
        assert ", 1 seed; mlp" in page
        assert "runs are complete" not in page
        assert "```\none seed\n```" in page
        assert again.verdict.count("**cannot be said** (1 seed, 5 or more are needed; ") == 3
        if work == "with work":
            shutil.rmtree(tmp_path / "work")


@pytest.mark.slow
def test_the_command_that_began_a_run_is_on_a_page_made_from_it(tmp_path):
    """A run that was stopped before its page is shown with what was typed, not with the command of the page."""
    reproduce("dynamical/table2", Setting("smoke", seeds=1), tmp_path, "what was typed")
    for saved in ("json", "jsonl.gz", "md"):
        (tmp_path / f"dynamical-table2.{saved}").unlink()
    reproduce("dynamical/table2", Setting("smoke", page=True), tmp_path, "the page alone --page")
    page = (tmp_path / "dynamical-table2.md").read_text()
    assert "```\nwhat was typed\n```" in page
    assert "made again from the records by `the page alone --page`." in page
    about = json.loads((tmp_path / "dynamical-table2.json").read_text())
    assert [one["command"] for one in about["sheets"]] == ["what was typed"]


def test_page_and_numbers_say_the_same_of_what_is_missing(mnist, tmp_path):
    for saved in ("json", "jsonl.gz"):
        shutil.copy(mnist / f"sabal-table2.{saved}", tmp_path)
    lines = gzip.decompress((tmp_path / "sabal-table2.jsonl.gz").read_bytes()).decode().splitlines(keepends=True)
    few = [line for line in lines if from_json(line).run != "MNIST/lenet5/BADGE/1"]
    (tmp_path / "sabal-table2.jsonl.gz").write_bytes(gzip.compress("".join(few).encode()))
    again = reproduce("sabal/table2", Setting("smoke", page=True), tmp_path)
    told = "MNIST: 13 of 14 runs are complete: shown are those of seed 0, which all methods have."
    page = (tmp_path / "sabal-table2.md").read_text()
    assert again.numbers["missing"] == [told]
    assert page.count("runs are complete") == 1
    assert f"- {told}" in page
    assert ", 1 seed of 2; mlp" in page


RECORD_FILES = sorted((Path(__file__).parents[2] / "docs" / "results").glob("papers*/*.jsonl.gz"))
RECORD_FILES = [path for path in RECORD_FILES if path.name.removesuffix(".jsonl.gz").replace("-", "/", 1) in BY_NAME]


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORD_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_pages_follow_from_what_is_kept_beside_them(path, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_times, "sized", _no_data)
    stem = path.name.removesuffix(".jsonl.gz")
    for name in (path.name, f"{stem}.json"):
        shutil.copy(path.parent / name, tmp_path)
    about = json.loads((tmp_path / f"{stem}.json").read_text())
    setting = Setting(about["scale"], seed=about["seed"], paper_compat=about["paper_compat"], page=True)
    reproduce(about["name"], setting, tmp_path)
    assert (tmp_path / f"{stem}.md").read_text() == (path.parent / f"{stem}.md").read_text()
    again = json.loads((tmp_path / f"{stem}.json").read_text())
    assert {**again, "cpu_seconds": 0} == {**about, "cpu_seconds": 0}


def _no_data(sheet, scale):
    raise SourceError(f"{sheet.name}: no data")


def test_a_page_of_nothing(tmp_path):
    with pytest.raises(StoreError, match="without --page"):
        reproduce("dynamical/table2", Setting("smoke", page=True), tmp_path)


@pytest.mark.slow
def test_the_command(tmp_path):
    arguments = ["reproduce", "dynamical/table3", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path)]
    run = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    assert run.exit_code == 0, run.output
    assert run.output.splitlines()[0].startswith("dynamical/table3, smoke scale: about ")
    assert "dynamicAL lies above Random" in run.output
    run = CliRunner().invoke(app, [*arguments, "--page"])
    assert run.exit_code == 0, run.output
    assert "nothing is run" in run.output
    for more, text in ((["--only", "Iris"], "Iris"), (["--device", "tpu"], "tpu"), (["--data", "digits"], "--only")):
        run = CliRunner().invoke(app, [*arguments, *more])
        assert text in str(run.exception)


@pytest.mark.slow
def test_several_by_one_command(tmp_path, monkeypatch):
    arguments = [
        "reproduce",
        "dynamical/table3",
        "ally/figure4",
        "--scale",
        "smoke",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr("sys.argv", ["labelwise", *arguments])
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    commands = [
        json.loads((tmp_path / f"{stem}.json").read_text())["command"] for stem in ("dynamical-table3", "ally-figure4")
    ]
    assert "dynamical/table3 --scale" in commands[0]
    assert "ally" not in commands[0].replace(str(tmp_path), "")
    assert "reproduce ally/figure4 --scale" in commands[1]
    run = CliRunner().invoke(
        app, ["reproduce", "dynamical/table2", "ally/figure99", "--scale", "smoke", "--out", str(tmp_path / "no")]
    )
    assert "ally/figure99" in str(run.exception)
    assert not (tmp_path / "no").exists()


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_the_papers_sizes_on_the_rows_that_are_there(monkeypatch):
    monkeypatch.setattr(tables, "present", lambda name: name if name in CATALOGUE else None)
    fashion, cifar, hundred = BY_NAME["sabal/table1"].sheets
    assert sized(fashion, "paper") == fashion
    few = sized(cifar, "paper")  # 23,000 labels are asked of 12,000 rows
    assert (few.start, few.k, few.rounds) == (720, 1200, 4)
    assert "12000 of the 50000" in few.changes[0]
    assert few.start + few.k * few.rounds <= CATALOGUE["cifar10"].rows[0] - valid_rows(few)
    assert (sized(hundred, "paper").start, sized(hundred, "paper").k) == (10000, 5000)
    monkeypatch.setattr(tables, "present", lambda name: name if name in CATALOGUE and name != "cifar100" else None)
    with pytest.raises(SourceError, match="cifar-100-binary"):
        sized(hundred, "paper")
    found, missing = chosen(BY_NAME["sabal/table1"], Setting("paper"))
    assert [one.row for one in found] == ["Fashion MNIST", "CIFAR10"]
    assert "CIFAR100" in missing[0]
    cnn = BY_NAME["dynamical/table2"].sheets[0]
    assert (sized(cnn, "paper").start, sized(cnn, "paper").k) == (500, 250)
    assert valid_rows(sized(BY_NAME["sabal/table2"].sheets[0], "paper")) == 2000
    assert valid_rows(sized(cnn, "paper")) == 0


def test_the_protocols_are_the_papers():
    lenet = BY_NAME["sabal/table2"].sheets[0]
    assert (lenet.start, lenet.k, lenet.rounds, lenet.seeds) == (40, 40, 15, 3)
    how = {"epochs": 150, "batch": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "optimiser": "sgd"}
    assert how.items() <= lenet.model.parameters.items()
    by_label = {spec.label: spec.parameters for spec in lenet.strategies}
    assert by_label["Greedy"] == {"alpha": 1e-8, "beta": 1e-1}
    assert by_label["IHT"] == {"alpha": 1e-8, "beta": 1e-4}
    for table in TABLES:
        for sheet in table.sheets:
            if table.name.startswith("dynamical"):
                assert sheet.model.parameters["restart"] is False
                assert sheet.start == 500
                assert sheet.rounds * sheet.k == 1000 or table.by == "round"


def test_small_runs_where_no_data_are(monkeypatch):
    monkeypatch.setattr(tables, "present", lambda name: None)
    for table in TABLES:
        for sheet in chosen(table, Setting())[0]:
            assert sheet.data == "digits"
            assert any("stand in" in line for line in sheet.changes)
            assert suite_of(sheet, table.name, 0, "cpu", 1).jobs()[0]
            assert sheet.start + sheet.k * sheet.rounds <= tables.pool_rows(sheet) - valid_rows(sheet)


def test_time_is_said_and_grows_with_the_work():
    table = BY_NAME["dynamical/table2"]
    smoke, small = (seconds_of(table, Setting(scale, device="cpu"))[0] for scale in ("smoke", "small"))
    assert smoke < 20 < small
    one = seconds_of(table, Setting("small", device="cpu", seeds=1))[0]
    assert one == pytest.approx(small / 3)
    assert seconds_of(table, Setting("small", device="cpu", processes=2))[0] == pytest.approx(small / 2)


def test_rows_set_aside_are_the_same_for_all_and_in_neither_part():
    sheet = replace(sized(BY_NAME["sabal/table2"].sheets[0], "smoke"), start=10)
    data, again = (prepare_data(spec_to_json(suite_of(sheet, "t", 0, "cpu", 1).datasets[0]), None) for _ in range(2))
    assert data.valid is not None
    assert again.valid is not None
    assert data.valid.ids.tolist() == again.valid.ids.tolist()
    assert (len(data.pool), len(data.valid)) == (120, 40)
    assert not set(data.pool.ids.tolist()) & set(data.valid.ids.tolist())
    whole = prepare_data(spec_to_json(replace(suite_of(sheet, "t", 0, "cpu", 1).datasets[0], valid=None)), None)
    at = torch.searchsorted(whole.pool.ids, data.valid.ids)
    assert torch.equal(data.valid.labels, whole.labels[at])
    inputs = whole.pool.inputs(whole.pool.ids)
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(inputs.std()) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ArgumentError, match="fewer than the 160 rows"):
        prepare_data(spec_to_json(replace(suite_of(sheet, "t", 0, "cpu", 1).datasets[0], valid=160)), None)


# --- training --------------------------------------------------------------------------------------------------------


def test_training_ends_after_so_many_right_epochs_and_keeps_the_last_weights():
    x = torch.tensor([[-1.0], [1.0]]).repeat(8, 1)
    pool, y = Pool.of(x), (x[:, 0] > 0).long()
    for until, epochs in (((0.9, 3, 0), 3), ((0.9, 3, 7), 7), ((1.0, 1, 0), 1), ((0.9, 50, 0), 12)):
        learner = TorchLearner(_right, epochs=12, holdout=0.0, patience=None, objective=Until(*until), lr=1e-3)
        notes = learner.fit(pool, pool.ids, y, weights=None, classes=2, key=Key(0)).notes
        assert (notes["epochs"], notes["best_epoch"]) == (epochs, epochs)
    coins = (torch.arange(16) // 2) % 2  # labels that say nothing: the loss goes up and down
    for objective, last in ((None, False), (Until(1.0, 9), True)):
        how = TorchLearner(
            _right, epochs=6, keep="loss", patience=None, lr=9.0, optimiser="sgd", batch=3, objective=objective
        )
        notes = how.fit(pool, pool.ids, coins, weights=None, classes=2, key=Key(0)).notes
        assert (notes["best_epoch"] == notes["epochs"] == 6) is last
    with pytest.raises(ArgumentError, match="until"):
        Until(1.5)


def test_the_best_of_the_test_rows_is_noted():
    x = torch.tensor([[-1.0], [1.0]]).repeat(8, 1)
    pool, y = Pool.of(x), (x[:, 0] > 0).long()
    seen = []
    best = BestOnTest(pool, y, 2)

    def look(model: nn.Module, epoch: int) -> float | None:
        seen.append(best(model, epoch))
        return seen[-1]

    learner = TorchLearner(_right, epochs=4, holdout=0.0, patience=None, objective=Until(1.0, 9), look=look)
    notes = learner.fit(pool, pool.ids, y, weights=None, classes=2, key=Key(0)).notes
    assert seen == [None, 1.0, None, 1.0]
    assert notes["looked"] == 1.0


def test_crops_and_flips_move_images_and_nothing_else():
    x_BCHW = torch.arange(6 * 2 * 8 * 8, dtype=torch.float32).reshape(6, 2, 8, 8) + 1
    made = crop_flip(x_BCHW, Key(0).generator())
    assert made.shape == x_BCHW.shape
    assert torch.equal(made, crop_flip(x_BCHW, Key(0).generator()))
    for before, after in zip(x_BCHW, made):
        saved = set(after.flatten().tolist()) - {0.0}
        assert saved <= set(before.flatten().tolist())
        assert len(saved) >= 2 * 4 * 4  # at most four places out of sight each way
    assert not torch.equal(made, x_BCHW)


def _right() -> nn.Module:
    """A network that has every row right from the first step on, with some loss."""
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        layer.bias.zero_()
    return layer


# --- verdicts --------------------------------------------------------------------------------------------------------

ROW = {"BADGE": Stat(91.0, 0.5), "Greedy": Stat(90.8, 0.3), "IHT": Stat(90.4, 0.2), "Random": Stat(86.0, 1.0)}


def test_means_without_seeds_are_asked_for_their_order():
    assert verdicts.below_all("MNIST").ask({"MNIST": ROW})[0] is True
    holds, shown = verdicts.below_all("MNIST").ask({"MNIST": {**ROW, "KCenter": Stat(85.9, 0.1)}})
    assert holds is False
    assert "KCenter 85.90 ± 0.10" in shown
    assert verdicts.below_all("MNIST").ask({}) == (None, "")
    assert verdicts.not_below("MNIST", ("Greedy",), "BADGE").ask({"MNIST": ROW})[0] is True
    assert verdicts.not_below("MNIST", ("Greedy", "IHT"), "BADGE").ask({"MNIST": ROW})[0] is False
    assert verdicts.not_below("MNIST", ("BADGE",), "Random").ask({"MNIST": ROW})[0] is True  # above
    assert verdicts.above("MNIST", "Greedy", "BADGE").ask({"MNIST": ROW})[0] is False
    shown = "highest: BADGE 91.00 ± 0.50, then Greedy 90.80 ± 0.30"
    assert verdicts.best("MNIST", ("Greedy", "IHT")).ask({"MNIST": ROW}) == (False, shown)


def test_rounds_and_budgets():
    rounds = {str(t): {"Random": Stat(30.0 + t, 1.0), "dynamicAL": Stat(29.5 + 1.5 * t, 1.0)} for t in range(4)}
    assert verdicts.every_round("dynamicAL", 2, "Random").ask(rounds) == (True, "by +1.00 points in the last round")
    holds, shown = verdicts.every_round("dynamicAL", 1, None).ask(rounds)
    assert holds is False
    assert "not in round 1" in shown
    assert verdicts.every_round("dynamicAL", 9, "Random").ask(rounds)[0] is None
    budget = {"R=2": {"SVHN": Stat(75.0)}, "R=1": {"SVHN": Stat(70.0)}}
    assert verdicts.falling("SVHN", ("R=2", "R=1")).ask(budget)[0] is True
    assert verdicts.falling("SVHN", ("R=1", "R=2")).ask(budget)[0] is False
    assert verdicts.falling("MNIST", ("R=1", "R=2")).ask(budget)[0] is None
    times = {"Greedy": {"SVHN": Stat(1.0, None, 1)}, "BADGE": {"SVHN": Stat(2.0, None, 1)}}
    assert verdicts.shorter("SVHN", ("Greedy",), "BADGE").ask(times)[0] is True
    assert verdicts.shorter("SVHN", ("BADGE",), "Greedy").ask(times)[0] is False


def test_what_the_papers_own_numbers_say_of_their_claims():
    """The sentences are asked of the paper too: most hold there, and one of its words does not."""
    for name, expected in {
        "sabal/table2": [True, True, True, True, True, True],
        "dynamical/table2": [True, False, False],  # "consistently outperforms for all query rounds"
        "dynamical/table6": [True, False, True],
        "dynamical/table1": [True] * 4,
    }.items():
        paper = paper_rows(name)
        assert [claim.ask(paper)[0] for claim in claims_of(BY_NAME[name], paper)] == expected, name


def test_sentences_and_bands():
    paper = {"MNIST": {"Random": Stat(86.48, 1.11)}}
    text = verdicts.claims_text([verdicts.below_all("MNIST")], {"MNIST": ROW}, paper)
    assert text.startswith("- Random lies below every informed method on MNIST: **holds**")
    assert text.endswith("by the paper's own means it cannot be said.")
    near = verdicts.near({"MNIST": {"Random": Stat(88.0, 1.0)}}, paper)
    assert near.startswith("1 of 1 means are within two deviations")
    assert near.endswith("1.5 points higher.")
    assert verdicts.near({"MNIST": {"Random": Stat(90.0, 1.0)}}, paper).startswith("0 of 1")
    assert verdicts.near({"MNIST": {"Random": Stat(90.0)}}, paper) == ""
    assert run_tables.markdown_of({"MNIST": ROW}, {}).count("\n|") == 2


# --- changes of the protocol ----------------------------------------------------------------------------------------


def test_a_changed_protocol_has_a_page_of_its_own(tmp_path):
    changes = read_changes(["keep=accuracy", "centred=false"])
    reproduce("sabal/table2", Setting("smoke", only=("mnist",), changes=changes, together=True), tmp_path)
    stem = "sabal-table2-keep-accuracy-centred-False"
    found = json.loads((tmp_path / f"{stem}.json").read_text())
    assert found["sheets"][0]["model"]["parameters"]["keep"] == "accuracy"
    assert found["sheets"][0]["centred"] is False
    page = (tmp_path / f"{stem}.md").read_text()
    assert "MNIST: run with keep=accuracy." in page
    assert "with keep=accuracy, centred=False" in page
    before = page.split("Differences")[1]
    reproduce("sabal/table2", Setting("smoke", only=("mnist",), changes=changes, page=True), tmp_path)
    assert (tmp_path / f"{stem}.md").read_text().split("Differences")[1] == before


@pytest.mark.parametrize(
    ("texts", "said"), [(["keep"], "expected NAME=VALUE"), (["colour=red"], "expected parameters among")]
)
def test_a_change_that_cannot_be_made_is_refused(texts, said, tmp_path):
    def run():
        reproduce("sabal/table2", Setting("smoke", only=("mnist",), changes=read_changes(texts)), tmp_path)

    with pytest.raises(ArgumentError, match=said):
        run()
