import json

import pytest

import labelwise as lw
import regress


def test_no_selection_does_more_work_than_was_kept():
    """The guard itself: `python benchmarks/regress.py --keep` writes new figures where more work is meant."""
    of_versions, earlier = regress.earlier_figures()
    most = 0.05 if of_versions == regress.versions() else 0.25
    more = {
        case.name: regress.grown(regress.measure_case(case), earlier[case.name], most)
        for case in regress.CASES
        if case.n <= 5_000
    }
    assert not {name: found for name, found in more.items() if found}


def test_every_case_has_kept_figures():
    assert {case.name for case in regress.CASES} == set(regress.earlier_figures()[1])


def test_more_work_is_named(tmp_path, capsys, monkeypatch):
    file = tmp_path / "regress.json"
    few = [case for case in regress.CASES if case.strategy == "kcenter" and case.n == 1_000]
    monkeypatch.setattr(regress, "CASES", few)
    assert regress.main(["--keep", "--file", str(file)]) == 0
    assert regress.main(["--file", str(file)]) == 0
    select = lw.select
    monkeypatch.setattr(lw, "select", lambda *words, **named: (select(*words, **named), select(*words, **named))[0])
    assert regress.main(["--file", str(file)]) == 1
    assert "MORE: calls" in capsys.readouterr().out


def test_growth_is_relative_but_for_trifles():
    earlier = regress.Work(10_000, 1_000, 10.0, 1.0)
    assert not regress.grown(earlier, earlier, 0.05)
    assert not regress.grown(regress.Work(10_600, 1_060, 10.9, 1.04), earlier, 0.05)
    (more,) = regress.grown(regress.Work(10_000, 1_000, 12.0, 1.0), earlier, 0.05)
    assert more.startswith("moved_mb")
    assert "+20%" in more


def test_wrong_arguments_are_refused(tmp_path):
    for words in (["--only", "nothing"], ["--keep", "--only", "badge"]):
        with pytest.raises(SystemExit):
            regress.main([*words, "--file", str(tmp_path / "none.json")])
    assert not list(tmp_path.iterdir())


def test_kept_figures_say_their_versions():
    assert set(json.loads(regress.FIGURES.read_text())["versions"]) == {"python", "torch"}
