"""What a new user sees: flags in help, hints at wrong names, existing files, progress without a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import labelwise as lw
from labelwise.cli import app
from labelwise.errors import ArgumentError, StoreError

GROUP = get_command(app)
COMMANDS = [
    *([name] for name in GROUP.commands),
    *(["bench", name] for name in GROUP.commands["bench"].commands),
    *(["label-studio", name] for name in GROUP.commands["label-studio"].commands),
]


def invoke(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_shows_flags_as_flags_and_no_python_types(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    options = invoke(*command, "--help").partition("Options")[2]
    assert re.search(r"--help +Show this message", options)
    assert not re.findall(r"<(bool|int|float|str|path|list)|BOOLEAN|INTEGER|default: None", options)


def test_select_replaces_an_existing_file_only_with_force(tmp_path: Path) -> None:
    probs, out = tmp_path / "p.npy", tmp_path / "picks.csv"
    np.save(probs, np.random.default_rng(0).dirichlet(np.ones(3), 30))
    words = ("select", "-s", "margin", "--k", 2, "--probs", probs, "--out", out)
    out.write_text("labels of last week")
    with pytest.raises(StoreError, match=r"already exists.*--force"):
        invoke(*words)
    assert out.read_text() == "labels of last week"
    invoke(*words, "--force")
    assert out.read_text().startswith("id,score,weight")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("select", "-s", "bagde", "-k", 2), "badge"),
        (("verify", "bagde"), "badge"),
        (("simulate", "table.csv", "--target", "y", "--strategies", "magrin"), "margin"),
        (("bench", "run", "smoek"), "smoke"),
        (("reproduce", "sabal/tabel2"), "sabal/table2"),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else part,
)
def test_a_wrong_name_gets_the_nearest_one(
    words: tuple[object, ...], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,y\n" + "".join(f"{row % 7},{row % 2}\n" for row in range(60)))
    with pytest.raises(ArgumentError, match=f"did you mean '{meant}'"):
        invoke(*words)


def test_a_packaged_suite_is_found_by_its_name_and_a_path_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    from labelwise.bench import suites

    monkeypatch.chdir(tmp_path)
    by_name = invoke("bench", "run", "smoke", "--plan")
    (tmp_path / "mine.yaml").write_text((suites.FOLDER / "smoke.yaml").read_text())
    assert invoke("bench", "run", "mine.yaml", "--plan") == by_name
    listed = invoke("bench", "suites")
    assert all(name in listed for name in suites.names())


def test_a_comparison_shows_progress_without_a_terminal() -> None:
    from labelwise.bench.suite.compare import Comparison
    from labelwise.cli.comparison import Presentation, show_progress

    plan = Comparison(("random", "margin"), (0,), 10, 10, 1)
    records = [
        lw.Record("r", name, 0, n, 10 + 10 * n, {"accuracy": 0.5}) for name in ("random", "margin") for n in (0, 1)
    ]
    told = io.StringIO()
    show_progress(plan, iter(records), Console(file=told, width=60), Presentation("t", "accuracy", {}, (), False))
    assert told.getvalue().splitlines() == [
        "2/4 rounds: random, seed 0, test accuracy 50.0 % at 20 labels",
        "4/4 rounds: margin, seed 0, test accuracy 50.0 % at 20 labels",
    ]


def test_the_table_of_a_comparison_cuts_no_number_on_a_narrow_terminal() -> None:
    from labelwise.cli.comparison import _table
    from labelwise.stats.summary import summarise

    records = [
        lw.Record("r", name, seed, n, 20 * n, {"accuracy": 0.5 + n * rise + 0.001 * seed}, select_seconds=0.01)
        for name, rise in (("random", 0.05), ("typiclust+margin", 0.08))
        for seed in range(10)
        for n in range(1, 6)
    ]
    shown = io.StringIO()
    Console(file=shown, width=76).print(_table(summarise(records)))
    assert "labels saved" in shown.getvalue()
    assert "…" not in shown.getvalue(), shown.getvalue()
