"""The times that `labelwise reproduce` prints are those of the kept records, and say what they are of."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.reproduce import registry
from labelwise.reproduce import times as paper_times
from labelwise.reproduce.registry import Setting, describe_time, named
from labelwise.reproduce.run_tables import TABLES
from labelwise.reproduce.times import FILE, measure_times, seconds_of, timed

RESULTS = Path(__file__).parents[2] / "docs" / "results"
BY_NAME = {table.name: table for table in TABLES}


@pytest.fixture
def times(monkeypatch):
    """Times as if they were measured."""
    table = {"small": {"cpu": {"CIFAR10+ResNet": [2400.0, 24]}}, "paper": {"cuda": {"CIFAR10+ResNet": [80.0, 4]}}}
    figure = {"small": {"cpu": {"": [80.0, 8]}}, "paper": {"cpu": {"": [2000.0, 5]}}}
    monkeypatch.setattr(paper_times, "measured_times", lambda: {"dynamical/table4": table, "ally/figure2": figure})


def test_times_are_those_of_the_kept_pages():
    stored = json.loads(FILE.read_text())
    assert stored == measure_times(RESULTS / name for name in ("ally", "papers-small", "papers")), (
        "python benchmarks/paper_times.py writes them"
    )
    records = json.loads((RESULTS / "papers-small" / "sabal-table2.json").read_text())["seconds"]
    assert sum(one[0] for one in stored["sabal/table2"]["small"]["cpu"].values()) == pytest.approx(
        sum(records.values()), abs=2
    )


def test_a_table_takes_what_its_runs_took(times, monkeypatch):
    monkeypatch.setattr(
        "labelwise.reproduce.tables.present", lambda name: name if name in ("cifar10", "svhn") else None
    )
    table = BY_NAME["dynamical/table4"]
    assert seconds_of(table, Setting("small", device="cpu")) == (2400.0, "on one core, as measured")
    assert seconds_of(table, Setting("small", device="cpu", seeds=1, processes=2)) == (400.0, "on 2 cores, as measured")
    assert seconds_of(table, Setting("paper", device="cuda")) == (800.0, "on one H200, as measured")
    slow, where = seconds_of(table, Setting("paper", device="cpu"))  # what an H200 took is nothing to a core
    assert slow > 8000
    assert where == "on one core, a guess"


def test_a_figure_takes_what_it_took_where_it_was_run(times):
    seconds = timed("ally/figure2", 3, 80, 1800)
    assert seconds(Setting("small", device="cpu", seeds=4)) == (40.0, "on one core, as measured")
    assert seconds(Setting("paper", device="cuda", processes=4)) == (500.0, "on 4 cores, as measured")
    assert seconds(Setting("smoke", device="cpu")) == (3, "on one core, a guess")
    assert timed("ally/figure9", 3, 80, 1800)(Setting("paper", device="cpu")) == (1800, "on one H200, a guess")


def test_the_list_says_what_is_a_guess_and_that_there_is_no_cuda(times, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(registry, "device_of", lambda setting: setting.device or "cpu")
    out = CliRunner().invoke(app, ["reproduce", "--list"]).output
    assert "there is no CUDA here" in out
    line = next(line for line in out.splitlines() if line.strip().startswith("ally/figure2 "))
    assert line.split()[-7:] == ["~3", "s", "80", "s", "33", "min", "c"]
    monkeypatch.setattr(registry, "device_of", lambda setting: setting.device or "cuda")
    assert "no CUDA" not in CliRunner().invoke(app, ["reproduce", "--list"]).output


def test_a_time_says_what_it_is_of():
    assert describe_time(named("ally/figure1"), Setting("small")) == "about 2 s on one core, as measured"
