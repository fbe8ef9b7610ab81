"""Jobs whose networks are trained at once: the records are those of jobs one by one, also after a stop."""

import pytest

from labelwise.bench.suite.job import comparable
from labelwise.bench.suite.runner import read_run, run_suite
from tiny_suite import suite_of

pytest.importorskip("sklearn")
MODELS = [{"name": "mlp", "hidden": [8], "epochs": 3}]


def records(run):
    found = [comparable(record) for record in read_run(run)]
    for values in found:
        values["notes"]["training"].pop("stacked", None)
    return found


def close(one, other):
    """Whether records are equal up to rounding: a product of the CPU may depend on where its matrices lie in memory."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, rel=1e-3, abs=1e-4) if isinstance(other, float) else other)


@pytest.mark.slow
def test_records_are_those_of_jobs_one_by_one_also_after_a_stop(tmp_path):
    suite = suite_of(tmp_path, models=MODELS, strategies=["margin", "dynamical"], rounds=2)
    list(run_suite(suite, "", tmp_path / "alone", 0))
    list(run_suite(suite, "", tmp_path / "together", together=True))
    alone, together = records(tmp_path / "alone"), records(tmp_path / "together")
    assert close(alone, together)
    assert len(alone) == 6 * 3
    assert all(record.notes["training"]["stacked"] == 6 for record in read_run(tmp_path / "together"))

    running = run_suite(suite, "", tmp_path / "stopped", together=True)
    while next(running).done < 8:  # all of round 0, and some of round 1
        pass
    running.close()
    done = len(read_run(tmp_path / "stopped"))
    assert 8 <= done < 18
    list(run_suite(suite, "", tmp_path / "stopped", together=True))
    assert close(records(tmp_path / "stopped"), together)


@pytest.mark.slow
def test_a_suite_with_more_jobs_than_a_stack_holds_runs_in_groups_that_stay(tmp_path):
    suite = suite_of(tmp_path, models=MODELS, strategies=["margin | weigh sabal | train primal-dual"], rounds=2)
    list(run_suite(suite, "", tmp_path / "whole", together=True, most=3))
    found = read_run(tmp_path / "whole")
    assert len(found) == 4 * 3
    alone = [one for one in found if one.notes["training"]["stacked"] == 1]
    assert {one.run for one in alone} == {suite.jobs()[0][3].name}  # three jobs, then the last one
    running = run_suite(suite, "", tmp_path / "stopped", together=True, most=3)
    while next(running).done < 5:
        pass
    running.close()
    list(run_suite(suite, "", tmp_path / "stopped", together=True, most=3))
    assert close(records(tmp_path / "stopped"), records(tmp_path / "whole"))


def test_a_job_that_fails_leaves_the_others(tmp_path, monkeypatch):
    from labelwise.strategies import Margin

    def broken(self, *given, **how):
        raise ValueError("no picks today")

    monkeypatch.setattr(Margin, "select", broken)
    suite = suite_of(tmp_path, models=MODELS, strategies=["margin"], rounds=1)
    *_, last = run_suite(suite, "", tmp_path / "run", together=True)
    assert sorted(name.split("/")[2] for name in last.failed) == ["margin", "margin"]
    assert "no picks today" in next(iter(last.failed.values()))
    assert {record.strategy for record in read_run(tmp_path / "run")} == {"random"}
