"""The reproductions of dynamicAL, tiny: every one runs, writes what it says, and its numbers are of the right kind."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.reproduce.dynamical import figures
from labelwise.reproduce.registry import Setting, reproduce, reproductions

TINY = figures.Sizes(20, (4, 8), 20, 3, (0, 2), (4, 6), 1, 1, training=3, steps=5)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(figures.SIZES, "small", TINY)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["figure1", "figure2", "figure4", "figure5"])
def test_each_writes_a_picture_and_its_numbers(figure, tmp_path):
    said = []
    result = reproduce(f"dynamical/{figure}", Setting(on_progress=said.append), tmp_path)
    assert (tmp_path / f"dynamical-{figure}.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / f"dynamical-{figure}.json").read_text())
    assert numbers["verdict"] == result.verdict
    assert numbers["data"] == "digits"
    assert said
    if figure == "figure1":
        assert [(row["query"], row["kernel"]) for row in numbers["table"]] == [
            *((4, "initial"), (4, "trained")),
            *((8, "initial"), (8, "trained")),
        ]
        assert all(row["bound"] > 0 and row["mmd"] >= 0 for row in numbers["table"])
        assert all(row["mmd"] == max(0, row["mmd_squared"]) ** 0.5 for row in numbers["table"])
    if figure == "figure2":
        assert set(numbers["tau"]) == {"initial", "trained on S"}
        assert all(-1 <= tau <= 1 for tau in numbers["tau"].values())
        assert all(len(x) == len(y) == 3 for x, y in numbers["points"].values())
    if figure == "figure4":
        assert [(row["epochs"], row["query"]) for row in numbers["table"]] == [(0, 4), (0, 8), (2, 4), (2, 8)]
        assert all(0 <= row["not_positive"] <= 3 for row in numbers["table"])
    if figure == "figure5":
        assert set(numbers["mean_accuracy_by_seed"]) == {"random", "gamma=0", "gamma=1", "gamma=2", "gamma=inf"}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers():
    a, b = (figures.figure2(Setting()) for _ in range(2))
    assert a.numbers == b.numbers
    assert figures.figure2(replace(Setting(), seed=1)).numbers != a.numbers


def test_the_command(tmp_path):
    run = CliRunner().invoke(app, ["reproduce", "--list"])
    assert run.exit_code == 0
    assert all(name in run.output for name in reproductions())
    run = CliRunner().invoke(app, ["reproduce", "dynamical/figure2", "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert "tau" in run.output
    assert (tmp_path / "dynamical-figure2.json").exists()
    for arguments, text in ((["dynamical/figure9"], "figure9"), (["dynamical/figure2", "--scale", "huge"], "huge")):
        run = CliRunner().invoke(app, ["reproduce", *arguments])
        assert isinstance(run.exception, LabelwiseError)
        assert text in str(run.exception)


def test_a_name_that_is_not_there(tmp_path):
    with pytest.raises(ArgumentError, match="dynamical/figure1"):
        reproduce("nothing", Setting(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_page_of_the_variants_is_made_again_from_their_records(tmp_path, monkeypatch):
    first = reproduce("dynamical/figure5", Setting(), tmp_path, "the command")
    page = (tmp_path / "dynamical-figure5.md").read_text()
    assert len(first.records) == 5 * 2  # random and four gammas, two rounds of one seed
    monkeypatch.setattr(figures, "prepare_bench", None)  # no data are read
    again = reproduce("dynamical/figure5", replace(Setting(), page=True), tmp_path)
    assert again.numbers == first.numbers
    assert (tmp_path / "dynamical-figure5.md").read_text() == page
