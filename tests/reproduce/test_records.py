"""Which records of an unfinished table of a paper are shown."""

from types import SimpleNamespace

import pytest

from labelwise.reproduce.records import select_records

METHODS = ("Random", "BADGE")
SHEET = SimpleNamespace(name="SVHN+VGG", rounds=5, start=40, k=20, strategies=METHODS)
JOBS = [SimpleNamespace(name=f"{method}/{seed}") for seed in range(2) for method in METHODS]


def ran(reached, by="round"):
    """What is shown where each of these runs has reached that round."""
    records = [
        SimpleNamespace(run=run, strategy=run.split("/")[0], seed=int(run.split("/")[1]), round=number)
        for run, last in reached.items()
        for number in range(last + 1)
    ]
    return select_records(SHEET, records, JOBS, by)


def rounds_of(shown):
    return sorted((record.run, record.round) for record in shown.records)


@pytest.mark.parametrize("by", ["round", "area"])
def test_a_complete_seed_is_shown_alone(by):
    found = ran({"Random/0": 5, "BADGE/0": 5, "Random/1": 4, "BADGE/1": 5}, by)
    assert {record.run for record in found.records} == {"Random/0", "BADGE/0"}
    assert {record.run for record in found.complete} == {"Random/0", "BADGE/0", "BADGE/1"}
    assert found.unfinished == [
        "SVHN+VGG: 3 of 4 runs are complete: shown are those of seed 0, which all methods have."
    ]


def test_without_a_complete_seed_the_rounds_that_all_methods_have():
    found = ran({"Random/0": 5, "BADGE/0": 1, "Random/1": 5})
    assert rounds_of(found) == [("BADGE/0", 0), ("BADGE/0", 1), ("Random/0", 0), ("Random/0", 1)]
    assert {record.run for record in found.complete} == {"Random/0", "Random/1", "BADGE/0"}
    assert found.unfinished == [
        "SVHN+VGG: 2 of 4 runs are complete, and of no seed those of all methods: shown are the rounds up to 1 "
        "(60 labels) of seed 0."
    ]


def test_areas_are_of_complete_runs_only():
    assert {record.run for record in ran({"Random/0": 5, "BADGE/0": 1}, "area").records} == {"Random/0"}
    assert not ran({"Random/0": 2, "BADGE/0": 1}, "area").records


def test_areas_under_most_of_the_curve_are_of_all_seeds():
    found = ran({"Random/0": 4, "BADGE/0": 5, "Random/1": 4, "BADGE/1": 4, "Random/2": 5}, "area")
    assert {record.run for record in found.records} == {"Random/0", "BADGE/0", "Random/1", "BADGE/1"}
    assert max(record.round for record in found.records) == 4
    assert found.unfinished == [
        "SVHN+VGG: 1 of 4 runs are complete, and of no seed those of all methods: shown are the rounds up to 4 "
        "(120 labels) of seeds 0, 1."
    ]
    short = ran({"Random/0": 4, "BADGE/0": 4, "Random/1": 3, "BADGE/1": 4}, "area")
    assert not short.records


@pytest.mark.parametrize("by", ["round", "area"])
def test_all_there(by):
    found = ran(dict.fromkeys((job.name for job in JOBS), 5), by)
    assert len(found.records) == 24
    assert found.unfinished == []


def test_runs_of_other_sheets_do_not_count():
    assert not ran({"Random/7": 3, "BADGE/7": 3}).records
