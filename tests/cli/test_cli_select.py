"""A long selection on the command line: its limit, its progress, a stop in the middle and going on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import labelwise as lw
from labelwise.cli import app
from labelwise.io.progress_bar import DelayedBar

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(5), 20_000).astype("float32")
H = RNG.normal(size=(20_000, 32)).astype("float32")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    for name, array in (("p", P), ("q", P[:, ::-1]), ("h", H)):
        np.save(tmp_path / f"{name}.npy", np.ascontiguousarray(array))
    files = [f"--probs {tmp_path}/p.npy", f"--label-probs {tmp_path}/q.npy", f"--embedding {tmp_path}/h.npy"]
    return ["select", *" ".join(files).split()]


def test_a_limit_that_fits_and_one_that_does_not(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "picks.npy"
    done = CliRunner().invoke(app, [*words, "-s", "badge", "-k", "9", "--max-memory", "1GB", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert np.load(out).tolist() == lw.select("badge", 9, probs=P, embedding=H).ids.tolist()
    small = CliRunner().invoke(app, [*words, "-s", "badge", "-k", "9", "--max-memory", "3MB"])
    assert isinstance(small.exception, lw.errors.MemoryLimitError)
    needed = re.search(r"allow (\d+MB) or more", str(small.exception))
    assert needed is not None
    words = [*words, "--out", str(out), "--force"]
    fits = CliRunner().invoke(app, [*words, "-s", "badge", "-k", "9", "--max-memory", needed[1]])
    assert fits.exit_code == 0, fits.output


def test_an_engine_that_is_not_known_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "-s", "badge", "-k", "9", "--engine", "spark"])
    assert isinstance(done.exception, lw.errors.ArgumentError)


# As a person runs it, with a journal that keeps at once instead of after 20 seconds.
_COMMAND = """
    import sys
    from labelwise.shards.checkpoint import journal
    journal.FolderJournal.tuning = journal.Tuning(0.02, 1e9)
    from labelwise.cli import main
    sys.argv = ["labelwise", *sys.argv[1:]]
    main()
"""


def _start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_COMMAND), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_stopped_by_ctrl_c_it_says_how_to_go_on_and_does(words: list[str], tmp_path: Path) -> None:
    folder, out = tmp_path / "going", tmp_path / "picks.npy"
    asked = [*words, "-s", "sabal-greedy", "-k", "300", "--folder", str(folder), "--out", str(out)]
    process = _start(asked)
    deadline = time.monotonic() + 100
    while not (folder / "progress.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert not out.exists()
    assert re.search(r"Stopped at \d+ of 300", said), said
    assert f"The same command continues from {folder}." in said
    assert "Traceback" not in said
    again = _start(asked)
    assert again.wait(timeout=120) == 0, again.communicate()
    again.communicate()
    assert not folder.exists()
    q = np.ascontiguousarray(P[:, ::-1])
    expected = lw.select("sabal-greedy", 300, probs=P, label_probs=q, embedding=H)
    assert np.load(out).tolist() == expected.ids.tolist()


def test_a_stop_before_anything_is_kept_says_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, progress: DelayedBar, **__: object) -> None:
        progress(3, 9)
        raise KeyboardInterrupt

    monkeypatch.setattr("labelwise.arrays.select", stopped)
    without = CliRunner().invoke(app, [*words, "-s", "badge", "-k", "9"])
    assert "Stopped at 3 of 9" in without.output
    assert "With --folder DIR, an interrupted selection can continue" in without.output
    early = CliRunner().invoke(app, [*words, "-s", "badge", "-k", "9", "--folder", str(tmp_path / "new")])
    assert "starts from the beginning" in early.output


def test_the_bar_is_shown_on_a_terminal_after_a_while_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with DelayedBar("choosing", 10, wait=0.0) as quiet:
        quiet(5, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with DelayedBar("choosing", 10, wait=0.0) as shown:
        shown._timer.join()
        shown(5, 10)
        shown._bar.refresh()
    said = capsys.readouterr().err
    assert "choosing" in said
    assert "5/10" in said
