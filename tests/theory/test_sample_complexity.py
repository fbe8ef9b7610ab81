"""The calculators: constants, both readings of the dimension, and advice that promises no more than the theorem."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import ArgumentError
from labelwise.theory import sample_complexity as theory


def test_labels_are_141_d_over_epsilon():
    for d, epsilon in ((10, 0.1), (256, 1.0), (3, 0.01)):
        found = theory.labels_needed(d, epsilon)
        assert found == pytest.approx(14.13 * d / epsilon * (1 - epsilon / 9), abs=1.001)
        assert theory.accuracy_of(d, found) == pytest.approx(epsilon, rel=1e-2)


def test_the_pool_by_the_lemma_and_by_explicit_constants():
    assert theory.pool_order(50.0, 20, 0.1) == math.ceil(50 * math.log(20) + 500)
    assert theory.pool_order(50.0, 20, 0.1, rho=0.05) == math.ceil(2 * (50 * math.log(20) + 500))
    enough = theory.pool_enough(50.0, 20, 0.1)
    tails = [20 * math.exp(-tail * enough / 50) for tail in (theory.LOWER_TAIL, theory.UPPER_TAIL)]
    assert sum(tails) <= 0.1
    assert sum(20 * math.exp(-t * (enough - 2) / 50) for t in (theory.LOWER_TAIL, theory.UPPER_TAIL)) > 0.1
    assert pytest.approx((0.034238, 0.028930), abs=1e-6) == (theory.LOWER_TAIL, theory.UPPER_TAIL)
    assert theory.pool_enough(50.0, 20, 1e-4) == 1_000_000  # 2 K / epsilon


def test_rows_enough_for_certain_are_enough():
    """Uniform rows of a heavy-tailed law, so many as the explicit constants ask: the eigenvalues are in [3/4, 5/4]."""
    rng = np.random.default_rng(0)
    base = np.hstack([np.ones((400, 1)), rng.standard_t(5, size=(400, 2))])
    q = np.linalg.qr(base)[0] * 20
    k0 = theory.pool_enough(float((q**2).sum(1).max()), 3, 1.0)
    bad = 0
    for seed in range(40):
        rows = q[np.random.default_rng(seed).integers(0, 400, k0)]
        lam = np.linalg.eigvalsh(rows.T @ rows / k0)
        bad += lam[0] < 0.75 or lam[-1] > 1.25
    assert bad <= 4


def test_measured_on_an_array():
    x = np.random.default_rng(0).standard_t(3, size=(500, 4))
    found = theory.measured(x)
    centred = x - x.mean(0)
    u = np.linalg.svd(centred, full_matrices=False)[0]
    assert found.rank == 5
    assert found.condition_number == pytest.approx(1 + 500 * (u**2).sum(1).max())
    assert theory.measured(x, rank=2).rank == 2
    need = theory.need(found.rank, found.condition_number, 0.1, found.rho_holdout or 0.0)
    assert need.always_good
    assert not theory.need(5, 10.0, 0.2).always_good
    assert need.excess == pytest.approx(0.1 * (1 + 5 * (found.rho_holdout or 0)))


def test_theorem_41_under_both_readings():
    linear, taylor = theory.theorem_4_1(3, 40.0, 0.1, 0.05)
    c = 30 + math.log(20) / math.log(3)
    assert theory.smoothness(3, 0.05) == pytest.approx(c)
    assert linear.dimension == math.ceil(c)
    assert taylor.dimension == math.comb(math.ceil(c) + 3, 3)
    assert linear.labels == pytest.approx(theory.labels_needed(linear.dimension, 0.1), rel=1e-3)
    assert "as in our copy" in linear.reading
    assert taylor.pool_order > linear.pool_order
    theory.theorem_4_1(784, 1000.0, 0.1, 0.05)  # larger than any float, and no overflow


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: theory.labels_needed(0, 0.1), "dimension"),
        (lambda: theory.labels_needed(3, 0.0), "epsilon"),
        (lambda: theory.labels_needed(3, 1.5), "epsilon"),
        (lambda: theory.pool_order(2.0, 5, 0.1), "at least the dimension"),
        (lambda: theory.need(5, 10.0, 0.1, -1.0), "rho"),
        (lambda: theory.smoothness(1, 0.01), "at least 2 inputs"),
        (lambda: theory.theorem_4_1(5, 10.0, 0.1, 0.5), "epsilon0"),
        (lambda: theory.theorem_4_1(5, 10.0, 0.1, 0.05, rho=0.2), "rho"),
        (lambda: theory.accuracy_of(5, 0), "labels"),
        (lambda: theory.measured(np.zeros((0, 2))), "no rows"),
    ],
)
def test_bad_questions_are_named(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


def test_advice_promises_no_more_than_the_theorem():
    small = theory.advice(theory.need(10, 20.0, 0.1), 500)
    assert "does not save labels" in small
    pool_only = theory.advice(theory.need(10, 20.0, 0.1), 3000)
    assert "holds for the rows of the pool" in pool_only
    assert "if the output is good" in pool_only
    assert "The theorem says nothing about models outside the span" in pool_only
    assert "new rows too" in theory.advice(theory.need(10, 20.0, 0.1), 1_000_000)


def command(*words: str) -> str:
    run = CliRunner().invoke(app, ["labels-needed", *words])
    assert run.exit_code == 0, run.output
    return run.output


def test_the_command(tmp_path: Path):
    np.save(tmp_path / "h.npy", np.random.default_rng(0).normal(size=(3000, 6)).astype("f4"))
    file = ("--embedding", str(tmp_path / "h.npy"))
    shown = command(*file, "--epsilon", "0.1", "--seconds", "0")
    assert f"{theory.labels_needed(7, 0.1):,}" in shown
    for word in ("condition number K", "Constants and assumptions", "1.57", "certain"):
        assert word in shown
    assert "Theorem 4.1" not in shown
    assert "Simulated" not in shown
    shown = command(*file, "--inputs", "6", "--epsilon", "0.5", "--seconds", "0")
    for word in ("as in our copy", "Taylor", "ReLU has none", "not certain"):
        assert word in shown


@pytest.mark.slow
def test_the_command_shows_a_typical_number_and_what_the_paper_leaves_to_be_measured(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=(600, 6))
    np.save(tmp_path / "h.npy", x)
    np.save(tmp_path / "linear.npy", x @ np.ones((6, 2)) + 3)
    files = ("--embedding", str(tmp_path / "h.npy"), "--outputs", str(tmp_path / "linear.npy"))
    shown = command(*files, "--epsilon", "0.1", "--runs", "3", "--seconds", "60")
    typical = re.search(r"typical labels +about (\d+), the bound is (\d+) times that", shown)
    assert typical is not None, shown
    assert 40 < int(typical[1]) < 120  # 70 is d/epsilon
    assert int(typical[2]) == round(theory.labels_needed(7, 0.1) / int(typical[1]))
    assert re.search(r"beta K <= epsilon/2 +holds: at most 0\.0\d+, epsilon/2 is 0\.05, at the [\d,]+ draws", shown)
    assert re.search(r"K of alpha, D' +uniform [\d.]+, leverage 7, bss 7 to", shown)
    own = re.search(r"the same of your network +E \|h - f\|\^2 is (\S+) at most", shown)
    assert own is not None
    assert float(own[1]) < 1e-20  # in the span
    assert "not simulated: 30 rows are too few" in command(*_few(tmp_path), "--seconds", "1")


def _few(folder: Path) -> tuple[str, str]:
    np.save(folder / "few.npy", np.random.default_rng(0).normal(size=(30, 6)))
    return "--embedding", str(folder / "few.npy")


def test_the_command_without_a_file_says_what_it_takes_and_refuses_outputs_of_other_rows(tmp_path: Path):
    shown = command("--dimension", "5", "--seconds", "0")
    assert "made up: 4 columns of Student's t(2.5)" in shown
    assert f"{theory.labels_needed(5, 0.1):,}" in shown
    np.save(tmp_path / "o.npy", np.zeros(31))
    for words in (["--outputs", str(tmp_path / "o.npy")], [*_few(tmp_path), "--outputs", str(tmp_path / "o.npy")]):
        run = CliRunner().invoke(app, ["labels-needed", *words])
        assert isinstance(run.exception, ArgumentError)
        assert "31 rows were found" in str(run.exception)
