import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import labelwise as lw

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The scripts beside each other, imported as they import one another."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import measure
        import plain
        import sabal
        import selection
        import shapes
        import table

        found = ModuleType("bench")
        found.measure, found.plain, found.sabal, found.selection, found.shapes, found.table = (
            measure,
            plain,
            sabal,
            selection,
            shapes,
            table,
        )
        yield found
    finally:
        sys.path.remove(str(BENCHMARKS))


# Strategies whose yardstick is in a benchmark of their own.
ELSEWHERE = {
    "sabal.py": {"sabal-greedy", "sabal-iht"},
    "bayes.py": {"bald", "batchbald", "acs-fw"},
    "bss.py": {"bss", "leverage", "volume"},
    "dynamical.py": {"dynamical"},
    "bait.py": {"bait"},
}
UNMEASURED = {"ally", "albl"}  # their time is that of training a head, and of the arm that was drawn


def test_every_strategy_has_a_case_and_a_yardstick(bench):
    folder = Path(bench.shapes.__file__).parent
    assert all((folder / file).exists() for file in ELSEWHERE)
    names = set(lw.strategies.names()) - UNMEASURED - set.union(*ELSEWHERE.values())
    assert names == {case.strategy for case in bench.shapes.full_cases()}
    assert names == {case.strategy for case in bench.shapes.quick_cases()}
    assert names == set(bench.plain.ALL)


def test_a_case_survives_json(bench):
    for case in bench.shapes.full_cases():
        assert bench.shapes.Case.from_json(case.to_json()) == case


def test_plain_picks_what_ours_picks(bench, tmp_path):
    for case in bench.shapes.quick_cases():
        if case.strategy not in ("kcenter", "confidence", "margin", "entropy"):
            continue
        folder = tmp_path / f"{case.strategy}-{case.data}"
        folder.mkdir()
        bench.shapes.write_inputs(case, folder)
        arrays = bench.shapes.load_inputs(folder)
        ours = lw.select(case.strategy, case.k, **arrays).ids
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        theirs = bench.plain.ALL[case.strategy](case.k, int(ours[0]), **tensors)
        assert set(ours.tolist()) == set(theirs.tolist()), case


def test_the_plain_form_of_greedy_sabal_takes_a_step_of_length_zero(bench):
    """After the line search of the first pick the gradient may be exactly zero, and so is the step down it."""
    for n, dim, classes, k in ((300, 8, 5, 10), (300, 16, 10, 5), (300, 16, 10, 40)):
        inputs = bench.sabal.inputs_of(n, dim, classes)
        expected = lw.select(lw.strategies.Sabal(beta=1e-3), k, **inputs).ids.tolist()
        assert bench.sabal.plain_greedy(k, 1e-2, 1e-3, **inputs).tolist() == expected


def test_the_plain_form_of_greedy_sabal_leaves_weights_that_were_cut(bench):
    inputs = bench.sabal.inputs_of(3000, 64, 10)
    inputs["embedding"] *= torch.randn(3000, 1, generator=torch.Generator().manual_seed(1)).exp()
    got = lw.select(lw.strategies.Sabal(beta=1e-3), 120, **inputs)
    assert (got.weights == 0).any()
    assert bench.sabal.plain_greedy(120, 1e-2, 1e-3, **inputs).tolist() == got.ids.tolist()


def test_plain_sampled_methods_fill_the_batch(bench, tmp_path):
    for case in bench.shapes.quick_cases():
        if case.strategy not in ("random", "badge", "typiclust", "probcover"):
            continue
        bench.shapes.write_inputs(case, tmp_path)
        arrays = bench.shapes.load_inputs(tmp_path)
        if not case.dim:
            arrays.pop("embedding", None)
        if not case.classes:
            arrays.pop("probs", None)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        picks = bench.plain.ALL[case.strategy](case.k, 0, **tensors).tolist()
        assert len(set(picks)) == len(picks) == case.k, case


def test_a_miss_is_called_a_miss(bench):
    target = bench.shapes.Target(times_plain=20, extra_mb=64, same_picks=True)
    case = bench.shapes.Case("kcenter", 100, 4, 0, 3, target=target)
    ours = {"best": 1.0, "median": 1.0, "extra_mb": 10.0, "picks": [1, 2, 3]}
    plain = {"best": 30.0, "median": 30.0, "picks": [1, 2, 3]}
    assert bench.table.verdict(case, ours, plain)[1] == "met"
    assert "19.0 x" in bench.table.verdict(case, ours, plain | {"best": 19.0})[1]
    assert "65 MB" in bench.table.verdict(case, ours | {"extra_mb": 65.0}, plain)[1]
    assert "picks differ" in bench.table.verdict(case, ours, plain | {"picks": [1, 2, 4]})[1]
    assert "nan" in bench.table.verdict(case, {"stopped": "killed"}, plain)[1]


def test_extra_memory_is_what_a_run_holds_above_its_inputs(bench):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of memory cannot be started anew on this system")
    # Above 32 MiB the allocator always asks the system: below, it may give what earlier tests let go and is still held.
    answer = bench.measure.timed(lambda k: np.ones(10_000_000)[:k], 2, 1)
    assert 75 < answer["extra_mb"] < 90
    assert answer["picks"] == [1, 1]


@pytest.mark.slow
def test_quick_run_writes_the_page_and_names_an_absent_peer(bench, tmp_path, capsys):
    out = tmp_path / "page.md"
    arguments = ["--quick", "--only", "entropy", "--peers", str(tmp_path / "none"), "--out", str(out)]
    assert bench.selection.main(arguments) == 0
    page = out.read_text()
    assert "| entropy | 4k, -, 5, 40 | random |" in page
    assert page.count("not installed: run `python benchmarks/peers.py setup`") == 2
    assert "| 1.00 |" in page  # reads of the input
    assert capsys.readouterr().out.strip() == page.strip()


def test_an_unknown_strategy_is_refused(bench, capsys):
    assert bench.selection.main(["--quick", "--only", "badger"]) == 2
    assert "badger" in capsys.readouterr().out


RESULTS = BENCHMARKS.parent / "docs" / "results"


def test_the_page_of_provable_sampling_follows_from_its_numbers(bench, tmp_path, capsys):
    import bss

    parts = (("Barriers", "Few of them.", "barriers --runs 2 --finest 0.5"), ("", "", "stop --runs 2 --seed 3"))
    bss.page(tmp_path / "bss.md", parts)
    page, about = (tmp_path / "bss.md").read_text(), json.loads((tmp_path / "bss.json").read_text())
    assert "`python benchmarks/bss.py barriers --runs 2 --finest 0.5`" in page
    assert f"torch {torch.__version__}" in page
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
