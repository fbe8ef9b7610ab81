import json
from pathlib import Path

import numpy as np
import pytest
import torch

import labelwise as lw
import measure
import plain
import sabal
import selection
import shapes
import table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


# Strategies whose yardstick is in a benchmark of their own.
ELSEWHERE = {
    "sabal.py": {"sabal-greedy", "sabal-iht"},
    "bayes.py": {"bald", "batchbald", "acs-fw"},
    "bss.py": {"bss", "leverage", "volume"},
    "dynamical.py": {"dynamical"},
    "bait.py": {"bait"},
}
UNMEASURED = {"ally", "albl"}  # their time is that of training a head, and of the arm that was drawn


def test_every_strategy_has_a_case_and_a_yardstick():
    folder = Path(shapes.__file__).parent
    assert all((folder / file).exists() for file in ELSEWHERE)
    names = set(lw.strategies.names()) - UNMEASURED - set.union(*ELSEWHERE.values())
    assert names == {case.strategy for case in shapes.full_cases()}
    assert names == {case.strategy for case in shapes.quick_cases()}
    assert names == set(plain.ALL)


def test_a_case_survives_json():
    for case in shapes.full_cases():
        assert shapes.Case.from_json(case.to_json()) == case


def test_plain_picks_what_ours_picks(tmp_path):
    for case in shapes.quick_cases():
        if case.strategy not in ("kcenter", "confidence", "margin", "entropy"):
            continue
        folder = tmp_path / f"{case.strategy}-{case.data}"
        folder.mkdir()
        shapes.write_inputs(case, folder)
        arrays = shapes.load_inputs(folder)
        ours = lw.select(case.strategy, case.k, **arrays).ids
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        theirs = plain.ALL[case.strategy](case.k, int(ours[0]), **tensors)
        assert set(ours.tolist()) == set(theirs.tolist()), case


def test_the_plain_form_of_greedy_sabal_takes_a_step_of_length_zero():
    """After the line search of the first pick the gradient may be exactly zero, and so is the step down it."""
    for n, dim, classes, k in ((300, 8, 5, 10), (300, 16, 10, 5), (300, 16, 10, 40)):
        inputs = sabal.inputs_of(n, dim, classes)
        expected = lw.select(lw.strategies.Sabal(beta=1e-3), k, **inputs).ids.tolist()
        assert sabal.plain_greedy(k, 1e-2, 1e-3, **inputs).tolist() == expected


def test_the_plain_form_of_greedy_sabal_leaves_weights_that_were_cut():
    inputs = sabal.inputs_of(3000, 64, 10)
    inputs["embedding"] *= torch.randn(3000, 1, generator=torch.Generator().manual_seed(1)).exp()
    got = lw.select(lw.strategies.Sabal(beta=1e-3), 120, **inputs)
    assert (got.weights == 0).any()
    assert sabal.plain_greedy(120, 1e-2, 1e-3, **inputs).tolist() == got.ids.tolist()


def test_plain_sampled_methods_fill_the_batch(tmp_path):
    for case in shapes.quick_cases():
        if case.strategy not in ("random", "badge", "typiclust", "probcover"):
            continue
        shapes.write_inputs(case, tmp_path)
        arrays = shapes.load_inputs(tmp_path)
        if not case.dim:
            arrays.pop("embedding", None)
        if not case.classes:
            arrays.pop("probs", None)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        picks = plain.ALL[case.strategy](case.k, 0, **tensors).tolist()
        assert len(set(picks)) == len(picks) == case.k, case


def test_a_miss_is_called_a_miss():
    target = shapes.Target(times_plain=20, extra_mb=64, same_picks=True)
    case = shapes.Case("kcenter", 100, 4, 0, 3, target=target)
    ours = {"best": 1.0, "median": 1.0, "extra_mb": 10.0, "picks": [1, 2, 3]}
    plain = {"best": 30.0, "median": 30.0, "picks": [1, 2, 3]}
    assert table.verdict(case, ours, plain)[1] == "met"
    assert "19.0 x" in table.verdict(case, ours, plain | {"best": 19.0})[1]
    assert "65 MB" in table.verdict(case, ours | {"extra_mb": 65.0}, plain)[1]
    assert "picks differ" in table.verdict(case, ours, plain | {"picks": [1, 2, 4]})[1]
    assert "nan" in table.verdict(case, {"stopped": "killed"}, plain)[1]


def test_extra_memory_is_what_a_run_holds_above_its_inputs():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of memory cannot be started anew on this system")
    # Above 32 MiB the allocator always asks the system: below, it may give what earlier tests let go and is still held.
    answer = measure.timed(lambda k: np.ones(10_000_000)[:k], 2, 1)
    assert 75 < answer["extra_mb"] < 90
    assert answer["picks"] == [1, 1]


@pytest.mark.slow
def test_quick_run_writes_the_page_and_names_an_absent_peer(tmp_path, capsys):
    out = tmp_path / "page.md"
    arguments = ["--quick", "--only", "entropy", "--peers", str(tmp_path / "none"), "--out", str(out)]
    assert selection.main(arguments) == 0
    page = out.read_text()
    assert "| entropy | 4k, -, 5, 40 | random |" in page
    assert page.count("not installed: run `python benchmarks/peers.py setup`") == 2
    assert "| 1.00 |" in page  # reads of the input
    assert capsys.readouterr().out.strip() == page.strip()


def test_an_unknown_strategy_is_refused(capsys):
    assert selection.main(["--quick", "--only", "badger"]) == 2
    assert "badger" in capsys.readouterr().out


RESULTS = BENCHMARKS.parent / "docs" / "results"


@pytest.mark.slow
def test_the_page_of_estimates_follows_from_its_numbers(tmp_path):
    import estimate

    parts = (
        ("Means", "Few of them.", "means --runs 2"),
        ("", "", "batches --runs 1 --only random --k 20"),
        ("Sessions", "Few of them.", "running --runs 2 --only leverage --kinds classes,heavy --k 60"),
    )
    estimate.page(tmp_path / "estimate.md", parts)
    page, about = (tmp_path / "estimate.md").read_text(), json.loads((tmp_path / "estimate.json").read_text())
    assert "| squares of t(3) |" in page
    assert [len(one["rows"]) - 2 for one in about["tables"]] == [10, 6, 3]
    assert "did not finish: 1 of 3 tables" in estimate.page_text({**about, "tables": about["tables"][:1]}, 3)
    assert estimate.page_text(about, 3) == page
    estimate.page(tmp_path / "estimate.md", (parts[0], ("", "", "means --fresh --runs 1"), parts[2]), keep=True)
    more = json.loads((tmp_path / "estimate.json").read_text())["tables"]
    assert [more[0], more[2]] == [about["tables"][0], about["tables"][2]]
    assert more[1]["rows"][-1][0] == "distances, one row in 100 ten times as far"
    stored = json.loads((RESULTS / "estimate.json").read_text())
    assert estimate.page_text(stored, len(estimate.PAGE)) == (RESULTS / "estimate.md").read_text()
    assert [one["words"] for one in stored["tables"]] == [words for _, _, words in estimate.PAGE]


def test_the_page_of_provable_sampling_follows_from_its_numbers(tmp_path, capsys):
    import bss

    parts = (("Barriers", "Few of them.", "barriers --runs 2 --finest 0.5"), ("", "", "stop --runs 2 --seed 3"))
    bss.page(tmp_path / "bss.md", parts)
    page, about = (tmp_path / "bss.md").read_text(), json.loads((tmp_path / "bss.json").read_text())
    assert "`python benchmarks/bss.py barriers --runs 2 --finest 0.5`" in page
    assert f"torch {torch.__version__.partition('+')[0]}" in page
    assert "| gaussian | 2 |" in page
    assert "did not finish" not in page
    assert [len(one["rows"]) for one in about["tables"]] == [4, 18]
    assert "did not finish: 1 of 2 tables" in bss.page_text({**about, "tables": about["tables"][:1]}, 2)
    assert bss.page_text(about, 2) == page
    stored = json.loads((RESULTS / "bss.json").read_text())
    assert bss.page_text(stored, len(bss.PAGE)) == (RESULTS / "bss.md").read_text()
    assert [one["words"] for one in stored["tables"]] == [words for _, _, words in bss.PAGE]
    with pytest.raises(SystemExit):
        bss.parsed(["page"])
