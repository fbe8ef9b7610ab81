"""The command line, run as a person would: in a process of its own."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labelwise as lw

FILES = {"report.html", "curves.png", "table.csv", "table.md", "records.jsonl"}
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(4), size=60)
H = RNG.normal(size=(60, 6)).astype("float32")


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labelwise", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=120,
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    np.save(tmp_path / "p.npy", P)
    np.save(tmp_path / "h.npy", H)
    np.savez(tmp_path / "both.npz", probs=P, embedding=H)
    columns = {f"c{i}": P[:, i] for i in range(4)}
    pq.write_table(pa.table({**columns, "h": pa.array(H.tolist(), pa.list_(pa.float32()))}), tmp_path / "all.parquet")
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    return tmp_path


def test_help_and_version() -> None:
    out = run("--help")
    assert out.returncode == 0
    for command in ("demo", "strategies", "select", "bench"):
        assert command in out.stdout
    assert run("--version").stdout.strip() == lw.__version__


@pytest.mark.slow
def test_a_warning_of_ours_is_one_line(tmp_path: Path) -> None:
    """Of a long selection, say; those of others come as they are."""
    script = tmp_path / "warned.py"
    script.write_text(
        "import sys, warnings\n"
        "from labelwise import cli\n"
        "from labelwise.selection.run import LongSelection\n"
        "def warned():\n"
        "    warnings.warn('this takes hours', LongSelection)\n"
        "    warnings.warn('of others', DeprecationWarning)\n"
        "cli.app.command('warned')(warned)\n"
        "sys.argv = ['labelwise', 'warned']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "warning: this takes hours"
    assert "warned.py:6: DeprecationWarning: of others" in done.stderr


@pytest.mark.slow
def test_strategies_lists_every_one() -> None:
    out = run("strategies").stdout
    for name in lw.strategies.names():
        assert name in out
    assert "Ash et al." in out


@pytest.mark.slow
def test_select_writes_the_picks_of_the_library(files: Path) -> None:
    expected = lw.select("badge", k=10, probs=P, embedding=H, seed=3)
    out = files / "picks.csv"
    done = run("select", "--strategy", "badge", "-k", 10, "--probs", files / "p.npy", "--embedding", files / "h.npy",
               "--seed", 3, "--out", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [int(row["id"]) for row in rows] == expected.ids.tolist()
    assert [float(row["score"]) for row in rows] == expected.scores.tolist()
    printed = run(
        "select", "-s", "badge", "-k", 10, "--probs", files / "p.npy", "--embedding", files / "h.npy", "--seed", 3
    )
    assert printed.stdout == out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probs", "embedding"),
    [("both.npz", "both.npz"), ("both.npz:probs", "both.npz:embedding"), ("p.parquet", "all.parquet:h")],
)
def test_select_reads_every_format(files: Path, probs: str, embedding: str) -> None:
    expected = lw.select("badge", k=5, probs=P, embedding=H)
    out = files / "picks.json"
    done = run(
        "select", "-s", "badge", "-k", 5, "--probs", files / probs, "--embedding", files / embedding, "--out", out
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["ids"] == expected.ids.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-s", "badge", "-k", "5", "--probs", "p.npy"], "embedding"),
        (["-s", "badger", "-k", "5", "--probs", "p.npy"], "there is no strategy 'badger'"),
        (["-s", "entropy", "-k", "0", "--probs", "p.npy"], "k must be at least 1"),
        (["-s", "entropy", "-k", "500", "--probs", "p.npy"], "only 60 are free"),
        (["-s", "entropy", "-k", "5", "--probs", "nowhere.npy"], "does not exist"),
        (["-s", "entropy", "-k", "5", "--probs", "broken.npy"], "cannot be read"),
        (["-s", "entropy", "-k", "5", "--probs", "notes.txt"], "expected a .npy"),
        (["-s", "entropy", "-k", "5", "--probs", "both.npz:nothing"], "several arrays: probs, embedding"),
        (["-s", "entropy", "-k", "5", "--probs", "p.npy", "--out", "picks.xlsx"], "ending in .csv"),
        (["-s", "entropy", "-k", "5", "--probs", "h.npy"], "probabilities"),
    ],
)
def test_select_says_what_is_wrong_in_one_message(files: Path, words: list[str], text: str) -> None:
    (files / "broken.npy").write_bytes(b"not an array")
    (files / "notes.txt").write_text("hello")
    done = subprocess.run(
        [sys.executable, "-m", "labelwise", "select", *words], capture_output=True, text=True, cwd=files
    )
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(files.glob("picks*"))


def test_bench_data_lists_what_was_found(tmp_path: Path) -> None:
    out = run("bench", "data", LABELWISE_DATA=str(tmp_path)).stdout
    assert "digits" in out
    assert "cifar10" in out
    assert "not found" in out


@pytest.mark.slow
def test_demo_ends_with_a_table_a_page_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run("demo", "--seeds", 1, "--rounds", 1, "--out", out, "--recipes", "margin")
    assert done.returncode == 0, done.stderr
    assert "labels saved" in done.stdout
    assert str(out / "report.html") in done.stdout
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    assert "margin" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    records = lw.report.read_records(out / "records.jsonl")
    assert [(r.strategy, r.labels) for r in records] == [("random", 10), ("random", 20), ("margin", 10), ("margin", 20)]


@pytest.mark.slow
def test_an_interrupted_demo_leaves_no_broken_file(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "labelwise", "demo", "--seeds", "50", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "Labelwise demo" in process.stdout.readline()  # it has begun
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in stderr
    if out.exists():
        assert {path.name for path in out.iterdir()} == FILES
        assert lw.report.read_records(out / "records.jsonl")
    assert {path.name for path in tmp_path.iterdir()} <= {"demo"}


def test_an_interrupt_inside_of_an_import_ends_as_any_other(tmp_path: Path) -> None:
    # Dataclasses and named tuples are made by exec of a string: a Ctrl-C there marks the interpreter as interrupted.
    (tmp_path / "interrupted.py").write_text(
        "from labelwise import cli\n"
        "from labelwise.cli.interrupted import Stopped\n"
        "@cli.app.command()\n"
        "def silent() -> None:\n"
        "    exec('raise KeyboardInterrupt')\n"
        "@cli.app.command()\n"
        "def speaking() -> None:\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        raise Stopped from None\n"
        "cli.main()\n"
    )
    for command, words in (("silent", "Stopped."), ("speaking", "")):
        done = subprocess.run(
            [sys.executable, "-m", "interrupted", command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 130
        assert done.stderr.strip() == words


def test_select_does_not_write_over_its_input(files: Path) -> None:
    before = (files / "p.npy").read_bytes()
    done = run("select", "-s", "entropy", "-k", 3, "--probs", files / "p.npy", "--out", files / "p.npy")
    assert done.returncode == 1
    assert "also an input" in done.stderr
    assert (files / "p.npy").read_bytes() == before


@pytest.mark.slow
def test_demo_says_at_once_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = run("demo", "--out", tmp_path / "taken")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "Labelwise demo" not in done.stdout


def test_a_stopped_demo_reports_complete_seeds_only() -> None:
    from labelwise.bench.suite.compare import Comparison
    from labelwise.cli.comparison import complete_seeds

    plan = Comparison(("random", "margin"), (0, 1), 10, 10, 1)
    runs = [("random", 0, 2), ("margin", 0, 2), ("random", 1, 2), ("margin", 1, 1)]
    records = [lw.Record("r", s, seed, n, 10 * n, {"accuracy": 0.5}) for s, seed, m in runs for n in range(m)]
    assert {record.seed for record in complete_seeds(plan, records)} == {0}
    assert complete_seeds(plan, records[:3]) == []
