"""Growth: how it is measured, and that what the docs say of memory is what the code declares."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

import labelwise as lw
import scaling

ROOT = Path(__file__).resolve().parents[2]


def test_a_slope_is_the_power_of_growth() -> None:
    sizes = [10, 20, 40, 80]
    assert math.isclose(scaling.slope(sizes, [3 * n**2 for n in sizes]), 2.0)
    assert math.isclose(scaling.slope(sizes, [7.0] * 4), 0.0, abs_tol=1e-12)
    assert 0 < scaling.slope(sizes, [100 + n for n in sizes]) < 1  # what does not grow hides what does


def test_growth_is_stated_for_every_strategy_and_along_the_axes_it_has() -> None:
    for name in lw.strategies.names():
        growth = lw.strategies.get(name).growth
        assert growth is not None, name
        found = {axis for axis in scaling.AXES if getattr(growth, axis)}
        assert found == set(scaling.axes_of(name)), name
    assert lw.strategies.get("sabal-iht").growth.k < lw.strategies.get("sabal-greedy").growth.k


def test_what_is_above_the_stated_growth_is_called_so() -> None:
    line = {"strategy": "margin", "axis": "N", "sizes": [1, 2], "seconds": [1.0, 4.0], "bytes": [5, 5]}
    line |= {"declared": [10, 10], "slope": 2.0, "memory_slope": 0.5}
    pictures = ["a.png", "b.png"]
    text = scaling.page([line], "the command", 1.0, pictures)
    assert "2.00 of 1 **above**" in text
    assert "1 slopes are above what is stated" in text
    assert "| margin | 0.50 |  |  |  | 50 % |" in text
    assert all(f"]({one})" in text for one in pictures)
    fine = scaling.page([{**line, "slope": 1.1}], "the command", 1.0, pictures)
    assert "1.10 of 1 |" in fine
    assert "No slope is above" in fine
    assert "more memory" not in fine
    assert "1 lines used more memory than is declared" in scaling.page([{**line, "bytes": [5, 11]}], "", 1.0, pictures)
    assert "9.00 of any |" in scaling.page(
        [{**line, "strategy": "batchbald", "axis": "C", "slope": 9.0}], "", 1.0, pictures
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axis", "sizes"),
    [
        ("margin", "N", (100_000, 200_000, 400_000)),
        ("margin", "C", (8, 16, 32)),
        ("kcenter", "N", (20_000, 40_000, 80_000)),
        ("kcenter", "k", (50, 100, 200)),
        ("badge", "N", (20_000, 40_000, 80_000)),
        ("badge", "k", (50, 100, 200)),
        ("leverage", "N", (20_000, 40_000, 80_000)),
        ("leverage", "D", (32, 64, 128)),
    ],
)
def test_time_grows_no_faster_than_stated(name: str, axis: str, sizes: tuple[int, ...]) -> None:
    """The processor's time, the best of three tries: what else runs on the machine only ever adds to it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    base = {"N": 20_000, "C": 8, "D": 32, "k": 50}
    try:
        for left in (2, 1, 0):
            seconds = [
                scaling.timed(name, scaling.inputs(name, {**base, axis: size}), {**base, axis: size}["k"], 3)
                for size in sizes
            ]
            line = {"strategy": name, "axis": axis, "slope": scaling.slope(sizes, seconds)}
            if not scaling.above(line):
                return
            assert left, (line, seconds)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_pictures_have_a_panel_for_each_strategy(tmp_path: Path) -> None:
    line = {"axis": "N", "sizes": [1, 2], "seconds": [1.0, 4.0], "bytes": [0, 5_000_000]}
    lines = [{**line, "strategy": f"s{number}"} for number in range(6)]
    scaling.draw(lines, "bytes", "MB", 1e6, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="private memory is read from /proc")
def test_a_run_measures_time_and_memory_within_what_is_declared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"N": 2000, "C": 3, "D": 4, "k": 4}
    monkeypatch.setattr(scaling, "BASE", small)
    # In this process, which other tests have given threads: a fork of it may not compute.
    monkeypatch.setattr(scaling, "measured", scaling._selected)
    assert scaling.main(["--quick", "--only", "margin,badge"]) == 0
    said = capsys.readouterr().out
    assert "| badge |" in said
    assert said.count(" of 1") >= 2 * 5
    found = scaling._selected("badge", small, 1)
    assert 0 < found["seconds"] < 60
    assert found["bytes"] <= found["declared"]
    assert scaling.main(["--only", "nothing"]) == 2


def test_the_docs_say_what_the_code_declares() -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    for line in scaling.declared():
        assert line in text, "python benchmarks/scaling.py --declared"
