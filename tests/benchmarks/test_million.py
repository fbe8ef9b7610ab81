"""The benchmarks on a million rows and on half precision, at a size that takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import half
import labelwise as lw
import million

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_pool_has_the_spectrum_it_says(tmp_path: Path):
    ratios = {}
    for flat in (False, True):
        million.make(tmp_path / str(flat), 4000, 32, 400, flat)
        h, p, q = (np.load(tmp_path / str(flat) / f"{one}.npy") for one in "hpq")
        assert h.dtype == p.dtype == np.float16
        assert np.abs(p.astype(np.float64).sum(1) - 1).max() < 5e-3
        assert q.astype(np.float32).max(1).mean() < p.astype(np.float32).max(1).mean()  # warmer
        variance = np.linalg.eigvalsh(np.cov(h.astype(np.float64).T))[::-1]
        ratios[flat] = variance[0] / variance[-1]
    assert ratios[False] > 20  # 32 where it is the noise alone
    assert ratios[True] < 3


@pytest.mark.slow
def test_a_row_of_the_table(tmp_path: Path):
    page = tmp_path / "million.md"
    size = ["--rows", "300", "--width", "8", "--classes", "4", "-k", "5", "--threads", "1"]
    command = [sys.executable, str(BENCHMARKS / "million.py"), "--only", "kcenter", *size]
    done = subprocess.run(
        [*command, "--pool", str(tmp_path / "pool"), "--out", str(page)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "\n| kcenter | 0 | " in page.read_text()
    (table,) = json.loads(page.with_suffix(".json").read_text()).values()
    found = table["rows"]["kcenter"]
    assert found["reads"] >= 2
    assert found["plain"] is not None
    assert found["extra_mb"] < found["declared_mb"]


def test_a_strategy_without_a_plain_form_has_a_row_too():
    found = {"cpu": 2.0, "clock": 1.0, "reads": 1.0, "extra_mb": 3.0, "declared_mb": 4.0, "alone": True}
    empty = million.line("ally", found)
    beside = million.line("kcenter", found | {"plain": 20.0, "plain_clock": 10.0})
    assert empty.count("|") == beside.count("|") == million.HEAD.count("|")
    assert beside.endswith("| 20 | 10 | 10 | 10 |")


@pytest.mark.slow
def test_half_precision_measures_every_strategy():
    assert set(half.OBJECTIVES) < set(lw.strategies.names())
    pool, behind = half.signals(0)
    picks = half.chosen("kcenter", pool, behind, 0)
    radius = half.OBJECTIVES["kcenter"][1]("kcenter", pool, behind, picks)
    worse = half.chosen("random", pool, behind, 0)
    assert radius > half.OBJECTIVES["kcenter"][1]("kcenter", pool, behind, worse)
