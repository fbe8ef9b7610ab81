"""The page of the suite `instrument`, from records that are made up."""

import json

import pytest
from typer.testing import CliRunner

import labelwise as lw
from labelwise.bench.report.instrument import write_instrument
from labelwise.cli import app
from labelwise.errors import StoreError
from labelwise.stats.record import append as append_record

RISE = {
    "random | weigh none | train mean": 0.0,
    "random | weigh sabal | train weighted": -0.05,
    "margin | weigh none | train mean": 0.1,
    "margin | weigh sabal | train weighted": 0.05,
    "margin | weigh density | train weighted": 0.1,
    "margin | weigh none | train primal-dual": 0.2,
    "margin | weigh sabal | train primal-dual": 0.15,
    "margin | weigh density | train primal-dual": 0.2,
    "random": 0.0,
}


def write_run(folder, seeds, on_pool=True, name="digits", fall=0.0):
    """Accuracy rises with `RISE`; the certificate's `seen` orders the runs as the accuracy does."""
    (folder / "records").mkdir(parents=True)
    for place, (recipe, rise) in enumerate(RISE.items()):
        for seed in range(seeds):
            for number in range(3):
                sunk = fall if number and recipe.startswith("margin") and "primal-dual" in recipe else 0.0
                accuracy = 0.5 + 0.05 * number + rise - sunk + 0.001 * ((seed * 7 + place * 3 + number) % 5)
                certificate = {"seen": accuracy, "unseen": 0.5, "eigenvalues": [0.5, 1.5], "effective_sample_size": 9.0}
                notes = {"training": {"certificate": certificate}, "selection": {"approximation_ratio": 1.1}}
                if on_pool:
                    notes["pool"] = {"accuracy": accuracy, "nll": 1.0}
                run, metrics = f"{name}/mlp/{recipe}/{seed}", {"accuracy": accuracy}
                record = lw.Record(
                    run, recipe, seed, number, 10 * (number + 1), metrics, train_seconds=1.0, notes=notes
                )
                append_record(folder / "records" / f"{place}-{seed}.jsonl", record)


def test_the_page_says_which_parts_pay(tmp_path):
    write_run(tmp_path / "run", 10)
    lines = write_instrument([tmp_path / "run"], tmp_path / "out", "the command")
    text = "\n".join(lines)
    assert lines[0].startswith(
        "80 runs of 80: 1 experiment, up to 8 combinations of parts, 10 to 10 seeds, 10 to 30 labels."
    )
    assert "**choose**: Over all sets of classes, in points of accuracy, better than random: margin (+10." in text
    costs = "costs over all sets of classes; worse on digits; on average -5.0"
    assert f"**weigh sabal**: {costs}" in text
    assert "(worse) points of accuracy; 1 experiment." in text
    assert (
        "**weigh law or density**: makes no measurable difference over all sets together; better or worse on no" in text
    )
    assert "**train primal-dual**: pays over all sets of classes; better on digits; on average +10.0" in text
    assert "pairs of a strategy and a part gain, most margin | train primal-dual (+" in text
    assert "their effects add up" in text
    assert (
        "better than the recommended strategy (margin) over all sets of classes, and worse on none: margin"
        in text.lower()
    )
    assert (
        "the certificate predicts the error on the pool: its best number, seen, has a rank correlation of -1.00" in text
    )
    assert (
        "Whether the approximation ratio predicts the error on the pool is open: no runs have it." in text
    )  # it never varies
    page = (tmp_path / "out" / "instrument.md").read_text()
    assert "Made by `the command`." in page
    assert "The runs took 4 minutes of training" in page
    assert "weigh own" not in page
    numbers = json.loads((tmp_path / "out" / "instrument.json").read_text())
    assert {one["outcome"] for one in numbers["main"]} == {"better", "worse", "same"}
    assert {one["experiment"] for one in numbers["over_all_sets"]["combinations"]} == {"classify"}
    assert numbers["references"] == {"digits/mlp": "margin | weigh none | train mean"}


def test_few_seeds_say_nothing(tmp_path):
    write_run(tmp_path / "run", 2)
    lines = write_instrument([tmp_path / "run"], tmp_path / "out", "the command")
    assert sum("too few seeds for a verdict" in line for line in lines) == 8


def test_records_without_the_error_on_the_pool_predict_nothing(tmp_path):
    write_run(tmp_path / "run", 10, on_pool=False)
    lines = write_instrument([tmp_path / "run"], tmp_path / "out", "the command")
    assert "Whether the certificate predicts the error on the pool is open: no runs have it." in lines


def test_a_combination_that_loses_on_one_set_is_not_better(tmp_path):
    """Primal-dual training gains more on digits than it loses on adult: better over both, worse on one."""
    write_run(tmp_path / "digits", 10)
    write_run(tmp_path / "adult", 10, name="adult", fall=0.22)
    lines = write_instrument([tmp_path / "digits", tmp_path / "adult"], tmp_path / "out", "the command")
    (line,) = [line for line in lines if "the recommended strategy" in line]
    said = "no combination is better than the recommended strategy (margin) without losing on one."
    assert line == f"Over all sets of classes {said}"
    page = (tmp_path / "out" / "instrument.md").read_text()
    (row,) = [row for row in page.splitlines() if row.startswith("| margin \\| weigh none \\| train primal-dual")]
    assert "(better)" in row
    assert row.endswith("| – | 1 | 0 | 1 | 0 |")


def test_where_the_recommended_strategy_was_not_run_the_page_compares_with_random(tmp_path):
    write_run(tmp_path / "run", 10)
    for file in (tmp_path / "run" / "records").iterdir():
        if "margin | weigh none | train mean" in file.read_text():
            file.unlink()
    text = "\n".join(write_instrument([tmp_path / "run"], tmp_path / "out", "the command"))
    assert "etter than random (the recommended strategy, margin, was not run on each) over all sets of classes" in text


def test_runs_without_parts_are_refused_and_the_command_prints_the_lines(tmp_path):
    folder = tmp_path / "plain" / "records"
    folder.mkdir(parents=True)
    append_record(folder / "0.jsonl", lw.Record("digits/mlp/margin/0", "margin", 0, 0, 10, {"accuracy": 0.5}))
    with pytest.raises(StoreError, match="recipes with parts were expected"):
        write_instrument([tmp_path / "plain"], tmp_path / "out", "")
    write_run(tmp_path / "run", 1)
    shown = CliRunner().invoke(app, ["bench", "instrument", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert "instrument.md" in shown.output
    assert "- 8 runs of 8" in shown.output
