"""A labelled project as a simulation."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from fake_project import digits_table
from labelwise.bench.suite.replay import ONLY, replay_of
from labelwise.cli import app
from labelwise.errors import BudgetError, LabelError
from labelwise.project import Project, Settings
from labelwise.project.loop.rounds import finish_round, make_round
from labelwise.stats.record import read_records

Y = load_digits().target
N = 240


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of 240 digits, three rounds of 24 of which are labelled."""
    folder = tmp_path_factory.mktemp("digits")
    with closing(Project.create(folder / "project", digits_table(folder, N, 24))) as project:
        for number in (1, 2, 3, 4):
            after = project.store.last_seq()
            assert make_round(project, number, after)
            if number > 1:
                finish_round(project, number, after)
            while number < 4 and (task := project.store.next_task("ann")) is not None:
                project.store.answer(task.token, "ann", "label", str(Y[task.row]), 4.0)
    return folder / "project"


def test_rows_and_splits_of_a_replay(digits: Path) -> None:
    with closing(Project.open(digits)) as project:
        found = replay_of(project)
        answers = project.store.answers()
    assert len(found.rows) == 72
    assert [found.classes[int(number)] for number in found.label_N] == [
        answers[row].value for row in found.rows.tolist()
    ]
    one, other = found.data(0, 0.3), found.data(1, 0.3)
    assert len(one.test) == 22
    assert set(one.test.ids.tolist()).isdisjoint(one.pool.ids.tolist())
    assert sorted([*one.test.ids.tolist(), *one.pool.ids.tolist()]) == found.rows.tolist()
    assert one.test.ids.tolist() != other.test.ids.tolist()
    assert one.test.ids.tolist() == found.data(0, 0.3).test.ids.tolist()
    plan = found.plan(("random",), 2, 5, 0.3)
    assert plan.start + plan.n * plan.k <= 50
    with pytest.raises(BudgetError, match="too few"):
        found.plan(("random",), 2, 40, 0.3)


@pytest.mark.slow
def test_replay_compares_and_says_what_it_is_worth(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "replay"
    arguments = ["bench", "replay", str(digits), "--strategies", "margin,badge", "--seeds", "2", "-k", "8"]
    run = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert run.exit_code == 0, run.output
    told = " ".join(run.output.split())
    assert ONLY in told
    records = read_records(out / "records.jsonl")
    assert {one.strategy for one in records} == {"random", "margin", "badge"}
    for seed in (0, 1):  # each strategy starts from the same rows
        first = [one.metrics["accuracy"] for one in records if one.seed == seed and one.round == 0]
        assert len(set(first)) == 1
    last = [one.metrics["accuracy"] for one in records if one.round == max(r.round for r in records)]
    assert np.mean(last) > 0.4  # chance is 0.1
    assert "on these rows only" in (out / "report.html").read_text()
    again = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert "Continuing the runs in the folder" in " ".join(again.output.split())


def test_a_replay_needs_labels(digits: Path, tmp_path: Path) -> None:
    settings = Settings(name="few", kind="table", source="../few.csv", columns=("a",), classes=("x", "y"))
    (tmp_path / "few.csv").write_text("a\n" + "".join(f"{row}\n" for row in range(60)))
    with closing(Project.create(tmp_path / "project", settings)) as project:
        project.store.import_labels([(row, "x") for row in range(20)], "list")
        with pytest.raises(BudgetError, match="20 rows have a label"):
            replay_of(project)
        project.store.import_labels([(row, "x") for row in range(60)], "list")
        with pytest.raises(LabelError, match="two classes"):
            replay_of(project)
