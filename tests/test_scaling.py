"""Growth: how it is measured, and that what the docs say of memory is what the code declares."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

import labelwise as lw

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    found = importlib.util.spec_from_file_location("scaling", ROOT / "benchmarks" / "scaling.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_slope_is_the_power_of_growth(scaling: ModuleType) -> None:
    sizes = [10, 20, 40, 80]
    assert math.isclose(scaling.slope(sizes, [3 * n**2 for n in sizes]), 2.0)
    assert math.isclose(scaling.slope(sizes, [7.0] * 4), 0.0, abs_tol=1e-12)
    assert 0 < scaling.slope(sizes, [100 + n for n in sizes]) < 1  # what does not grow hides what does


def test_growth_is_stated_for_every_strategy(scaling: ModuleType) -> None:
    assert set(scaling.STATED) == set(lw.strategies.names())
    for name in lw.strategies.names():
        assert set(scaling.STATED[name]) <= set(scaling.axes_of(name)), name


def test_what_is_above_the_stated_growth_is_called_so(scaling: ModuleType) -> None:
    line = {"strategy": "margin", "axis": "N", "sizes": [1, 2], "seconds": [1.0, 4.0], "bytes": [5, 5]}
    line |= {"declared": [10, 10], "slope": 2.0, "memory_slope": 0.0}
    text = scaling.page([line], "the command", 1.0, "scaling.png")
    assert "2.00 of 1 **above**" in text
    assert "1 slopes are above what is stated" in text
    assert "| 50 % |" in text
    fine = scaling.page([{**line, "slope": 1.1}], "the command", 1.0, "scaling.png")
    assert "1.10 of 1 |" in fine
    assert "No slope is above" in fine


@pytest.mark.skipif(sys.platform != "linux", reason="private memory is read from /proc")
def test_a_run_measures_time_and_memory_within_what_is_declared(
    scaling: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_the_docs_say_what_the_code_declares(scaling: ModuleType) -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    for line in scaling.declared():
        assert line in text, "python benchmarks/scaling.py --declared"
