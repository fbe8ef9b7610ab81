"""Packed records keep what reports show."""

from __future__ import annotations

from pathlib import Path

import pytest

import pack_results
from labelwise.bench.report.experiments import experiment_from
from labelwise.bench.report.sentences import starts_of_rounds
from labelwise.stats.record import Record
from labelwise.stats.training_warnings import sentences


@pytest.mark.parametrize(
    "training", [{"warning": "hardly begun", "epochs": 3}, {"each": [{}, {"warning": "hardly begun"}]}]
)
def test_a_model_that_had_hardly_learnt_stays_named(training: dict) -> None:
    record = Record("d/m/random/0", "random", 0, 0, 10, {"accuracy": 0.5}, notes={"training": training, "start": [1]})
    packed = pack_results.smaller(record)
    assert packed.notes == {"training": {"warning": "hardly begun"}}
    assert sentences([packed]) == sentences([record]) != []
    assert pack_results.smaller(Record("d/m/random/0", "random", 0, 0, 10, {"accuracy": 0.5})).notes == {}


def test_a_report_of_packed_records_says_the_same_of_warm_starts() -> None:
    records = [
        Record(
            *(f"d/m/{name}/0", name, 0, round, 10 + round, {"accuracy": 0.5}),
            notes={"training": {"warm_start": name == "dynamical" and round > 0, "epochs": 3}},
        )
        for name in ("random", "dynamical")
        for round in (0, 1)
    ]
    before, after = (experiment_from("d/m", each, {}) for each in (records, [*map(pack_results.smaller, records)]))
    assert starts_of_rounds(after) == starts_of_rounds(before)
    assert starts_of_rounds(after)[0].startswith("dynamical trains on from the weights of the round before")


def test_the_page_of_results_lists_every_suite_with_a_report() -> None:
    page = (pack_results.RESULTS / "README.md").read_text(encoding="utf-8")
    assert f"{pack_results.BEGIN}{pack_results.suite_list(pack_results.RESULTS)}{pack_results.END}" in page


def test_a_new_report_is_listed(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{pack_results.BEGIN}old\n{pack_results.END}after\n")
    for path in ("trees/report.md", "mine/report.md", "core/records.jsonl.gz", pack_results.RULES):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    pack_results.list_suites(page)
    before, trees, rules, after = (
        page.read_text().replace(pack_results.BEGIN, "").replace(pack_results.END, "").splitlines()
    )
    assert (before, after) == ("before", "after")
    assert trees.startswith("- [trees](trees/report.md): Trees and boosting: ")
    assert trees.endswith(" `labelwise bench run trees`.")
    assert rules.startswith("- [training-rules](training-rules/README.md)")
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="are missing"):
        pack_results.list_suites(page)


def test_a_page_names_no_folder_of_the_machine_it_was_made_on() -> None:
    page = "Of a/b.\n\n[All bands](d-m/bands.png)\n\nlabelwise bench report /runs/of/mine --out docs/results/core\n"
    assert pack_results.smaller_page(page) == "Of a/b.\n\nlabelwise bench report mine --out docs/results/core\n"
    for packed_page in pack_results.RESULTS.glob("*/report.md"):
        text = packed_page.read_text(encoding="utf-8")
        assert pack_results.smaller_page(text) == text, packed_page
