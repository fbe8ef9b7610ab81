"""The page of the goals for quality: what the kept results give, and a goal that is missed says so."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import make_quality as script
import pytest

from labelwise.recommend import read_findings


def test_the_page_is_what_the_kept_results_give() -> None:
    assert (script.RESULTS / script.PAGE).read_text() == script.page(script.RESULTS)


def test_a_goal_that_is_missed_is_not_called_met(tmp_path: Path) -> None:
    stored = script.RESULTS
    for name in ("ties.md", "papers-small/bss-rounds.json", "papers/sabal-table2.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(stored / name, tmp_path / name)
    goals = (script.ties, script.joint_weights)
    assert [goal(tmp_path).row[3:] for goal in goals] == [["yes", ""], ["yes", ""]]
    page = tmp_path / "ties.md"
    page.write_text(page.read_text().replace("0.84 ± 0.01", "0.79 ± 0.01"))
    assert "random forest 0.79 (shuffled 0.82)" in script.ties(tmp_path).reached
    assert not script.ties(tmp_path).met, "worse than on a shuffled pool"
    rounds = tmp_path / "papers-small/bss-rounds.json"
    found = json.loads(rounds.read_text())
    found["excess"]["heavy-tailed"]["RandBSS, joint weights"]["440"] = [0.03]
    rounds.write_text(json.dumps(found))
    assert script.joint_weights(tmp_path).row[2:4] == ["0.030", "no"]
    table = tmp_path / "papers/sabal-table2.json"
    found = json.loads(table.read_text())
    assert not script.paper(tmp_path).met
    found["ours"] = found["papers"]
    table.write_text(json.dumps(found))
    assert script.paper(tmp_path).met


def test_every_situation_with_records_has_a_row_and_a_reason_if_it_falls_short() -> None:
    goals = script.recommendations()
    assert len(goals) == len(read_findings())
    assert all(goal.met or goal.why for goal in goals)


def test_records_of_two_training_rules_are_named() -> None:
    assert script.two_rules({"network": {"mlp": "core: epochs 80", "ridge": "Ridge"}}) == ""
    found = script.two_rules({"many-classes": {"mlp": "core: epochs 80; texts: epochs 20"}})
    assert found.endswith(" rules: many classes, 50 or more (mlp: core: epochs 80; texts: epochs 20).\n")


def test_the_check_sees_another_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "page", lambda results: "this")
    script.main()
    monkeypatch.setattr(sys, "argv", ["make_quality.py", "--check"])
    script.main()
    (tmp_path / script.PAGE).write_text("other")
    with pytest.raises(SystemExit, match="out of date"):
        script.main()
