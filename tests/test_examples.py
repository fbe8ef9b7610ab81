"""The scripts in `examples/` run as they stand, and are short."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.slow


def run(name: str, folder: Path, answers: str = "") -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, input=answers, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arrays.py", "80 labels"),
        ("torch_loop.py", "120 labels"),
        ("regression.py", "of 10 certificates are good"),
        ("own_strategy.py", "far-and-unsure accuracy after each round"),
    ],
)
def test_it_runs(name: str, expected: str, tmp_path: Path) -> None:
    assert expected in run(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_session_continues_where_it_was(tmp_path: Path) -> None:
    first = run("session.py", tmp_path, "3\nthree\n4\n5\n6\n7\n8\n")
    assert "a digit from 0 to 9, please" in first
    assert "5 labels; of all digits" in first
    assert "6 labels are in digits-session" in first
    assert "8 labels are in digits-session" in run("session.py", tmp_path, "1\n2\n")


def test_each_is_in_the_list_and_fits_a_page() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 5
    for script in scripts:
        assert f"[{script.name}]({script.name})" in listed
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
